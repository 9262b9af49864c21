"""A redis-server for machines without one: it starts with its first user and ends after its last user."""

from rqttl.embedded.server import EmbeddedServer, EmbeddedUnavailable, acquire, find_binary, serve

__all__ = ["EmbeddedServer", "EmbeddedUnavailable", "acquire", "find_binary", "serve"]
