"""The exit code and the line for an exception. The line names the remedy."""

from __future__ import annotations

import re

import click

from rqttl import errors, text
from rqttl.cli.common import redis_errors
from rqttl.cli.common.exits import BUG, INTERRUPTED, REFUSED, USAGE, exit_code
from rqttl.cli.common.option_text import flag, format_value, naming_flag
from rqttl.cli.common.suggestions import suggestion
from rqttl.options import NO_OPTIONS, OPTIONS, OTHER_NAMES


def explain(error: Exception) -> tuple[int, str]:
    """The exit code, and the line for people. The line is empty if the command needs none."""
    if isinstance(error, click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code, ""
    if isinstance(error, click.UsageError):
        return USAGE, _usage(error)
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    if isinstance(error, errors.ContractError):
        return BUG, f"bug: {error}"
    if isinstance(error, errors.RqttlError):
        return exit_code(type(error)), f"{_library_error(error)} [{error.code}]"
    if explanation := redis_errors.explain(error):
        return explanation
    if isinstance(error, OSError):
        return REFUSED, f"{error.filename or 'cannot go on'}: {error.strerror or error}"
    return (
        BUG,
        f"bug: {type(error).__name__}: {error} (run `rqttl --debug ...` for the traceback, and please report it)",
    )


def _usage(error: click.UsageError) -> str:
    line = error.format_message().rstrip(".")
    line = " ".join((line[:1].lower() + line[1:]).split())
    if error.ctx is None:
        return line
    if isinstance(error, click.NoSuchOption):  # click takes --dlq for --url
        line = f"no such option '{error.option_name}'{_flag_hint(error.option_name, error.ctx.command)}"
    if unknown := re.match(r"no such command '(.*?)'", line):  # some versions of click add a suggestion of their own
        near = suggestion(error.ctx, unknown[1])
        line = f"{unknown[0]}; did you mean `{near}`?" if near else unknown[0]
    return f"{line} (see `{error.ctx.command_path} --help`)"


#: Flags by their names in other tools, beside those of `options.OTHER_NAMES`.
_FLAGS = {
    "concurrency": ("threads", "processes"),
    "workers": ("processes",),
    "max_tasks_per_child": ("max_messages",),
    "time_limit": ("timeout",),
    "ttl": ("message_ttl",),
    "expiration": ("ttl",),
    "count": ("limit",),
    "max": ("limit",),
    "host": ("url",),
    "port": ("url",),
    "broker": ("url",),
    "prefix": ("namespace",),
    "force": ("yes",),
}


def _flag_hint(option: str, command: click.Command) -> str:
    """`; did you mean --FLAG?`, or why there is no such option."""
    flags = [name for param in command.params for name in param.opts if name.startswith("--")]
    word = option.lstrip("-").replace("-", "_").lower()
    for name in (*_FLAGS.get(word, ()), OTHER_NAMES.get(word, "")):
        if flag(name) in flags:
            return f"; did you mean {flag(name)}?"
    if word in NO_OPTIONS:
        return f"; {NO_OPTIONS[word]}"
    return text.did_you_mean(option, flags, likeness=0.75)


def _library_error(error: errors.RqttlError) -> str:
    if isinstance(error, errors.QueueNotFound):
        return f"queue {error.queue!r} does not exist{error.place}: `rqttl queue declare {error.queue}` creates it"
    if isinstance(error, errors.QueueMismatch):
        return _mismatch(error)
    if isinstance(error, errors.QueueInUse):
        users = text.plural(error.count, "consumer" if error.condition == "if_unused" else "message")
        return f"queue {error.queue!r} was not deleted: it has {users}, and {flag(error.condition)} is given"
    if isinstance(error, errors.QueueFull):
        return f"queue {error.queue!r} is full: {flag(error.limit)} is {error.value:,}"
    if isinstance(error, errors.InvalidInput) and not isinstance(
        error, (errors.InvalidDeployment, errors.InvalidImport)
    ):
        return naming_flag(str(error))  # a file names options, and no flags
    return str(error)


def _mismatch(error: errors.QueueMismatch) -> str:
    differences = []
    for name, values in error.differences.items():
        ours, theirs = (format_value(OPTIONS[name], value) for value in values)  # type: ignore[arg-type]  # as read
        differences.append(f"{flag(name)} is {theirs}, not {ours}")
    return f"queue {error.queue!r} exists with other options ({'; '.join(differences)}): nothing was changed"
