"""Nodes that die, hang or hand over: what was confirmed is kept, everybody goes on, other nodes notice nothing."""

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from redis.crc import key_slot
from typing_extensions import Self

import rqttl
from rqttl.cli import cli
from rqttl.consuming.several import Queues
from rqttl.flows.receive import receive_once
from rqttl.metrics.collecting import QueueCollector
from rqttl.protocol.keys import Keyspace, slot_of
from rqttl.reaper import Reaper
from tests.cluster.conftest import INTERFACES, connect_by
from tests.cluster_servers import SLOTS, ClusterServers
from tests.sentinel.test_asking import CONNECTS, refusal
from tests.sentinel.test_asking import port as port  # noqa: PLC0414  # a fixture
from tests.sentinel.test_failover import told
from tests.servers import Server, role_of
from tests.waiting import PATIENCE, until
from tests.worker.processes import WorkerProcess, running

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Of the users of a queue. The calls of the first are repeatable, those of the second are not.
IDS, PLAIN, CONSUMER = ROLES = ("ids", "plain", "consumer")
#: Seconds between two messages of a producer: others need the processor, too.
PACE = 0.02


def node_of(key: str) -> int:
    return key_slot(key.encode()) * 3 // SLOTS


def names(prefix: str) -> list[str]:
    """A name of a queue of each of three nodes."""
    found = {node_of(f"{prefix}{number}"): f"{prefix}{number}" for number in range(100)}
    return [found[node] for node in range(3)]


QUEUES = names("q")
#: The node of registry and policies.
SHARED = node_of(Keyspace("rqttl", slotted=True).registry.partition("{")[2].partition("}")[0])


class Users:
    """For each queue a producer with ids, one without, a consumer, and a consumer that is blocked at another queue.

    All use one broker, of threads or of asyncio.
    """

    def __init__(self, interface: str, url: str, lost: int) -> None:
        self.interface, self.url, self.lost = interface, url, lost
        self.queues = [f"{queue}/{interface}" for queue in QUEUES]
        self.idle = [f"{queue}/{interface}-idle" for queue in QUEUES]
        #: By queue and role: the bodies that were confirmed or consumed, and the errors.
        self.done: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.errors: dict[tuple[str, str], list[Exception]] = defaultdict(list)
        self.stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._end = self._pool.submit(self._work)
        self.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        """End when all that was confirmed is consumed."""
        self.stopped.set()
        self._end.result()
        self._pool.shutdown()

    def _work(self) -> None:
        with ThreadPoolExecutor(12) as pool, closing(connect_by(self.interface, self.url)) as broker:
            for queue, idle in zip(self.queues, self.idle, strict=True):
                broker.declare_queue(queue, duplicate_window="1h")
                broker.declare_queue(idle)
            names = [*self.queues, *self.idle]
            consumers = [broker.consume([name], prefetch=10) for name in names]
            consuming = [pool.submit(self._consume, *pair) for pair in zip(consumers, names, strict=True)]
            pairs = itertools.product(self.queues, (IDS, PLAIN))
            producing = [pool.submit(self._produce, broker.queue(name), role) for name, role in pairs]
            try:
                for one in producing:
                    one.result()
                until(self.has_all)
            finally:
                for consumer in consumers:
                    consumer.stop()
            for one in consuming:
                one.result()

    def _produce(self, queue: rqttl.Queue, role: str) -> None:
        for body in self.bodies(role):
            with self.noting(queue.name, role, body):
                queue.enqueue(body.encode(), id=body if role == IDS else None)
            self.stopped.wait(PACE)

    def _consume(self, consumer: rqttl.Consumer, queue: str) -> None:
        with consumer as deliveries:
            for delivery in deliveries:
                body = delivery.body.decode()
                self.done[queue, CONSUMER].add(body)
                with self.noting(queue, CONSUMER, body):
                    delivery.ack()

    def bodies(self, role: str) -> Iterator[str]:
        """Bodies until the end."""
        return itertools.takewhile(
            lambda _: not self.stopped.is_set(), (f"{self.interface} {role} {number}" for number in itertools.count())
        )

    @contextmanager
    def noting(self, queue: str, role: str, body: str) -> Iterator[None]:
        try:
            yield
            self.done[queue, role].add(body)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self.errors[queue, role].append(error)

    def go_on(self) -> None:
        """Wait until each of them has done some more."""
        before = {(queue, role): len(self.done[queue, role]) for queue in self.queues for role in ROLES}
        until(lambda: self._end.done() or all(len(self.done[key]) > count + 10 for key, count in before.items()))

    def has_all(self) -> bool:
        """Return True if all that was confirmed is consumed, but for `lost` messages of each producer.

        Redis may answer a moment before it sends the call to its replica: it loses the last one when it dies then.
        """
        pairs = itertools.product(self.queues, (IDS, PLAIN))
        return all(len(self.done[name, role] - self.done[name, CONSUMER]) <= self.lost for name, role in pairs)


@pytest.fixture(scope="module")
def replicated(launch: Callable[..., Server]) -> Iterator[ClusterServers]:
    """Three nodes, and a replica of each."""
    cluster = ClusterServers(launch, replicas=1, node_timeout=1000)
    yield cluster
    cluster.remove()


def epoch(server: Server) -> int:
    """It rises with each failover."""
    with server.client() as client:
        return int(client.cluster("INFO")["cluster_current_epoch"])


#: Lets a node be away within a block.
How = Callable[[Server], AbstractContextManager[None]]
AWAY = pytest.mark.parametrize("how", [Server.down, Server.hanging])


@contextmanager
def hand_over(replica: Server) -> Iterator[None]:
    with replica.client() as client:
        client.execute_command("CLUSTER", "FAILOVER")
    yield


@pytest.mark.parametrize("node, how", [(0, Server.down), (1, Server.hanging), (2, hand_over)])
def test_what_was_confirmed_is_kept_and_everybody_goes_on(replicated: ClusterServers, node: int, how: How) -> None:
    """Each way to lose a primary has a node of its own, so the three use one cluster."""
    primary, replica = replicated.servers[node], replicated.servers[node + 3]
    replicated.flush()
    lost, before = int(how is not hand_over), epoch(replica)
    threads, tasks = (Users(interface, replicated.url(), lost) for interface in INTERFACES)
    with threads, tasks:
        with how(replica if how is hand_over else primary):
            until(lambda: role_of(replica) == "master")
            for users in (threads, tasks):
                users.go_on()
        until(lambda: role_of(primary) == "slave")  # what it took since the failover is gone now
        with rqttl.connect(replicated.url()) as broker:
            for users in (threads, tasks):
                users.go_on()
                for idle in users.idle:
                    broker.queue(idle).enqueue(b"wake up", id="1")
            until(lambda: all(users.done[idle, CONSUMER] for users in (threads, tasks) for idle in users.idle))

    for users in (threads, tasks):
        met = {key: errors for key, errors in users.errors.items() if errors}
        plain, consumer = (met.pop((users.queues[node], role), []) for role in (PLAIN, CONSUMER))
        assert met == {}
        assert {type(error) for error in plain} <= {rqttl.OutcomeUnknown}
        assert {type(error) for error in consumer} <= {rqttl.OutcomeUnknown, rqttl.LeaseLost}
        assert len(plain) <= epoch(replica) - before  # the call under way; a busy machine may see further failovers
        assert how is not hand_over or (plain, consumer) == ([], [])


# Without replicas: what a node has is away until it is back


@pytest.fixture
def plain(launch: Callable[..., Server]) -> Iterator[ClusterServers]:
    """Three nodes that keep their data on disk."""
    cluster = ClusterServers(launch, node_timeout=500, appendonly="yes", appendfsync="always")
    yield cluster
    cluster.remove()


@pytest.mark.parametrize("away", [SHARED, (SHARED + 1) % 3], ids=["the node of the shared keys", "another node"])
def test_a_worker_and_a_reaper_go_on_with_other_nodes_and_with_all_when_it_is_back(
    plain: ClusterServers, tmp_path: Path, away: int
) -> None:
    mine, short = names("w"), names("e")
    there = [node for node in range(3) if node != away]
    with rqttl.connect(plain.url()) as broker, rqttl.connect(plain.url()) as other:
        for work, dying in zip(mine, short, strict=True):
            broker.declare_queue(work, duplicate_window="1h")
            broker.declare_queue(f"{dying}/dead")
            broker.declare_queue(dying, dead_letter="{queue}/dead", duplicate_window="1h")
        worker, reaper = WorkerProcess(plain.url(), tmp_path, "--delivery", *mine, call="names_queue"), Reaper(other)
        reaping = threading.Thread(target=reaper.run)
        reaping.start()

        def send(body: str, nodes: Sequence[int]) -> None:
            for node in nodes:
                broker.queue(mine[node]).enqueue(body, id=body)
                broker.queue(short[node]).enqueue(body, ttl="200ms", id=body)

        def arrived(body: str, nodes: Sequence[int]) -> None:
            until(lambda: {("queue", mine[node], body) for node in nodes} <= {*map(tuple, worker.journal())})
            until(lambda: all(broker.queue(f"{short[node]}/dead").message(body) for node in nodes))

        try:
            send("before", range(3))
            arrived("before", range(3))
            plain.servers[away].kill()
            send("meanwhile", there)
            arrived("meanwhile", there)
            until(lambda: reaper.away() == [f"127.0.0.1:{plain.ports[away]}"])
            plain.servers[away].start()
            send("after", range(3))
            arrived("after", range(3))
            assert worker.stop() == 0
        finally:
            reaper.stop()
            reaping.join()
            worker.remove()


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_caller_does_not_wait_for_a_target_that_hangs_and_its_dead_letter_arrives_later(
    plain: ClusterServers, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("store.connections", "aio.store"):
        monkeypatch.setattr(f"rqttl.{module}.SOCKET_TIMEOUT", 3600.0)  # who waits hangs, too
    source, target, _ = QUEUES
    url = plain.url()
    with rqttl.connect(url) as broker, closing(connect_by(interface, url)) as caller:
        broker.declare_queue(target)
        queue = broker.declare_queue(source, dead_letter=target)
        queue.enqueue(b"x")
        (delivery,) = caller.queue(source).receive_many(1)
        if interface == "asyncio":
            caller.stats()  # now it has a connection to each node
        with plain.servers[1].hanging():
            delivery.reject()

        until(lambda: queue.stats().enqueued and broker.queue(target).stats().ready)


def test_what_many_queues_answer_while_a_node_is_away(plain: ClusterServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.store.cluster.FAIL_FAST", 1.0)
    away = (SHARED + 1) % 3
    gone, *there = [QUEUES[away], *(name for name in QUEUES if name != QUEUES[away])]
    address = f"127.0.0.1:{plain.ports[away]}"
    with rqttl.connect(plain.url(), patience="500ms") as broker:
        for name in QUEUES:
            broker.declare_queue(name)
        shown = CliRunner(env={"RQTTL_URL": plain.url()}).invoke(cli, ["queue", "show", gone]).output
        slot = slot_of(Keyspace().key(gone, "meta"))
        assert f"node       {address}, slot {slot}, without a replica" in shown
        plain.servers[away].kill()

        assert broker.queues() == sorted(QUEUES)
        for ask in (broker.stats, partial(broker.stats, sweep=False), broker.options, partial(broker.stats, QUEUES)):
            with pytest.raises(rqttl.QueuesAway, match=address) as answer:
                ask()
            assert (answer.value.queues, sorted(answer.value.found)) == ((gone,), sorted(there))
        families = {family.name: family.samples for family in QueueCollector(broker, (), 100).collect()}
        (up,), (unreadable,) = families["rqttl_up"], families["rqttl_queues_unreadable"]
        nodes = {sample.labels["node"].split("/")[2]: sample.value for sample in families["rqttl_node_up"]}
        assert (up.value, unreadable.value) == (1, 1)
        assert nodes == {f"127.0.0.1:{port}": float(port != plain.ports[away]) for port in plain.ports}
        for name in (gone, names("new")[away]):
            with pytest.raises(redis.ConnectionError, match=address):
                broker.declare_queue(name)
        assert broker.declare_queue(there[0]).declared == "existing"
        handled = list[object]()
        broker.queue(there[0]).enqueue("x")
        with running(rqttl.Worker(broker, [gone, there[0]], call=handled.append, processes=0)):
            until(lambda: handled)
    for command in (["queue", "ls"], ["stats"], ["doctor"]):
        result = CliRunner(env={"RQTTL_URL": plain.url()}).invoke(cli, command)
        assert result.exit_code == 3, command
        assert address in result.output, command
        assert command == ["doctor"] or all(name in result.stdout for name in there)


@AWAY
def test_a_command_that_looks_does_not_insist_and_says_what_is_there_and_what_is_not(
    plain: ClusterServers, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.cluster.PATIENCE", 5.0)
    monkeypatch.setattr("rqttl.store.cluster.FAIL_FAST", 1.0)
    away, here = (SHARED + 1) % 3, (SHARED + 2) % 3
    gone, there, shared = QUEUES[away], QUEUES[here], QUEUES[SHARED]
    with rqttl.connect(plain.url()) as broker:
        for name in QUEUES:
            broker.declare_queue(name).enqueue(b"x", id="x")
        broker.set_policy("all", "#", {"max_length": 9})
    none = list[str]()
    fails = 4, none, ["does not answer"]
    answers: dict[int, list[tuple[list[str], tuple[int, list[str], list[str]]]]] = {
        away: [
            *((command, fails) for command in (["queue", "show", gone], ["peek", gone], ["dead", "ls", gone])),
            (["message", "show", gone, "x"], fails),
            (["policy", "ls", "--json"], (0, ['"queues": 3'], none)),
            (
                ["export"],
                (3, ["policies:", there, shared], [f"left out: {gone}", f"queue '{gone}' cannot be read now"]),
            ),
        ],
        SHARED: [
            *((command, fails) for command in (["policy", "ls"], ["policy", "show", "all"], ["export"])),
            (["worker", "ls"], fails),
            (
                ["queue", "show", there],
                (0, ["queue ", "1 enqueued"], ["cannot read the policies", "cannot read its consumers"]),
            ),
            (["queue", "show", there, "--json"], (0, ['"living_consumers": null'], ["cannot read the policies"])),
            (["peek", there], (0, [": ready, "], none)),
            (["dead", "ls", there], (0, ["never died"], none)),
        ],
    }
    for node, rows in answers.items():
        until(plain.agrees)
        with how(plain.servers[node]):
            for command, (code, out, err) in rows:
                result = CliRunner(env={"RQTTL_URL": plain.url()}).invoke(cli, command)
                lines = result.stderr.splitlines()
                assert (result.exit_code, len(lines)) == (code, len(err)), (command, result.output)
                assert all(map(str.__contains__, lines, err)), (command, lines)
                assert all(word in result.stdout for word in out), (command, result.stdout)
                assert code == 0 or f"127.0.0.1:{plain.ports[node]}" in lines[-1], (command, lines)
                assert gone not in result.stdout, command


def test_the_doctor_names_a_replica_that_is_away(replicated: ClusterServers) -> None:
    until(lambda: told(replicated.url()) == set())
    replica = replicated.replicas(replicated.primaries()[0])[0]
    replica.kill()

    until(lambda: told(replicated.url()) == {"SERVER is away: one copy fewer, should the primary die"})
    replica.start()
    until(lambda: told(replicated.url()) == set())


def test_while_the_node_of_the_policies_is_away_a_queue_of_another_node_is_found_as_declared(
    plain: ClusterServers,
) -> None:
    name = QUEUES[(SHARED + 1) % 3]
    with rqttl.connect(plain.url(), patience="500ms") as broker:
        broker.declare_queue(name, max_length=5).pause()
        plain.servers[SHARED].kill()

        with rqttl.connect(plain.url(), patience="1h") as patient:
            assert patient.declare_queue(name, max_length=5).declared == "existing"
        for other, length in ((name, 6), (f"{name}/new", 5)):
            with pytest.raises(redis.ConnectionError, match=f"127.0.0.1:{plain.ports[SHARED]}"):
                broker.declare_queue(other, max_length=length)
        with pytest.raises(redis.ConnectionError, match=f"127.0.0.1:{plain.ports[SHARED]}"):
            broker.queues()
        broker.queue(name).enqueue(b"x")


@AWAY
def test_nothing_that_concerns_living_nodes_waits_for_the_node_of_the_shared_keys(
    plain: ClusterServers, how: How
) -> None:
    source, target = (name for node, name in enumerate(QUEUES) if node != SHARED)
    handled = list[object]()
    with rqttl.connect(plain.url(), patience="1h") as broker:
        broker.declare_queue(source, dead_letter=target).enqueue_many([b"1", b"2", b"3"])
        deliveries = broker.queue(source).receive_many(2)
        with how(plain.servers[SHARED]):
            deliveries[0].reject()  # makes the target
            assert [letter.body for letter in broker.queue(target).peek()] == [b"1"]
            for command in (
                *(["peek", source], ["message", "show", source, deliveries[1].id], ["queue", "show", source]),
                *(["stats", source], ["explain", source], ["send", source, "x"]),
            ):
                result = CliRunner(env={"RQTTL_URL": plain.url()}).invoke(cli, command)
                assert (result.exit_code, source in result.stdout + "".join(command)) == (0, True), result.output
            result = CliRunner(env={"RQTTL_URL": plain.url()}).invoke(cli, ["doctor"])
            assert (result.exit_code, "bug" in result.output) == (3, False), result.output
            worker = rqttl.Worker(broker, [f"{target[:-1]}?", source], call=handled.append, processes=0)
            with running(worker):
                until(lambda: handled)


@AWAY
@pytest.mark.parametrize("interface", INTERFACES)
def test_several_queues_go_on_while_the_node_of_one_is_away_and_with_all_when_it_is_back(
    plain: ClusterServers, interface: str, how: How, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = (SHARED + 1) % 3
    there, gone = QUEUES[SHARED], QUEUES[away]
    caplog.set_level("INFO", "rqttl")
    with ExitStack() as stack:
        other = stack.enter_context(rqttl.connect(plain.url()))
        monkeypatch.setattr("rqttl.store.cluster.PATIENCE", 1.0)  # all others fail soon if they insist
        broker = stack.enter_context(closing(connect_by(interface, plain.url())))
        for name in (gone, there):
            broker.declare_queue(name, lease="1h")

        def sent(body: str, take: Callable[[], Any]) -> None:
            other.queue(there).enqueue(body.encode())
            delivery = take()
            assert (delivery.queue, delivery.body.decode()) == (there, body)
            delivery.ack()

        with broker.consume([gone, there], prefetch=2, wait="10s") as deliveries:
            other.queue(gone).enqueue(b"held")
            held = next(deliveries)
            with how(plain.servers[away]):
                for body in ("1", "2", "3"):
                    sent(body, lambda: next(deliveries))
                sent("4", lambda: broker.receive([gone, there])[0])
                other.queue(there).enqueue(b"taken")
                (taken,) = broker.receive([gone, there], 2, auto_ack=True)
                assert (taken.body, taken.settled) == (b"taken", "auto_ack")
                assert broker.receive([gone, there], wait="100ms") == []
                other.queue(there).enqueue(b"5")
                shell = CliRunner(env={"RQTTL_URL": plain.url()})
                result = shell.invoke(cli, ["receive", gone, there])
                assert (result.exit_code, result.stdout) == (0, "5\n"), result.output
                monkeypatch.setattr("rqttl.store.exchanges.SILENCE", 0.0)
                result = shell.invoke(cli, ["receive", names("m")[SHARED], gone])
                assert (result.exit_code, "trying for 1 s" in result.stderr) == (3, False), result.output
            held.ack()
            other.queue(gone).enqueue(b"back")
            delivery = next(deliveries)
            assert (delivery.queue, delivery.body) == (gone, b"back")
            delivery.ack()
        assert (other.queue(gone).stats().redelivered, deliveries.lost) == (0, [])
    assert [getattr(record, "event", "") for record in caplog.records].count("redis_recovered") == 1


def test_asyncio_sends_nothing_more_to_a_node_that_owes_a_reply(plain: ClusterServers) -> None:
    """All that was sent would be performed once the node goes on: messages that nobody has."""

    async def run() -> None:
        async with rqttl.connect_async(plain.url()) as broker:
            queue = await broker.declare_queue(QUEUES[SHARED])
            await queue.enqueue_many([b"x"] * 9)
            assert await broker.receive([queue.name])
            fast = broker._driver.failing_fast()
            with plain.servers[SHARED].hanging():
                for _ in range(3):
                    with pytest.raises(redis.TimeoutError):
                        await fast.perform(receive_once(queue.name, 1, None))
            assert (await queue.stats()).leased == 2
            assert (await fast.perform(receive_once(queue.name, 1, None))).entries

    asyncio.run(run())


@pytest.mark.parametrize("interface", INTERFACES)
def test_several_queues_wait_for_the_node_that_has_all_of_them(
    plain: ClusterServers, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, waits, pause = [QUEUES[SHARED], names("r")[SHARED]], threading.Event(), Queues.pause

    def paused(*args: Any) -> Any:
        waits.set()
        return pause(*args)

    monkeypatch.setattr(Queues, "pause", paused)
    with closing(connect_by(interface, plain.url())) as broker:
        for name in queues:
            broker.declare_queue(name, lease="1h").enqueue(b"x")
        with ThreadPoolExecutor(1) as pool, broker.consume(queues, wait=0) as deliveries:
            for take in (lambda: broker.receive(queues)[0], lambda: next(deliveries)):
                waits.clear()
                with plain.servers[SHARED].down():
                    taken = pool.submit(take)
                    assert waits.wait(PATIENCE)
                    assert not taken.done()
                taken.result().ack()


@pytest.mark.parametrize("options", [{"burst": True}, {"idle_exit": "100ms"}], ids=str)
def test_a_worker_that_ends_by_itself_waits_for_no_node_for_ever(
    plain: ClusterServers, options: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rqttl.worker.fetcher.GIVE_UP", 500)
    away, there = QUEUES[(SHARED + 1) % 3], QUEUES[SHARED]
    handled = list[object]()
    with rqttl.connect(plain.url()) as broker:
        for name in (away, there):
            broker.declare_queue(name)
        broker.queue(there).enqueue(b"x")
        plain.servers[(SHARED + 1) % 3].kill()
        with pytest.raises(redis.ConnectionError, match=f"{plain.ports[(SHARED + 1) % 3]}"):
            rqttl.Worker(broker, [away, there], call=handled.append, processes=0, **options).run()
        assert (handled, broker.queue(there).stats().acked) == ([b"x"], 1)
    assert "leases" not in caplog.text
    assert "acks" not in caplog.text


def test_a_command_for_a_queue_that_is_away_says_so_and_keeps_its_wait(
    plain: ClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, port = QUEUES[0], plain.ports[0]
    with rqttl.connect(plain.url()) as broker:
        broker.declare_queue(name)
    plain.servers[0].kill()
    shell = CliRunner(env={"RQTTL_URL": plain.url()})

    monkeypatch.setattr("rqttl.store.cluster.PATIENCE", 3600.0)
    result = shell.invoke(cli, ["receive", name, "--wait", "100ms"])
    assert (result.exit_code, str(port) in result.stderr) == (4, True), result.output
    monkeypatch.setattr("rqttl.store.cluster.PATIENCE", 0.5)
    monkeypatch.setattr("rqttl.store.exchanges.SILENCE", 0.0)
    result = shell.invoke(cli, ["send", name, "x"])
    note, end = result.stderr.splitlines()
    assert (result.exit_code, result.stdout, note) == (4, "", f"rqttl: 127.0.0.1:{port} is away; trying for 0.5 s")
    assert (f"127.0.0.1:{port}" in end, "; nothing was stored; " in end) == (True, True)


@AWAY
@pytest.mark.parametrize("interface", INTERFACES)
def test_a_consumer_keeps_its_leases_while_the_node_of_the_roster_is_away(
    plain: ClusterServers, interface: str, how: How, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rqttl.consuming.heartbeat.PERIOD", 100)
    renewals = list[rqttl.RenewalEvent]()
    with closing(connect_by(interface, plain.url())) as broker:
        queue = broker.declare_queue(QUEUES[(SHARED + 1) % 3], lease="3s")
        broker.events.subscribe(renewals.append, rqttl.RenewalEvent)
        queue.enqueue(b"x")
        with queue.consume() as deliveries:
            delivery = next(deliveries)
            with how(plain.servers[SHARED]):
                before = len(renewals)
                until(lambda: len(renewals) > before + 5)
                delivery.ack()
            until(lambda: queue.stats(sweep=False).acked)
        assert (queue.stats().redelivered, deliveries.lost) == (0, [])
    assert [record.name for record in caplog.records] == ["rqttl.heartbeat"]


@CONNECTS
def test_the_wrong_topology_is_one_clear_line(connect: Any, replicated: ClusterServers, port: int) -> None:
    wrong = replicated.ports[(SHARED + 1) % 3]

    assert refusal(connect, f"redis://127.0.0.1:{wrong}") == (
        "url: this server is a node of a Redis Cluster, and sends calls to other nodes: use redis+cluster://"
    )
    assert refusal(connect, f"redis+cluster://127.0.0.1:{port}") == (
        "url: this server is not a node of a Redis Cluster: use redis:// for it"
    )


def test_a_node_that_refuses_several_slots_names_the_remedy_and_what_is_stored_is_told(plain: ClusterServers) -> None:
    name, wrong = QUEUES[SHARED], CliRunner(env={"RQTTL_URL": f"redis://127.0.0.1:{plain.ports[SHARED]}"})
    with rqttl.connect(plain.url()) as broker:
        broker.declare_queue(name, dead_letter=names("t")[SHARED])
    for command, code in (
        (["send", name, "a"], 0),
        (["send", name, "b", "c", "--at", "2020-01-01T00:00:00Z"], 0),  # a sweep follows, which is refused
        (["send", name, "d", "e", "--ttl", "0"], 2),
        (["receive", name], 2),
        (["queue", "update", name, "--max-length", "9"], 2),
        (["worker", name, "--exec", "true", "--burst"], 2),
        (["queue", "delete", name, "--yes"], 2),
    ):
        result = wrong.invoke(cli, command)
        told = code == 2 or "--at" in command
        assert (result.exit_code, "use redis+cluster://" in result.stderr) == (code, told), result.output
    with rqttl.connect(plain.url()) as broker:
        assert broker.queue(name).stats().depth == 3
