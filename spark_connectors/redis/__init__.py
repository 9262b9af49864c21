"""All access to Redis: connections, raw bulk replies, and the brokers of writers."""
