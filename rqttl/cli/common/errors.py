"""The exit code and the line for an exception. The line names the remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from rqttl import errors, text
from rqttl.cli.common.exits import BUG, INTERRUPTED, REFUSED, UNREACHABLE, USAGE, exit_code
from rqttl.cli.common.option_flags import flag, format_value, naming_flag
from rqttl.cli.common.suggestions import flag_hint, suggestion
from rqttl.options import OPTIONS
from rqttl.protocol import replies

if TYPE_CHECKING:
    from rqttl.store.store import Store


def explain(error: Exception, store: Store | None = None) -> tuple[int, str]:
    """The exit code, and the line for people. The line is empty if the command needs none.

    `store` gives facts for the line of an error of Redis.
    """
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
    if explanation := explain_redis(error, store):
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
        line = f"no such option '{error.option_name}'{flag_hint(error.option_name, error.ctx.command)}"
    if unknown := re.match(r"no such command '(.*?)'", line):  # some versions of click add a suggestion of their own
        near = suggestion(error.ctx, unknown[1])
        line = f"{unknown[0]}; did you mean `{near}`?" if near else unknown[0]
    return f"{line} (see `{error.ctx.command_path} --help`)"


def _library_error(error: errors.RqttlError) -> str:
    if isinstance(error, errors.QueueNotFound):
        return f"queue {error.queue!r} does not exist{error.place}: `rqttl queue declare {error.queue}` creates it"
    if isinstance(error, errors.QueueMismatch):
        differences = []
        for name, values in error.differences.items():
            ours, theirs = (format_value(OPTIONS[name], value) for value in values)  # type: ignore[arg-type]  # as read
            differences.append(f"{flag(name)} is {theirs}, not {ours}")
        return f"queue {error.queue!r} exists with other options ({'; '.join(differences)}): nothing was changed"
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


# Redis 6.2 wraps an error within a script into another one, so errors are recognized by their text, not by their class.

_CHECK = "check --url or $RQTTL_URL"
#: The place of an error in a script, as Redis 6.2 writes it, and as Redis since 7.0 does.
_OF_SCRIPT = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: |,? ?script: [0-9a-f]{40}, on @user_script:\d+\.?"
)
#: Text of redis-py around the words of the system.
_OF_SOCKET = re.compile(r"^Error (-?\d+|while reading from .*?:) |\(\d+, '|'\)$")
_RIGHT = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)

#: Patterns in errors, each with the exit code and the line.
_KNOWN: tuple[tuple[str, int, str], ...] = (
    ("read only replica", REFUSED, "this Redis is a read-only replica: name its primary in --url or $RQTTL_URL"),
    (
        "MISCONF|unable to persist|errors writing to the AOF",
        REFUSED,
        "Redis cannot save its data, so it takes no writes: look at its log and its disk",
    ),
    (
        "NOREPLICAS|Not enough good replicas",
        REFUSED,
        "Redis has fewer replicas than min-replicas-to-write asks for, so it takes no writes",
    ),
    ("loading the dataset", UNREACHABLE, "Redis is loading its data: try again in a moment"),
    ("max number of clients", UNREACHABLE, "Redis takes no more connections (maxclients): close some, or raise it"),
    ("DB index is out of range|invalid DB index", UNREACHABLE, f"Redis has no database of this number: {_CHECK}"),
    (
        "HELLO must be called|Authentication required|NOAUTH",
        UNREACHABLE,
        "Redis wants a password: give it in --url or $RQTTL_URL, before the host, as :PASSWORD@",
    ),
    (
        "WRONGPASS|invalid username-password|invalid password|called without any password configured",
        UNREACHABLE,
        f"Redis does not take this user and password: {_CHECK}",
    ),
    ("Protocol error, got", UNREACHABLE, f"the server speaks another protocol than Redis: {_CHECK}"),
    (
        "WRONG_VERSION_NUMBER|record layer failure",
        UNREACHABLE,
        f"the server does not speak TLS: use redis:// instead of rediss://, or {_CHECK}",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        UNREACHABLE,
        "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE",
    ),
)
#: Patterns in errors about rights that a user lacks.
_RIGHTS = (
    ("can't run this command", "the right for a command that scripts use is missing"),
    ("access (at least )?one of the keys|access a key", "the right for keys of this namespace is missing"),
    (
        "can't publish|access one of the channels|permissions to .*channel",
        "the right for the channel that wakes reapers is missing",
    ),
    ("NOPERM|no permissions", "a right is missing"),
)


def explain_redis(error: Exception, store: Store | None = None) -> tuple[int, str] | None:
    """Exit code and line of an error of redis-py; `None` for any other error."""
    from redis import exceptions  # slow to load, and most errors are about the command line

    if not isinstance(error, exceptions.RedisError):
        return None
    message = str(error)
    if _matches("OOM command|used memory > 'maxmemory'|out of memory", message):
        return REFUSED, f"Redis is out of memory{_maxmemory(store)}: consume, purge, or raise it"
    right = _RIGHT.search(message)
    missing = next((line for pattern, line in _RIGHTS if _matches(pattern, message)), "")
    if missing:
        missing = f"the right for {right[1].upper()} is missing" if right else missing
        name = store.connections.pool.connection_kwargs.get("username") if store is not None else None
        user = f"user {name!r}" if name else "this user"
        return REFUSED, f"Redis refuses {user}: {missing}; `rqttl doctor` says which rights this user needs"
    for pattern, code, line in _KNOWN:
        if _matches(pattern, message):
            return code, line
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
        reason = _OF_SOCKET.sub("", message).rstrip(".").replace(". ", ": ") or type(error).__name__
        hung_up = _matches("while writing|closed by server|reset by peer", message)
        return UNREACHABLE, f"Redis does not answer: {reason}{_tls_hint(store, hung_up)}; {_CHECK}"
    return REFUSED, f"Redis refused: {_OF_SCRIPT.sub('', message).strip().removeprefix('-')}"


def _matches(pattern: str, message: str) -> bool:
    return re.search(pattern, message, re.IGNORECASE) is not None


def _maxmemory(store: Store | None) -> str:
    from redis import exceptions

    if store is None:
        return ""
    try:
        (reply,) = store.execute([("INFO", "memory")])
        limit = replies.info_fields(reply).get("maxmemory")
    except exceptions.RedisError:
        return ""  # the line does without it
    return f" (maxmemory {limit:,} bytes)" if isinstance(limit, int) and limit else ""


def _tls_hint(store: Store | None, hung_up: bool) -> str:
    """A likely reason why a server does not answer: it speaks TLS and the client does not, or the other way round."""
    from redis.connection import SSLConnection

    if store is not None and issubclass(store.connections.pool.connection_class, SSLConnection):
        return " (a port without TLS wants redis://)"
    return " (a port with TLS wants rediss://; or all its maxclients connections are taken)" if hung_up else ""
