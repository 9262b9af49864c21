"""Definitions of other brokers, read as queues, topics and policies of rqttl. Nothing here does I/O."""
