"""The worker: it consumes queues, and runs handlers in child processes that never talk to Redis."""
