"""Servers without internet: a way out through this machine, for one step, to allowed hosts, with a secret."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import socket
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.files_over_http import Site, serve
from tests.processes import environments
from tests.promises.conftest import Desk, until
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

# No name service knows it, so the server reaches it only through this machine.
NAME = "index.remote-tool.test"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A package index over TLS on this machine, with one package."""
    folder = tmp_path_factory.mktemp("index")
    _write_certificate(folder / "own.pem")
    package = folder / "simple" / "through"
    package.mkdir(parents=True)
    with zipfile.ZipFile(package / "through-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("through.py", "VALUE = 613\n")
        wheel.writestr("through-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: through\nVersion: 1.0\n")
        wheel.writestr("through-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("through-1.0.dist-info/RECORD", "through.py,,\n")
    with serve(folder, folder / "own.pem") as site:
        yield site


def _write_certificate(file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key_text = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(key_text + certificate.public_bytes(encoding))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, for all tests here."""
    folder = tmp_path_factory.mktemp("prefix") / "own"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    return folder


@pytest.fixture
def desk(desk_alone: Desk, index: Site, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A project whose server has no way to the index, and whose requirements are there."""
    monkeypatch.setenv("REMOTE_TOOL_TEST_INTERNET", f"{NAME}=127.0.0.1:{index.port}")
    variables = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": f"https://{NAME}/simple",
        "PIP_CERT": str(index.folder / "own.pem"),
        "PIP_RETRIES": "1",
        "PIP_TIMEOUT": "60",
    }
    desk_alone.configure(environment={"existing": str(prefix)}, env=variables)
    (desk_alone.root / "requirements.txt").write_text("through\n")
    subprocess.run([prefix / "bin" / "python", "-m", "pip", "uninstall", "-qy", "through"], check=True, timeout=300)
    return desk_alone


def holders(text: bytes) -> list[int]:
    """Return the processes with a text in their environment."""
    return [pid for pid, environment in environments() if text in environment]


@pytest.mark.row(321)
def test_packages_come_through_this_machine_and_nothing_stays(desk: Desk, prefix: Path) -> None:
    refused = desk.refuses("prepare")
    assert "hint: the server cannot reach the package index: set internet: through-me to reach it through" in refused
    desk.configure(internet="through-me", internet_hosts=[NAME])
    prepared = desk.tries("prepare")
    assert prepared.returncode == 0, prepared.stderr
    assert "packages: done" in prepared.stderr
    assert " KiB through this machine" in prepared.stderr
    shows = "import through; print(through.VALUE)"
    assert subprocess.check_output([prefix / "bin" / "python", "-c", shows], timeout=60) == b"613\n"
    assert not holders(b"http://remote-tool:")
    for file in (desk.root / ".remote").rglob("*"):
        assert b"http://remote-tool:" not in (file.read_bytes() if file.is_file() else b""), file


def test_a_server_may_have_its_own_way(desk: Desk) -> None:
    servers = desk.settings()["servers"]
    servers["first"]["internet"] = "through-me"
    desk.configure(servers=servers, internet="direct", internet_hosts=[NAME])
    assert " KiB through this machine" in desk.tries("prepare").stderr


def test_a_step_is_tried_also_without_the_way_out_of_an_environment_that_is_broken(desk: Desk, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", broken], check=True, timeout=300)
    (desk.root / "requirements.txt").unlink()
    desk.configure(environment={"existing": str(broken)}, internet="through-me")
    desk.does("prepare")
    (broken / "bin" / "python").unlink()
    (broken / "bin" / "python").write_text("#!/bin/sh\nexit 127\n")
    (broken / "bin" / "python").chmod(0o755)
    refused = desk.refuses("prepare")
    assert "no way out through this machine: first: the control program ended with status 127" in refused
    assert "error: first: Recording the environment failed" in refused


def test_a_host_that_is_not_allowed_is_named(desk: Desk) -> None:
    desk.configure(internet="through-me")
    refused = desk.refuses("prepare")
    assert f"hint: through this machine: {NAME} is not one of internet_hosts in configs.yaml" in refused


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_on_a_terminal_the_user_is_asked_once(desk: Desk, answer: str, status: int) -> None:
    desk.configure(internet="through-me")
    with Terminal("prepare", cwd=desk.root) as terminal:
        terminal.until(f"Let servers reach {NAME} through this machine? [y/N]")
        terminal.type(f"{answer}\n")
        assert terminal.end() == status, terminal.text
    assert terminal.text.count("[y/N]") == 1


class Asker:
    """Asks the proxy of a command, with its secret or another."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1"
        self.password = parts.password or ""
        self._port = parts.port or 0
        self.login = f"{parts.username}:{self.password}"

    def __call__(self, method: str, target: str, login: str | None = "") -> tuple[int, str]:
        """Return the status, and the text of a refusal; without a login, the right one is sent."""
        word = base64.b64encode((login or self.login).encode()).decode()
        field = "" if login is None else f"Proxy-Authorization: Basic {word}\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connection:
            connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: any\r\n{field}\r\n".encode())
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            return answer.status, "" if answer.status == 200 else answer.read().decode().strip()


@pytest.mark.row(321)
def test_only_who_knows_the_secret_reaches_allowed_hosts_of_the_internet_by_https(desk: Desk, tmp_path: Path) -> None:
    desk.configure(internet_hosts=[NAME, "localhost", "*.example.org"])
    told, go = tmp_path / "url", tmp_path / "go"
    command = f'printf %s "$https_proxy" > {told}.new; mv {told}.new {told}; until [ -e {go} ]; do sleep 0.1; done'
    with desk.runs_meanwhile("run", "--internet", "--cmd", command) as running:
        until(told.exists, "the command runs")
        asked = Asker(told.read_text())
        for login in (None, "remote-tool:", f"{asked.login}x", "other"):
            assert asked("CONNECT", f"{NAME}:443", login) == (407, "this proxy is for another program")
        assert asked("CONNECT", f"{NAME}:443")[0] == 200
        assert asked("CONNECT", f"{NAME}:22") == (403, "is not reached at port 22: only port 443 is carried")
        assert asked("GET", f"http://{NAME}/") == (403, "only https is carried")
        for odd in ("1.1.1.1\0.example.org", "a b", "[::1]", ""):
            assert asked("CONNECT", f"{odd}:443") == (403, "not a host name")
        for other in ("other.remote-tool.test", "127.0.0.1"):
            assert asked("CONNECT", f"{other}:443") == (403, "is not one of internet_hosts in configs.yaml")
        status, why = asked("CONNECT", "localhost:443")
        assert (status, why.endswith(", which is not an address of the internet")) == (403, True)
        go.touch()
        output, _ = running.communicate()
    assert running.returncode == 0
    assert "through this machine: " in output
    assert len(asked.password) > 20
    assert asked.password not in output
    with pytest.raises(ConnectionRefusedError):
        asked("CONNECT", f"{NAME}:443")
