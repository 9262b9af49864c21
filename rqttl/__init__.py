"""rqttl: queues on Redis whose messages live and die by their TTL.

The names in `__all__` are public. All others may change in any release.

A public name is imported at its first use. The import of redis-py takes 100 ms, and a person who waits for help,
completion or a usage error of the command line does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rqttl.aio.broker import AsyncBroker, AsyncQueue, AsyncTopic, connect_async
    from rqttl.aio.consumer import AsyncConsumer, AsyncDelivery
    from rqttl.broker import Broker, connect
    from rqttl.consuming.consumer import Consumer
    from rqttl.delivery import Decision, Delivery, Reject, Release, Retry
    from rqttl.errors import (
        AlreadySettled,
        BrokerClosed,
        ContractError,
        DataDamaged,
        EmbeddedUnavailable,
        InvalidDeployment,
        InvalidDuration,
        InvalidImport,
        InvalidInput,
        InvalidName,
        InvalidOption,
        InvalidPolicy,
        LeaseLost,
        MalformedMessage,
        MessageLeased,
        MessageTooLarge,
        NotReplicated,
        OutcomeUnknown,
        PolicyDecides,
        PolicyNotFound,
        PoolExhausted,
        QueueForwards,
        QueueFull,
        QueueInUse,
        QueueMismatch,
        QueueNotFound,
        QueuesAway,
        RqttlError,
        ScriptsForgotten,
        SearchIncomplete,
    )
    from rqttl.events import (
        CommandEvent,
        Event,
        Events,
        Observer,
        Observers,
        Operation,
        RenewalEvent,
        SweepEvent,
        WaitEvent,
    )
    from rqttl.options import OptionArguments, QueueOptions, UpdateResult
    from rqttl.policies import Contender, Explained, Policy
    from rqttl.queue import Queue
    from rqttl.topic import Topic
    from rqttl.types import (
        ConsumerInfo,
        Death,
        Duration,
        Header,
        Instant,
        Message,
        MessageView,
        QueueStats,
        Receipt,
        RedriveResult,
        RunCounts,
        SweepResult,
        WorkerInfo,
    )
    from rqttl.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "AsyncBroker",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncQueue",
    "AsyncTopic",
    "Broker",
    "BrokerClosed",
    "CommandEvent",
    "Consumer",
    "ConsumerInfo",
    "Contender",
    "ContractError",
    "DataDamaged",
    "Death",
    "Decision",
    "Delivery",
    "Duration",
    "EmbeddedUnavailable",
    "Event",
    "Events",
    "Explained",
    "Header",
    "Instant",
    "InvalidDeployment",
    "InvalidDuration",
    "InvalidImport",
    "InvalidInput",
    "InvalidName",
    "InvalidOption",
    "InvalidPolicy",
    "LeaseLost",
    "MalformedMessage",
    "Message",
    "MessageLeased",
    "MessageTooLarge",
    "MessageView",
    "NotReplicated",
    "Observer",
    "Observers",
    "Operation",
    "OptionArguments",
    "OutcomeUnknown",
    "Policy",
    "PolicyDecides",
    "PolicyNotFound",
    "PoolExhausted",
    "Queue",
    "QueueForwards",
    "QueueFull",
    "QueueInUse",
    "QueueMismatch",
    "QueueNotFound",
    "QueueOptions",
    "QueueStats",
    "QueuesAway",
    "Receipt",
    "RedriveResult",
    "Reject",
    "Release",
    "RenewalEvent",
    "Retry",
    "RqttlError",
    "RunCounts",
    "ScriptsForgotten",
    "SearchIncomplete",
    "SweepEvent",
    "SweepResult",
    "Topic",
    "UpdateResult",
    "WaitEvent",
    "Worker",
    "WorkerInfo",
    "connect",
    "connect_async",
]

#: The modules with the public names, in the order of their import.
_MODULES = (
    "errors",
    "units",
    "options",
    "policies",
    "types",
    "events",
    "delivery",
    "queue",
    "topic",
    "consuming.consumer",
    "broker",
    "aio.broker",
    "worker.worker",
)

#: Sync names, whose asyncio twins begin with `Async` and share their docstrings, and methods that the twins name anew.
_TWINS = ("Broker", "Queue", "Topic", "Consumer", "Delivery")
_RENAMED = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}

if not TYPE_CHECKING:  # with this function a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            value = vars(import_module(f"rqttl.{module}")).get(name)
            if value is not None:
                break
        globals()[name] = value
        if "async" in name.lower():
            _share_docstrings()
        return value

    def _share_docstrings() -> None:
        """Give each asyncio method without a docstring that of its sync twin."""
        rqttl = import_module("rqttl")
        aio = vars(import_module("rqttl.aio.broker"))
        aio["connect_async"].__doc__ = rqttl.connect.__doc__
        for twin in _TWINS:
            for method, member in vars(aio[f"Async{twin}"]).items():
                if getattr(member, "__doc__", "") is None:
                    sync = vars(getattr(rqttl, twin)).get(_RENAMED.get(method, method))
                    member.__doc__ = getattr(sync, "__doc__", None)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
