"""The likely command for a word that is no command: a synonym, the name of an inner command, or a typo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from rqttl.text import nearest

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


def suggestion(context: click.Context, word: str) -> str | None:
    """The likely command, as people write it after `rqttl`; `None` if no command is like the word."""
    group = " ".join(_groups(context))
    names: dict[str, list[str]] = {}
    for path in _commands(context.find_root()):
        names.setdefault(path.rpartition(" ")[2], []).append(path)
    synonyms: dict[str, list[str]] = {}
    for path, words in _WORDS.items():
        if not group or " " not in path or path.startswith(f"{group} "):  # `message rm` is not `queue delete`
            for synonym in words.split():
                synonyms.setdefault(synonym, []).append(path)
    word = word.lower()
    if inside := _within(group, names.get(word, ())) or _within(group, synonyms.get(word, ())):
        return inside[0]
    for meanings, likeness in ((names, 1.0), (synonyms, 1.0), (names, 0.6), (synonyms, 0.8)):
        if near := nearest(word, meanings, likeness):
            paths = meanings[near]
            if inside := _within(group, paths):
                return inside[0]
            # from within a group, a command of the root alone would read as one of the group
            return f"rqttl {paths[0]}" if group and " " not in paths[0] else paths[0]
    return None


def _within(group: str, paths: Sequence[str]) -> list[str]:
    """The paths of commands in a group; of the root, of commands that are in no group."""
    return [path for path in paths if path.startswith(f"{group} ") or (not group and " " not in path)]


def _groups(context: click.Context) -> list[str]:
    """The names of the groups around a context, without the root."""
    names = []
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return names[::-1]


def _commands(root: click.Context) -> Iterator[str]:
    """The paths of all commands: those of the root first, then those in groups, queues before all else."""
    groups = []
    assert isinstance(root.command, click.Group)  # noqa: S101  # it is our program
    for name in root.command.list_commands(root):
        yield name
        command = root.command.get_command(root, name)
        if isinstance(command, click.Group):
            groups.append((name, command))
    for name, group in sorted(groups, key=lambda item: item[0] != "queue"):
        for inner in group.list_commands(root):
            yield f"{name} {inner}"
