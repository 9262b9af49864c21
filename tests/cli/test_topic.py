"""`rqttl topic`: what is bound, by which filter; and how the commands for queues take topics."""

import json
from typing import Any

import pytest

from rqttl import Broker, Topic
from rqttl.testing import bodies
from tests.cli.conftest import Run, check_golden
from tests.cli.test_errors import failed
from tests.cli.test_help import asked
from tests.contract.clocked import Clocked
from tests.drivers import redis_of
from tests.lua.states import everything

pytestmark = pytest.mark.once


@pytest.fixture
def topic(broker: Broker) -> Topic:
    return broker.declare_topic("news")


def test_a_topic_is_made_bound_and_sent_to(run: Run, broker: Broker) -> None:
    broker.declare_queue("mails")
    lines = [
        ("declare news --message-ttl 1h", "topic news created"),
        ("declare news --message-ttl 1h", "topic news exists already, with these options"),
        ("subscribe news eu --max-length 9 --filter orders.eu.#", "queue news/eu created; it gets orders.eu.# of news"),
        ("subscribe news all", "queue news/all created; it gets everything of news"),
        ('bind news mails --filter ["a",{"b":1}]', 'queue mails is bound to news; it gets [{"b": 1}, "a"]'),
        ("set-filter news all b.*", "all gets b.* of news from now on"),
        ('set-filter news mails {"kind":"mail"}', 'mails gets {"kind": "mail"} of news from now on'),
    ]
    for words, line in lines:
        result = run("topic", *words.split())
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"{line}\n", "")

    run("send", "news", "1", "--subject", "orders.eu.created")
    run("send", "news", "2", "--subject", "b.c", "--header", "kind=mail")
    assert [bodies(broker.queue(name)) for name in ("news/eu", "news/all", "mails")] == [[b"1"], [b"2"], [b"2"]]
    assert broker.queue("news/eu").options().max_length == 9

    assert run("topic", "unbind", "news", "mails").stdout == "queue mails is not bound to news any more\n"
    assert run("topic", "unsubscribe", "news", "eu", "--dry-run").stdout == (
        "queue news/eu would be unbound and deleted (1 ready)\n"
    )
    assert "no terminal for the question" in failed(run("topic", "unsubscribe", "news", "eu"), 2)
    assert list(broker.topic("news").bindings()) == ["news/all", "news/eu"]
    assert run("topic", "unsubscribe", "news", "eu", "--yes").stdout == (
        "queue news/eu unbound and deleted, with 1 ready message\n"
    )
    assert (list(broker.topic("news").bindings()), broker.queues()) == (["news/all"], ["mails", "news", "news/all"])


def test_a_topic_is_shown_with_what_waits_and_what_is_bound(run_clocked: Run, clocked: Clocked) -> None:
    topic = clocked.declare_topic("news")
    topic.subscribe("eu", "orders.eu.#")
    topic.subscribe("rest", {"size": ["large", "huge"]}).pause()
    topic.subscribe("both", ("a", {"b": True}))
    clocked.declare_queue("all")
    topic.bind("all")
    topic.enqueue_many([b"x"] * 3)
    topic.unbind("all")
    topic.enqueue(b"x", subject="orders.eu.de")
    topic.enqueue(b"nobody's")
    clocked.advance(60_000)
    topic.pause()
    topic.enqueue_many([b"xyz"] * 2)
    topic.enqueue(b"later", delay="1h")

    words = [("topic", "show"), ("queue", "show"), ("queue", "ls"), ("stats",), ("queue", "delete", "--dry-run")]
    check_golden("topic.txt", "\n".join(run_clocked(*one, "news").stdout for one in words))
    shown, deleted = (json.loads(run_clocked(*one, "news", "--json").stdout) for one in (words[0], words[-1]))
    assert {one["queue"]: one["filter"] for one in shown["bindings"]} == topic.bindings()
    assert [one["stats"]["ready"] for one in shown["bindings"]] == [0, 1, 0]
    numbers = {name: shown[name] for name in ("topic", "ready", "scheduled", "copies", "unrouted", "passes_on")}
    assert list(numbers.values()) == ["news", 2, 1, 4, 1, True]
    topic.purge("all")
    assert "queue 'news/eu' was not deleted" in failed(run_clocked(*words[-1], "news", "--if-empty"), 3)
    assert deleted[0] | {"ready": 3, "subscriptions": ["news/both", "news/eu", "news/rest"]} == deleted[0]


def test_a_queue_that_forwards_is_told_as_one(run: Run, broker: Broker) -> None:
    broker.declare_queue("new")
    broker.declare_queue("old", forward_to="new").enqueue(b"x")

    assert "forwards  messages go on to new\n" in run("queue", "show", "old").stdout
    assert "1 enqueued, 1 copied" in run("queue", "show", "old").stdout
    for words in (("queue", "ls"), ("stats",)):
        assert "\nold (forwards)  " in run(*words).stdout


REFUSALS: list[tuple[str, int, str]] = [
    ("topic show q", 3, "queue 'q' is no topic: `rqttl queue show q` shows it [mismatch]"),
    ("topic declare q", 3, "queue 'q' is no topic, and never becomes a topic: delete it first [mismatch]"),
    ("queue declare news", 3, "queue 'news' is a topic, and never becomes a queue: delete it first [mismatch]"),
    ("topic subscribe nowhere x", 3, "topic 'nowhere' does not exist: `rqttl topic declare nowhere` creates it"),
    ("topic bind news missing", 3, "queue 'missing' does not exist: `rqttl queue declare missing` creates it"),
    ("topic subscribe news eu", 3, 'filter ([{"subject":"a"}], not []): `rqttl topic set-filter` changes it'),
    (
        "topic subscribe news dead --message-ttl 0",
        3,
        "dead letters created queue 'news/dead', and 1 message would expi",
    ),
    ("topic unbind news q", 3, "queue 'q' is not bound to 'news': `rqttl topic show news` lists the queues that are"),
    ("topic set-filter news x a", 2, "name: expected a queue or a subscription of 'news', got 'x' [invalid_input]"),
    ("topic unsubscribe news a/b --dry-run", 2, "'NAME': expected the name of a subscription, without '/', got 'a/b'"),
    ("topic unsubscribe news x --yes", 3, "queue 'news/x' does not exist"),
    ("topic bind news q --filter a..b", 2, "'--filter': header 'subject': expected words with dots between them"),
    ("topic bind news q --filter {'a'}", 2, "'--filter': not JSON: "),
    ('topic bind news q --filter {"a":NaN}', 2, "'--filter': header 'a': expected text, a finite number"),
    ('topic bind news q --filter {"a":' + "7" * 5_000 + "}", 2, "'--filter': not JSON that can be read"),
    ("topic bind news q --filter " + "[" * 99_999, 2, "'--filter': not JSON that can be read"),
    ("topic bind news news", 2, "queue: expected another queue than the topic, got 'news'"),
]


@pytest.mark.parametrize("words, code, line", REFUSALS, ids=[words[:40] for words, *_ in REFUSALS])
def test_what_is_refused_changes_nothing(
    run: Run, broker: Broker, topic: Topic, words: str, code: int, line: str
) -> None:
    topic.subscribe("eu", "a")
    topic.enqueue(b"x", subject="a")
    broker.declare_queue("q", dead_letter="news/dead").enqueue(b"dead", ttl=0)
    before = everything(redis_of(broker))

    assert line in failed(run(*words.split()), code)

    assert everything(redis_of(broker)) == before


def test_a_reader_may_look_at_topics(run: Run, topic: Topic, url_of_user: Any) -> None:
    topic.subscribe("eu")
    rules = next(line for line in run("acl", "generate", "--role", "reader").stdout.splitlines() if " on " in line)
    url = url_of_user(*rules.partition(" resetchannels ")[2].split())

    assert "news/eu" in run("topic", "show", "news", "--url", url).stdout
    assert "news (topic)" in run("queue", "ls", "--url", url).stdout


def test_the_names_of_subscriptions_are_completed(topic: Topic, redis_url: str) -> None:
    topic.subscribe("europe")
    topic.subscribe("asia")

    assert asked("rqttl topic unsubscribe news ", RQTTL_URL=redis_url) == ["asia", "europe"]
    assert asked("rqttl topic set-filter news eu", RQTTL_URL=redis_url) == ["europe"]
