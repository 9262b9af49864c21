"""Commands as handlers (`--exec`): the body on stdin, details in the environment, the outcome by the exit code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from rqttl.checks import MAX_DESCRIPTION_BYTES
from rqttl.decisions import Reject, Retry
from rqttl.delivery import Delivery, lease_of
from rqttl.errors import InvalidInput
from rqttl.text import format_value
from rqttl.worker.groups import CommandProcess, Guard, NotStarted
from rqttl.worker.loading import Handler
from rqttl.worker.outcomes import CommandFailed, HandlerStopped
from rqttl.worker.supervision import COMMAND_GRACE, TERM_GRACE

#: Exit codes of `sysexits.h`: the input is wrong for good, and a failure that ends by itself.
EX_DATAERR, EX_TEMPFAIL = 65, 75
#: The bytes of stderr that become the description of a failure: the last ones. The rest is for the exit code.
KEPT = MAX_DESCRIPTION_BYTES - 128
_CHUNK = 65_536
#: Seconds for which the end of stderr is awaited after the end of the command. A process that it left may hold it.
_LATE = 1.0
#: Placeholders in the arguments of a command.
_FIELD = re.compile(r"\{(id|queue|delivery)\}")
_SHELLS = frozenset({"sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"})
#: The option of a shell whose text it runs.
_RUNS_TEXT = re.compile(r"-[a-zA-Z]*c|--command")
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")


def split(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command. No shell is involved. Raises `InvalidInput`."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise InvalidInput(f"exec: {error}") from None
    if not words:
        raise InvalidInput("exec: expected a command, got nothing")
    _check_shell(words)
    if "{" not in words[0] and shutil.which(words[0]) is None:
        raise InvalidInput(f"exec: there is no program {words[0]!r}")
    return words


def _check_shell(words: Sequence[str]) -> None:
    """Raise `InvalidInput` for a placeholder in the text that a shell runs: a sender chooses the id.

    After the text a word may be a placeholder alone: the shell has it as `$1`, and runs nothing of it.
    """
    names = [Path(word).name for word in words]
    shell = next((place for place, name in enumerate(names) if name in _SHELLS), len(words))
    runs = next((place for place in range(shell + 1, len(words)) if _RUNS_TEXT.fullmatch(words[place])), len(words))
    for place in range(runs + 1, len(words)):
        word = words[place]
        if _FIELD.search(word) and (place == runs + 1 or not _FIELD.fullmatch(word)):
            raise InvalidInput(
                f"exec: {format_value(word)}: a shell would run what a sender puts into the id; "
                'write "$RQTTL_ID", "$RQTTL_QUEUE" or "$RQTTL_DELIVERY" there'
            )


class Commands:
    """Runs a command once for each message. Any thread may end one of those that run."""

    def __init__(self, words: Sequence[str], guard: Guard | None = None) -> None:
        self._words = words
        self._guard = guard
        self._running: dict[int, CommandProcess] = {}

    def run(self, delivery: Delivery) -> None:
        """Run the command for one message. See `run`."""
        process = self._running[id(delivery)] = CommandProcess(self._guard)
        try:
            run(self._words, delivery, process)
        finally:
            del self._running[id(delivery)]

    def end(self, delivery: Delivery) -> None:
        """Let the command of a message end: SIGTERM now, SIGKILL after `TERM_GRACE`, or after a shorter lease."""
        process = self._running.get(id(delivery))
        if process is not None:
            process.end(min(TERM_GRACE, lease_of(delivery) / 1000))

    def kill(self) -> None:
        """End all commands at once."""
        for process in list(self._running.values()):
            process.kill()


def handler(words: Sequence[str], *, guarded: bool = False) -> Handler:
    """Return the handler that runs this command once for each message.

    With `guarded`, all commands end when this process is killed. A child needs no guard: its worker ends its session.
    """
    guard = Guard()
    commands = Commands(words, guard if guarded else None)
    return Handler(
        commands.run,
        is_async=False,
        close=guard.close,
        source="",
        end=commands.end,
        end_grace=COMMAND_GRACE,
        kill=commands.kill,
    )


def run(words: Sequence[str], delivery: Delivery, process: CommandProcess | None = None) -> None:
    """Run a command for one message. Raises the decision, or `CommandFailed`, unless the exit code is 0.

    Raises `HandlerStopped` if the worker has ended the command, and the exit code decides nothing.
    """
    process = process or CommandProcess()
    details = {"id": delivery.id, "queue": delivery.queue, "delivery": str(delivery.delivery_count)}
    arguments = [_FIELD.sub(lambda match: details[match[1]], word) for word in words]
    try:
        stdin, stderr = process.start(arguments, environment(delivery, os.environ))
    except NotStarted:
        raise HandlerStopped("the worker ended the command before it had begun") from None
    tail = bytearray()
    writer = threading.Thread(target=_feed, args=[stdin, delivery.body], daemon=True)
    reader = threading.Thread(target=_keep_tail, args=[stderr, tail], daemon=True)
    writer.start()
    reader.start()
    code = process.wait()
    reader.join(_LATE)
    if code == 0:
        return
    # an undecodable byte becomes three bytes: the text may be too long
    text = bytes(tail).decode("utf-8", "replace").strip().encode()[-KEPT:].decode(errors="ignore")
    if code == EX_DATAERR:
        raise Reject(text or _ending(code))
    if code == EX_TEMPFAIL:
        raise Retry(description=text or _ending(code))
    if process.was_ended:
        raise HandlerStopped(f"the worker ended the command: {_ending(code)}: {text}".rstrip(": "))
    raise CommandFailed(f"{_ending(code)}: {text}".rstrip(": "))


def environment(delivery: Delivery, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: that of this process, and the details of the message.

    A header `Trace-Id` is `RQTTL_HEADER_TRACE_ID`. The environment holds text without NUL, so a NUL becomes U+FFFD.
    """
    details = {
        "RQTTL_QUEUE": delivery.queue,
        "RQTTL_ID": delivery.id,
        "RQTTL_DELIVERY": str(delivery.delivery_count),
        "RQTTL_CONTENT_TYPE": delivery.content_type,
    }
    for name, value in delivery.headers.items():
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
        details[f"RQTTL_HEADER_{_NOT_IN_NAMES.sub('_', name.upper())}"] = text
    clean = {name: value.replace("\0", "�").encode("utf-8", "replace").decode() for name, value in details.items()}
    return {**inherited, **clean}


def _feed(stdin: IO[bytes], body: bytes) -> None:
    try:
        with stdin:
            stdin.write(body)
    except BrokenPipeError:
        return  # the command has read enough


def _keep_tail(stderr: IO[bytes], tail: bytearray) -> None:
    """Copy stderr to that of the worker, and keep its last bytes."""
    with stderr:
        while data := os.read(stderr.fileno(), _CHUNK):
            tail += data
            del tail[:-KEPT]
            with suppress(OSError):  # nobody reads the errors of the worker: the command must not notice
                sys.stderr.buffer.write(data)
                sys.stderr.flush()


def _ending(code: int) -> str:
    if code >= 0:
        return f"the command ended with exit code {code}"
    try:
        return f"the command was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the command was ended by signal {-code}"
