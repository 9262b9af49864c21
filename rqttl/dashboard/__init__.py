"""A dashboard: what is in the queues, what died and why, and the few actions that help."""
