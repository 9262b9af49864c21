"""The only I/O: the driver performs the steps of flows, the store talks to Redis."""
