"""`rqttl apply`, `rqttl export` and `rqttl import`: whole deployments, and definitions of other brokers."""

from rqttl.cli.deployment.apply import apply
from rqttl.cli.deployment.export import export
from rqttl.cli.deployment.importing import import_group

__all__ = ["apply", "export", "import_group"]
