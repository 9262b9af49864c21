"""The doctor checks the server and the queues, and repairs damage. `rqttl doctor` is its front."""

from rqttl.doctor.checkup import examine, examine_queues, repair
from rqttl.doctor.findings import Finding, Level, Repair

__all__ = ["Finding", "Level", "Repair", "examine", "examine_queues", "repair"]
