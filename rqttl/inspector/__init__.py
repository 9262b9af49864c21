"""Queues, messages and dead letters as fronts show them. Modules here only read, and print nothing.

The command line uses them, as a dashboard or an exporter of metrics can.
"""
