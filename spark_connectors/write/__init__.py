"""Writes of rows into queues."""
