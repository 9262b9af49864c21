"""Names from Redis for the completion of a half-typed word: of queues, and of policies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: Seconds that the person at the keyboard waits for the names at most.
PATIENCE = 1.0


def complete_queues(context: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    """The queues whose names begin with `prefix`, without those on the line. For `shell_complete`."""
    return complete_names(context, param, prefix, lambda broker: broker.queues())


def complete_names(
    context: click.Context, param: click.Parameter, prefix: str, ask: Callable[[Broker], Iterable[str]]
) -> list[str]:
    """The names that begin with `prefix`, without those on the line. `ask` reads all names.

    The list is empty if no Redis answers in time. No embedded server is started for it.
    """
    names: list[str] = []
    # a thread, since nothing else bounds the time that looking up a host may take; the process ends without it
    url = _option_value(context, "url") or os.environ.get("RQTTL_URL") or "embedded://"
    namespace = _option_value(context, "namespace") or "rqttl"
    request = threading.Thread(target=_fetch, args=(url, namespace, names, ask), daemon=True)
    request.start()
    request.join(PATIENCE)
    taken = context.params.get(param.name or "") or ()
    return [name for name in tuple(names) if name.startswith(prefix) and (isinstance(taken, str) or name not in taken)]


def _option_value(context: click.Context, option: str) -> str | None:
    """The value of an option of this command, or of the same option before its name. No command has run yet."""
    inner: click.Context | None = context
    while inner is not None:
        if value := inner.params.get(option):
            return str(value)
        inner = inner.parent
    return None


def _fetch(url: str, namespace: str, names: list[str], ask: Callable[[Broker], Iterable[str]]) -> None:
    """Append all names to `names`."""
    try:
        import rqttl
        from rqttl.embedded.folder import SCHEME, folder_of
        from rqttl.embedded.server import find

        running = find(folder_of(url)) if url.startswith(SCHEME) else url
        if running is None:
            return
        with rqttl.connect(running, namespace=namespace) as broker:
            names += ask(broker)
    except Exception:  # noqa: BLE001, S110  # any word about it would be written into the line that is being typed
        pass
