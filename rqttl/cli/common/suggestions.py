"""What a user likely meant who typed a command or a flag of another tool, or a typo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from rqttl.cli.common.option_flags import flag
from rqttl.options import NO_OPTIONS, OTHER_NAMES
from rqttl.text import did_you_mean, nearest

#: Names of our commands in other tools. A name of several commands means the one in the group at hand, else the first.
_WORDS = {
    "send": "publish push enqueue put produce post add",
    "receive": "consume get pop dequeue fetch pull take read poll subscribe",
    "receive --follow": "tail follow listen",
    "peek": "browse view messages",
    "queue declare": "create new make add define",
    "queue update": "set alter change modify edit config configure",
    "queue delete": "rm remove del destroy drop",
    "queue ls": "list queues all",
    "queue show": "info describe inspect get view",
    "message show": "get info describe inspect view cat",
    "queue purge": "clear empty flush truncate drain",
    "queue touch": "use keep renew",
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
    "stats": "top status monitor counters",
    "stats --watch": "watch",
    "metrics": "prometheus exporter scrape",
    "doctor": "check health verify diagnose fsck repair ping",
    "worker": "work consumer celery rq",
    "worker ls": "workers list ps",
    "reaper": "sweep sweeper janitor scheduler expire",
    "server": "serve start run redis",
    "demo": "example tour",
    "completion": "completions autocomplete",
    "--version": "version",
    "--help": "help usage",
}

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
