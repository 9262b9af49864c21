import pytest
from hypothesis import given

from rqttl.deployments import Deployment, Plan, Step, make_plan, read_document
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


def test_equal_states_give_no_steps() -> None:
    wanted = policy(max_length=3)

    assert make_plan(wanted, wanted, prune=True) == Plan(())
    assert make_plan(queues(lease="30s"), queues(lease=None)) == Plan(())  # the default is no option


def test_a_step_shows_each_option_and_part_before_and_after() -> None:
    new = only(make_plan(queues(message_ttl="60s", max_length=3), Deployment()))
    assert (new.action, new.kind, new.name, new.before) == ("create", "queue", "q", None)
    assert new.changes == {"message_ttl": (None, "1m"), "max_length": (None, 3)}
    assert not new.destructive

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
    assert not only(plan).destructive
    assert bool(only(make_plan(queues(paused=paused), Deployment())).after["paused"]) is bool(paused)  # type: ignore[index]  # a new queue


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


def test_only_with_prune_the_rest_is_deleted_and_that_is_destructive() -> None:
    plan = make_plan(Deployment(), queues())
    pruning = make_plan(Deployment(), queues(), prune=True)

    assert (plan.steps, plan.kept) == ((), (("queue", "q"),))
    assert only(pruning).dangers == ("its messages are deleted",)
    assert pruning.destructive == pruning.steps


DANGEROUS = [
    ("message_ttl", None, "1s"),
    ("message_ttl", "2s", "1s"),
    ("default_ttl", None, "1s"),
    ("max_ttl", "2s", "1s"),
    ("max_length", None, 5),
    ("max_length", 5, 0),
    ("max_length_bytes", 5, 4),
    ("expires", "2h", "1h"),
    ("auto_delete_on_idle", None, "1h"),
    ("max_deliveries", 5, 4),
    ("min_ttl", "2s", "1s"),
    ("min_ttl", "2s", None),
    ("min_ttl", None, "1s"),
    ("never_expire", True, False),
    ("overflow", "reject-publish", "drop-head"),
    ("on_expire", "keep", "drop"),
    ("dead_letter", "dead", None),
    ("dead_letter_expired", "dead", ""),
]


@pytest.mark.parametrize("option, before, after", DANGEROUS)
def test_a_change_by_which_messages_can_die_is_destructive(option: str, before: object, after: object) -> None:
    [danger] = only(make_plan(queues(**{option: after}), queues(**{option: before}))).dangers

    assert danger.startswith(f"{option}: ")


HARMLESS = [
    ("message_ttl", "1s", "2s"),
    ("message_ttl", "1s", None),
    ("max_length", 5, 6),
    ("max_length", 5, None),
    ("min_ttl", "1s", "2s"),
    ("never_expire", None, True),
    ("overflow", None, "reject-publish"),
    ("lease", "1s", "2s"),
    ("on_expire", None, "keep"),
    ("dead_letter", None, "dead"),
    ("dead_letter", "dead", "other"),
    ("max_message_bytes", None, 5),
    ("duplicate_window", None, "1s"),
    ("redelivery_delay", None, "1s"),
]


@pytest.mark.parametrize("option, before, after", HARMLESS)
def test_a_change_by_which_no_message_dies_is_not_destructive(option: str, before: object, after: object) -> None:
    assert only(make_plan(queues(**{option: after}), queues(**{option: before}))).dangers == ()


POLICIES: list[tuple[Deployment, Deployment, tuple[str, ...]]] = [
    (policy(max_length=3, lease="1s"), Deployment(), ("max_length: unset → 3",)),
    (policy(lease="1s"), Deployment(), ()),
    (policy(max_length=4), policy(max_length=3), ()),
    (policy(max_length=2), policy(max_length=3), ("max_length: 3 → 2",)),
    (policy(message_ttl="1m"), policy(message_ttl="2m"), ("message_ttl: 2m → 1m",)),
    (policy(dead_letter="none"), Deployment(), ("dead_letter: unset → none",)),
    (policy(dead_letter="none"), policy(dead_letter="d"), ("dead_letter: d → none",)),
    (policy("#", 1, lease="1s"), policy("#", 2, lease="1s"), ()),
    (
        policy("#", max_length=3),
        policy("a", max_length=3),
        ("max_length: unset → 3", "max_length: without this policy, messages may end sooner"),
    ),
    (Deployment(), policy(max_length=3, lease="1s"), ("max_length: without this policy, messages may end sooner",)),
]


@pytest.mark.parametrize("wanted, present, dangers", POLICIES)
def test_a_policy_is_as_dangerous_as_its_options_for_queues_that_it_comes_to_or_leaves(
    wanted: Deployment, present: Deployment, dangers: tuple[str, ...]
) -> None:
    assert only(make_plan(wanted, present, prune=True)).dangers == dangers


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
