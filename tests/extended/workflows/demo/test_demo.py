"""The demo: its SSH servers under the plain ``ssh`` and ``rsync`` programs, and all of it as a newcomer runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote_tool.errors import UsageError
from remote_tool.workflows.demo import journey
from remote_tool.workflows.demo.journey import install_command, require_packages
from remote_tool.workflows.demo.server import DemoServer, running_servers
from tests.processes import is_running
from tests.sshd import make_key

FIVE_MEGABYTES = 5 * 1024 * 1024
SECRET = "planted-in-the-callers-environment"


@pytest.fixture(scope="module")
def server_and_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DemoServer, Path]]:
    """One server of the demo for all tests here, and the key that it accepts."""
    folder = tmp_path_factory.mktemp("demo")
    os.environ["REMOTE_TOOL_SECRET"] = SECRET
    with running_servers(folder, folder / "key", 1) as (server,):
        yield server, folder / "key"
    del os.environ["REMOTE_TOOL_SECRET"]


def ssh_words(server: DemoServer, key: Path) -> list[str]:
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes", "BatchMode=yes")
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", "-F", "none", "-q", "-T", "-i", str(key), "-p", str(server.port), *words]


Ssh = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def ssh(server_and_key: tuple[DemoServer, Path]) -> Ssh:
    """Runs a command on the server."""

    def run(command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        words = [*ssh_words(*server_and_key), "anyone@127.0.0.1", command]
        return subprocess.run(words, check=False, capture_output=True, input=stdin, timeout=30)

    return run


def test_the_exit_status_comes_back(ssh: Ssh) -> None:
    assert ssh("exit 0").returncode == 0
    assert ssh("exit 7").returncode == 7


def test_the_signal_that_ended_the_command_is_reported(server_and_key: tuple[DemoServer, Path]) -> None:
    words = [*ssh_words(*server_and_key), "-v", "anyone@127.0.0.1", "kill -TERM $$"]
    words.remove("-q")
    told = subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    assert told.returncode == 255
    assert b"rtype exit-signal" in told.stderr


def test_both_outputs_arrive_apart(ssh: Ssh) -> None:
    answer = ssh(r"printf 'out\0\377'; printf err >&2")
    assert (answer.stdout, answer.stderr) == (b"out\x00\xff", b"err")


def test_bytes_are_exact_both_ways_and_stdin_ends(ssh: Ssh) -> None:
    """``cat`` ends only when its stdin does; nothing is lost at the end, and nothing of a line is changed."""
    data = os.urandom(FIVE_MEGABYTES)
    answer = ssh("cat", data)
    assert answer.returncode == 0
    assert answer.stdout == data


def test_a_command_that_does_not_read_stdin_still_ends(ssh: Ssh) -> None:
    assert ssh("echo early", b"x" * FIVE_MEGABYTES).stdout == b"early\n"


def test_a_background_process_that_keeps_the_output_does_not_change_the_status(ssh: Ssh) -> None:
    answer = ssh("(echo later) & wait; exit 3")
    assert (answer.stdout, answer.returncode) == (b"later\n", 3)


def test_an_unknown_key_is_refused(server_and_key: tuple[DemoServer, Path], tmp_path: Path) -> None:
    server, _ = server_and_key
    stranger = make_key(tmp_path / "stranger")
    words = [*ssh_words(server, stranger), "anyone@127.0.0.1", "echo in"]
    answer = subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    assert (answer.returncode, answer.stdout) == (255, b"")


def test_a_session_without_a_command_is_refused(server_and_key: tuple[DemoServer, Path]) -> None:
    words = [*ssh_words(*server_and_key), "anyone@127.0.0.1"]
    answer = subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    assert (answer.returncode, answer.stderr) == (1, b"This server runs commands only.\n")


def test_the_home_is_the_servers_own(ssh: Ssh, server_and_key: tuple[DemoServer, Path]) -> None:
    home, folder = ssh('printf "%s\n" "$HOME" "$(pwd -P)"').stdout.decode().split()
    assert Path(home) == server_and_key[0].home
    assert Path(folder) == server_and_key[0].home.resolve()


def test_nothing_of_the_callers_environment_is_passed_on_but_what_a_login_has(ssh: Ssh) -> None:
    names = {line.partition(b"=")[0] for line in ssh("env").stdout.splitlines()}
    assert b"SSH_CONNECTION" in names
    assert b"REMOTE_TOOL_SECRET" not in names
    assert SECRET.encode() not in ssh("env").stdout


def test_the_servers_have_no_gpu_as_they_would_share_it(ssh: Ssh) -> None:
    """Both are this machine, and NCCL refuses two processes on one GPU."""
    assert ssh('echo "${CUDA_VISIBLE_DEVICES-unset}"').stdout == b"\n"


def test_a_python_that_prepare_would_have_to_change_is_refused(tmp_path: Path) -> None:
    """The demo's servers use the Python that runs it: nothing is installed into that."""
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("torch>=99.1\npytest>=1.0\nno-such-package\n")
    with pytest.raises(UsageError) as refused:
        require_packages(requirements)
    assert re.search(r"has torch \S+, which is older than 99.1 and no no-such-package$", refused.value.message)
    assert refused.value.hint == "make demo"


@pytest.mark.parametrize(
    ("mark", "hint"),
    [
        ("pipx_metadata.json", "pipx inject remote-tool 'torch>=2.4' x"),
        ("uv-receipt.toml", "uv pip install --python {prefix}/bin/python 'torch>=2.4' x"),
        ("", "{prefix}/bin/python -m pip install 'torch>=2.4' x"),
    ],
)
def test_packages_that_lack_come_the_way_that_the_program_came(
    mark: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journey, "CHECKOUT", tmp_path)
    prefix = tmp_path / "remote-tool"
    prefix.mkdir()
    if mark:
        (prefix / mark).touch()
    assert install_command(["torch>=2.4", "x"], prefix) == hint.format(prefix=prefix)


def test_the_tests_python_can_show_the_demo() -> None:
    require_packages(Path(__file__).parents[4] / "sample" / "requirements.txt")


@pytest.mark.parametrize("answer_to_hangup", ["", "trap '' HUP; "], ids=["polite", "deaf"])
@pytest.mark.slow
def test_a_closed_connection_ends_the_command(server_and_key: tuple[DemoServer, Path], answer_to_hangup: str) -> None:
    command = f"{answer_to_hangup}echo $$; while :; do sleep 1; done"
    words = [*ssh_words(*server_and_key), "anyone@127.0.0.1", command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert is_running(pid)
        client.kill()
    wait_until(lambda: not is_running(pid))


@pytest.mark.slow
def test_the_end_of_the_servers_ends_what_runs_on_them(tmp_path: Path) -> None:
    key = tmp_path / "key"
    with running_servers(tmp_path, key, 2) as servers:
        words = [*ssh_words(servers[1], key), "anyone@127.0.0.1", "echo $$; exec sleep 1000"]
        client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert client.stdout is not None
        pid = int(client.stdout.readline())
    assert not is_running(pid)
    with client:
        assert client.wait(20) != 0


def test_rsync_brings_files_and_takes_them_back(server_and_key: tuple[DemoServer, Path], tmp_path: Path) -> None:
    server, key = server_and_key
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(FIVE_MEGABYTES))
    (source / "name with 'quotes'").write_text("text\n")
    shell = " ".join(ssh_words(server, key))
    for origin, target in ((f"{source}/", "anyone@127.0.0.1:sent"), ("anyone@127.0.0.1:sent/", str(back))):
        subprocess.run(["rsync", "-a", "-e", shell, origin, target], check=True, timeout=300, stdin=subprocess.DEVNULL)
    assert (server.home / "sent" / "large").read_bytes() == (source / "large").read_bytes()
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }


def wait_until(is_true: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder; every process of it has the name in its environment."""
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def processes_with(folder: Path, also: str = "") -> list[int]:
    """Every process whose environment names a folder."""
    return [pid for pid, environment in _environments() if str(folder) in environment and also in environment]


def _environments() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                yield int(entry.name), os.fsdecode((entry / "environ").read_bytes())
            except OSError:
                continue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        ("$ remote-tool helper-torch-launch", signal.SIGINT, 130),
        ("job 2 on server2: running", signal.SIGINT, 130),
        ("job 2 on server2: running", signal.SIGTERM, 143),
        # With --keep, it waits for Ctrl-C.
        ("server1 keeps running until Ctrl-C", signal.SIGINT, 0),
    ],
)
def test_an_interrupted_demo_leaves_nothing(temporary: Path, moment: str, number: int, status: int) -> None:
    """SIGINT goes to the whole process group, as from a terminal; SIGTERM to the demo alone."""
    keep = ["--keep", "--servers", "1"] if "Ctrl-C" in moment else []
    with subprocess.Popen(
        [sys.executable, "-m", "remote_tool", "demo", *keep],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        output = ""
        while moment not in output:
            line = demo.stdout.readline()
            assert line, output
            output += line
        assert processes_with(temporary)
        if number == signal.SIGINT:
            os.killpg(demo.pid, number)
        else:
            assert processes_with(temporary, also="REMOTE_TOOL_JOB_ID")
            demo.send_signal(number)
        output += demo.communicate(timeout=300)[0]
    assert demo.returncode == status, output
    assert "Traceback" not in output
    assert processes_with(temporary) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_killed_demo_leaves_nothing(temporary: Path) -> None:
    """SIGKILL lets it clear nothing away itself; its jobs have sessions of their own and would train on."""
    command = [sys.executable, "-m", "remote_tool", "demo"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "job 2 on server2: running" in line:
                break
        assert processes_with(temporary, also="REMOTE_TOOL_JOB_ID")
        demo.kill()
        wait_until(lambda: processes_with(temporary) == [])
        wait_until(lambda: list(temporary.iterdir()) == [])
