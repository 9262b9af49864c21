"""A Redis server with TLS, and certificates for it and its clients."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.ports import free_port
from tests.servers import Server

NAMES = "DNS:localhost,IP:127.0.0.1"


def certify(folder: Path) -> Path:
    """Make `ca.crt`, `server` and `client` certificates that it has signed, and a `stranger` that it has not."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority")
    openssl("req", "-x509", *key, "-keyout", "other.key", "-out", "other.crt", "-subj", "/CN=other authority")
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        signed = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-addext", f"subjectAltName={NAMES}")
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}", *signed)
    return folder


def settings(certificates: Path) -> dict[str, Path]:
    """The files of a server that wants certificates of its clients."""
    names = {"tls_cert_file": "server.crt", "tls_key_file": "server.key", "tls_ca_cert_file": "ca.crt"}
    return {option: certificates / name for option, name in names.items()}


def options(certificates: Path) -> str:
    """The files of a client, for a URL."""
    files = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
    return "?" + "&".join(f"{option}={certificates / name}" for option, name in files.items())


def secure(start_server: Callable[..., Server], certificates: Path, **config: str) -> tuple[Server, str]:
    """Start a server that wants certificates of its clients. Returns it and its URL."""
    port = free_port()
    server = start_server(tls_port=port, bind="127.0.0.1", **settings(certificates), **config)
    return server, f"rediss://localhost:{port}/0"
