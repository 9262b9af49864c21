"""The doctor checks the server and the queues, and names the remedy of each fault. `rqttl doctor` is its front."""

from rqttl.doctor.checkup import examine
from rqttl.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
