"""The reaper: does the due work of queues on time, whether or not anybody sends or receives.

Any number may run at once. Correctness never depends on one: every call checks deadlines itself.
"""

from rqttl.reaper.loop import Reaper
from rqttl.reaper.report import Totals

__all__ = ["Reaper", "Totals"]
