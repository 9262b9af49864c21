"""Reading over TLS: trusted certificates, and errors for the others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from spark_connectors.errors import InvalidOption, Unreachable, UntrustedCertificate
from spark_connectors.options.options import Options
from spark_connectors.redis import connect
from spark_connectors.redis.broker import open_broker
from spark_connectors.redis.bulk_reader import BulkReader
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import Load, loader, numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.crt`, and `server` and `client` certificates that it has signed."""
    program = shutil.which("openssl")
    if program is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run([str(program), *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority")
    for name in ("server", "client"):
        openssl(
            "req",
            "-x509",
            *key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            "-subj",
            f"/CN={name}",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-addext",
            "subjectAltName=DNS:localhost",
        )
    return folder


@pytest.fixture
def secured(start_server: Callable[..., Server], certificates: Path) -> tuple[Server, str]:
    """A server that wants certificates of its clients, and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = {
        name: certificates / file
        for name, file in {
            "tls_cert_file": "server.crt",
            "tls_key_file": "server.key",
            "tls_ca_cert_file": "ca.crt",
        }.items()
    }
    try:
        server = start_server(tls_port=port, bind="127.0.0.1", **files)
    except RuntimeError:
        pytest.skip("this redis-server was built without TLS")
    with Broker(server.client()) as broker:
        bury(broker, 300)
    return server, f"rediss://localhost:{port}/0"


@pytest.fixture
def load(secured: tuple[Server, str], certificates: Path) -> Load:
    ours = {"tlsCertFile": certificates / "client.crt", "tlsKeyFile": certificates / "client.key"}
    return lambda **options: loader(secured[1])(queues="orders/dead", **{**ours, **options})


def test_letters_are_read_from_a_server_that_our_authority_vouches_for(load: Load, certificates: Path) -> None:
    assert load(tlsCaFile=certificates / "ca.crt").ids() == numbers(300)


def test_a_server_that_nobody_vouches_for_is_refused_unless_that_does_not_matter(load: Load) -> None:
    with pytest.raises(
        UntrustedCertificate, match=r"^\[RQTTL_CERTIFICATE\] tlsCaFile, tlsCertFile: rediss://localhost:\d+ .*CERT"
    ):
        load()
    assert load(tlsVerify="false").ids() == numbers(300)


def test_a_file_that_is_not_there_is_told(load: Load, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidOption, match=r"^\[RQTTL_INVALID_OPTION\] tlsCaFile: '.*none\.crt' is no file on this machine"
    ):
        load(tlsCaFile=tmp_path / "none.crt")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    taken: list[float] = []
    monkeypatch.setattr(connect, "time", types.SimpleNamespace(sleep=taken.append))
    return taken


def test_a_certificate_that_does_not_verify_is_not_tried_again(load: Load, pauses: list[float]) -> None:
    with pytest.raises(UntrustedCertificate):
        load(connectRetries="5")

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


def read(options: Options) -> None:
    with BulkReader(options) as reader:
        reader.execute("PING")


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
    assert len(plain.clients) == retries + 1


def test_a_plain_client_at_a_tls_port_gets_a_hint(secured: tuple[Server, str]) -> None:
    url = secured[1].replace("rediss://", "redis://")

    with pytest.raises(Unreachable, match="if this port speaks TLS, the url has to begin with rediss://"):
        loader(url)(queues="orders/dead", connectRetries="0")
