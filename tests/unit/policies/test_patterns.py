"""Patterns: the matching and the order of Artemis, the search of RabbitMQ, and no pattern that hangs."""

import subprocess
import sys

import pytest
from hypothesis import given

from rqttl import InvalidPolicy
from rqttl.policies import PolicySet
from rqttl.policies.patterns import Pattern, compile_pattern
from tests.unit.policies import sets
from tests.unit.policies.sets import policy

MANY = ("#", "a", "a.#", "a.*", "a.b", "a.b.#", "a.b.c", "a.*.c", "a.d.c", "a.b.c.#", "a.b.c.d", "a.*.*.d", "a.*.d.#")
SIX = ("a.b.c.d.e.f", "a.b.c.d.e.*", "a.*.*.*.*.*", "*.b.c.d.*.f", "*.b.*.d.*.f", "a.b.c.d.e.#")


def in_order(patterns: tuple[str, ...], queue: str) -> list[str]:
    """The patterns that match a name, as a set of policies orders them. The names of the policies do not help."""
    named = [policy(f"p{99 - place}", text, lease="1s") for place, text in enumerate(patterns)]
    return [found.pattern for found in PolicySet(1, tuple(named)).matching(queue)]


def compiled(*texts: str) -> list[Pattern]:
    return [compile_pattern(text) for text in texts]


@pytest.mark.spec("A-074")
@pytest.mark.parametrize(
    "pattern,yes,no",
    [
        ("a.b.#", ["a.b", "a.b.c", "a.b.c.d", "a.b.dabc", "a.b..c", "a.b.."], ["a.babc", "a", "b.a.b", "A.b", "a.b."]),
        ("#", ["a", "a.b", "z.z.z.z", "a.", "a..b"], []),
        ("a.*", ["a.b", "a.x-1", "a.b/dead"], ["a", "a.b.c", "a.", "ab", "xa.b"]),
        ("*.b", ["a.b", "x.b"], ["b", "a.a.b", "a.bb"]),
        ("*", ["a", "a/b", "a:b"], ["a.b", "a."]),
        ("*.*.#", ["a.b", "a.b.c.d"], ["a", "a..b"]),
        ("a.b", ["a.b"], ["a.b.c", "aXb", "a.b\n", "A.B"]),
        ("{t.u}.*", ["{t.u}.v"], ["{t.u}.v.w"]),
    ],
)
def test_words_match_as_in_artemis(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = compile_pattern(pattern).matches

    assert ([name for name in yes if not matches(name)], [name for name in no if matches(name)]) == ([], [])


@pytest.mark.spec("A-075")
@pytest.mark.parametrize(
    "pattern", ["hjhj.#.hhh", "#.a", "#.#", None, "a.#.", "a#", "#a", "a.b*", "*a.b", "**", "a.*#"]
)
def test_a_wildcard_inside_a_word_and_an_early_hash_are_refused(pattern: object) -> None:
    with pytest.raises(InvalidPolicy, match=r"^pattern: expected .*, got "):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["^orders", "orders|events", "a b", "o.[ab]", ".*", ".orders", "a\n", "ä", "a+", "$x"]
)
def test_a_wildcard_that_no_name_can_match_is_refused_and_the_other_syntax_is_named(pattern: str) -> None:
    with pytest.raises(InvalidPolicy, match=r"^pattern: expected .*: no queue name matches it; .* syntax 'regex'$"):
        compile_pattern(pattern)


@pytest.mark.spec("A-077", "C-19")
@pytest.mark.parametrize(
    "queue,pattern",
    [
        ("a", "a"),
        ("a.b", "a.b"),
        ("a.x", "a.*"),
        ("a.b.x", "a.b.#"),
        ("a.b.c", "a.b.c"),
        ("a.d.c", "a.d.c"),
        ("a.x.c", "a.*.c"),
        ("a.b.c.d", "a.b.c.d"),
        ("a.x.c.d", "a.*.*.d"),
        ("a.b.x.d", "a.*.*.d"),
        ("a.d.x.d", "a.*.*.d"),
        ("a.d.d.g", "a.*.d.#"),
        ("zzzz.z.z.z.d.r.g.f.sd.s.fsdfd.fsdfs", "#"),
    ],
)
def test_of_many_wildcards_the_one_of_artemis_comes_first(queue: str, pattern: str) -> None:
    assert in_order(MANY, queue)[0] == pattern
    assert in_order(MANY[::-1], queue)[0] == pattern


@pytest.mark.spec("A-078", "C-19")
@pytest.mark.parametrize(
    "queue,patterns",
    [
        ("a.b.c.d.e.f", ["a.b.c.d.e.f", "a.b.c.d.e.*", "a.*.*.*.*.*", "*.b.c.d.*.f", "*.b.*.d.*.f", "a.b.c.d.e.#"]),
        ("a.b.c.d.e.x", ["a.b.c.d.e.*", "a.*.*.*.*.*", "a.b.c.d.e.#"]),
        ("a.b.x.d.x.f", ["a.*.*.*.*.*", "*.b.*.d.*.f"]),
        ("x.b.c.d.e.f", ["*.b.c.d.*.f", "*.b.*.d.*.f"]),
        ("x.b.x.d.e.f", ["*.b.*.d.*.f"]),
        ("a.b.c.d.e.f.g", ["a.b.c.d.e.#"]),
    ],
)
def test_the_leftmost_word_decides_between_patterns_of_single_words(queue: str, patterns: list[str]) -> None:
    assert in_order(SIX, queue) == in_order(SIX[::-1], queue) == patterns


@given(sets.wildcards, sets.wildcards, sets.queues)
def test_two_wildcards_that_match_one_name_never_tie(first: str, second: str, queue: str) -> None:
    a, b = compiled(first, second)

    if first != second and a.matches(queue) and b.matches(queue):
        assert a.rank != b.rank


@pytest.mark.spec("POL-03")
@pytest.mark.parametrize(
    "pattern,yes,no",
    [
        ("orders", ["orders", "my.orders.eu", "xordersx"], ["order", "Orders"]),
        ("^orders$", ["orders"], ["orders.eu", "x.orders"]),
        ("^amq\\.", ["amq.gen-1"], ["amqp", "x.amq.y"]),
        (".*", ["a", "a.b"], []),
        ("(?i)ORDERS", ["my.orders"], ["order"]),
    ],
)
def test_a_regex_is_searched_for_anywhere_and_case_counts(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = compile_pattern(pattern, "regex").matches

    assert ([name for name in yes if not matches(name)], [name for name in no if matches(name)]) == ([], [])


@pytest.mark.spec("POL-03")
@pytest.mark.parametrize("pattern", ["", "x" * 1025, "é" * 513, "\ud800", b"a", 5, None, ["a"], True])
@pytest.mark.parametrize("syntax", ["wildcard", "regex"])
def test_a_pattern_has_1_to_1024_bytes(pattern: object, syntax: str) -> None:
    with pytest.raises(InvalidPolicy, match=r"^pattern: expected text of 1 to 1024 bytes in UTF-8, got "):
        compile_pattern(pattern, syntax)


@pytest.mark.spec("POL-03")
@pytest.mark.parametrize(
    "pattern,reason",
    [
        ("(", "missing ): ("),
        ("(?!a)b", "invalid perl operator: (?!"),
        ("(a)\\1", "invalid escape sequence: \\1"),
        ("a{1001}", "invalid repetition size: {1001}"),
        ("((a{100}){100}){100}", "invalid repetition size: {100}"),
        ("[z-a]", "invalid character class range: z-a"),
        ("*a", "no argument for repetition operator: *"),
        ("a\\8", "invalid escape sequence: \\8"),
    ],
)
def test_a_regex_that_does_not_compile_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        compile_pattern(pattern, "regex")

    assert str(refused.value) == f"pattern: expected a regular expression of RE2, got {pattern!r}: {reason}"


@pytest.mark.spec("POL-03")
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*(.*)*x$"])
def test_no_regex_hangs(pattern: str) -> None:
    matches = compile_pattern(pattern, "regex").matches
    name = "a" * 127

    assert [matches(name + end) for end in "a!"] == [pattern in ("(a+)+$", "(a|a)*$"), pattern == "(a|a)*$"]


def test_no_wildcard_hangs() -> None:
    stars = compile_pattern(".".join("*" * 500))
    open_end = compile_pattern(".".join("*" * 500) + ".#")
    words = ["a" * 100] * 500

    assert stars.matches(".".join(words))
    assert open_end.matches(".".join([*words, "b"]))
    assert not stars.matches(".".join([*words, "b"]))
    assert not open_end.matches(".".join([*words[:-1], ""]))
    assert not open_end.matches(".".join([*words[:-1], "", "b"]))


def test_the_matcher_of_regular_expressions_is_loaded_for_a_regex_only() -> None:
    code = """if True:
        import sys, rqttl
        rqttl.Policy.read("p", "a.#", {"lease": "1s"})
        print("re2" in sys.modules)
        rqttl.Policy.read("p", "^a", {"lease": "1s"}, syntax="regex")
        print("re2" in sys.modules)
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]


def test_a_set_compiles_each_pattern_once_and_remembers_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counting(text: object, syntax: object) -> Pattern:
        asked.append(text)
        return compile_pattern(text, syntax)

    found = PolicySet(1, tuple(policy(f"p{n}", f"a{n}.#", lease="1s") for n in range(200)))
    monkeypatch.setattr("rqttl.policies.policy.compile_pattern", counting)
    for n in range(1_000):
        assert len(found.matching(f"a{n}.b")) == (n < 200)

    assert sorted(map(str, asked)) == sorted(one.pattern for one in found.policies)
    assert vars(found).keys() == {"version", "policies", "_ordered"}
