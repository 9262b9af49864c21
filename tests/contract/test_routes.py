"""Routes, the bindings of kombu: which queues get what is sent to an exchange, and how rows of missing queues go."""

from typing import Any

import pytest

from rqttl import Broker, InvalidInput, InvalidName
from rqttl.flows import routes
from rqttl.flows.routes import Route
from rqttl.flows.steps import Flow, Write
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import driver_of
from tests.conftest import AIO
from tests.contract.clocked import Clocked
from tests.drivers import before_step

KEYS = Keyspace()


def perform(broker: Broker, flow: Flow[Any]) -> Any:
    """Carry out a flow on the face of this run."""
    if not AIO:
        return driver_of(broker).perform(flow)
    from tests.contract.portal import _loop

    inner: Any = broker
    return _loop().call(inner._inner._driver.perform, flow)


def all_routes(broker: Broker) -> list[Route]:
    return [Route(*each) for each in perform(broker, routes.read(KEYS))]


def bind(broker: Broker, *added: Route) -> None:
    for route in added:
        perform(broker, routes.add(KEYS, route))


def test_an_exchange_has_its_own_routes_until_they_are_removed(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.declare_queue(name)
    one, other, foreign = Route("x", "a", "k.*"), Route("x", "b", ""), Route("x.y", "a", "k")
    bind(broker, one, other, foreign, one)

    assert perform(broker, routes.read(KEYS, "x")) == [one, other]
    assert perform(broker, routes.read(KEYS, "x.y")) == [foreign]
    perform(broker, routes.remove(KEYS, [one, Route("x", "a", "unknown")]))
    perform(broker, routes.remove(KEYS, []))
    assert all_routes(broker) == [other, foreign]


@pytest.mark.parametrize("route, error", [(Route("x", "a b", ""), InvalidName), (Route("x\0", "a", ""), InvalidInput)])
def test_a_name_that_would_be_read_as_another_one_is_refused(
    broker: Broker, route: Route, error: type[Exception]
) -> None:
    with pytest.raises(error):
        bind(broker, route)

    assert all_routes(broker) == []


def test_a_new_route_takes_those_of_deleted_and_ended_queues_out(clocked: Clocked) -> None:
    for name in ("stays", "deleted"):
        clocked.declare_queue(name)
    clocked.declare_queue("ended", expires="1m")
    kept = [Route("x", "stays", ""), Route("y", "stays", "")]
    bind(clocked, *kept, Route("x", "deleted", ""), Route("z", "ended", ""))
    clocked.queue("deleted").delete()
    clocked.clock.advance("1m")

    bind(clocked, Route("y", "stays", "new"))

    assert all_routes(clocked) == [*kept, Route("y", "stays", "new")]
    assert clocked.queues() == ["stays"]


def test_a_large_table_is_looked_through_now_and_then(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.declare_queue("q")
    monkeypatch.setattr("random.random", lambda: 0.999)
    monkeypatch.setattr(routes, "LOOKED_THROUGH", 1)
    gone = [Route("x", "q", "1"), Route("x", "gone", "2")]
    bind(broker, *gone)

    bind(broker, Route("x", "q", "3"))
    assert len(all_routes(broker)) == 3
    monkeypatch.setattr("random.random", lambda: 0.2)
    bind(broker, Route("x", "q", "3"))
    assert len(all_routes(broker)) == 3  # it was there
    bind(broker, Route("x", "q", "4"))
    assert [route.key for route in all_routes(broker)] == ["1", "3", "4"]


def test_a_route_whose_queue_is_made_again_while_it_is_removed_stays(broker: Broker) -> None:
    driver, route = driver_of(broker), Route("x", "q", "")
    broker.declare_queue("q")
    driver.perform(routes.add(KEYS, route))
    broker.queue("q").delete()
    removed = Write([("ZREM", KEYS.routes, "\0".join(route))])
    before_step(driver, removed, lambda: broker.declare_queue("q"))

    driver.perform(routes.tidy(KEYS, "x"))

    assert driver.perform(routes.read(KEYS, "x")) == [route]
