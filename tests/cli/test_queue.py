"""`rqttl queue declare`, `update`, `touch`, `purge` and `delete`."""

import json

import pytest

from rqttl import Broker, Queue
from rqttl.cli.common.params import flag, to_json
from rqttl.options import OPTIONS, Option
from tests.cli.conftest import Run, check_golden
from tests.cli.processes import Terminal
from tests.contract.clocked import Clocked, at


def sample(option: Option) -> tuple[list[str], float | str | bool]:
    """Words of a command line that give an option a value other than its default, and that value."""
    name = flag(option.name)
    if option.kind == "duration":
        return [name, "5m"], 300_000
    if option.kind == "count":
        return [name, "10"], 10
    if option.kind == "size":
        return [name, "10MB"], 10_000_000
    if option.kind == "number":
        return (["--redelivery-jitter", "0.5"], 0.5) if option.default == 0 else ([name, "1.5"], 1.5)
    if option.kind == "choice":
        return [name, option.choices[1]], option.choices[1]
    if option.kind == "target":
        return [name, "dead.{queue}"], "dead.{queue}"
    if option.kind == "rate":
        return [name, "5/s"], "5/1000"
    assert option.kind == "flag"
    return [name], True


ALL = [word for option in OPTIONS.values() for word in sample(option)[0]]
VALUES = {name: sample(option)[1] for name, option in OPTIONS.items()}


def test_every_option_can_be_declared(run: Run, broker: Broker) -> None:
    result = run("queue", "declare", "orders", *ALL, "--json")

    assert (result.exit_code, "nothing confirms it now: no replica" in result.stderr) == (0, True)
    answer = json.loads(result.stdout)
    assert (answer["queue"], answer["options"]["max_length"], answer["options"]["lease_ms"]) == ("orders", 10, 300_000)
    assert dict(broker.queue("orders").options()) == VALUES


def test_declare_says_whether_it_created_the_queue(run_clocked: Run, clocked: Clocked) -> None:
    def declared(queue: str) -> list[object]:
        text, document = (run_clocked("queue", "declare", queue, *flags).stdout for flags in ((), ("--json",)))
        return [text, json.loads(document)["declared"]]

    clocked.declare_queue("source", dead_letter="dead").enqueue(b"x", ttl=0)

    assert declared("orders") == ["queue orders created\n", "existing"]
    assert declared("orders") == ["queue orders exists already, with these options\n", "existing"]
    assert declared("dead") == ["queue dead declared; a dead letter had created it\n", "existing"]
    assert clocked.declare_queue("new").declared == "created"
    assert clocked.queue("new").declared is None


def test_every_option_can_be_updated_and_unset(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("queue", "update", "orders", *ALL).exit_code == 0
    assert dict(broker.queue("orders").options()) == VALUES

    unset = [word for name in OPTIONS for word in ("--unset", name)]
    assert run("queue", "update", "orders", *unset).exit_code == 0
    assert broker.queue("orders").options().non_default == {}


UPDATE = ["queue", "update", "orders", "--message-ttl", "5m", "--max-deliveries", "3", "--no-never-expire"]
UPDATE += ["--dead-letter-expired", "", "--unset", "max_length", "--unset", "min-ttl"]


def prepared(clocked: Clocked) -> None:
    options = {"message_ttl": "1h", "lease": "1m", "dead_letter": "dead"}
    clocked.declare_queue("orders", **options, max_deliveries=3, never_expire=True, max_length=12345)  # type: ignore[arg-type]


def test_update_says_what_has_changed_and_what_was_so_before(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)

    result = run_clocked(*UPDATE)

    assert (result.exit_code, result.stderr) == (0, OTHERS)
    check_golden("queue-update.txt", result.stdout)
    assert clocked.queue("orders").options().non_default == {
        "message_ttl": 300_000,
        "max_deliveries": 3,
        "lease": 60_000,
        "dead_letter": "dead",
        "dead_letter_expired": "",
    }


def test_a_dry_run_of_update_shows_the_difference_and_changes_nothing(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)
    before = clocked.queue("orders").options()

    text, answer = run_clocked(*UPDATE, "--dry-run"), run_clocked(*UPDATE, "--dry-run", "--json")

    check_golden("queue-update-dry-run.txt", text.stdout)
    assert clocked.queue("orders").options() == before
    line, done = json.loads(answer.stdout), json.loads(run_clocked(*UPDATE, "--json").stdout)
    assert (line.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert line == done
    assert done.pop("before") == to_json(before)
    assert done.pop("after") == to_json(clocked.queue("orders").options())
    check_golden("queue-update.json", json.dumps(done) + "\n")


def test_an_update_that_changes_nothing_says_so(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", lease="1m")

    result = run("queue", "update", "orders", "--lease", "60s")

    assert result.stdout == "queue orders: nothing changed\n--lease  1m, as before\n"


def waiting_letters(clocked: Clocked) -> Queue:
    """Ten messages, the first six 2 s old."""
    queue = clocked.declare_queue("orders", dead_letter="dead", dead_letter_maxlen="")
    queue.enqueue_many([b"x"] * 6)
    clocked.advance(2_000)
    queue.enqueue_many([b"y"] * 4)
    return queue


OTHERS = (
    "rqttl: programs that declare orders with other options fail from now on; "
    "`rqttl policy set` changes options without that\n"
)
DEADLY = ("queue", "update", "orders", "--message-ttl", "1s", "--max-length", "3")


def test_an_update_counts_the_messages_that_die_by_it(run_clocked: Run, clocked: Clocked) -> None:
    queue = waiting_letters(clocked)

    answer = json.loads(run_clocked(*DEADLY, "--dry-run", "--json").stdout)
    dry, done = run_clocked(*DEADLY, "--dry-run"), run_clocked(*DEADLY, "--yes")

    assert (answer["expired"], answer["trimmed"]) == (6, 1)

    assert (dry.stderr, done.stderr) == ("", OTHERS)
    check_golden("queue-update-deaths-dry-run.txt", dry.stdout)
    check_golden("queue-update-deaths.txt", done.stdout)
    stats = queue.stats()
    assert (stats.ready, stats.deaths["expired"], stats.deaths["maxlen"]) == (3, 6, 1)


def test_an_update_that_nobody_agreed_to_lets_no_message_die(run_clocked: Run, clocked: Clocked) -> None:
    queue = waiting_letters(clocked)
    before = queue.options()

    result = run_clocked(*DEADLY)

    assert (result.exit_code, result.stdout) == (2, "")
    check_golden("queue-update-unanswered.txt", result.stderr.replace("`cli", "`rqttl"))
    assert (queue.options(), queue.stats().ready) == (before, 10)


@pytest.mark.parametrize(
    "words, line",
    [
        ([], "nothing to change: give an option, or --unset OPTION"),
        (["--lease", "1m", "--unset", "lease"], "--lease is given a value and unset"),
        (
            ["--unset", "mesage-ttl"],
            "invalid value for '--unset': no queue option is called 'mesage-ttl'; did you mean --unset message-ttl?",
        ),
        (["--unset", "xyz"], "invalid value for '--unset': no queue option is called 'xyz'"),
        (
            ["--overflow", "xyz"],
            "invalid value for '--overflow': 'xyz' is not one of 'drop-head', 'reject-publish', 'reject-publish-dlx'",
        ),
        (["--max-length", "many"], "invalid value for '--max-length': 'many' is not a valid integer"),
    ],
)
def test_a_wrong_update_is_one_line(run: Run, broker: Broker, words: list[str], line: str) -> None:
    broker.declare_queue("orders", lease="2m")

    result = run("queue", "update", "orders", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.replace("`cli", "`rqttl") == f"rqttl: {line} (see `rqttl queue update --help`)\n"
    assert broker.queue("orders").options().non_default == {"lease": 120_000}


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_an_update_that_contradicts_options_in_force_is_refused(run: Run, broker: Broker, extra: list[str]) -> None:
    broker.declare_queue("orders", max_ttl="1m")

    result = run("queue", "update", "orders", "--min-ttl", "2m", *extra)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rqttl: --min-ttl: 2m is more than --max-ttl, 1m [invalid_option]\n"


def test_touch_lets_the_lifetime_begin_anew(run_clocked: Run, clocked: Clocked) -> None:
    for name in ("orders", "mails"):
        clocked.declare_queue(name, expires="1s")
    clocked.advance(900)

    result = run_clocked("queue", "touch", "orders", "mails", "orders")

    assert (result.exit_code, result.stdout) == (0, "queue orders touched\nqueue mails touched\n")
    assert clocked.queue("mails").stats().ends_at == at(1_900)


def test_touch_can_answer_in_json_and_names_missing_queues(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    result = run("queue", "touch", "nope", "orders", "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout) == [{"queue": "nope", "error": "not_found"}, {"queue": "orders", "touched": True}]
    assert result.stderr == (
        "rqttl: queue 'nope' does not exist: `rqttl queue declare nope` creates it [not_found]\n"
        "rqttl: 1 of 2 queues refused; the lines above say why\n"
    )


@pytest.fixture
def filled(broker: Broker) -> Broker:
    fill(broker)
    return broker


def fill(broker: Broker) -> None:
    """Make `orders` with messages in each state, `mails` with ready ones, and `empty`."""
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x" * 100] * 1240)
    first, *_ = orders.receive_many(6, lease="1h")
    first.nack("1h")
    broker.declare_queue("mails").enqueue_many([b"x"] * 3)
    broker.declare_queue("empty")


def ready(broker: Broker) -> dict[str, int]:
    return {name: stats.ready for name, stats in broker.stats().items()}


@pytest.mark.parametrize("what", ["purge", "delete"])
@pytest.mark.parametrize("extra, name", [([], ""), (["--dry-run"], "-dry-run")])
def test_each_queue_has_its_own_outcome(
    run_clocked: Run, clocked: Clocked, what: str, extra: list[str], name: str
) -> None:
    fill(clocked)
    words = ["queue", what, "orders", "nope", "mails", "orders", "empty", "--yes", *extra]

    result = run_clocked(*words)

    document = run_clocked(*words[:-1], "--dry-run", "--json") if extra else None

    assert result.exit_code == 3
    check_golden(f"queue-{what}{name}.txt", result.stdout)
    if document:
        check_golden(f"queue-{what}{name}.json", document.stdout)
    assert result.stderr == (
        "rqttl: queue 'nope' does not exist: `rqttl queue declare nope` creates it [not_found]\n"
        "rqttl: 1 of 4 queues refused; the lines above say why\n"
    )
    if extra:
        assert ready(clocked) == {"empty": 0, "mails": 3, "orders": 1234}
    else:
        left = {name: (one.ready, one.leased, one.delayed) for name, one in clocked.stats().items()}
        purged = {"empty": (0, 0, 0), "mails": (0, 0, 0), "orders": (0, 5, 1)}
        assert left == ({} if what == "delete" else purged)


@pytest.mark.parametrize("extra", [["--yes"], ["--dry-run"]])
def test_a_queue_that_is_not_empty_can_be_spared(run: Run, filled: Broker, extra: list[str]) -> None:
    result = run("queue", "delete", "orders", "empty", "--if-empty", *extra)

    assert result.exit_code == 3
    assert result.stderr == (
        "rqttl: queue 'orders' was not deleted: it has 1,240 messages, and --if-empty is given [in_use]\n"
        "rqttl: 1 of 2 queues refused; the lines above say why\n"
    )
    assert result.stdout == (
        "queue empty would be deleted (empty)\n"
        if extra == ["--dry-run"]
        else "queue empty deleted, with 0 ready messages\n"
    )
    assert ("empty" in filled.queues()) == (extra == ["--dry-run"])


@pytest.mark.parametrize("extra", [["--yes"], ["--dry-run"]])
def test_a_queue_with_consumers_can_be_spared(run: Run, filled: Broker, extra: list[str]) -> None:
    with filled.queue("mails").consume(wait="1m") as consumer:
        next(consumer)
        result = run("queue", "delete", "mails", "--if-unused", *extra)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "rqttl: queue 'mails' was not deleted: it has 1 consumer, and --if-unused is given [in_use]\n"
    )
    assert run("queue", "delete", "mails", "--if-unused", "--yes").exit_code == 0


@pytest.mark.parametrize("what", ["purge", "delete"])
@pytest.mark.parametrize("stdin", [None, b"y\n"])
def test_without_a_terminal_nothing_is_removed(run: Run, filled: Broker, what: str, stdin: bytes | None) -> None:
    result = run("queue", what, "orders", stdin=stdin)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.replace("`cli", "`rqttl") == (
        "rqttl: no terminal for the question: use --yes to go on, or --dry-run to see the changes "
        f"(see `rqttl queue {what} --help`)\n"
    )
    assert ready(filled)["orders"] == 1234


PURGE = (
    ("purge", "orders", "mails"),
    "rqttl: orders: 1,234 ready, 123 kB\nrqttl: mails: 3 ready, 3 B\nPurge these 2 queues? [y/N]: ",
    "queue orders: 1,234 ready messages removed\nqueue mails: 3 ready messages removed\n",
)
DELETE = (
    ("delete", "orders"),
    "Delete orders (1,234 ready, 5 leased, 1 delayed)? [y/N]: ",
    "queue orders deleted, with 1,234 ready messages\n",
)


def answered(words: tuple[str, ...], keys: bytes, redis_url: str) -> tuple[int, str]:
    with Terminal("queue", *words, RQTTL_URL=redis_url) as terminal:
        terminal.until("[y/N]: ")
        terminal.type(keys)
        return terminal.end(), terminal.screen


@pytest.mark.slow
@pytest.mark.parametrize("words, question, outcome", [PURGE, DELETE], ids=str)
def test_a_yes_is_a_yes(filled: Broker, redis_url: str, words: tuple[str, ...], question: str, outcome: str) -> None:
    assert answered(words, b"y\r", redis_url) == (0, f"{question}y\n{outcome}")

    left = ready(filled)
    assert [left.get(name, 0) for name in words[1:]] == [0] * len(words[1:])


@pytest.mark.slow
@pytest.mark.parametrize("words, question", [PURGE[:2], DELETE[:2]], ids=str)
@pytest.mark.parametrize("keys, printed", [(b"n\r", "n\n"), (b"\x04", "\n")], ids=["n", "ctrl-d"])
def test_anything_else_is_a_no(
    filled: Broker, redis_url: str, words: tuple[str, ...], question: str, keys: bytes, printed: str
) -> None:
    before = ready(filled)

    assert answered(words, keys, redis_url) == (3, f"{question}{printed}rqttl: nothing was done\n")
    assert ready(filled) == before


@pytest.mark.slow
@pytest.mark.parametrize("words, question", [PURGE[:2], DELETE[:2]], ids=str)
def test_ctrl_c_is_an_interruption(filled: Broker, redis_url: str, words: tuple[str, ...], question: str) -> None:
    before = ready(filled)

    with Terminal("queue", *words, RQTTL_URL=redis_url) as terminal:
        terminal.until(question)
        assert terminal.interrupt() == 130

    assert terminal.screen.replace("^C", "") == f"{question}\nrqttl: interrupted\n"
    assert ready(filled) == before


@pytest.mark.slow
def test_without_a_queue_nothing_is_asked(redis_url: str) -> None:
    with Terminal("queue", "purge", "nope", "no", RQTTL_URL=redis_url) as terminal:
        assert terminal.end() == 3

    assert terminal.screen.splitlines()[-1] == "rqttl: 2 of 2 queues refused; the lines above say why"
    assert "[y/N]" not in terminal.screen


def test_a_queue_whose_lifetime_is_over_at_once_is_declared_all_the_same(run: Run) -> None:
    for _ in range(3):
        text = run("queue", "declare", "brief", "--expires", "1ms")
        document = run("queue", "declare", "brief", "--expires", "1ms", "--json")

        assert (text.exit_code, text.stderr) == (document.exit_code, document.stderr) == (0, "")
        assert json.loads(document.stdout)["queue"] == "brief"


def test_queues_are_paused_and_resumed_by_name_and_by_pattern(run: Run, broker: Broker) -> None:
    for name in ("orders.eu", "orders.us", "mails"):
        broker.declare_queue(name)

    assert run("queue", "pause", "orders.*", "mails").stdout == (
        "queue mails is paused\nqueue orders.eu is paused\nqueue orders.us is paused\n"
    )
    assert [name for name, options in broker.options().items() if options.paused] == ["mails", "orders.eu", "orders.us"]
    assert run("queue", "pause", "mails").stdout == "queue mails is paused, as before\n"
    assert json.loads(run("queue", "resume", "m*", "--json").stdout) == [
        {"queue": "mails", "paused": False, "changed": True}
    ]
    missing = run("queue", "pause", "nothing")
    assert (missing.exit_code, "queue 'nothing' does not exist" in missing.stderr) == (3, True)


def test_a_resume_that_a_policy_forbids_is_refused_by_its_name(run: Run, broker: Broker) -> None:
    for name in ("a", "b"):
        broker.declare_queue(name)
    broker.set_policy("freeze", "a", {"paused": True}, operator=True)
    broker.queue("b").pause()

    result = run("queue", "resume", "*")

    assert (result.exit_code, result.stdout) == (3, "queue b is not paused\n")
    assert "queue 'a' stays paused: operator policy freeze decides [policy_decides]" in result.stderr
    assert run("queue", "resume", "a").exit_code == 3


def spaced(printed: str) -> str:
    return " ".join(printed.split())


def test_what_controls_a_queue_is_shown(run_clocked: Run, clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders", max_leased=5, rate="1/1m")
    queue.enqueue_many([b"1", b"2"])
    queue.receive()
    shown = run_clocked("queue", "show", "orders", "--utc").stdout
    for line in ("leased 1 of at most 5, the first lease ends", "next by rate 2023-11-14 22:14:20", "--rate 1/1m"):
        assert line in spaced(shown)
    clocked.set_policy("freeze", "*", {"paused": True})

    shown, listed, table = (
        run_clocked(*words).stdout for words in (("queue", "show", "orders"), ("queue", "ls"), ("stats",))
    )
    assert "paused consumers get nothing (policy freeze)" in spaced(shown)
    assert "--paused yes (policy freeze)" in spaced(shown)
    assert "orders (paused)" in listed
    assert "orders (paused)" in table
    assert json.loads(run_clocked("queue", "ls", "--json").stdout)[0]["paused"] is True
    assert "paused yes policy freeze" in spaced(run_clocked("explain", "orders").stdout)
