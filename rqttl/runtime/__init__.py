"""Ends of waits, signals, pauses and a bounded memory. This package has no I/O and knows no queues."""
