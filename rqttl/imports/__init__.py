"""Definitions of other brokers, read as queues and policies of rqttl. Nothing here does I/O."""
