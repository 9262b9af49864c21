"""Who is there, on the command line: consumers in `queue show`, and the holder in `message show`."""

import json
import os
import re
import socket
from collections.abc import Callable

import pytest

from rqttl import Message, Queue
from rqttl.consuming.heartbeat import program
from tests.cli.conftest import Run
from tests.contract.clocked import Clocked


def test_show_names_the_consumers_and_the_holder_of_a_leased_message(
    run_clocked: Run, clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.consuming.prefetch.LONGEST_REST", 3_600_000)
    orders = clocked.declare_queue("orders", lease="1h")
    orders.enqueue_many([Message(b"x", id="order-17"), Message(b"x")])

    with orders.consume(5) as deliveries:
        delivery = next(deliveries)
        clocked.clock.advance("5s")
        held = run_clocked("message", "show", "orders", "order-17").stdout
        by = json.loads(run_clocked("message", "show", "orders", "order-17", "--json").stdout)["held_by"]
        [listed] = json.loads(run_clocked("queue", "show", "orders", "--json").stdout)["living_consumers"]
        clocked.advance("20s")
        shown, exact = (run_clocked("queue", "show", "orders", *flags).stdout for flags in ([], ["--utc"]))
        delivery.renew("2h")
        renewed = run_clocked("message", "show", "orders", "order-17").stdout
        clocked.advance("20s")
        later = run_clocked("queue", "show", "orders").stdout

    row = next(line for line in shown.splitlines() if str(os.getpid()) in line)
    numbers = f"{socket.gethostname()} {os.getpid()} 20s ago 5 2 order-17, for 20s"
    assert " ".join(row.split()) == f"consumer {program()} {numbers}"
    assert "order-17, since 2023-11-14 22:13:25.000Z" in exact
    assert "program" not in later
    name = rf"{re.escape(program())} on {socket.gethostname()}, pid {os.getpid()}"
    assert re.search(rf"^held by +{name}$", held, re.MULTILINE)
    assert re.search(rf"^held by +{name}, as of 20s ago$", renewed, re.MULTILINE)
    assert (listed, listed["in_flight"], listed["oldest"], "leases" in listed) == (by, 2, "order-17", False)


def test_queue_show_works_for_a_user_who_may_not_see_the_roster(
    run: Run, orders: Queue, url_of_user: Callable[..., str]
) -> None:
    url = url_of_user("+@all", "~rqttl:{*", "~rqttl:queues{rqttl}", "~rqttl:policies{rqttl}")

    shown, document = (run("queue", "show", "orders", "--url", url, *flags).stdout for flags in ([], ["--json"]))

    assert "program" not in shown
    assert json.loads(document)["living_consumers"] is None
