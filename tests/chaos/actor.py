"""One client process of a campaign: its journal, its connection, and the rule for errors that it may meet."""

import ctypes
import faulthandler
import logging
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from redis.exceptions import (
    ConnectionError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

import rqttl
from rqttl.store.addresses import read_url
from rqttl.store.cluster import Seeds, open_client
from rqttl.store.sentinel import is_service
from tests.chaos.journal import Journal
from tests.chaos.witness import Witness

#: Words by which a Redis says that it does not serve now; 6.2 wraps what a script meets into another error.
REFUSALS = ("READONLY", "NOREPLICAS", "MISCONF", "MASTERDOWN", "BUSY", "LOADING", "OOM", "UNBLOCKED")
_PR_SET_PDEATHSIG = 1
#: Typed errors that faults explain. The judge asks for a storm of `SCRIPT FLUSH` where there is `ScriptsForgotten`.
_EXPLAINED = (rqttl.OutcomeUnknown, rqttl.LeaseLost, rqttl.QueueFull, rqttl.ScriptsForgotten)


@dataclass(frozen=True)
class Part:
    """The part of one process: its name, its role, its seed, the URL that it uses and the folder of its journal.

    At the ports of the servers behind Sentinel or in a cluster it uses other `ports`, those of lines.
    """

    name: str
    role: str
    seed: str
    url: str
    ports: Mapping[int, int]
    folder: Path

    def connect(self) -> rqttl.Broker:
        """A broker that reaches the servers in this way."""
        client: Any = open_client(read_url(self.url))
        if isinstance(client, Seeds):
            client = client._replace(remap=self._place)
        elif is_service(client):
            service = client.connection_pool.connection_kwargs["service"]
            told = service._address  # what Sentinels say
            service._address = lambda host, port: self._place(told(host, port))
        return rqttl.Broker(client)

    def _place(self, place: tuple[str, int]) -> tuple[str, int]:
        host, port = place
        return host, self.ports.get(port, port)


def may_happen(error: BaseException, *, patient: bool = False) -> bool:
    """Return True for an error that faults explain: no connection, a refusal, an unknown outcome, a lost lease.

    Of a `patient` call, which is made again until a failover is over, only the last two.
    """
    if patient:
        return isinstance(error, _EXPLAINED)
    if isinstance(error, ConnectionError | TimeoutError | ReadOnlyError | OutOfMemoryError | MasterDownError):
        return True
    if isinstance(error, ResponseError):
        return any(word in str(error) for word in REFUSALS)
    return isinstance(error, _EXPLAINED)


@dataclass
class Actor:
    """The tools of every role."""

    part: Part
    journal: Journal
    broker: rqttl.Broker
    witness: Witness
    random: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    #: Called by SIGTERM, for a role that waits in a loop of rqttl. A role that sets it looks at `asked` afterwards.
    on_stop: Callable[[], object] = lambda: None
    #: Whether SIGTERM came. `stopping` may be set a little later.
    asked: bool = False
    made: int = 0

    def new_id(self) -> str:
        """Return an id that no other message of the campaign has."""
        self.made += 1
        return f"{self.part.name}-{self.made}"

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Begin nothing new. It is the handler of SIGTERM."""
        self.asked = True
        # `Event.set` takes a lock that the interrupted thread may hold, so another thread does it
        threading.Thread(target=self.stopping.set, daemon=True).start()
        self.on_stop()

    def attempt(self, act: Callable[[], object]) -> bool:
        """Do something that faults may hinder. Returns False if it failed."""
        try:
            act()
        except (RedisError, rqttl.RqttlError) as error:
            self.report(error)
        except Exception as error:  # noqa: BLE001  # any other error of a call is a finding
            self.unexplained(error)
        else:
            return True
        self.stopping.wait(0.02)
        return False

    def report(self, error: BaseException) -> None:
        """Write down an error: one that may happen, or one that is a finding."""
        if may_happen(error, patient="+" in self.part.url):
            self.journal.write("error", type=type(error).__name__, text=str(error)[:200])
        else:
            self.unexplained(error)

    def unexplained(self, error: BaseException, where: str = "") -> None:
        """Write down an error that no fault explains, with its traceback in the log."""
        sys.stderr.write("".join(traceback.format_exception(error)))
        text = f"{where or self.part.role}: {type(error).__name__}: {str(error)[:300]}"
        self.journal.write("unexplained", text=text)

    def rest(self, most: float) -> None:
        """Leave the machine to others for up to so many seconds."""
        self.stopping.wait(self.random.random() * most)


def perform(part: Part, roles: dict[str, Callable[[Actor], None]]) -> None:
    """Play a part until SIGTERM: the body of a client process."""
    _prepare(part)
    journal = Journal(part.folder, f"{part.name}.{time.monotonic_ns() % 10**9}")
    witness = Witness(journal)
    witness.install()
    witness.broker = broker = part.connect()
    actor = Actor(part, journal, broker, witness, random.Random(part.seed))
    signal.signal(signal.SIGTERM, actor.stop)
    journal.write("note", text=f"{part.role} began")
    try:
        roles[part.role](actor)
        broker.close()
    except BaseException as error:
        actor.unexplained(error, f"{part.role} ended")
        raise
    journal.write("note", text=f"{part.role} ended")


def _prepare(part: Part) -> None:
    """Let the process end with the one that started it, write its log to a file, and show its stacks at SIGUSR1."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = (part.folder / f"{part.name}.log").open("a", buffering=1)
    sys.stdout = sys.stderr = log
    logging.basicConfig(stream=log, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the terminal is for the director
