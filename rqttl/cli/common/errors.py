"""The exit code and the line for an exception. The line names the remedy, and what a typo likely means."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from rqttl import errors, text
from rqttl.cli.common.params import flag, naming_flag
from rqttl.options import NO_OPTIONS, OPTIONS, OTHER_NAMES
from rqttl.text import did_you_mean, nearest

if TYPE_CHECKING:
    from rqttl.broker import Broker


DONE, BUG, USAGE, REFUSED, UNREACHABLE, UNWRITTEN, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
#: The numbers of errors of a stdout that is full or closed.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class Refused(click.ClickException):
    """A command was refused, wholly or in part. The message names the part, `code` is the word of the library."""

    def __init__(self, message: str, code: str = "", exit_code: int = REFUSED) -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.exit_code = exit_code  # type: ignore[misc]  # click asks the instance


def exit_code(kind: type[errors.RqttlError]) -> int:
    """The exit code for an error of the library."""
    if issubclass(kind, errors.ContractError):
        return BUG
    if issubclass(kind, errors.InvalidInput) and not issubclass(kind, errors.MessageTooLarge):
        return USAGE
    if issubclass(kind, (errors.EmbeddedUnavailable, errors.OutcomeUnknown)):
        return UNREACHABLE
    return REFUSED


def explain(error: Exception, broker: Broker | None = None) -> tuple[int, str]:
    """The exit code, and the line for people. The line is empty if the command needs none.

    `broker` gives facts for the line of an error of Redis.
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
    if explanation := explain_redis(error, broker):
        return explanation
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITTEN:
        return UNWRITTEN, f"the answer could not be written: {error.strerror}; what was done before stays done"
    if isinstance(error, OSError):
        return REFUSED, f"{error.filename or 'cannot go on'}: {error.strerror or error}"
    advice = "run `rqttl --debug ...` for the traceback, and please report it"
    return BUG, f"bug: {type(error).__name__}: {error} ({advice})"


def _usage(error: click.UsageError) -> str:
    line = error.format_message().rstrip(".")
    line = " ".join((line[:1].lower() + line[1:]).split())
    if error.ctx is None:
        return line
    if isinstance(error, click.NoSuchOption):  # click takes --dlq for --url
        line = f"no such option '{error.option_name}'{flag_hint(error.option_name, error.ctx.command)}"
    if unknown := re.match(r"no such command '(.*?)'", line):  # some versions of click add a suggestion of their own
        near = suggestion(error.ctx, unknown[1])
        why = f"; did you mean `{near}`?" if near else ""
        line = f"{unknown[0]}{_NO_COMMANDS.get(unknown[1], why)}"
    return f"{line} (see `{error.ctx.command_path} --help`)"


def _library_error(error: errors.RqttlError) -> str:
    if isinstance(error, errors.QueueNotFound) and not isinstance(error, errors.QueueForwards):
        return f"queue {error.queue!r} does not exist{error.place}: `rqttl queue declare {error.queue}` creates it"
    if isinstance(error, errors.QueueMismatch) and OPTIONS.keys() >= error.differences.keys() > set():
        differences = []
        for name, values in error.differences.items():
            ours, theirs = (OPTIONS[name].format(value) for value in values)  # type: ignore[arg-type]  # as read
            differences.append(f"{flag(name)} is {theirs}, not {ours}")
        return f"queue {error.queue!r} exists with other options ({'; '.join(differences)}): nothing was changed"
    if isinstance(error, errors.QueueMismatch):
        return str(error).replace("use set_filter()", "`rqttl topic set-filter` changes it")
    if isinstance(error, errors.QueueInUse):
        users = text.plural(error.count, "consumer" if error.condition == "if_unused" else "message")
        return f"queue {error.queue!r} was not deleted: it has {users}, and {flag(error.condition)} is given"
    if isinstance(error, errors.QueueFull):
        return f"queue {error.queue!r} is full: {flag(error.limit)} is {error.value:,}"
    of_file = isinstance(error, (errors.InvalidDeployment, errors.InvalidImport))  # a file names options, and no flags
    return naming_flag(str(error)) if isinstance(error, errors.InvalidInput) and not of_file else str(error)


# Redis 6.2 wraps an error within a script into another one, so errors are recognized by their text, not by their class.

_CHECK = "check --url or $RQTTL_URL"
#: The place of an error in a script, as Redis 6.2 writes it, and as Redis since 7.0 does.
_OF_SCRIPT = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: |,? ?script: [0-9a-f]{40}, on @user_script:\d+\.?"
)
#: Text of redis-py around the words of the system.
_OF_SOCKET = re.compile(r"^Error (-?\d+|while reading from .*?:) |\(\d+, '|'\)$")

#: Patterns in errors of a Redis that refuses, and of one that cannot be used at all, each with the line.
_REFUSALS = {
    "OOM command|used memory > 'maxmemory'|out of memory": (
        "Redis is out of memory: consume, purge, or raise its maxmemory"
    ),
    "read only replica": "this Redis is a read-only replica: name its primary in --url or $RQTTL_URL",
    "MISCONF|unable to persist|errors writing to the AOF": (
        "Redis cannot save its data, so it takes no writes: look at its log and its disk"
    ),
    "NOREPLICAS|Not enough good replicas": (
        "Redis has fewer replicas than min-replicas-to-write asks for, so it takes no writes"
    ),
}
_OBSTACLES = {
    "loading the dataset": "Redis is loading its data: try again in a moment",
    "max number of clients": "Redis takes no more connections (maxclients): close some, or raise it",
    "DB index is out of range|invalid DB index": f"Redis has no database of this number: {_CHECK}",
    "HELLO must be called|Authentication required|NOAUTH": (
        "Redis wants a password: give it in --url or $RQTTL_URL, before the host, as :PASSWORD@"
    ),
    "WRONGPASS|invalid (username-)?password|called without any password configured": (
        f"Redis does not take this user and password: {_CHECK}"
    ),
    "Protocol error, got": f"the server speaks another protocol than Redis: {_CHECK}",
    "WRONG_VERSION_NUMBER|record layer failure": (
        f"the server does not speak TLS: use redis:// instead of rediss://, or {_CHECK}"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE"
    ),
}
#: Patterns in errors about rights that a user lacks.
_RIGHTS = {
    "can't run this command": "the right for a command that scripts use",
    "access (at least )?one of the keys|access a key": "the right for keys of this namespace",
    "can't publish|access one of the channels|permissions to .*channel": "the right for the channel that wakes reapers",
    "NOPERM|no permissions": "a right",
}


def explain_redis(error: Exception, broker: Broker | None = None) -> tuple[int, str] | None:
    """Exit code and line of an error of redis-py; `None` for any other error."""
    from redis import exceptions  # slow to load, and most errors are about the command line

    if not isinstance(error, exceptions.RedisError):
        return None
    message = str(error)
    if missing := _known(_RIGHTS, message):
        command = re.search(r"no permissions to run the '([^']+)' command", message, re.IGNORECASE)
        right = f"the right for {command[1].upper()}" if command else missing
        name = broker.address.user if broker is not None else None
        user = f"user {name!r}" if name else "this user"
        role = re.search(r" is for the role ([\w ]+)$", message)
        remedy = f"the role {role[1]} has it (`rqttl acl generate`)" if role else "`rqttl doctor` checks this user"
        return REFUSED, f"Redis refuses {user}: {right} is missing; {remedy}"
    if refusal := _known(_REFUSALS, message):
        return REFUSED, refusal
    if obstacle := _known(_OBSTACLES, message):
        return UNREACHABLE, obstacle
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
        reason = _OF_SOCKET.sub("", message).rstrip(".").replace(". ", ": ") or type(error).__name__
        knows_nodes = broker is not None and broker.node_of("any") is not None
        advice = "`rqttl doctor` looks at all nodes" if knows_nodes else _CHECK
        return UNREACHABLE, f"Redis does not answer: {reason}{_tls_hint(broker, message)}; {advice}"
    return REFUSED, f"Redis refused: {_OF_SCRIPT.sub('', message).strip().removeprefix('-')}"


def _known(patterns: Mapping[str, str], message: str) -> str | None:
    """The line of the first pattern in a message."""
    return next((line for pattern, line in patterns.items() if re.search(pattern, message, re.IGNORECASE)), None)


def _tls_hint(broker: Broker | None, message: str) -> str:
    """A likely reason why a server does not answer: it speaks TLS and the client does not, or the other way round."""
    scheme = "redis" if broker is None else broker.address.scheme
    if broker is not None and broker.address.has_tls:
        return f" (a port without TLS wants {scheme.replace('rediss', 'redis')}://)"
    hung_up = re.search("while writing|closed by server|reset by peer", message, re.IGNORECASE)
    secure = scheme.replace("redis", "rediss")
    return f" (a port with TLS wants {secure}://; or all its maxclients connections are taken)" if hung_up else ""


# What a user likely meant who typed a command or a flag of another tool, or a typo

#: Names of our commands in other tools. A name of several commands means the one in the group at hand, else the first.
_WORDS = {
    "send": "publish push enqueue put produce post add",
    "send --delay": "schedule eta countdown enqueue_in enqueue_at later",
    "receive": "consume get pop dequeue fetch pull take read poll",
    "receive --follow": "tail follow listen",
    "peek": "browse view messages",
    "queue declare": "create new make add define",
    "queue update": "set alter change modify edit config configure",
    "queue delete": "rm remove del destroy drop",
    "queue ls": "list queues all",
    "queue show": "info describe inspect get view",
    "message show": "get info describe inspect view cat",
    "message move": "mv transfer forward",
    "message delete": "rm remove del drop purge",
    "message dead-letter": "reject kill",
    "message expire": "outdate",
    "message redeliver": "deliver promote",
    "peek --state=scheduled": "scheduled upcoming",
    "cancel": "unschedule revoke abort",
    "reschedule": "postpone defer snooze",
    "queue purge": "clear empty flush truncate drain",
    "queue touch": "use keep renew",
    "queue pause": "stop disable hold suspend freeze",
    "queue resume": "start enable continue unpause unfreeze",
    "topic": "exchange exchanges fanout pubsub sns topics route",
    "topic declare": "create new make add define",
    "topic subscribe": "subscription subscriptions join",
    "topic unsubscribe": "leave",
    "topic bind": "attach link binding bindings",
    "topic unbind": "detach unlink",
    "topic set-filter": "filter rule rules rebind setfilter",
    "topic show": "info describe inspect get view ls list",
    "dead": "dlq dlx deadletter deadletters dead-letter dead-letters letters",
    "dead ls": "list all",
    "dead show": "info describe inspect get view",
    "dead redrive": "requeue retry replay republish resend restore return",
    "dead purge": "rm remove del delete drop clear empty",
    "dead report": "summary histogram",
    "policy set": "set_policy add_policy",
    "policy ls": "list_policies policies",
    "policy show": "get_policy",
    "policy delete": "clear_policy",
    "operator-policy set": "set_operator_policy",
    "operator-policy ls": "list_operator_policies",
    "operator-policy show": "get_operator_policy",
    "operator-policy delete": "clear_operator_policy",
    "explain": "why effective",
    "apply": "deploy plan up converge",
    "export": "dump export_definitions backup",
    "import rabbitmq": "import_definitions rabbitmqctl amqp",
    "import artemis": "activemq",
    "import servicebus": "azure asb",
    "stats": "top status counters",
    "stats --watch": "watch",
    "dashboard": "web ui monitor flower gui browser",
    "metrics": "prometheus exporter scrape",
    "doctor": "check health verify diagnose fsck repair ping",
    "acl generate": "users permissions set_permissions rights grant",
    "worker": "work consumer celery rq",
    "worker ls": "workers list ps",
    "reaper": "sweep sweeper janitor scheduler expire",
    "server": "serve start run redis",
    "demo": "example tour",
    "completion": "completions autocomplete",
    "--version": "version",
    "--help": "help usage",
}

#: Commands of other tools that rqttl does without.
_NO_COMMANDS = dict.fromkeys(("beat", "cron"), "; there are no periodic messages: let cron run `rqttl send`")

#: Flags by their names in other tools, beside those of `options.OTHER_NAMES`.
_FLAGS = {
    "concurrency": ("threads", "processes"),
    "workers": ("processes",),
    "max_tasks_per_child": ("max_messages",),
    "time_limit": ("timeout",),
    "ttl": ("message_ttl",),
    "expiration": ("ttl",),
    "eta": ("at",),
    "countdown": ("delay",),
    "deliver_at": ("at",),
    "schedule": ("at",),
    "count": ("limit",),
    "max": ("limit",),
    "host": ("url",),
    "port": ("url",),
    "broker": ("url",),
    "prefix": ("namespace",),
    "force": ("yes",),
    "format": ("json",),
}


def flag_hint(option: str, command: click.Command) -> str:
    """`; did you mean --FLAG?`, or why there is no such option."""
    flags = [name for param in command.params for name in param.opts if name.startswith("--")]
    word = option.lstrip("-").replace("-", "_").lower()
    for name in (*_FLAGS.get(word, ()), OTHER_NAMES.get(word, "")):
        if flag(name) in flags:
            return f"; did you mean {flag(name)}?"
    if word in NO_OPTIONS:
        return f"; {NO_OPTIONS[word]}"
    return did_you_mean(option, flags, likeness=0.75)


def suggestion(context: click.Context, word: str) -> str | None:
    """The likely command, as people write it after `rqttl`; `None` if no command is like the word."""
    group = " ".join(context.command_path.split()[1:])
    names: dict[str, list[str]] = {}
    for path in sorted(_commands(context.find_root()), key=lambda path: (" " in path, not path.startswith("queue "))):
        names.setdefault(path.rpartition(" ")[2], []).append(path)
    synonyms: dict[str, list[str]] = {}
    for path, words in _WORDS.items():
        if not group or " " not in path or path.startswith(f"{group} "):  # `message rm` is not `queue delete`
            for synonym in words.split():
                synonyms.setdefault(synonym, []).append(path)
    word = word.lower()
    if inside := _within(group, names.get(word, ())) or _within(group, synonyms.get(word, ())):
        return inside
    for meanings, likeness in ((names, 1.0), (synonyms, 1.0), (names, 0.6), (synonyms, 0.8)):
        if near := nearest(word, meanings, likeness):
            path = _within(group, meanings[near]) or meanings[near][0]
            # from within a group, a command of the root alone would read as one of the group
            return f"rqttl {path}" if group and " " not in path else path
    return None


def _within(group: str, paths: Iterable[str]) -> str | None:
    """The first path of a command in a group; of the root, of a command that is in no group."""
    return next((path for path in paths if path.rpartition(" ")[0] == group), None)


def _commands(root: click.Context) -> Iterator[str]:
    assert isinstance(root.command, click.Group)  # noqa: S101  # it is our program
    for name in root.command.list_commands(root):
        yield name
        command = root.command.get_command(root, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {inner}" for inner in command.list_commands(root))
