"""Dead letters: reading them page by page, choosing among them, and counting them by where and why they died.

Reading leases nothing and changes nothing.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rqttl import units
from rqttl.cli.common import messages, output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.instants import instant
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import F
from rqttl.errors import InvalidInput
from rqttl.options import REASONS
from rqttl.types import Peeked

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Messages, and about how many bytes of their bodies, that are read together.
PAGE = 1_000
PAGE_BYTES = 1 << 22
#: An instant, or how long ago.
When = datetime | timedelta


def pages(queue: Queue) -> Iterator[list[Peeked]]:
    """All messages of a queue in order, few of them at a time in memory."""
    most, after = 20, None
    while page := queue.peek(most, after=after):
        yield page
        after = page[-1].sequence
        size = sum(len(message.body) for message in page)
        most = max(1, min(PAGE, PAGE_BYTES * len(page) // max(1, size)))


def read(queue: Queue) -> Iterator[Peeked]:
    """All messages of a queue, as `pages` has them. On a terminal a long reading shows how far it is."""
    with Progress(None, in_bytes=False) as progress:
        for page in pages(queue):
            progress.advance(0, len(page))
            yield from page


def died_at(message: Peeked) -> datetime:
    """When it last died; when it came, if it never did."""
    return message.deaths[0].last_at if message.deaths else message.enqueued_at


def _has(message: Peeked, name: str, wanted: str) -> bool:
    """Whether it has this header: a text as it is, anything else as it is shown."""
    if name not in message.headers:
        return False
    value = message.headers[name]
    return wanted == (value if isinstance(value, str) else messages.header(value))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters are meant. A message that has not died never is."""

    sources: frozenset[str]
    reasons: frozenset[str]
    older_than: When | None
    newer_than: When | None
    headers: tuple[tuple[str, str], ...]
    ids: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether nothing was said."""
        named = self.sources or self.reasons or self.headers or self.ids
        return not named and self.older_than is None and self.newer_than is None

    def at(self, now: datetime) -> Callable[[Peeked], bool]:
        """Says of each message whether it is meant; ages count from `now`."""
        before, since = (_moment(one, now) for one in (self.older_than, self.newer_than))

        def meant(message: Peeked) -> bool:
            if not message.deaths:
                return False
            death = message.deaths[0]
            return (
                (not self.ids or message.id in self.ids)
                and (not self.sources or death.queue in self.sources)
                and (not self.reasons or death.reason in self.reasons)
                and (before is None or death.last_at < before)
                and (since is None or death.last_at >= since)
                and all(_has(message, name, value) for name, value in self.headers)
            )

        return meant


def refuse_missing(queue: str, ids: Iterable[str]) -> None:
    """Raise `Refused` if there are letters that were asked for by their ids and not found."""
    if missing := sorted(ids):
        raise Refused(f"no such letter in {queue}: {', '.join(one or repr(one) for one in missing)}", "not_found")


def _moment(when: When | None, now: datetime) -> datetime | None:
    return now - when if isinstance(when, timedelta) else when


def letter_filters(command: F) -> F:
    """Give a command the options that say which letters are meant, and pass it `wanted`."""

    @functools.wraps(command)
    def filtered(
        *args: Any,
        sources: Sequence[str],
        reasons: frozenset[str],
        older_than: When | None,
        newer_than: When | None,
        headers: tuple[tuple[str, str], ...],
        **options: Any,
    ) -> Any:
        wanted = Wanted(frozenset(sources), reasons, older_than, newer_than, headers)
        return command(*args, wanted=wanted, **options)

    decorated: Any = filtered
    for add in (
        click.option("--header", "headers", multiple=True, callback=_read_headers, metavar="KEY=VALUE",
                     help="Only with this header; repeated: with all."),
        click.option("--newer-than", callback=_read_when, metavar="WHEN", help="Only those that died since then."),
        click.option("--older-than", callback=_read_when, metavar="WHEN",
                     help="Only those that died before: 7d (ago), 2026-11-21T10:00Z."),
        click.option("--reason", "reasons", multiple=True, callback=_read_reasons, metavar="REASON",
                     shell_complete=_complete_reasons,
                     help=f"Only of this reason: {', '.join(REASONS)}; may be repeated."),
        click.option("--source", "sources", multiple=True, metavar="QUEUE", shell_complete=complete_queues,
                     help="Only those that died in this queue; may be repeated."),
    ):  # fmt: skip
        decorated = add(decorated)
    return decorated  # type: ignore[no-any-return]  # for whoever calls it, which is click, it is the same


def _complete_reasons(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [reason for reason in REASONS if reason.startswith(begun.lower().replace("-", "_"))]


def _read_reasons(context: click.Context, option: click.Parameter, values: Sequence[str]) -> frozenset[str]:
    found = set()
    for value in values:
        reason = value.lower().replace("-", "_")
        if reason not in REASONS:
            near = difflib.get_close_matches(reason, REASONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(REASONS)}"
            raise click.BadParameter(f"no such reason {value!r}; {hint}", context, option)
        found.add(reason)
    return frozenset(found)


def _read_headers(
    context: click.Context, option: click.Parameter, values: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    found = []
    for value in values:
        name, equals, wanted = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"expected KEY=VALUE, got {value!r}", context, option)
        found.append((name, wanted))
    return tuple(found)


def _read_when(context: click.Context, option: click.Parameter, value: str | None) -> When | None:
    """An age such as 7d, or an absolute time."""
    if value is None:
        return None
    try:
        return units.as_timedelta(units.duration(value, "age"))
    except InvalidInput:
        pass
    try:
        return units.as_datetime(instant(value, "time"))
    except InvalidInput as error:
        said = str(error).removeprefix("time: ").replace("expected a time", "expected an age such as 7d, or a time", 1)
        raise click.BadParameter(said, context, option) from None


@dataclass(slots=True)
class Group:
    """Messages that died last in one queue for one reason; both are None of messages that never died."""

    source: str | None
    reason: str | None
    oldest: datetime
    newest: datetime
    count: int = 0
    leased: int = 0
    delayed: int = 0
    size: int = 0

    def add(self, message: Peeked, died: datetime) -> None:
        """Count one more."""
        self.count += 1
        self.leased += message.state == "leased"
        self.delayed += message.state == "delayed"
        self.size += len(message.body)
        if died < self.oldest:
            self.oldest = died
        elif died > self.newest:
            self.newest = died


class Groups:
    """Messages counted by where and why they died last."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str] | None, Group] = {}

    def add(self, message: Peeked) -> None:
        """Count a message."""
        death = message.deaths[0] if message.deaths else None
        died = died_at(message)
        key = (death.queue, death.reason) if death else None
        group = self._found.get(key)
        if group is None:
            source, reason = key or (None, None)
            group = self._found[key] = Group(source, reason, died, died)
        group.add(message, died)

    def total(self, what: str = "count") -> int:
        """How many messages, or bytes (`size`), in all groups."""
        return sum(getattr(group, what) for group in self._found.values())

    def ordered(self) -> list[Group]:
        """The largest first, those that never died last."""
        return sorted(self._found.values(), key=lambda g: (g.reason is None, -g.count, g.source or "", g.reason or ""))

    def facts(self) -> list[dict[str, Any]]:
        """For `text.as_json`."""
        return [
            {"source": g.source, "reason": g.reason, "count": g.count, "leased": g.leased, "delayed": g.delayed,
             "bytes": g.size, "oldest_at": g.oldest, "newest_at": g.newest}
            for g in self.ordered()
        ]  # fmt: skip


def show_groups(groups: Groups, now: datetime, *, utc: bool) -> None:
    """A table of groups, with totals where there are several."""
    ordered = groups.ordered()
    rows = [
        [text.visible(g.source or "-"), text.visible(g.reason or "(never died)"), text.count(g.count),
         text.moment(g.oldest, now, utc=utc), text.moment(g.newest, now, utc=utc), text.size(g.size)]
        for g in ordered
    ]  # fmt: skip
    total = None
    if len(ordered) > 1:
        total = ["total", "", text.count(groups.total()), "", "", text.size(groups.total("size"))]
    output.table(["source", "reason", ">count", ">oldest", ">newest", ">bytes"], rows, total)


def out(leased: int, delayed: int) -> str:
    """How many are not ready, in words; empty if all are."""
    return " and ".join(f"{text.count(n)} {state}" for n, state in ((leased, "leased"), (delayed, "delayed")) if n)


def note_targets(queue: Queue) -> None:
    """Say where the dead letters of the queue itself go, in case that is what was looked for."""
    options = queue.options()
    targets: dict[str, list[str]] = {}
    for reason in REASONS:
        target = options.target(reason)
        if target and target != queue.name:
            targets.setdefault(target, []).append(reason)
    if targets:
        said = (f"{target} ({', '.join(why)})" if len(targets) > 1 else target for target, why in targets.items())
        output.note(f"dead letters of {queue.name} go to {' and '.join(said)}")
