"""ARM templates of Azure Service Bus. `read_template` reads one; compiled Bicep has the same form."""

from rqttl.imports.servicebus.parameters import read_parameter_file
from rqttl.imports.servicebus.template import read_template

__all__ = ["read_parameter_file", "read_template"]
