"""Public names: all can be had, none is invented, and importing the package is quick."""

import inspect
import subprocess
import sys

import pytest

import rqttl
from rqttl.testing import fake_broker
from tests.drivers import redis_of


def test_every_public_name_is_there_and_listed() -> None:
    assert [name for name in rqttl.__all__ if getattr(rqttl, name) is None] == []
    assert set(rqttl.__all__) <= set(dir(rqttl))


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rqttl' has no attribute 'Brokr'"):
        getattr(rqttl, "Brokr")  # noqa: B009  # mypy knows that it is not there


ALL_COMMANDS = "import click; from rqttl.cli import cli; cli.get_help(click.Context(cli))"


@pytest.mark.parametrize(
    "statement", ["import rqttl", "import rqttl.errors", "from rqttl import InvalidInput", ALL_COMMANDS]
)
def test_imports_that_need_no_redis_do_not_wait_for_its_client(statement: str) -> None:
    told = f"{statement}; import sys; print('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_package_and_its_commands_load_no_extra() -> None:
    extras = "rqttl.celery rqttl.dashboard rqttl.django rqttl.telemetry spark_connectors celery django jinja2 kombu"
    others = "matplotlib prometheus_client pyarrow pyspark starlette uvicorn yaml"  # redis-py loads opentelemetry
    told = f"import sys, rqttl; [getattr(rqttl, name) for name in rqttl.__all__]; {ALL_COMMANDS}; "
    told += f"print(set('{extras} {others}'.split()) & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout == "set()\n"


_NAMES = {
    rqttl.Broker: (
        "address apply_plan check_policy close consume declare_queue declare_topic delete_policy deployment events "
        "explain held_back interrupt namespace node_of observer options policies preview_declaration preview_plan "
        "preview_policy queue queues reaper_count receive reconcile server_time set_policy stats topic workers"
    ),
    rqttl.Queue: (
        "ack_many cancel consume consumers dead_letter declared delete delete_message enqueue enqueue_many "
        "expire explain message messages move nack_many name options pause peek preview_update purge purge_many "
        "receive receive_many redeliver_now redrive redrive_many reject_many renew_many reschedule resume "
        "run scheduled stats sweep touch update "
        "hand_out"  # for brokers
    ),
    rqttl.Delivery: (
        "ack body content_type deaths decode delivery_count enqueued_at expires_at headers id leased_until nack queue "
        "reject release renew sequence settled "
        "check_unsettled checksum config entry_id fields lease settle_as settler size token words"  # for consumers
    ),
    rqttl.Consumer: "close idle lost lost_count prefetch queue release stop unknown unknown_count wait",
}
PUBLIC = {kind: set(words.split()) for kind, words in _NAMES.items()}


def names(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


def test_a_user_reaches_these_names_and_no_others() -> None:
    broker = fake_broker()
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None

    reached = {
        rqttl.Broker: names(rqttl.Broker(redis_of(broker))),
        rqttl.Queue: names(rqttl.Broker(redis_of(broker)).queue("orders")),
        rqttl.Delivery: names(delivery),
        rqttl.Consumer: names(queue.consume()),
    }

    assert reached == PUBLIC


def test_the_fake_broker_adds_a_clock_a_reaper_and_twins_to_a_broker() -> None:
    broker = fake_broker()

    assert names(broker) - PUBLIC[rqttl.Broker] == {"clock", "connect", "run_reaper"}
    assert names(broker.queue("orders")) == PUBLIC[rqttl.Queue]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: str(kind.__name__))
def test_every_public_method_and_property_says_what_it_does(kind: type) -> None:
    assert [
        name
        for name in names(kind)
        if (inspect.isfunction(one := inspect.getattr_static(kind, name)) or isinstance(one, property))
        and not inspect.getdoc(one)
    ] == []
