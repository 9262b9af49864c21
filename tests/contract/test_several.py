"""Several queues in one `receive` and one `consume`: whose turn it is, one wait, missing queues, what it costs."""
