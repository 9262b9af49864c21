"""The parts of a consumer beside its loop: its books, its calls, its second thread, settling, waiting for Redis."""
