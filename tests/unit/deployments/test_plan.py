import re
from dataclasses import replace

import pytest
from hypothesis import given

from rqttl.deployments import Deployment, Plan, Step, make_plan, read_document
from rqttl.errors import InvalidDeployment
from rqttl.options import QueueOptions
from rqttl.policies import Policy
from tests.unit.deployments.examples import deployments


def deployment(**sections: dict[str, object]) -> Deployment:
    return read_document({"rqttl": 1, **sections})


def queues(**options: object) -> Deployment:
    return deployment(queues={"q": {name: value for name, value in options.items() if value is not None}})


def policy(pattern: str = "#", priority: int = 0, **definition: object) -> Deployment:
    return deployment(policies={"p": {"pattern": pattern, "priority": priority, "definition": definition}})


def applied(plan: Plan, present: Deployment) -> Deployment:
    """The state after the steps of a plan."""
    found: dict[tuple[str, str], QueueOptions | Policy] = {}
    for kind, values in (
        ("queue", present.queues),
        ("policy", present.policies),
        ("operator policy", present.operator_policies),
    ):
        found |= {(kind, name): value for name, value in values.items()}
    for step in plan.steps:
        assert found.pop((step.kind, step.name), None) == step.before
        if step.after is not None:
            found[step.kind, step.name] = step.after
    kept = found.values()
    return Deployment.of(
        [one for one in kept if isinstance(one, QueueOptions)], [one for one in kept if isinstance(one, Policy)]
    )


def only(plan: Plan) -> Step:
    [step] = plan.steps
    return step


def order(plan: Plan) -> list[str]:
    return [f"{step.action} {step.name}" for step in plan.steps]


def test_equal_states_give_no_steps() -> None:
    wanted = policy(max_length=3)

    assert make_plan(wanted, wanted, prune=True) == Plan(())
    assert make_plan(queues(lease="30s"), queues(lease=None)) == Plan(())  # the default is no option


def test_a_step_shows_each_option_and_part_before_and_after() -> None:
    new = only(make_plan(queues(message_ttl="60s", max_length=3), Deployment()))
    assert (new.action, new.kind, new.name, new.before) == ("create", "queue", "q", None)
    assert new.changes == {"message_ttl": (None, "1m"), "max_length": (None, 3)}

    other = only(make_plan(queues(lease="1m", max_length=5), queues(max_length=3, overflow="reject-publish")))
    assert other.action == "update"
    assert other.changes == {"lease": (None, "1m"), "max_length": (3, 5), "overflow": ("reject-publish", None)}

    set_ = only(make_plan(policy("a", 1, max_length="none", lease="1s"), policy(max_length=3)))
    assert (set_.action, set_.kind) == ("set", "policy")
    assert set_.changes == {"pattern": ("#", "a"), "priority": (0, 1), "max_length": (3, "none"), "lease": (None, "1s")}


@pytest.mark.parametrize("paused", [True, False, None])
@pytest.mark.parametrize("was", [True, None])
def test_a_pause_is_part_of_a_plan_only_where_the_file_names_it(paused: bool | None, was: bool | None) -> None:
    plan = make_plan(queues(paused=paused, max_length=5), queues(paused=was, max_length=3))

    changes = {} if paused is None or paused is bool(was) else {"paused": (was, True if paused else None)}
    assert only(plan).changes == {"max_length": (3, 5), **changes}
    assert bool(only(make_plan(queues(paused=paused), Deployment())).after["paused"]) is bool(paused)  # type: ignore[index]  # a new queue


NEWS_BINDINGS: dict[str, object] = {"a": "x.#", "b": {"size": 1}, "c": None}
NEWS: dict[str, object] = {"news": {"max_length": 5, "bindings": NEWS_BINDINGS}, "a": {}, "b": {}, "c": {}}


def bound(present: dict[str, object], **bindings: object) -> Step:
    """The one step from queues, among them the topic `news`, to other bindings."""
    return only(make_plan(deployment(queues={"news": {"bindings": bindings}}), deployment(queues=present)))


def test_a_step_shows_each_binding_before_and_after() -> None:
    step = bound({**NEWS, "d": {}}, a="y", b={"size": True}, d=[])

    assert step.changes["max_length"] == (5, None)
    assert step.bindings == {
        "a": ([{"subject": "x.#"}], [{"subject": "y"}]),
        "b": ([{"size": 1}], [{"size": True}]),
        "c": ([], None),
        "d": (None, []),
    }
    assert step.changes.keys() == {"max_length", "bindings"}
    assert bound({"news": {"bindings": {"a": {"x": 1}}}, "a": {}}, a={"x": True}).changes.keys() == {"bindings"}


def test_bindings_stay_where_the_file_does_not_name_them() -> None:
    present = deployment(queues=NEWS)

    assert make_plan(deployment(queues={"news": {"max_length": 5}}), present).steps == ()
    step = only(make_plan(deployment(queues={"news": {}}), present))
    assert (step.changes, step.bindings) == ({"max_length": (5, None)}, {})


def test_bound_queues_come_before_their_topics() -> None:
    topics = {"a": {"bindings": {"b": None}}, "b": {"bindings": {"c": None, "old": None}}}

    plan = make_plan(
        deployment(queues={**topics, "c": {}, "z": {}}), deployment(queues={"old": {}, "z": {"lease": "1m"}})
    )

    assert order(plan) == ["create c", "update z", "create b", "create a"]


def test_a_queue_that_forwards_is_made_after_its_target_and_a_chain_is_turned_round_from_its_end() -> None:
    wanted = deployment(queues={"a": {}, "b": {"forward_to": "a"}, "c": {"forward_to": "b"}})
    present = deployment(queues={"a": {"forward_to": "b"}, "b": {}})

    assert order(make_plan(wanted, present)) == ["update a", "update b", "create c"]
    assert order(make_plan(wanted, Deployment())) == ["create a", "create b", "create c"]


def test_a_binding_of_a_queue_that_is_gone_is_in_no_file_and_made_again_with_its_queue() -> None:
    present = replace(deployment(queues=NEWS), gone=frozenset("ab"))
    present = replace(present, queues={name: present.queues[name] for name in ("news", "c")})

    assert present.as_document()["queues"] == {"c": {}, "news": {"max-length": 5, "bindings": {"c": []}}}
    plan = make_plan(deployment(queues={"news": {"bindings": {"a": "x.#"}}, "a": {}}), present)
    assert order(plan) == ["create a", "update news"]
    assert plan.steps[1].bindings == {"a": (None, [{"subject": "x.#"}]), "b": ([{"size": 1}], None), "c": ([], None)}
    other, news = make_plan(present, Deployment()).steps
    assert (other.name, news.bindings) == ("c", {"c": (None, [])})


@pytest.mark.parametrize(
    "wanted, prune, text",
    [
        ({"a": {"bindings": {}}}, False, "queues.a.bindings: queue 'a' is no topic, and never becomes one: delete it"),
        ({"news": {"bindings": {"d": None}}}, False, "queues.news.bindings.d: no such queue, neither in the file nor"),
        ({"news": {"bindings": {"a": None}}}, True, "queues.news.bindings.a: no such queue, neither in the file nor"),
        ({"top": {"bindings": {"news": None}}, "news": {"bindings": {"top": None}}}, False, "messages would come back"),
        ({"later": {"bindings": {"news": None}}}, False, "messages would come back: "),
        ({"a": {"forward_to": "c"}, "c": {"forward_to": "a"}}, False, "messages would come back: "),
        ({"b": {"forward_to": "{queue}/x"}, "b/x": {"bindings": {"b": None}}}, False, "messages would come back: "),
        ({"news": {"forward_to": "a"}}, False, "queues.news: forward_to: 'news' is a topic: bind 'a' to it instead"),
    ],
)
def test_what_cannot_be_bound_is_refused(wanted: dict[str, object], prune: bool, text: str) -> None:
    present = {**NEWS, "later": {"bindings": {}}, "news": {"bindings": {"later": None}}}

    with pytest.raises(InvalidDeployment, match=re.escape(text)):
        make_plan(deployment(queues=wanted), deployment(queues=present), prune=prune)


def test_policies_come_first_and_deletions_last() -> None:
    parts = {"pattern": "#", "definition": {"max_length": 9}}
    wanted = deployment(
        queues={"new": {}, "kept": {"max_length": 2}}, policies={"b": parts}, operator_policies={"a": parts}
    )
    present = deployment(queues={"old": {}, "kept": {}}, policies={"z": parts}, operator_policies={"y": parts})

    plan = make_plan(wanted, present, prune=True)

    assert [(step.action, step.kind, step.name) for step in plan.steps] == [
        ("set", "operator policy", "a"),
        ("set", "policy", "b"),
        ("create", "queue", "new"),
        ("update", "queue", "kept"),
        ("delete", "policy", "z"),
        ("delete", "operator policy", "y"),
        ("delete", "queue", "old"),
    ]


def test_only_with_prune_the_rest_is_deleted() -> None:
    plan = make_plan(Deployment(), queues())
    pruning = make_plan(Deployment(), queues(), prune=True)

    assert (plan.steps, plan.kept) == ((), (("queue", "q"),))
    assert (only(pruning).action, only(pruning).name) == ("delete", "q")


@given(deployments(), deployments())
def test_after_a_plan_that_prunes_the_state_is_the_file(wanted: Deployment, present: Deployment) -> None:
    assert applied(make_plan(wanted, present, prune=True), present) == wanted


@given(deployments(), deployments())
def test_without_prune_nothing_is_deleted_and_nothing_is_left_to_do(wanted: Deployment, present: Deployment) -> None:
    plan = make_plan(wanted, present)

    assert all(step.action != "delete" for step in plan.steps)
    assert [step for step in plan.steps if step.before is not None and not step.changes] == []
    assert {name for kind, name in plan.kept if kind == "queue"} == set(present.queues) - set(wanted.queues)
    assert make_plan(wanted, applied(plan, present)).steps == ()
