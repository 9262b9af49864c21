"""Flows about single messages: finding them by id or sequence, and what an operator does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from rqttl import checks
from rqttl.errors import InvalidInput, MessageLeased, QueueFull, SearchIncomplete
from rqttl.flows.messages import check_near, living, scheduled_with
from rqttl.flows.steps import Flow, GetConfig, existing, with_config
from rqttl.flows.sweeping import sweep
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, Command, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.types import MessageView
from rqttl.units import as_datetime

#: The number of messages that `message` looks through, unless the caller names another.
SCAN = 10_000


def message(keyspace: Keyspace, queue: str, id: str, scan: int | None = SCAN) -> Flow[MessageView | None]:
    """See `Queue.message`."""
    most = None if scan is None else checks.whole(scan, "scan")
    views = yield from messages(keyspace, queue, id, most, 1)
    return views[0] if views else None


def messages(
    keyspace: Keyspace, queue: str, id: str, scan: int | None = None, scheduled: float = inf
) -> Flow[list[MessageView]]:
    """See `Queue.messages`, and `search`."""
    views, complete = yield from search(keyspace, queue, id, scan, scheduled)
    if not views and not complete:
        raise SearchIncomplete(queue, id)
    return [replace(view, complete=complete) for view in views]


def search(
    keyspace: Keyspace, queue: str, id: str, scan: int | None = None, scheduled: float = inf, after: str = ""
) -> Flow[tuple[list[MessageView], bool]]:
    """The messages with this sequence or id, and whether the search saw the whole queue.

    A message without an id goes by its first sequence, also where it has another one by now. Of scheduled messages
    it reads the first `scheduled` ones, and of all others those with a sequence `after` this one.
    """
    id = codec.check_id(id).decode()
    if codec.is_sequence(id):
        page = yield from existing(queue, commands.peek(keyspace, queue, after=codec.sequence_before(id), limit=1))
        if views := [view for view in living(queue, page) if view.sequence == id]:
            return views, True
    # scheduled ones first: one that arrives meanwhile is not missed
    views = (yield from scheduled_with(keyspace, queue, id, scheduled)) if scheduled else []
    seen, place, whole = 0, after, True
    while scan is None or seen <= scan:
        most = BATCH if scan is None else min(BATCH, scan + 1 - seen)
        page = yield from existing(queue, commands.peek(keyspace, queue, after=place, limit=most, id=id))
        if not page.looked:
            return views, whole
        views += living(queue, page)
        whole = whole and not page.cut
        seen, place = seen + page.looked, page.last.decode()
    return views, False


def intervene(
    keyspace: Keyspace, queue: str, what: str, id: str, description: str | None = None, *, dry_run: bool = False
) -> Flow[int]:
    """Do something to all messages with an id. See `Queue.delete_message`; `what` is as for `commands.intervene`."""
    text = codec.pack_description(description)
    build = partial(commands.intervene, what=what, description=text, dry=dry_run)
    return _act(keyspace, queue, id, queue, build, dry_run=dry_run)


def move(keyspace: Keyspace, queue: str, id: str, to: str, *, dry_run: bool = False) -> Flow[int]:
    """See `Queue.move`."""
    to = checks.check_queue_name(to, "to")
    if to == queue:
        raise InvalidInput(f"to: expected another queue than {queue!r}")
    check_near(keyspace, queue, to)
    return _act(keyspace, queue, id, to, partial(commands.move, source=queue, dry=dry_run), dry_run=dry_run)


def _act(
    keyspace: Keyspace, queue: str, id: str, place: str, build: Callable[..., Command], *, dry_run: bool
) -> Flow[int]:
    """Find the messages, and run the command on them under the options of the queue `place`. Returns their number."""
    codec.check_id(id)
    if place != queue:
        for name in (queue, place):
            yield GetConfig(name, fresh=True)
    if not dry_run:
        yield from sweep(queue)
    views, complete = yield from search(keyspace, queue, id)
    ids = {view.sequence: view.id for view in views}
    if not complete:
        raise SearchIncomplete(queue, id, [*ids])
    done, left = 0, [*ids]
    while left:
        answer = yield from with_config(place, partial(build, sequences=left[:BATCH]))
        if answer.leased:
            leased = answer.leased.decode()
            raise MessageLeased(queue, ids[leased], as_datetime(answer.ends))
        if limit := getattr(answer, "limit", b"").decode():
            config: QueueConfig = yield GetConfig(place)
            raise QueueFull(place, limit, config.options.number(limit) or 0)
        done, left = done + answer.done, left[answer.looked :]
    return done
