"""The names of queues, for the shell: what a half-typed QUEUE may become."""

from __future__ import annotations

import os
import threading

import click

#: Seconds that the person at the keyboard waits for the names at most.
PATIENCE = 1.0


def complete_queues(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """The queues whose names begin so, without those that were given already. For `shell_complete`.

    Nothing where no Redis answers in time, and no embedded server is started for it.
    """
    found: list[str] = []
    # a thread, since nothing else bounds the time that looking up a host may take; the process ends without it
    url = _given(context, "url") or os.environ.get("RQTTL_URL") or "embedded://"
    namespace = _given(context, "namespace") or "rqttl"
    asking = threading.Thread(target=_ask, args=(url, namespace, found), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    taken = context.params.get(param.name or "") or ()
    return [name for name in tuple(found) if name.startswith(begun) and (isinstance(taken, str) or name not in taken)]


def _given(context: click.Context, option: str) -> str | None:
    """The value of an option of this command, or the one before its name. Read here: no command is run."""
    inner: click.Context | None = context
    while inner is not None:
        if value := inner.params.get(option):
            return str(value)
        inner = inner.parent
    return None


def _ask(url: str, namespace: str, found: list[str]) -> None:
    try:
        import rqttl
        from rqttl import embedded

        running = embedded.find(embedded.folder_of(url)) if url.startswith(embedded.SCHEME) else url
        if running is None:
            return
        with rqttl.connect(running, namespace=namespace) as broker:
            found += broker.queues()
    except Exception:  # noqa: BLE001, S110  # any word about it would be written into the line that is being typed
        pass
