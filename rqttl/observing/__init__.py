"""Observers: objects that see each call about messages, and may add headers to messages that are sent.

A broker has one observer or none. `observer` is the interface, `watching` calls observers, and `several` joins them.
Without an observer a call makes one comparison with `None`.
"""

from rqttl.observing.observer import Observer, Received, Sending
from rqttl.observing.several import Observers, checked, joined, members, observe_new, observer_of_new
from rqttl.observing.watching import handling, observed, observed_async, received, sending, settled, settling, swept

__all__ = [
    "Observer",
    "Observers",
    "Received",
    "Sending",
    "checked",
    "handling",
    "joined",
    "members",
    "observe_new",
    "observed",
    "observed_async",
    "observer_of_new",
    "received",
    "sending",
    "settled",
    "settling",
    "swept",
]
