"""A Redis server with TLS, and certificates for it and its clients."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.servers import Server


def certify(folder: Path) -> Path:
    """Make `ca.crt`, `server` and `client` certificates that it has signed, and a `stranger` that it has not."""
    program = shutil.which("openssl")
    if program is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("no openssl to make certificates with")

    def openssl(*words: str) -> None:
        subprocess.run([str(program), *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority")
    openssl("req", "-x509", *key, "-keyout", "other.key", "-out", "other.crt", "-subj", "/CN=other authority")
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        signed = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-addext", "subjectAltName=DNS:localhost")
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}", *signed)
    return folder


def secure(start_server: Callable[..., Server], certificates: Path, **config: str) -> tuple[Server, str]:
    """Start a server that wants certificates of its clients. Returns it and its URL."""
    port = free_port()
    names = {"tls_cert_file": "server.crt", "tls_key_file": "server.key", "tls_ca_cert_file": "ca.crt"}
    files = {option: certificates / name for option, name in names.items()}
    try:
        server = start_server(tls_port=port, bind="127.0.0.1", **files, **config)
    except RuntimeError:
        pytest.skip("this redis-server was built without TLS")
    return server, f"rediss://localhost:{port}/0"
