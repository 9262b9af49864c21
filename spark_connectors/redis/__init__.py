"""The way to Redis: connections, bulk replies, and the digits in them."""
