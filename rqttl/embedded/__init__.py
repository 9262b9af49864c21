"""A redis-server for machines without one: it starts with its first user and ends after its last user."""
