"""The reaper: it does the due work of queues on time, also of queues that no client uses.

Any number of reapers may run at once. Correctness never depends on one: every call checks deadlines itself.
"""

from rqttl.reaper.loop import Reaper
from rqttl.reaper.report import Totals

__all__ = ["Reaper", "Totals"]
