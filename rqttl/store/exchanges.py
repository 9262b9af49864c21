"""Calls to Redis as exchanges, and when a call is made again. Threads and event loops share them. No I/O."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from rqttl.errors import DataDamaged, InvalidInput, OutcomeUnknown, ScriptsForgotten
from rqttl.events import Events, Place, timed
from rqttl.flows.steps import ENDED, Pipeline, Read, ReadEachNode
from rqttl.outages import is_away, is_read_only, refuses_for_now
from rqttl.protocol.commands import BriefCommand, Command, Repeat, Reply, annotated, confirmations, unconfirmed
from rqttl.protocol.contract import Repeated
from rqttl.protocol.keys import PARTS, Keyspace
from rqttl.protocol.replies import command_name, milliseconds, shaped
from rqttl.protocol.roles import holders
from rqttl.store.topology import Calls, Exchange, Node, Topology, Trip, side_by_side

if TYPE_CHECKING:
    from typing import TypeGuard

logger = logging.getLogger("rqttl")

At = TypeVar("At")
Item = TypeVar("Item")
T = TypeVar("T")

#: Seconds between the attempts of a call that is repeatable, or that was never sent.
PAUSES = (0.02, 0.1, 0.3, 1.0)
#: Seconds that a reply may take. Scripts take milliseconds; the rest is for a server that stalls.
SOCKET_TIMEOUT = 15.0
#: Seconds after which no call that timed out is repeated. It is one second more than a reply may take: so a dead
#: connection costs one time-out, and a server that hangs costs two.
PATIENCE = SOCKET_TIMEOUT + 1
#: Seconds for which a caller that fails fast makes a call again that was certainly not carried out.
FAIL_FAST = 0.3
#: Seconds without a reply after which a call that goes on is logged.
SILENCE = 2.0
#: Calls that always fail fast: they follow a call that has succeeded, and a reaper makes them again.
FAST = frozenset(("accept", "relay"))
#: The number of times that one call loads its scripts again.
FORGOTTEN = 5
#: Seconds between the attempts of a call whose keys are between two nodes of a cluster.
IN_BETWEEN = 0.05
#: The call that lets the next one, or the next transaction, use a slot that still moves to the node.
ASKING = ("ASKING",)
#: Plain commands without a key.
_KEYLESS = frozenset(("ACL", "CLUSTER", "CONFIG", "HELLO", "INFO", "PING", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF"))


class NotSent(Exception):
    """Redis has certainly not carried out the call: it did not get the call, or refuses it for now. See `__cause__`."""


#: Errors after which a call may be made again.
_PASSING = (NotSent, ConnectionError, TimeoutError)
#: All errors of an attempt.
FAILURES = (*_PASSING, ResponseError, ScriptsForgotten)


class Exchanges:
    """The exchanges of one client. `now` is a clock in seconds."""

    def __init__(self, topology: Topology[Node], keyspace: Keyspace, events: Events, now: Callable[[], float]) -> None:
        self._topology = topology
        self._keyspace = keyspace
        self._events = events
        self._now = now
        #: Seconds for which attempts are made; `None`: as many as there are `PAUSES`.
        self.patience: float | None = None
        #: True for a caller that only looks: all its trips fail fast, and any node may tell it the time.
        self.looks = False
        self._quiet_until = 0.0
        #: True for a server behind Sentinel, which has replicas as a rule.
        self.is_service = False

    def run(self, command: Command, first: Any = None, since: float | None = None) -> Exchange[Reply]:
        """Run a script. `first` is the reply to a first attempt at the time `since`, or its error.

        After a lost reply a repeatable script runs again; any other raises `OutcomeUnknown`.
        """
        yield from self._located()
        if type(command) is BriefCommand:
            has_replica = self.is_service or self._topology.is_replicated(self._node(command))
            command = command if has_replica else Command(*command)
        attempts = self._insist(self._script, partial(self._node, command), command, first, since)
        place = command.script.name, command.queue
        try:
            return (yield from self._observed([place], attempts, lambda reply: [_outcome(reply)]))
        except ResponseError as error:
            if not (_is_damage(error) or isinstance(error, NoPermissionError)):
                raise
            refusal = error
        raise (yield from self._explained(command, refusal)) from refusal

    def run_together(self, step: Pipeline) -> Exchange[list[Any]]:
        """Run commands in one round trip, those of each node in order. Returns the answer to the step.

        After a lost reply all commands of a node run again if all are repeatable, else none does. Several commands that
        store messages are one transaction: Redis carries out all of them, with nothing in between, or none.
        """
        yield from self._located()
        commands = step.commands
        is_ordered = all(command.script.name == "enqueue" for command in commands)
        place_of = self._topology.slot_of if is_ordered else self._topology.node_of
        places = [place_of(command.words[1]) for command in commands]
        run = partial(self._run_at, keep_damage=step.partial)
        return (yield from self._spread(commands, places, run, is_partial=step.partial))

    def _run_at(self, _: object, commands: Sequence[Command], *, keep_damage: bool) -> Exchange[list[Reply]]:
        is_ordered = len(commands) > 1 and all(command.script.name == "enqueue" for command in commands)
        attempt = self._ordered if is_ordered else self._scripts
        where = partial(self._node, commands[0])
        attempts = self._insist(lambda node, *_: attempt(node, commands), where, strictest(commands))
        replies = yield from self._observed([(one.script.name, one.queue) for one in commands], attempts, _outcomes)
        for place, command in enumerate(commands):
            if isinstance(replies[place], NoScriptError) or is_elsewhere(replies[place]):
                replies[place] = yield from self.run(command)
        for place, command in enumerate(commands):
            if isinstance(reply := replies[place], Exception):
                replies[place] = error = yield from self._explained(command, reply)
                if not (keep_damage and isinstance(error, DataDamaged)):
                    raise error
        return replies

    def read(self, step: Read) -> Exchange[Any]:
        """Run plain, repeatable commands of Redis. Returns the answer to the step."""
        yield from self._located()
        shared: Any = self._topology.node_of(self._keyspace.registry) if step.node is None else step.node
        calls = [*step.calls, *step.then]
        nodes = [shared if call[0] in _KEYLESS else self._topology.node_of(call[1]) for call in calls]
        run = partial(self._execute, keep_errors=step.keep_errors, keep_damage=step.partial)
        run = partial(run, timed=step.timed, fails_fast=step.fails_fast, is_fixed=step.node is not None)
        spread = partial(self._spread, run=run, is_partial=step.partial or step.keep_errors)
        first = len(calls) if len(set(nodes)) == 1 else len(step.calls)  # one node carries out calls in order
        answers = yield from spread(calls[:first], nodes[:first])
        answers += yield from spread(calls[first:], nodes[first:])
        pairs = [(answer, None) if isinstance(answer, Exception) else answer for answer in answers]
        replies = [reply for reply, _ in pairs]
        return (replies, [time for _, time in pairs[: len(step.calls)]]) if step.timed else replies

    def read_each_node(self, step: ReadEachNode) -> Exchange[dict[Node, list[Any]]]:
        """Run plain, repeatable commands of Redis at every node. Returns the replies of each."""
        yield from self._located()
        calls = [call for _ in self._topology.nodes for call in step.calls]
        nodes = [node for node in self._topology.nodes for _ in step.calls]
        is_partial = step.keep_errors or step.partial
        fails_fast = is_partial and self.patience is not None and len(self._topology.nodes) > 1
        run = partial(self._execute, keep_errors=step.keep_errors, fails_fast=fails_fast, is_fixed=True)
        answers = yield from self._spread(calls, nodes, run, is_partial=is_partial)
        found: dict[Node, list[Any]] = {node: [] for node in nodes}
        for node, answer in zip(nodes, answers, strict=True):
            found[node].append(answer if isinstance(answer, Exception) else answer[0])
        return found

    def _execute(
        self,
        node: Node,
        calls: Calls,
        *,
        keep_errors: bool,
        keep_damage: bool = False,
        timed: bool = False,
        fails_fast: bool = False,
        is_fixed: bool = False,
    ) -> Exchange[list[tuple[Any, int | None]]]:
        """Run plain commands at one node. Returns the reply to each, and with `timed` the time of the node in ms.

        Later attempts go to the node that has the key of the calls by then, or to another one if they have none.
        """
        words = [("TIME",), *calls] if timed else calls
        key = next((call[1] for call in calls if call[0] not in _KEYLESS), None)
        others = [] if is_fixed else [other for other in self._topology.nodes if other is not node]
        anywhere = cycle([node, *others])

        def where() -> Node:
            return next(anywhere) if key is None else self._topology.node_of(key)

        attempt = partial(
            self._plain, words, keep_errors=keep_errors, fails_fast=fails_fast, brief=key is None and bool(others)
        )
        attempts = self._insist(
            attempt, where, None, fails_fast=fails_fast, others=len(others) if self.looks and not key else 0
        )
        places = [(command_name(call), None) for call in words]
        replies: list[Any] = yield from self._observed(places, attempts, _outcomes)
        time = None
        if timed:
            clock = replies.pop(0)
            if isinstance(clock, Exception):
                raise clock
            time = shaped("TIME", milliseconds, clock)
        moved: set[Any] = set()
        for place, call in enumerate(calls):
            reply = replies[place]
            slot = self._topology.slot_of(call[1]) if call[0] not in _KEYLESS and (moved or is_elsewhere(reply)) else ""
            if slot in moved or is_elsewhere(reply):  # the later calls to its slot as well: their order counts
                moved.add(slot)
                owner = partial(self._topology.node_of, call[1])
                reply = replies[place] = yield from self._insist(partial(self._redirected, call), owner, None)
            if isinstance(reply, Exception) and not keep_errors:
                if not _is_damage(reply):
                    raise reply
                known = self._keyspace.split(str(call[1]).encode())
                replies[place] = DataDamaged.of_key(known and known[0], call[1])
                if not keep_damage:
                    raise replies[place]
        return [(reply, time) for reply in replies]

    def _spread(
        self,
        items: Sequence[Item],
        nodes: Sequence[At],
        run: Callable[[At, Sequence[Item]], Exchange[list[T]]],
        *,
        is_partial: bool,
    ) -> Exchange[list[Any]]:
        """Run the items of each node side by side. Returns the results in the order of the items.

        A partial answer has the error of a node that is away in the place of its results, if there are other nodes.
        """
        places: dict[At, list[int]] = {}
        for place, node in enumerate(nodes):
            places.setdefault(node, []).append(place)
        is_partial = is_partial and len(self._topology.nodes) > 1
        if len(places) < 2:
            try:
                return (yield from run(nodes[0], items)) if items else []
            except RedisError as error:
                if not (is_partial and is_away(error)):
                    raise
                return [error] * len(items)
        parts = [run(node, [items[place] for place in chosen]) for node, chosen in places.items()]
        answers = yield from side_by_side(parts)
        is_partial = is_partial and not all(isinstance(answer, Exception) for answer in answers)
        results: dict[int, T | Exception] = {}
        for chosen, part in zip(places.values(), answers, strict=True):
            if isinstance(part, Exception) and not (is_partial and is_away(part)):
                raise part
            own = [part] * len(chosen) if isinstance(part, Exception) else part
            results.update(zip(chosen, own, strict=True))
        return [results[place] for place in range(len(items))]

    def _node(self, command: Command) -> Node:
        return self._topology.node_of(command.words[1])

    def _observed(
        self, places: Sequence[Place], exchange: Exchange[T], outcomes: Callable[[T], Sequence[str]]
    ) -> Exchange[T]:
        """Carry out an exchange, and tell listeners of events the commands in it."""
        if self._events.notify is None:
            return (yield from exchange)
        with timed(self._events.notify, places) as told:
            answer = yield from exchange
            told.extend(outcomes(answer))
        return answer

    def _located(self) -> Exchange[None]:
        """Learn which node has which key, if that is not known."""
        if not self._topology.is_known:
            yield from self._insist(lambda *_: self._topology.learn(), lambda: self._topology.nodes[0], None)

    def _insist(
        self,
        attempt: Callable[[Node, Any, Any], Exchange[T]],
        where: Callable[[], Node],
        command: Command | None,
        first: Any = None,
        since: float | None = None,
        *,
        fails_fast: bool = False,
        others: int = 0,
    ) -> Exchange[T]:
        """Make attempts at the node `where` until one succeeds. No `command` stands for calls that may all be repeated.

        Each of `others` that can answer as well is asked, whatever the patience.
        A command whose repeats are `CHECKED` raises `OutcomeUnknown`, too, if its last attempt fails with any error.
        """
        started = self._now() if since is None else since
        pauses = iter(PAUSES)
        fails_fast = fails_fast or (command is not None and command.script.name in FAST)
        patience = FAIL_FAST if fails_fast else self.patience
        lost = False
        while True:
            node = where()
            try:
                return (yield from attempt(node, command, first))
            except FAILURES as error:
                cause = _cause(error)
                if isinstance(cause, TimeoutError):  # also who fails fast has to learn who has the keys now
                    yield from self._learn(node)
                if isinstance(error, ConnectionError | TimeoutError):
                    lost = True
                    if command is not None:
                        if command.repeat is Repeat.NEVER:
                            raise OutcomeUnknown(command.queue, command.script.name) from error
                        command = command.as_replay()
                passed = self._now() - started
                hangs = isinstance(cause, TimeoutError) and passed > max(PATIENCE, patience or 0)
                has_no_tls = _HANDSHAKE.search(f"{cause} {cause.__context__}")  # the reason may be the context
                is_final = hangs or has_no_tls or not isinstance(error, _PASSING)
                enough = inf if others > 0 else patience
                pause = None if is_final else _pause(next(pauses, None), cause, passed, enough)
                if pause is None and lost and command is not None and command.repeat is Repeat.CHECKED:
                    raise OutcomeUnknown(command.queue, command.script.name) from cause
                if pause is None:
                    raise self._named(node, cause) from None
                self._note_outage(node, cause, passed, patience)
            first, others = None, others - 1
            yield pause
            if isinstance(cause, ConnectionError | ClusterDownError):
                yield from self._learn(node)

    def _named(self, node: Node, error: BaseException) -> BaseException:
        """The error, with the address of the node: that of a time-out lacks it."""
        is_nameless = isinstance(error, TimeoutError) and len(self._topology.nodes) > 1
        return TimeoutError(f"{self._topology.name_of(node)}: {error}") if is_nameless else error

    def _note_outage(self, node: Node, cause: BaseException, passed: float, patience: float | None) -> None:
        """Log, once in the time of the patience, that a call takes long."""
        now = self._now()
        if patience is not None and passed >= SILENCE and now >= self._quiet_until:
            self._quiet_until = now + patience
            trouble = "refuses for now" if refuses_for_now(cause) else "is away"
            logger.warning("%s %s; trying for %g s", self._topology.name_of(node), trouble, patience)

    def _learn(self, doubted: Node) -> Exchange[None]:
        with suppress(*FAILURES):  # the next attempt tells it
            yield from self._topology.learn(doubted)

    def _script(self, node: Node, command: Command, reply: Any) -> Exchange[Reply]:
        call = [command]
        if reply is None:
            # a call that Redis has to confirm would wait in vain without its script
            loads = [] if type(command) is Command else _texts(node, call)
            try:
                *_, reply = yield from _made(node, loads, call)
            except BusyLoadingError as loading:
                reply = loading
        before: Calls = []
        if is_ask(reply):
            node, before = self._topology.redirect(node, reply), [ASKING]
            _, reply = yield from _made(node, before, call)
        if isinstance(reply, NoScriptError):
            loading_it = self._with_text(node, command, before)
            reply = yield from self._observed([("SCRIPT LOAD", None)], loading_it, lambda _: ["ok"])
        if isinstance(reply, BusyLoadingError):
            raise NotSent from reply
        if isinstance(reply, Exception):
            self._raise_if_refused(node, reply)
            raise reply
        command.script.check(reply)
        if type(command) is not Command:
            node.loaded.add(command.script.sha)
        return Repeated(reply) if reply[0] == b"refused" and command.is_replay else cast("Reply", reply)

    def _with_text(self, node: Node, command: Command, before: Calls) -> Exchange[Reply]:
        """Load the script and run it, behind the calls `before`.

        Not as a transaction: with full memory Redis would refuse the whole of it.
        """
        text = ("SCRIPT", "LOAD", command.script.text)
        for _ in range(FORGOTTEN):
            loaded, *_, reply = yield from _made(node, [text, *before], [command])
            if not isinstance(reply, NoScriptError):
                self._judge(node, [command], [reply])
                if isinstance(reply, Exception):
                    raise reply
                return cast("Reply", reply)
            if isinstance(loaded, Exception):
                raise loaded
        raise ScriptsForgotten(command.script.name) from reply

    def _plain(
        self, calls: Calls, node: Node, *_: object, keep_errors: bool, fails_fast: bool, brief: bool
    ) -> Exchange[list[Any]]:
        replies: list[Any] = yield Trip(node, calls, fails_fast, brief)
        for reply in () if keep_errors else replies:
            if not is_elsewhere(reply):
                self._raise_if_refused(node, reply)
        return replies

    def _redirected(self, call: tuple[Any, ...], node: Node, *_: object) -> Exchange[Any]:
        """Make a plain call by itself, at the node of its key or where that node sends it."""
        (reply,) = yield Trip(node, [call])
        if is_ask(reply):
            _, reply = yield Trip(self._topology.redirect(node, reply), [ASKING, call])
        if is_elsewhere(reply):
            self._raise_if_refused(node, reply)
        return reply

    def _scripts(self, node: Node, commands: Sequence[Command]) -> Exchange[list[Any]]:
        """Run commands. Each command whose script Redis lacks has a `NoScriptError` as its reply."""
        loads = _texts(node, commands)
        replies = yield from _made(node, loads, commands)
        return self._judge(node, commands, replies[len(loads) :])

    def _ordered(self, node: Node, commands: Sequence[Command]) -> Exchange[list[Any]]:
        """Run commands as one transaction, so that Redis forgets no script between two of them.

        If Redis lacks a script even so, it has carried out none of them. The next try loads it within the transaction.
        """
        results = yield from self._transact(node, _texts(node, commands), [], commands)
        for _ in range(FORGOTTEN):
            if not all(isinstance(reply, NoScriptError) for reply in results):
                break
            node.loaded -= {command.script.sha for command in commands}
            results = yield from self._transact(node, [], _texts(node, commands), commands)
        return results

    def _transact(
        self, node: Node, before: list[Any], within: list[Any], commands: Sequence[Command]
    ) -> Exchange[list[Any]]:
        confirming = confirmations(commands)
        try:
            replies = yield Trip(node, [*before, ("MULTI",), *within, *_calls(commands), ("EXEC",), *confirming])
        except BusyLoadingError as loading:
            raise NotSent from loading
        end = len(replies) - len(confirming)
        opened, *queued, done = replies[len(before) : end]
        if isinstance(opened, Exception):
            answers = queued  # the user may make no transaction, so Redis has carried out each command by itself
            _raise_if_divided(commands, answers[len(within) :])
        elif isinstance(done, Exception):
            error = next((reply for reply in queued if isinstance(reply, Exception)), done)
            if is_ask(error):  # the slot still moves: the new node takes the transaction as a whole
                target = self._topology.redirect(node, error)
                return (yield from self._transact(target, [*_texts(target, commands), ASKING], within, commands))
            self._raise_if_refused(node, error)  # Redis has carried out none of them
            raise error
        else:
            answers = done
        return self._judge(node, commands, _with_notes(commands, answers[len(within) :], replies[end:]))

    def _judge(self, node: Node, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Check the replies to commands. Raises `NotSent` if Redis refuses all for now, and `ContractError`."""
        if replies and all(refuses_for_now(reply) for reply in replies):
            self._raise_if_refused(node, replies[0])
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ClusterCrossSlotError):
                self._raise_if_refused(node, reply)
            elif not isinstance(reply, Exception):
                command.script.check(reply)
        node.loaded |= {command.script.sha for command in commands}
        return replies

    def _raise_if_refused(self, node: Node, reply: object) -> None:
        """Raise `NotSent` if Redis refuses for now. It refuses a script at its first write at the latest.

        Raises `InvalidInput` for keys of several slots where this client knows of no slots: the topology is wrong.
        """
        if isinstance(reply, ClusterCrossSlotError) and not self._keyspace.slotted:
            raise InvalidInput(
                "url: this server refuses a call for queues in several slots: use redis+cluster:// for a node of a "
                "Redis Cluster, and ?slotted=true in the URL for a proxy"
            ) from reply
        if isinstance(reply, Exception) and refuses_for_now(reply):
            if isinstance(reply, AskError):
                self._topology.redirect(node, reply)
            if is_read_only(reply):  # the next call must reach another server; other callers get the same refusal
                node.leave()
            raise NotSent from reply

    def _explained(self, command: Command, error: Exception) -> Exchange[Exception]:
        """The error of a script; for that of a damaged queue, one that names the key or the missing field.

        One for want of a right names the roles that have it.
        """
        if isinstance(error, NoPermissionError):
            roles = " or ".join(holders(command.script.name))
            return NoPermissionError(f"{error}; {command.script.name} is for the role {roles}")
        if not _is_damage(error):
            return error
        keys = [str(key) for key in command.words[1 : 1 + int(command.words[0])]]
        kinds: list[Any] = yield from self.read(Read([("TYPE", key) for key in keys], keep_errors=True))
        for key, kind in zip(keys, kinds, strict=True):
            part = PARTS.get(key.rpartition(":")[2])
            if part and isinstance(kind, bytes) and kind.decode() not in ("none", part.type):
                return DataDamaged.of_key(command.queue, key)
        return DataDamaged(command.queue, f"a script met a record that lacks a field ({error})")


def _pause(usual: float | None, cause: BaseException, passed: float, patience: float | None) -> float | None:
    """The pause before the next attempt; `None` if this was the last one."""
    if patience is None or (usual is None and not is_away(cause)):
        return usual
    pause = usual or PAUSES[-1]
    if is_elsewhere(cause):  # a slot moves within milliseconds; but two nodes may send a call to and fro
        pause = 0.0 if isinstance(cause, MovedError) and usual else IN_BETWEEN
    return pause if passed + pause < patience else None


def _made(node: Node, before: Calls, commands: Sequence[Command]) -> Exchange[list[Any]]:
    """Make the calls `before`, and run commands, in one round trip. Returns the replies to all of them."""
    confirming = confirmations(commands)
    replies: list[Any] = yield Trip(node, [*before, *_calls(commands), *confirming], commands[0].script.name in FAST)
    if not confirming:
        return replies
    end = len(replies) - len(confirming)
    return [*replies[: len(before)], *_with_notes(commands, replies[len(before) : end], replies[end:])]


def _with_notes(commands: Sequence[Command], replies: list[Any], answers: Sequence[Any]) -> list[Any]:
    """The replies to commands, with notes in those that are not confirmed, by the `answers` to `confirmations`."""
    if not answers:
        return replies
    names = [name for name in dict.fromkeys(command.durability for command in commands) if name]
    whys = {**dict(zip(names, map(unconfirmed, answers), strict=True)), "": ""}
    return [annotated(reply, whys[command.durability]) for command, reply in zip(commands, replies, strict=True)]


def _texts(node: Node, commands: Sequence[Command]) -> list[tuple[str, str, str]]:
    """The calls that load the scripts that this client has not loaded yet."""
    missing = {command.script.sha: command.script.text for command in commands}
    return [("SCRIPT", "LOAD", text) for sha, text in missing.items() if sha not in node.loaded]


def _cause(error: Exception) -> BaseException:
    return (error.__cause__ if isinstance(error, NotSent) else None) or error


def _is_damage(error: Exception) -> bool:
    """Return True for an error of a damaged queue: a key of another type, or a record that lacks a field."""
    text = str(error)
    return "WRONGTYPE" in text or "attempt to " in text  # Lua's error for a missing value


def _outcome(reply: Any) -> str:
    """The outcome of a command for listeners of events. The reply may be an error."""
    if isinstance(reply, Exception):
        return type(reply).__name__
    return reply[1].decode() if isinstance(reply, list) and reply and reply[0] == b"refused" else "ok"


def _outcomes(replies: Sequence[Any]) -> list[str]:
    return [_outcome(reply) for reply in replies]


def strictest(commands: Sequence[Command]) -> Command:
    """Return the command that decides if commands that went together may be repeated."""
    return min(commands, key=lambda command: command.repeat)


def _raise_if_divided(commands: Sequence[Command], replies: Sequence[Any]) -> None:
    """Raise `OutcomeUnknown` if Redis has carried out a part of commands that must not run again.

    Callers would read the error of the other part as that of all of them.
    """
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    refused = [error for error in errors if not isinstance(error, NoScriptError)]
    command = strictest(commands)
    if refused and len(errors) < len(replies) and command.repeat is Repeat.NEVER:
        raise OutcomeUnknown(command.queue, command.script.name) from refused[0]


def wait_outcome(answer: object) -> str:
    """The outcome of a wait for listeners of events."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    return "timeout" if answer is None else "interrupted" if answer == ENDED else "ok"


def _calls(commands: Sequence[Command]) -> list[tuple[Any, ...]]:
    return [("EVALSHA", command.script.sha, *command.words) for command in commands]


#: Texts of a TLS handshake that fails again. A time-out is among them: Redis without TLS answers no handshake.
_HANDSHAKE = re.compile("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|handshake .*timed out")


def is_elsewhere(reply: object) -> bool:
    """Return True if a node of a cluster sends a call to another one, or cannot say to which."""
    return isinstance(reply, AskError | ClusterDownError | TryAgainError) and not isinstance(reply, MasterDownError)


def is_ask(reply: object) -> TypeGuard[AskError]:
    """Return True if another node has the keys of one call, because their slot still moves."""
    return isinstance(reply, AskError) and not isinstance(reply, MovedError)


def explained(error: ResponseError) -> ResponseError:
    """The error of a server; with a hint if it lacks a command, as a Sentinel does."""
    if "unknown command" not in str(error):
        return error
    line = str(error).partition(", with args")[0]
    if "HELLO" in line.upper():
        return ResponseError(f"{line} (a server or a proxy of old? Then add ?protocol=2 to the URL)")
    return ResponseError(f"{line} (the address of a Sentinel? Then use redis+sentinel://host:port/service)")
