"""Writing rows into queues."""
