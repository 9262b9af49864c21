"""Who may look, who may act, and how a password is proved. What must not get in is in `test_attacks`."""

import asyncio
import base64
import hashlib
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from rqttl.dashboard import access, users
from rqttl.dashboard.access import Access, ByHost, ByUsers, Trouble, Visitor
from rqttl.dashboard.users import read_users, user_line

pytestmark = pytest.mark.once


def request(method: str = "GET", client: str = "192.0.2.7", path: str = "/", **headers: str) -> Request:
    """A request to queues.test, at a server that listens at 192.0.2.1. Header names have _ for -."""
    given = {"host": "queues.test", "sec_fetch_site": "same-origin"} | headers
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": lines}
    return Request({**scope, "client": (client, 5), "server": ("192.0.2.1", 9470)})


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def visit(of: Access, *asked: Request) -> list[Any]:
    """The user and the right, or the status, of requests that come at once."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(of.visitor, asked), return_exceptions=True)

    def short(one: Any) -> Any:
        if not isinstance(one, Visitor | Trouble):
            raise one
        return one.status if isinstance(one, Trouble) else (one.user, "act" if one.acts else "look")

    return list(map(short, asyncio.run(all_of_them())))


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Passwords that scrypt was asked for. It costs next to nothing here."""
    passwords: list[bytes] = []
    real = hashlib.scrypt

    def scrypt(password: bytes, **options: Any) -> bytes:
        passwords.append(password)
        return real(password, **options)

    assert users.COST == (16_384, 8, 5)
    monkeypatch.setattr(users, "COST", (2, 1, 1))
    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    return passwords


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def two(clock: SimpleNamespace, computed: list[bytes]) -> ByUsers:
    """Ada may act, bob may look."""
    people = read_users("\n".join([user_line("ada", "a:é", acts=True), user_line("bob", "b", acts=False)]))
    computed.clear()
    return ByUsers(listen="192.0.2.1", users=lambda: people, act=True, hosts=["queues.test"], now=lambda: clock.now)


ADA, BOB = request(authorization=basic("ada", "a:é")), request(authorization=basic("bob", "b"))


async def _later(_: Request) -> str:
    return "act"


def _fail(_: Request) -> str:
    try:
        raise OSError("db\nfake line")
    except OSError as error:
        raise LookupError("no users") from error


@pytest.mark.parametrize(
    "may, expected, logged",
    [
        (None, 403, ""),
        (lambda _: None, 403, ""),
        (lambda _: "look", ("ada", "look"), ""),
        (lambda _: "act", ("ada", "act"), ""),
        (_later, ("ada", "act"), ""),
        (lambda _: True, 403, "InvalidInput: may: expected None, 'look' or 'act', got bool True"),
        (lambda one: one.auth, 403, "AssertionError: AuthenticationMiddleware must be installed"),
        (_fail, 403, "LookupError: no users; because of OSError: db\\nfake line"),
    ],
)
def test_the_application_decides(may: Any, expected: Any, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    asked = request()
    asked.scope["user"] = SimpleNamespace(display_name="ada")

    assert visit(ByHost(may), asked) == [expected]
    assert logged in caplog.text
    assert caplog.text.count("\n") == bool(logged)


def test_a_user_may_what_the_file_and_the_command_say(two: ByUsers) -> None:
    assert visit(two, ADA, BOB) == [("ada", "act"), ("bob", "look")]

    two.act = False

    assert visit(two, ADA, BOB) == [("ada", "look"), ("bob", "look")]
    assert visit(two, request(authorization=basic("ada", "x"))) == [401]


def test_a_right_password_is_remembered_for_five_minutes_and_a_wrong_one_is_not(
    two: ByUsers, clock: SimpleNamespace, computed: list[bytes]
) -> None:
    wrong = request(authorization=basic("bob", "x"))

    assert visit(two, BOB, BOB, BOB) + visit(two, BOB) == [("bob", "look")] * 4
    assert computed == [b"b"]
    assert visit(two, wrong) + visit(two, wrong) == [401] * 2
    assert computed == [b"b", b"x", b"x"]
    clock.now += access.REMEMBERED
    assert visit(two, BOB) == [("bob", "look")]
    assert computed[3:] == [b"b"]


@pytest.mark.parametrize("name", ["eve", "ada"])
def test_an_unknown_user_costs_as_much_as_a_known_one(two: ByUsers, computed: list[bytes], name: str) -> None:
    assert visit(two, request(authorization=basic(name, "x"))) == [401]
    assert computed == [b"x"]


@pytest.mark.parametrize("at_once", [True, False])
def test_ten_failures_a_minute_close_the_door_for_an_address(
    two: ByUsers, clock: SimpleNamespace, computed: list[bytes], caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    visit(two, BOB)
    wrong = [request(authorization=basic("ada\x1b", str(i))) for i in range(12)]

    got = visit(two, *wrong) if at_once else [visit(two, one)[0] for one in wrong]

    assert got == [401] * 10 + [429] * 2
    assert len(computed) == 11
    assert "ada\\x1b from 192.0.2.7" in caplog.text
    assert visit(two, BOB, ADA) == [("bob", "look"), 429]  # who is in stays in
    assert visit(two, request(client="192.0.2.8", authorization=basic("ada", "a:é"))) == [("ada", "act")]
    clock.now += 59
    with pytest.raises(Trouble) as denied:
        asyncio.run(two.visitor(wrong[0]))
    assert denied.value.headers == {"Retry-After": "2"}
    clock.now += 2
    assert visit(two, ADA) == [("ada", "act")]


def test_where_anybody_looks_a_name_is_asked_to_act(two: ByUsers) -> None:
    two.anybody, act = True, request("POST")

    assert visit(two, request(), act, request(path="/a/login"), ADA) == [("", "look"), 401, 401, ("ada", "act")]
    two.users = None
    assert visit(two, ADA, act) == [("", "look"), 403]


@pytest.mark.parametrize("client, user, right", [("10.1.2.3", "ada", "act"), ("fd00::1", "bob", "look")])
def test_a_proxy_names_its_user(client: str, user: str, right: str) -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    of = ByUsers(listen="::", act=True, header="X-User", networks=networks, actors={"ada"}, hosts=["queues.test"])

    assert visit(of, request(client=client, x_user=user)) == [(user, right)]
    of.act = False
    assert visit(of, request(client=client, x_user=user)) == [(user, "look")]


@pytest.mark.parametrize("more", ["", "bob:root:x", "ada:act:scrypt$" + "0" * 32 + "$" + "0" * 64])
def test_a_file_with_a_wrong_line_lets_nobody_in(two: ByUsers, more: str, caplog: pytest.LogCaptureFixture) -> None:
    content = f"{user_line('ada', 'a:é', acts=True)}\n{more}\n"
    two.users = lambda: read_users(content)

    assert visit(two, ADA) == [401]
    assert "users: line 2 is no" in caplog.text
