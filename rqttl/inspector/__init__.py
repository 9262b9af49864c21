"""Queues, messages and dead letters as fronts show them, and what they do to dead letters. Modules here print nothing.

The command line uses them, as a dashboard or an exporter of metrics can.
"""
