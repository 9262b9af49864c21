"""Reading over TLS: trusted certificates, and errors for the others."""

import asyncio
import socket
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rqttl
from rqttl import Broker
from spark_connectors.errors import InvalidOption, Unreachable, UntrustedCertificate
from spark_connectors.options.options import Options
from spark_connectors.redis import connect
from spark_connectors.redis.broker import open_broker
from spark_connectors.redis.bulk_reader import BulkReader
from tests import tls
from tests.cluster_servers import ClusterServers
from tests.servers import SentinelSet, Server, server_binary
from tests.spark.letters import bury
from tests.spark.reading import Load, loader, numbers
from tests.spark.writing import MESSAGES, Job, counts, numbered
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.once]  # not each server was built with TLS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server on a busy machine the time for a handshake."""
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", PATIENCE)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `certify`."""
    return tls.certify(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secured(start_server: Callable[..., Server], certificates: Path) -> tuple[Server, str]:
    """A server that wants certificates of its clients, and its URL."""
    server, url = tls.secure(start_server, certificates)
    with Broker(server.client()) as broker:
        bury(broker, 300)
    return server, url


@pytest.fixture
def load(secured: tuple[Server, str], certificates: Path) -> Load:
    ours = {"tlsCertFile": certificates / "client.crt", "tlsKeyFile": certificates / "client.key"}
    return lambda **options: loader(secured[1])(queues="orders/dead", **{**ours, **options})


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    taken: list[float] = []
    monkeypatch.setattr(connect, "time", types.SimpleNamespace(sleep=taken.append))
    return taken


def test_letters_are_read_from_a_server_that_our_authority_vouches_for_also_without_the_right_to_ping(
    secured: tuple[Server, str], load: Load, certificates: Path
) -> None:
    with secured[0].client() as client:
        rights = [f"+{name}" for name in connect.READ_COMMANDS]
        client.acl_setuser("few", enabled=True, passwords=["+secret"], keys=["rqttl:*"], commands=rights)

    assert load(tlsCaFile=certificates / "ca.crt", username="few", password="secret").ids() == numbers(300)


@pytest.fixture(params=["sentinel", "cluster"])
def several(request: pytest.FixtureRequest, certificates: Path) -> Iterator[str]:
    """The URL of several servers that speak only TLS, also with each other."""
    binary = server_binary("7.0")
    config: dict[str, Any] = {**tls.settings(certificates), "tls_replication": "yes"}
    servers: Any = SentinelSet(binary, **config) if request.param == "sentinel" else None
    servers = servers or ClusterServers(partial(Server, binary), tls_cluster="yes", **config)
    yield servers.url(scheme=f"rediss+{request.param}")
    servers.remove()


def test_every_interface_speaks_it_with_sentinels_and_with_the_nodes_of_a_cluster(
    several: str, certificates: Path
) -> None:
    url, files = several + tls.options(certificates), {"tlsCaFile": str(certificates / "ca.crt")}
    files |= {"tlsCertFile": str(certificates / "client.crt"), "tlsKeyFile": str(certificates / "client.key")}

    async def reject() -> None:
        async with rqttl.connect_async(url) as broker:
            (delivery,) = await broker.queue("orders").receive_many(9)
            await delivery.reject()

    with rqttl.connect(url) as broker:
        broker.declare_queue("orders", dead_letter="letters").enqueue(b"x", id="m-0")
        asyncio.run(reject())
        assert loader(several)(queues="letters", **files).ids() == numbers(1)
        assert counts(Job(several, MESSAGES, {"queue": "orders", **files}).task(numbered(2)))["stored"] == 2
        assert [delivery.id for delivery in broker.queue("orders").receive_many(9)] == ["m-0", "m-1"]


def test_a_server_that_nobody_vouches_for_is_refused_at_once_unless_that_does_not_matter(
    load: Load, pauses: list[float], tmp_path: Path
) -> None:
    told = r"^\[RQTTL_CERTIFICATE\] tlsCaFile: rediss://localhost:\d+/0 has a certificate that does not verify: "
    with pytest.raises(UntrustedCertificate, match=told):
        load(connectRetries="5")
    with pytest.raises(InvalidOption, match=r"tlsCaFile: '.*none\.crt' is not a file on this machine"):
        load(tlsCaFile=tmp_path / "none.crt")
    assert load(tlsVerify="false").ids() == numbers(300)
    assert pauses == []


def write(options: Options) -> None:
    with open_broker(options) as broker:
        broker.server_time()


def read(options: Options) -> None:
    with BulkReader(options) as reader:
        reader.execute("PING")


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("client", ["", "stranger"])
def test_a_client_whose_certificate_is_refused_is_told_so_and_does_not_try_again(
    client: str, protocol: str, start_server: Callable[..., Server], certificates: Path, pauses: list[float]
) -> None:
    _, url = tls.secure(start_server, certificates, tls_protocols=protocol)
    texts = {"url": url, "queues": "a", "tlsCaFile": str(certificates / "ca.crt"), "connectRetries": "5"}
    told = "without a certificate"
    if client:
        texts |= {"tlsCertFile": str(certificates / f"{client}.crt"), "tlsKeyFile": str(certificates / f"{client}.key")}
        told = rf"with the certificate '.*{client}\.crt'"

    text = rf"^\[RQTTL_CERTIFICATE\] tlsCertFile, tlsKeyFile: rediss://localhost:\d+/0 refuses a client {told}: .*ALERT"
    # the alert of the server meets the first command of the client at a random moment
    for job in (read, write) * 10:
        with pytest.raises(UntrustedCertificate, match=text):
            job(Options.parse("batch", texts))

    assert pauses == []


def test_a_certificate_and_a_key_that_do_not_fit_are_told_and_not_tried_again(
    load: Load, certificates: Path, pauses: list[float], tmp_path: Path
) -> None:
    (tmp_path / "no.pem").write_text("no certificate")

    for files in ({"tlsKeyFile": certificates / "stranger.key"}, {"tlsCertFile": tmp_path / "no.pem"}):
        with pytest.raises(
            InvalidOption, match="tlsCaFile, tlsCertFile, tlsKeyFile: one of these files cannot be used"
        ):
            load(tlsCaFile=certificates / "ca.crt", **files)

    assert pauses == []


class Plain:
    """A port without TLS, which counts its clients and answers none of them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"rediss://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.clients.append(self._listener.accept()[0])
            except OSError:
                return  # the test has closed the port

    def close(self) -> None:
        self._listener.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def plain() -> Iterator[Plain]:
    port = Plain()
    yield port
    port.close()


@pytest.mark.parametrize("job", [read, open_broker])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_handshake_without_an_answer_ends_with_the_connect_timeout_after_the_attempts_of_the_option(
    job: Callable[[Options], object], retries: int, plain: Plain, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 0.05)
    texts = {"url": plain.url, "queues": "a", "socketTimeout": "10m", "connectRetries": str(retries)}

    with pytest.raises(Unreachable, match=r"no answer to the TLS handshake; .* needs a url .* redis://"):
        job(Options.parse("batch", texts))

    assert len(pauses) == retries
    until(lambda: len(plain.clients) > retries)  # the port may accept a client after that has given up
    assert len(plain.clients) == retries + 1


def test_a_plain_client_at_a_tls_port_gets_a_hint(secured: tuple[Server, str]) -> None:
    url = secured[1].replace("rediss://", "redis://")

    with pytest.raises(Unreachable, match="if this port speaks TLS, the url has to begin with rediss://"):
        loader(url)(queues="orders/dead", connectRetries="0")
