from __future__ import annotations

import os
import platform
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.machine import addresses
from remote_tool.agent.network import reachability
from remote_tool.protocol.errors import RequestError
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def connect(
    server: PretendServer, candidates: list[str], port: int, secret: str = "s3cret", **fields: Any
) -> list[Any]:
    """Ask a server which of the addresses it reaches."""
    found: list[Any] = server.call("connect", candidates=candidates, ports=[port], secret=secret, **fields)["results"]
    return found


@pytest.mark.picked
@pytest.mark.row(90, 94)
def test_a_server_that_listens_is_reached_and_known_by_its_secret(server: PretendServer) -> None:
    with server.open("listen", port=0, secret="s3cret") as call:
        frame = call.next()
        assert frame is not None
        port = frame.header["port"]
        good, local, missing = connect(server, ["127.0.0.1", "localhost", "name.invalid"], port, timeout=20)
        assert good == {
            "address": "127.0.0.1",
            "ok": True,
            "error": None,
            "local_address": "127.0.0.1",
            "interface": "lo",
        }
        assert local["ok"]
        assert not missing["ok"]
        assert missing["error"]
        (wrong,) = connect(server, ["127.0.0.1"], port, secret="another")
        assert (wrong["ok"], wrong["error"]) == (False, f"another program answers on port {port}")
        assert call.close() == 0
    # The connecting side closed first, so nothing keeps the port from torchrun.
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


@pytest.mark.row(93)
def test_a_port_is_outside_the_range_that_the_kernel_gives_to_anybody_and_given_once(server: PretendServer) -> None:
    low, high = reachability.ephemeral_range()
    ports = []
    for _ in range(4):
        with server.open("listen", port=0, secret="s") as call:
            frame = call.next()
            assert frame is not None
            ports.append(frame.header["port"])
    assert len(set(ports)) == len(ports)
    assert all(not low <= port <= high for port in ports)


@pytest.mark.row(93)
def test_a_port_given_to_another_launch_is_not_given_again_until_long_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert reachability._reserve(23456)
    assert not reachability._reserve(23456)
    (reserved,) = (tmp_path / ".cache" / "remote-tool" / "ports").iterdir()
    os.utime(reserved, (time.time() - 3600,) * 2)
    wait_until(lambda: reachability._reserve(23456))


@pytest.mark.picked
@pytest.mark.row(93)
def test_a_port_that_was_given_is_not_chosen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(reachability, "_LOWEST_PORT", 23456)
    monkeypatch.setattr(reachability, "_HIGHEST_PORT", 23457)
    monkeypatch.setattr(reachability, "ephemeral_range", lambda: (1, 2))
    listener, port = reachability.bind_free_port()
    listener.close()
    assert port == 23456
    with pytest.raises(RequestError, match="Found no free port"):
        reachability.bind_free_port()


@pytest.mark.row(93)
def test_ports_are_found_when_all_ports_are_ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(reachability, "ephemeral_range", lambda: (1024, 65535))
    ports = set()
    for _ in range(3):
        listener, port = reachability.bind_free_port()
        with listener:
            assert listener.getsockname()[1] == port
        ports.add(port)
    assert len(ports) == 3


@pytest.mark.row(93)
def test_a_port_in_use_is_reported(server: PretendServer) -> None:
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", 0))
        squatter.listen()
        answer = server.call("listen", port=squatter.getsockname()[1], secret="s")
    assert "is in use" in answer["error"]
    assert "--master-port" in answer["hint"]


@pytest.mark.row(94)
def test_an_address_that_does_not_answer_takes_no_longer_than_the_timeout(server: PretendServer) -> None:
    """A full backlog is as silent as a firewall."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        begin = time.monotonic()
        (result,) = connect(server, ["127.0.0.1"], silent.getsockname()[1], timeout=0.5)
    # The kernel would try for two minutes.
    assert time.monotonic() - begin < 20
    assert not result["ok"]


def test_a_listener_ends_with_its_client(server: PretendServer) -> None:
    with server.open("listen", port=0, secret="s") as call:
        assert call.next() is not None
        begin = time.monotonic()
        assert call.close() == 0
    # By itself it would listen for a minute.
    assert time.monotonic() - begin < 20


@pytest.mark.row(92)
def test_interfaces_are_known_by_their_addresses() -> None:
    assert {"interface": "lo", "address": "127.0.0.1"} in addresses.list_addresses()
    assert addresses.interface_of("127.0.0.1") == "lo"
    assert addresses.interface_of("::ffff:127.0.0.1") == "lo"
    assert addresses.interface_of("203.0.113.1") == ""


@pytest.mark.row(97)
def test_facts_have_versions_processors_and_addresses(server: PretendServer, tmp_path: Path) -> None:
    """Torch is read from its metadata and never imported."""
    packages = tmp_path / "prefix" / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.13.0+cpu.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info", "torchvision-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
    server.activate(prefix=str(tmp_path / "prefix"), version="3.10.4")
    login = {"SSH_CONNECTION": "10.0.0.9 5000 10.0.0.5 22", "CUDA_VISIBLE_DEVICES": "0,1,3"}
    answer = server.call("facts", launch=False, login=login)
    assert (answer["python"], answer["torch"], answer["nccl"]) == ("3.10.4", "2.13.0+cpu", "2.27.3")
    assert answer["gpus"] == 3
    assert answer["cpus"] == len(os.sched_getaffinity(0))
    assert answer["ssh_server_address"] == "10.0.0.5"
    assert answer["hostname"] == socket.gethostname()
    assert {"interface": "lo", "address": "127.0.0.1"} in answer["addresses"]


def test_for_a_launch_the_interpreter_is_asked_when_the_packages_lie_elsewhere(
    server: PretendServer, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "torch-9.9.9.dist-info").mkdir(parents=True)
    (tmp_path / "elsewhere" / "torch-9.9.9.dist-info" / "METADATA").write_text("Name: torch\nVersion: 9.9.9\n")
    (tmp_path / "elsewhere" / "torch.py").write_text("raise SystemExit('imported')")
    variables = {"PYTHONPATH": str(tmp_path / "elsewhere")}
    server.activate(prefix=str(tmp_path / "empty"), python=sys.executable, variables=variables)
    assert server.call("facts", launch=False)["torch"] is None
    assert server.call("facts", launch=True)["torch"] == "9.9.9"


@pytest.mark.row(97)
def test_for_a_launch_the_interpreter_is_asked_after_the_setup_script(server: PretendServer, tmp_path: Path) -> None:
    for version in ("1.0", "9.9.9"):
        (tmp_path / version / f"torch-{version}.dist-info").mkdir(parents=True)
        (tmp_path / version / f"torch-{version}.dist-info" / "METADATA").write_text(
            f"Name: torch\nVersion: {version}\n"
        )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    variables, path = {"PYTHONPATH": str(tmp_path / "1.0")}, [str(tmp_path / "bin")]
    server.activate(prefix=str(tmp_path / "empty"), python=sys.executable, variables=variables, path=path)
    (server.project / "tools.sh").write_text(
        'echo torch 2.0 loaded; [ $# = 0 ] && export PYTHONPATH="$TOOLS:$PYTHONPATH"\n'
    )
    wish = {"launch": True, "environment": {"TOOLS": str(tmp_path / "9.9.9")}}
    answer = server.call("facts", setup="source ./tools.sh", **wish)
    assert (answer["torch"], answer["python"]) == ("9.9.9", platform.python_version())
    assert server.call("facts", setup="exit 3", **wish)["torch"] == "1.0"


def test_facts_without_an_environment_say_so(server: PretendServer) -> None:
    (server.scripts / "activation.json").unlink()
    answer = server.call("facts", launch=True)
    assert (answer["python"], answer["torch"]) == (None, None)
    assert "not set up" in answer["problem"]


@pytest.mark.row(96)
@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("0", 1), ("0,1", 2), ("-1", 0), ("0,-1,1", 1), ("GPU-1bc,GPU-2", 2)]
)
def test_visible_devices_are_counted(server: PretendServer, visible: str, count: int) -> None:
    assert server.call("facts", launch=False, login={"CUDA_VISIBLE_DEVICES": visible})["gpus"] == count
