"""Structured Streaming reads, which follow queues from a checkpoint."""
