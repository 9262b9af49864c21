"""The doctor: is the server fit for queues, and are the queues sound? `rqttl doctor` is its front."""

from rqttl.doctor.checkup import examine, examine_queues, repair
from rqttl.doctor.findings import Finding, Level, Repair

__all__ = ["Finding", "Level", "Repair", "examine", "examine_queues", "repair"]
