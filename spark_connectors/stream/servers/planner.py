"""The plan of a stream over several servers: a planner for each, whose offsets are one offset.

Each server is planned by itself: the name of its data, its losses, its deleted queues, and the removal of messages that
a query has read. Only the limit, the wait for enough messages, and the check of names are common.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from rqttl.protocol.keys import Keyspace
from spark_connectors.errors import DataLoss, InvalidOffset, InvalidOption, Unreachable
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.read.plan import task_count
from spark_connectors.read.servers import merge_tasks, naming, refuse_same_data, shares_of_tasks
from spark_connectors.read.watch import WatchedRange, present_birth
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.draft import BatchDraft
from spark_connectors.stream.offsets import Offset, batch_ranges
from spark_connectors.stream.pace import BatchDelay
from spark_connectors.stream.planner import StreamPlanner, refuse_missing
from spark_connectors.stream.servers.absence import Absences, ServerIsAway
from spark_connectors.stream.servers.limit import Ends, ServerPart, SharedLimit
from spark_connectors.stream.servers.offset import NO_QUEUE, ServersOffset
from spark_connectors.stream.unread import BatchLimit

#: A look at all servers that takes longer, in seconds, and longer than usual, is repeated. After the retries of a lost
#: connection, for example, the state of the first server would be much older than that of the last one.
_LONGEST_LOOK = 0.2
_LOOKS = 3


class ServersPlanner:
    """Plans the batches of one query over several servers. Connects at its first question to Redis."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._of_servers = options.of_servers()
        self._planners = {server: StreamPlanner(of_server) for server, of_server in self._of_servers.items()}
        self._absences = Absences(skips=options.text("onServerLost") == "skip")
        self._equal = options.text("shareLimit") == "equal"
        least = options.optional_number("minEntriesPerTrigger")
        self._delay = None if least is None else BatchDelay(least, options.number("maxTriggerDelay"))
        self._names_checked = False
        #: The seconds of the last look at all servers.
        self._look_time = 0.0
        #: The servers whose messages the query reads until its end, if it ends with the present ones.
        self._frozen: set[str] | None = None
        #: The server of an offset that has no name of a server.
        self._adopter = ""

    parse = staticmethod(ServersOffset.parse)

    def close(self) -> None:
        """Close all connections. The next question opens them again."""
        for planner in self._planners.values():
            planner.close()

    # -------------------------------------------------------------------------------------------- offsets

    def initial(self) -> ServersOffset:
        """Return the start of a new query. A server that is away joins later, with the start of a new query.

        Raises the error of a server that is away if no other one is there, or if the start is `latest`: nobody would
        know the end of its queues at the start of the query.
        """
        offsets: dict[str, Offset] = {}
        causes: list[str] = []
        for server in self._present():
            try:
                with self._absences.guard(server):
                    offsets[server] = self._planners[server].initial(required=False)
            except ServerIsAway as error:
                self._planners[server].close()
                causes.append(str(error))
        if self._absences.names and (not offsets or self._starts_at_latest()):
            cause = next(iter(causes), f"url: servers are away: {', '.join(self._absences.names)}")
            raise Unreachable(
                f"{cause.rstrip('.')}. A new query needs one server at least, and with latest all of them"
            )
        self._check_together(offsets, {server: offset.birth for server, offset in offsets.items()})
        return ServersOffset(offsets)

    def latest(self, start: ServersOffset, limit: BatchLimit | None, *, may_wait: bool = False) -> ServersOffset:
        """Return the end of the next batch; see `StreamPlanner.latest`. The limit holds for all servers together."""
        begins = self._resolved(start)
        while True:
            # each round has one server less, so the loop ends
            try:
                return self._latest(start, begins, limit, may_wait=may_wait)
            except ServerIsAway:
                for server in self._absences.names:
                    if server in self._planners:
                        self._planners[server].close()

    def newest(self) -> ServersOffset:
        """Return the end of all queues, as last read, with the servers that are away."""
        offsets = {}
        for server, planner in self._planners.items():
            if planner.queue_count or server not in self._absences.names:
                try:
                    with self._absences.guard(server):
                        offsets[server] = planner.newest()
                except ServerIsAway:
                    planner.close()
        return ServersOffset(offsets, away=self._absences.names)

    def freeze(self) -> None:
        """Ignore all messages that arrive from now on, and the servers that are away. Raises if all of them are."""
        frozen: set[str] = set()
        for server in self._present():
            try:
                with self._absences.guard(server):
                    self._planners[server].freeze()
                frozen.add(server)
            except ServerIsAway:
                self._planners[server].close()
        if not frozen:
            raise Unreachable(f"url: all servers are away: {', '.join(self._planners)}")
        self._frozen = frozen

    def unread(self) -> int | None:
        """Return the number of unread messages of all servers, as last read; see `StreamPlanner.unread`."""
        known = [count for planner in self._planners.values() if (count := planner.unread()) is not None]
        return sum(known) if known else None

    @property
    def queue_count(self) -> int:
        """The number of queues of all servers at the last question."""
        return sum(planner.queue_count for planner in self._planners.values())

    # ---------------------------------------------------------------------------------------------- tasks

    def tasks(self, start: ServersOffset, end: ServersOffset) -> list[list[WatchedRange]]:
        """Plan the tasks of a batch, in the order of server, queue and sequence. All its servers have to be there.

        Raises `DataLoss` if messages of the batch were lost, or if their server is no longer in the list.
        """
        begins, ends = self._resolved(start, ends=end), self._resolved(end)
        ranges: dict[str, list[WatchedRange]] = {}
        for server, upto in sorted(ends.items()):
            begin = begins.get(server, Offset({}))
            # An unchanged offset may still tell where an earlier batch began. The end of a server that has only joined
            # is its start.
            if upto == begin or upto.initial or not batch_ranges(begin, upto):
                continue
            if server not in self._planners:
                self._report_unreadable(server)
                continue
            with naming(server):
                ranges[server] = self._planners[server].watched_ranges(begin, upto)
        rows = {server: sum(watched.range.rows for watched in of) for server, of in ranges.items()}
        most = task_count(self._options, sum(rows.values()))
        tasks: list[list[WatchedRange]] = []
        for server, count in shares_of_tasks(rows, most).items():
            with naming(server):
                tasks += self._planners[server].partitions(ranges[server], count)
        return merge_tasks(tasks, max(1, most))

    def _report_unreadable(self, server: str) -> None:
        text = (
            f"url: the batch has messages of server {server!r}, which is not in the list: add it, also under another "
            f"address, as {server}=redis://…"
        )
        if self._options.flag("failOnDataLoss"):
            raise DataLoss(f"{text}. With failOnDataLoss=false the query goes on without these messages")
        log_text(logging.WARNING, f"[{DataLoss.code}] {text}. These messages are left out")

    # --------------------------------------------------------------------------------------------- batches

    def _latest(
        self, start: ServersOffset, begins: Mapping[str, Offset], limit: BatchLimit | None, *, may_wait: bool
    ) -> ServersOffset:
        drafts = self._drafts(begins)
        births = {server: draft.birth for server, draft in drafts.items()}
        self._check_renamed(begins, births)
        self._check_together({**begins, **{server: draft.start for server, draft in drafts.items()}}, births)
        ends: Ends = {}
        next_queue = NO_QUEUE
        if limit is not None or may_wait:
            parts = {server: self._part(server, draft) for server, draft in drafts.items()}
            if may_wait and not self._is_due(sum(part.rows for part in parts.values())):
                return start
            if limit is not None:
                shared = SharedLimit(parts, self._absences.guard)
                ends, next_queue = shared.ends(limit, start.next_queue, equal=self._equal)
        offsets = dict(begins)
        for server, draft in drafts.items():
            offsets[server] = self._planners[server].finish(draft, ends.get(server, {}))
        # a server that has joined is noted at once, so that its start is the same after a restart
        return start if offsets == begins else ServersOffset(offsets, next_queue)

    def _drafts(self, begins: Mapping[str, Offset]) -> dict[str, BatchDraft]:
        """Look at all servers that are there, at about the same time."""
        for _ in range(_LOOKS):
            drafts, began, usual = {}, time.monotonic(), self._look_time
            for server in self._present():
                planner = self._planners[server]
                with self._absences.guard(server):
                    begin = begins[server] if server in begins else planner.initial(required=False)
                    drafts[server] = planner.draft(begin, required=False)
            self._look_time = time.monotonic() - began
            if self._look_time < max(_LONGEST_LOOK, 2 * usual):
                break
        return drafts

    def _part(self, server: str, draft: BatchDraft) -> ServerPart:
        planner = self._planners[server]
        with self._absences.guard(server):
            return ServerPart(planner.limiter, planner.reader(), planner.unread_in(draft))

    def _is_due(self, messages: int) -> bool:
        return self._delay is None or self._frozen is not None or self._delay.is_due(messages)

    def _present(self) -> list[str]:
        """Return the servers that are there, as far as this planner knows, and that the query may read."""
        servers = [server for server in self._planners if self._frozen is None or server in self._frozen]
        return [server for server in servers if self._absences.is_present(server, partial(self._probe, server))]

    def _probe(self, server: str) -> None:
        """Ask a server that was away, without retries."""
        options = self._of_servers[server].replaced(connectRetries=0)
        with BulkReader(options) as reader:
            present_birth(reader, Keyspace(options.text("namespace")))

    def _starts_at_latest(self) -> bool:
        return self._options["startingTimestamp"] is None and self._options["startingOffsets"] == "latest"

    # ---------------------------------------------------------------------------------------------- checks

    def _check_together(self, offsets: Mapping[str, Offset], births: Mapping[str, str]) -> None:
        """Refuse servers with the same data, and at the start of a query names of queues that no server knows."""
        refuse_same_data(births)
        if self._names_checked or self._absences.names:
            return
        known: set[str] = set()
        for server, planner in self._planners.items():
            known |= planner.known_names(offsets.get(server, Offset({})))
        refuse_missing(self._options, known)
        self._names_checked = True

    def _check_renamed(self, begins: Mapping[str, Offset], births: Mapping[str, str]) -> None:
        """Refuse a new server whose data the checkpoint knows by another name: they would be read twice."""
        known = {offset.birth: server for server, offset in begins.items() if offset.birth}
        for server, birth in births.items():
            if server not in begins and (other := known.get(birth)):
                raise InvalidOption(
                    f"url: server {server!r} has the data that the checkpoint knows as server {other!r}: keep this "
                    f"name, as {other}=redis://…"
                )

    def _resolved(self, offset: ServersOffset, ends: ServersOffset | None = None) -> Mapping[str, Offset]:
        """Return the offsets by server. An offset without a name belongs to the server with its data."""
        if offset.alone is None:
            return offset.offsets
        birth = offset.alone.birth
        later = {} if ends is None else {end.birth: server for server, end in ends.offsets.items()}
        self._adopter = later.get(birth, "") or self._adopter or self._server_with(birth)
        return {self._adopter: offset.alone}

    def _server_with(self, birth: str) -> str:
        """Return the name of the server with these data. Raises `InvalidOffset` if there is none."""
        for server, planner in self._planners.items():
            with naming(server):
                if birth and planner.present_birth() == birth:
                    return server
        raise InvalidOffset(
            f"offset in the checkpoint: it is the one of a single server, with the data {birth or 'without a name'}. "
            f"None of the servers {', '.join(self._planners)} has these data"
        )
