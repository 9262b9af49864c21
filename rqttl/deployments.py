"""Whole deployments: queues, policies and operator policies as a file, YAML or JSON, and the steps from one to another.

YAML needs PyYAML, the extra `yaml`. Each error names the place in the file. Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, TypeAlias, TypeVar, cast

from rqttl.checks import check_namespace, check_queue_name
from rqttl.errors import InvalidDeployment, InvalidInput
from rqttl.filters import MOST_BINDINGS, Rule, canonical_json, check_filter
from rqttl.options import BINDINGS, OPTIONS, QueueOptions, by_name, written
from rqttl.policies import Policy
from rqttl.policies.policy import NONE
from rqttl.text import did_you_mean, escape, format_value, install, plain_text

T = TypeVar("T")
_Path: TypeAlias = tuple[str, ...]

#: The version of the format of deployment files.
FORMAT = 1
_KEYS = ("rqttl", "namespace", "queues", "policies", "operator_policies")
_POLICY_KEYS = ("pattern", "definition", "priority", "apply_to", "syntax")
#: Tags of values without quotes that mean something else in YAML than most people read: 010, 1:30, 2026-01-01.
_TRAPS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_PLAIN_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:e[-+][0-9]+)?)?")


@dataclass(frozen=True)
class Deployment:
    """The queues, also topics, policies and operator policies of a file or of a namespace, each by name.

    `namespace` is the one that they were exported from, if the file says so. Equal deployments may differ in it.
    """

    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    operator_policies: Mapping[str, Policy] = field(default_factory=dict)
    namespace: str | None = field(default=None, compare=False)
    #: The queues of a file that does not say whether they are paused.
    unsaid: frozenset[str] = field(default=frozenset(), compare=False)
    #: Queues of a namespace that do not exist any more, but still have bindings. No file has these.
    gone: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, queues: Iterable[QueueOptions], policies: Iterable[Policy], namespace: str | None = None) -> Deployment:
        """The deployment with these queues and with policies of both kinds, in the order of their names."""
        by_name = sorted(policies, key=lambda policy: policy.name)
        return cls(
            {options.queue: options for options in sorted(queues, key=lambda options: options.queue)},
            {policy.name: policy for policy in by_name if not policy.operator},
            {policy.name: policy for policy in by_name if policy.operator},
            namespace,
        )

    def as_document(self) -> dict[str, object]:
        """The content of a deployment file: names of options in kebab-case, durations with a unit."""
        return {
            "rqttl": FORMAT,
            **({} if self.namespace is None else {"namespace": self.namespace}),
            "queues": {name: self._written(options) for name, options in sorted(self.queues.items())},
            "policies": {name: _written(policy) for name, policy in sorted(self.policies.items())},
            "operator-policies": {name: _written(policy) for name, policy in sorted(self.operator_policies.items())},
        }

    def _written(self, options: QueueOptions) -> dict[str, object]:
        arguments = _kebab(options.as_arguments())
        if options.bindings is None:
            return arguments
        bound = {name: rules for name, rules in options.bindings.items() if name not in self.gone}
        return {**arguments, BINDINGS: json.loads(canonical_json(bound))}  # sorted, and without references of YAML


def _kebab(mapping: Mapping[str, object]) -> dict[str, object]:
    """A mapping with hyphens in its keys, and the word `none` for `None`."""
    return {name.replace("_", "-"): NONE if value is None else value for name, value in mapping.items()}


def _written(policy: Policy) -> dict[str, object]:
    parts: dict[str, Any] = policy.as_arguments()
    definition = parts.pop("definition")
    return {**_kebab(parts), "definition": _kebab(definition)}


def read_document(document: object) -> Deployment:
    """Check the content of a deployment file. Raises `InvalidDeployment`, which names place, value and rule.

    Keys have hyphens or underscores.
    """
    entries = _entries(document, (), _KEYS)
    version, path = entries.get("rqttl", (None, ()))
    if type(version) is not int or version != FORMAT:
        rule = f"expected 'rqttl: {FORMAT}', the version of the format that this rqttl reads"
        raise _refused(path, f"{rule}, got {format_value(version, int)}")

    def section(name: str, read: Callable[[str, object, _Path], T]) -> dict[str, T]:
        value, path = entries.get(name, ({}, ()))
        return {key: read(key, item, (*path, key)) for key, item in _mapping(value, path or (name,)).items()}

    namespace, path = entries.get("namespace", (None, ()))
    queues = cast("Mapping[str, Mapping[str, object]]", _mapping(*entries.get("queues", ({}, ("queues",)))))
    return Deployment(
        section("queues", _read_queue),
        section("policies", lambda name, value, path: _read_policy(name, value, path, operator=False)),
        section("operator_policies", lambda name, value, path: _read_policy(name, value, path, operator=True)),
        None if namespace is None else _call(path, lambda: check_namespace(namespace)),
        frozenset(name for name, options in queues.items() if "paused" not in (options or {})),
    )


def _refused(path: _Path, rule: str) -> InvalidDeployment:
    """The error for a path, such as `queues.orders.max-length`."""
    return InvalidDeployment(".".join(escape(part, 80) for part in path) or "the file", rule)


def _call(path: _Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except InvalidInput as error:
        raise _refused(path, str(error)) from None


def _entries(value: object, path: _Path, names: Iterable[str]) -> dict[str, tuple[object, _Path]]:
    """The values of a mapping with known keys, each with its path. The keys have underscores."""
    entries: dict[str, tuple[object, _Path]] = {}
    for key, item in _mapping(value, path).items():
        inner, name = (*path, key), key.replace("-", "_")
        if name not in names:
            hint = did_you_mean(name, names, f"the keys are {', '.join(names)}").replace("_", "-")
            raise _refused(inner, f"no such key{hint}")
        if name in entries:
            raise _refused(inner, "given twice, with a hyphen and with an underscore")
        entries[name] = item, inner
    return entries


def _mapping(value: object, path: _Path) -> Mapping[str, object]:
    """A mapping with texts as keys. Nothing at all is an empty one."""
    if value is None and path:
        return {}
    if not isinstance(value, Mapping):
        raise _refused(path, f"expected a mapping, got {format_value(value, dict)}")
    for key in value:
        if plain_text(key) is None:
            raise _refused(path, f"expected text as a key, got {format_value(key)}")
    return cast("Mapping[str, object]", value)


def _read_queue(name: str, value: object, path: _Path) -> QueueOptions:
    """The declared options of a queue, and the bindings of a topic."""
    _call(path, lambda: check_queue_name(name))
    options = dict(_mapping(value, path))
    is_topic, bindings = BINDINGS in options, _read_bindings(name, options.pop(BINDINGS, None), (*path, BINDINGS))
    for key, item in options.items():
        if plain_text(item) == NONE:
            rule = "'none' stands in policies only; leave the option out, or write '' for a target that drops"
            raise _refused((*path, key), f"{key}: {rule}")
        _check_option(key, item, (*path, key))
    read = _call(path, lambda: QueueOptions.read(name, options))
    return _with_bindings(read, bindings) if is_topic else read


def _with_bindings(options: QueueOptions, bindings: Mapping[str, list[Rule]] | None) -> QueueOptions:
    """The options with these bindings. Raises `InvalidDeployment` for an option that no topic has."""
    return _call(("queues", options.queue), lambda: replace(options, bindings=bindings).changed({}))


def _read_bindings(topic: str, value: object, path: _Path) -> dict[str, list[Rule]]:
    """The filters of bound queues. Nothing at all is none of them."""
    found = _mapping(value, path)
    if topic in found:
        raise _refused((*path, topic), "expected another queue than the topic")
    if len(found) > MOST_BINDINGS:
        raise _refused(path, f"expected at most {MOST_BINDINGS:,} bound queues, got {len(found):,}")
    bindings: dict[str, list[Rule]] = {}
    for name, item in found.items():
        queue = _call((*path, name), partial(check_queue_name, name))
        bindings[queue] = _call((*path, name), partial(check_filter, item))
    return bindings


def _read_policy(name: str, value: object, path: _Path, *, operator: bool) -> Policy:
    """A policy of one kind."""
    parts = _entries(value, path, _POLICY_KEYS)
    for part in ("pattern", "definition"):
        if part not in parts:
            raise _refused(path, f"expected the key {part!r}")
    definition, inner = parts.pop("definition")
    for key, item in _mapping(definition, inner).items():
        if plain_text(item) != NONE:
            _check_option(key, item, (*inner, key))
    arguments = {part: item for part, (item, _) in parts.items()}
    pattern = arguments.pop("pattern")
    return _call(path, lambda: Policy.read(name, pattern, definition, **arguments, operator=operator))


def _check_option(key: str, value: object, path: _Path) -> None:
    """Check one option by itself, so that the error has its place."""
    [name] = _call(path, lambda: by_name({key: value}))
    if value is not None:
        _call(path, lambda: OPTIONS[name].read(name, value))


def read_deployment(text: str | bytes) -> Deployment:
    """Read a deployment file: JSON if it begins with `{`, else YAML.

    Raises `InvalidDeployment`, which names the place, the value and the rule.
    """
    plain = _decoded(text)
    try:
        if not plain.lstrip("\ufeff \t\r\n").startswith("{"):
            return read_document(_read_yaml(plain))
        try:
            document = json.loads(plain, object_pairs_hook=_without_duplicates)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise InvalidDeployment(place, f"expected JSON: {error.msg}") from None
        except ValueError as error:  # a number with thousands of digits
            raise InvalidDeployment("the file", f"expected JSON: {error}") from None
        return read_document(document)
    except RecursionError:
        raise InvalidDeployment("the file", "expected fewer levels of mappings and lists") from None


def write_yaml(deployment: Deployment) -> str:
    """A deployment as YAML that `read_deployment` reads. Equal deployments give equal texts."""
    yaml = _yaml()
    document = deployment.as_document()
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120))


def _decoded(text: object) -> str:
    if not isinstance(text, (str, bytes)):
        raise InvalidDeployment("the file", f"expected text, got {format_value(text)}")
    try:
        return text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = bytes(text[: error.start]).count(b"\n") + 1  # type: ignore[arg-type]  # only bytes are decoded
        raise InvalidDeployment(f"line {line}", f"expected text in UTF-8: {error.reason}") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_key: dict[str, object] = {}
    for key, value in pairs:
        if key in by_key:
            raise InvalidDeployment(format_value(key), "the key stands twice in one object")
        by_key[key] = value
    return by_key


def _yaml() -> Any:
    """PyYAML, if it is installed."""
    try:
        import yaml
    except ImportError:
        rule = f"YAML needs the package PyYAML: {install('yaml')}; JSON needs none"
        raise InvalidDeployment("the file", rule) from None
    return yaml


def _read_yaml(text: str) -> object:
    """Read YAML, with keys as text. Duplicate keys, foreign tags, and numbers and times with a trap are refused."""
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]  # its base comes with an extra
        def mapping(self, node: Any) -> dict[str, object]:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="the key is not text", problem_mark=key.start_mark)
                if key.value in seen:
                    problem = f"the key {format_value(key.value)} stands here twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
            self.flatten_mapping(node)  # `<<`
            return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

        def plain(self, node: Any) -> object:
            if not node.style and not _PLAIN_NUMBER.fullmatch(node.value):
                problem = f"{format_value(node.value)} is another number or a time in YAML: write text in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.mapping)
    for tag in _TRAPS:
        Loader.add_constructor(tag, Loader.plain)
    try:
        document: object = yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidDeployment(place, f"expected YAML: {problem}") from None
    # PyYAML does not check the text behind a tag: `!!bool maybe` is a KeyError
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise InvalidDeployment("the file", f"expected YAML: {' '.join(str(error).split())}") from None
    return document


# Plans: the steps to a deployment

Action = Literal["create", "update", "set", "delete"]
Kind = Literal["queue", "policy", "operator policy"]

_PARTS = ("pattern", "syntax", "priority", "apply_to")


@dataclass(frozen=True)
class Step:
    """One change. `before` is `None` for something new, and `after` is `None` for something deleted."""

    action: Action
    kind: Kind
    name: str
    before: QueueOptions | Policy | None
    after: QueueOptions | Policy | None

    @property
    def changes(self) -> dict[str, tuple[object, object]]:
        """The changed options, bindings, and parts of a policy, each with its values before and after.

        Durations are texts with a unit. `None` means that there is no value, and `none` is the word in a definition.
        """
        before, after = _values(self.before), _values(self.after)
        names = (*(name for name in _PARTS if name in before or name in after), *OPTIONS, BINDINGS)
        pairs = {name: (before.get(name), after.get(name)) for name in names}
        # 1 and true are equal in Python, and two filters
        return {name: pair for name, pair in pairs.items() if len(set(map(canonical_json, pair))) > 1}

    @property
    def bindings(self) -> dict[str, tuple[list[Rule] | None, list[Rule] | None]]:
        """The queues that are bound, unbound, or get another filter, each with its filters before and after."""
        before, after = (dict(getattr(options, BINDINGS, None) or {}) for options in (self.before, self.after))
        pairs = {name: (before.get(name), after.get(name)) for name in sorted({**before, **after})}
        return {name: pair for name, pair in pairs.items() if len(set(map(canonical_json, pair))) > 1}


@dataclass(frozen=True)
class Plan:
    """The steps in a safe order, and the `kept` objects: the file does not name them, and `prune` is false."""

    steps: tuple[Step, ...]
    kept: tuple[tuple[Kind, str], ...] = ()


def make_plan(desired: Deployment, present: Deployment, *, prune: bool = False) -> Plan:
    """The steps that turn `present` into `desired`. Without `prune`, everything that `desired` does not name stays.

    Policies come first, so that new queues are born with them; queues come before those that pass on to them, and
    deletions last. Equal states give no steps. A queue whose file does not name `paused` stays paused, or not, as it
    is; a topic whose file does not name `bindings` keeps them. Raises `InvalidDeployment` for a queue that would become
    a topic, a bound queue that does not exist, and a way on which messages would come back.
    """
    changed = [*_queues(desired, present)]
    kept = {} if prune else present.queues
    queues = {**kept, **desired.queues, **{step.name: cast("QueueOptions", step.after) for step in changed}}
    for step in changed:
        _check_bound(step, queues)
    levels = _levels(queues)
    deletions = (
        *_deletions("policy", desired.policies, present.policies),
        *_deletions("operator policy", desired.operator_policies, present.operator_policies),
        *_deletions("queue", desired.queues, present.queues),
    )
    steps = (
        *_policies("operator policy", desired.operator_policies, present.operator_policies),
        *_policies("policy", desired.policies, present.policies),
        *sorted(changed, key=lambda step: (levels[step.name], step.action, step.name)),
        *(deletions if prune else ()),
    )
    return Plan(steps, () if prune else tuple((step.kind, step.name) for step in deletions))


def _values(source: QueueOptions | Policy | None) -> dict[str, object]:
    if source is None:
        return {}
    if isinstance(source, QueueOptions):
        return {**source.as_arguments(), BINDINGS: source.bindings}
    definition = {name: NONE if value is None else written(name, value) for name, value in source.definition.items()}
    return {**{part: getattr(source, part) for part in _PARTS}, **definition}


def _policies(kind: Kind, desired: Mapping[str, Policy], present: Mapping[str, Policy]) -> Iterator[Step]:
    for name, policy in sorted(desired.items()):
        before = present.get(name)
        if policy != before:
            yield Step("set", kind, name, before, policy)


def _queues(desired: Deployment, present: Deployment) -> Iterator[Step]:
    for name, asked in desired.queues.items():
        before = present.queues.get(name)
        if before is None:
            yield Step("create", "queue", name, None, replace(asked, bindings=_without(asked, desired.gone)))
            continue
        options = asked.changed({"paused": before.paused}) if name in desired.unsaid else asked
        if options.bindings is None:
            options = _with_bindings(options, before.bindings)
        elif before.bindings is None:
            rule = f"queue {name!r} is no topic, and never becomes one: delete it first"
            raise _refused(("queues", name, BINDINGS), rule)
        else:
            options = replace(options, bindings=_without(options, desired.gone))
            # a queue that is made again is bound again, also if its binding is still there
            before = replace(before, bindings=_without(before, present.gone & (options.bindings or {}).keys()))
        step = Step("update", "queue", name, before, options)
        if step.changes:
            yield step


def _without(options: QueueOptions, queues: Container[str]) -> Mapping[str, list[Rule]] | None:
    """The bindings of a queue without those of some others."""
    bindings = options.bindings
    return bindings and {name: rules for name, rules in bindings.items() if name not in queues}


def _levels(queues: Mapping[str, QueueOptions]) -> dict[str, int]:
    """The level of each of all queues: 0, or more than that of each queue to which its messages go on."""
    sorter = TopologicalSorter({name: options.passes_to or () for name, options in queues.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " <- ".join(error.args[1])
        raise _refused(("queues", error.args[1][0]), f"messages would come back: {circle}") from None
    levels: dict[str, int] = {}
    while ready := sorter.get_ready():
        levels |= dict.fromkeys(ready, max(levels.values(), default=-1) + 1)
        sorter.done(*ready)
    return levels


def _check_bound(step: Step, queues: Container[str]) -> None:
    missing = [name for name, (_, rules) in step.bindings.items() if rules is not None and name not in queues]
    if missing:
        rule = "no such queue, neither in the file nor in the namespace"
        raise _refused(("queues", step.name, BINDINGS, missing[0]), rule)


def _deletions(
    kind: Kind, desired: Mapping[str, QueueOptions | Policy], present: Mapping[str, QueueOptions | Policy]
) -> Iterator[Step]:
    for name, before in sorted(present.items()):
        if name not in desired:
            yield Step("delete", kind, name, before, None)
