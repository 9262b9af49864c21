"""rqttl against other queues on Redis, in one run: `make compare`."""
