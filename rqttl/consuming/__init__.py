"""The parts of a consumer beside its loop: bookkeeping, calls, the renewer thread, settling, waiting for Redis."""
