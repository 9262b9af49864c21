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
