"""Ends of waits, signals and pauses. No I/O here, and no word of queues."""
