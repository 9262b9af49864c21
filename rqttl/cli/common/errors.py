"""From an exception to an exit code and one line that says what to do."""

from __future__ import annotations

import re

import click

from rqttl import errors
from rqttl.cli.common import redis_errors, text
from rqttl.cli.common.option_text import flag, naming_flag, shown
from rqttl.cli.common.suggestions import suggestion
from rqttl.options import OPTIONS

DONE, BUG, USAGE, REFUSED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Explained(click.ClickException):
    """An error of Redis, explained where the client was at hand."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Refused(click.ClickException):
    """A command was carried out, but not as asked; the message says what was refused, `code` is the library's word."""

    exit_code = REFUSED

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(f"{message} [{code}]" if code else message)


def explain(error: Exception) -> tuple[int, str]:
    """The exit code, and the line for people (empty where there is nothing to say)."""
    if isinstance(error, click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code, ""
    if isinstance(error, click.UsageError):
        return USAGE, _usage(error)
    if isinstance(error, Explained):
        return error.code, error.message
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    if isinstance(error, errors.ContractError):
        return BUG, f"bug: {error}"
    if isinstance(error, errors.RqttlError):
        return exit_code(type(error)), f"{_ours(error)} [{error.code}]"
    if told := redis_errors.explain(error):
        return told
    if isinstance(error, OSError):
        return REFUSED, f"{error.filename or 'cannot go on'}: {error.strerror or error}"
    return (
        BUG,
        f"bug: {type(error).__name__}: {error} (run `rqttl --debug ...` for the traceback, and please report it)",
    )


def _usage(error: click.UsageError) -> str:
    said = error.format_message().rstrip(".")
    said = " ".join((said[:1].lower() + said[1:]).split())
    if error.ctx is None:
        return said
    if unknown := re.match(r"no such command '(.*?)'", said):  # some versions of click have an idea too
        near = suggestion(error.ctx, unknown[1])
        said = f"{unknown[0]}; did you mean `{near}`?" if near else unknown[0]
    return f"{said} (see `{error.ctx.command_path} --help`)"


def exit_code(kind: type[errors.RqttlError]) -> int:
    """The exit code for one of rqttl's own errors."""
    if issubclass(kind, errors.ContractError):
        return BUG
    if issubclass(kind, errors.InvalidInput) and not issubclass(kind, errors.MessageTooLarge):
        return USAGE
    if issubclass(kind, (errors.EmbeddedUnavailable, errors.OutcomeUnknown)):
        return UNREACHABLE
    return REFUSED


def _ours(error: errors.RqttlError) -> str:
    if isinstance(error, errors.QueueNotFound):
        return f"queue {error.queue!r} does not exist: `rqttl queue declare {error.queue}` makes it"
    if isinstance(error, errors.QueueDamaged):
        return f"{error}; `rqttl doctor {error.queue}` says what to do"
    if isinstance(error, errors.QueueMismatch):
        return _mismatch(error)
    if isinstance(error, errors.QueueInUse):
        found = text.plural(error.found, "consumer" if error.condition == "if_unused" else "message")
        return f"queue {error.queue!r} was not deleted: it has {found}, and {flag(error.condition)} is given"
    if isinstance(error, errors.QueueFull):
        return f"queue {error.queue!r} is full: {flag(error.limit)} is {error.value:,}"
    if isinstance(error, errors.InvalidInput):
        return naming_flag(str(error))
    return str(error)


def _mismatch(error: errors.QueueMismatch) -> str:
    told = []
    for name, values in error.differences.items():
        ours, theirs = (shown(OPTIONS[name], value) for value in values)  # type: ignore[arg-type]  # as they were read
        told.append(f"{flag(name)} is {theirs}, not {ours}")
    return f"queue {error.queue!r} exists with other options ({'; '.join(told)}): nothing was changed"
