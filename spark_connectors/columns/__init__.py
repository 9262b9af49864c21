"""Arrow columns made of the entries of logs."""
