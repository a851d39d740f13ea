"""--hosts and --hostfile: what is typed and shown."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.loading import load
from tests.extended.workflows.test_host_lists import tell_ssh
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.fixture
def bare(
    project: Path,  # noqa: ARG001 - it is what prepares them
    servers: tuple[TestServer, TestServer],
    own_home: Path,
    tmp_path: Path,
) -> Path:
    """The prepared project with no server configured; ssh knows both as 10.0.0.1 and 10.0.0.2."""
    tell_ssh(own_home, dict(zip(("10.0.0.1", "10.0.0.2"), servers, strict=True)))
    root = make_project(tmp_path / "bare", ())
    (root / "hosts").write_text("10.0.0.2 slots=2\n10.0.0.1 slots=1  # slow\n")
    return root


def test_run_shows_whose_line_it_is(bare: Path) -> None:
    ran = remote_tool("run", "--hostfile", "hosts", "--cmd", "echo ready", cwd=bare)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["10.0.0.1 | ready", "10.0.0.2 | ready"]


def test_a_job_is_followed_and_listed_by_the_name_of_its_host(bare: Path) -> None:
    started = remote_tool("job-run", "--hosts", "10.0.0.2:4", "--cmd", "echo done; exit 3", "--json", cwd=bare)
    assert started.returncode == 0, started.stderr
    (job,) = json.loads(started.stdout)["jobs"]
    waited = remote_tool("job-wait", "--job", str(job["key"]), cwd=bare)
    assert (waited.returncode, "10.0.0.2" in waited.stdout) == (3, True), waited.stderr
    tailed = remote_tool("job-tail", "--server", "10.0.0.2", cwd=bare)
    assert (tailed.returncode, tailed.stdout) == (0, "done\n"), tailed.stderr
    listed = remote_tool("job-list", cwd=bare)
    assert (listed.returncode, listed.stderr) == (0, "no running jobs; --stopped lists the others\n")


def test_a_launch_takes_its_processes_from_the_host_list_by_default(bare: Path) -> None:
    words = ("helper-torch-launch", "--hostfile", "hosts", "--cmd", "hello.py", "--dry-run", "--json")
    for options, processes in (((), [2, 1]), (("--nproc-per-node", "3"), [3, 3])):
        planned = remote_tool(*words, *options, cwd=bare)
        assert planned.returncode == 0, planned.stderr
        nodes = json.loads(planned.stdout)["nodes"]
        assert [(node["server"], node["processes"]) for node in nodes] == [
            *zip(("10.0.0.2", "10.0.0.1"), processes, strict=True)
        ]


def test_a_host_with_its_user_and_without_is_one_server(bare: Path) -> None:
    user = getpass.getuser()
    words = ("--cmd", "echo ready")
    for hosts in ("10.0.0.1", f"{user}@10.0.0.1", f"10.0.0.1,{user}@10.0.0.1"):
        ran = remote_tool("run", "--hosts", hosts, *words, cwd=bare)
        assert (ran.returncode, ran.stdout) == (0, "ready\n"), ran.stderr
    remembered = (bare / ".remote" / "jobs" / "hosts.yaml").read_text()
    assert remembered.count("10.0.0.1") == 2, "a name and a hostname"
    planned = remote_tool(
        *(
            "helper-torch-launch",
            "--hosts",
            f"10.0.0.1:2,{user}@10.0.0.1:1",
            "--cmd",
            "hello.py",
            "--dry-run",
            "--json",
        ),
        cwd=bare,
    )
    assert [node["processes"] for node in json.loads(planned.stdout)["nodes"]] == [3], planned.stderr


def test_a_key_for_a_list_is_used_by_later_commands_too(
    bare: Path, servers: tuple[TestServer, TestServer], own_home: Path
) -> None:
    server = servers[0]
    (own_home / ".ssh" / "config").write_text(f"Host 10.0.0.1\nHostname 127.0.0.1\nPort {server.port}\n")
    refused = remote_tool("run", "--hosts", "10.0.0.1", "--cmd", "true", cwd=bare)
    assert refused.returncode == 4, "ssh knows no key"
    words = ("--hosts", "10.0.0.1", "--private-key", str(server.key))
    started = remote_tool("job-run", *words, "--cmd", "sleep 1000", cwd=bare)
    assert started.returncode == 0, started.stderr
    stopped = remote_tool("job-kill", "1", "--grace", "0", cwd=bare)
    assert (stopped.returncode, "killed" in stopped.stdout) == (0, True), stopped.stderr
    for wrong, text in (
        (("--private-key", str(server.key)), "--private-key is for --hosts and --hostfile"),
        (("--hosts", "10.0.0.1", "--private-key", "nope"), "--private-key nope: no such file"),
    ):
        refused = remote_tool("run", *wrong, "--cmd", "true", cwd=bare)
        assert (refused.returncode, refused.stderr.startswith(f"error: {text}\n")) == (2, True), refused.stderr


def test_servers_are_looked_after_by_a_list_too(bare: Path) -> None:
    let_in = remote_tool("keys", "--hosts", "10.0.0.1", "--dry-run", cwd=bare)
    assert (let_in.returncode, let_in.stdout) == (0, "10.0.0.1: key-based login already works\n"), let_in.stderr
    ready = remote_tool("keys", "--hostfile", "hosts", cwd=bare)
    assert ready.stderr.splitlines()[-1:] == ["next: remote-tool prepare --hostfile hosts"]
    checked = json.loads(remote_tool("check", "--hostfile", "hosts", "--json", cwd=bare).stdout)
    assert [each["name"] for each in checked["servers"]] == ["10.0.0.2", "10.0.0.1"]
    measured = remote_tool("bandwidth", "--hosts", "10.0.0.1,10.0.0.2", "--seconds", "0.1", "--json", cwd=bare)
    links = json.loads(measured.stdout)["links"]
    assert {(each["from"], each["to"]) for each in links} == {("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")}
    orphans = remote_tool("job-kill", "--orphans", "--hosts", "10.0.0.1", cwd=bare)
    assert (orphans.returncode, orphans.stderr) == (0, "no orphans\n")
    refused = remote_tool("job-kill", "--hosts", "10.0.0.1", cwd=bare)
    assert (refused.returncode, "need --orphans" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--hosts", "a", "--hostfile", "b"],
            "error: --hosts and --hostfile cannot be combined\nhint: Keep one of them\n",
        ),
        (
            ["--hosts", "a", "--server", "b"],
            "error: --server and --hosts cannot be combined\nhint: Keep one of them\n",
        ),
        (
            ["--hosts", "a:2222"],
            (
                "error: --hosts 'a:2222': a:2222 requests 2222 processes; the number after a host is not a port\n"
                "hint: Set the SSH port in ~/.ssh/config: Host a, Port 2222\n"
            ),
        ),
        (["--hostfile", "missing"], "error: missing: No such file or directory\nhint: ls -l missing\n"),
        (
            ["--hostfile", "wrong"],
            (
                "error: wrong:1: 'rack=7' is not valid; a line is HOST, HOST:PROCESSES or HOST slots=PROCESSES\n"
                "error: wrong:3: fd00::5 is not a host"
            ),
        ),
    ],
)
def test_invalid_host_options_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", ())
    (root / "wrong").write_text("a rack=7\n\nfd00::5 slots=2\n")
    for command in (["run", "--cmd", "true"], ["prepare"], ["helper-torch-launch", "--cmd", "hello.py"]):
        ran = remote_tool(*command, *options, cwd=root)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.replace("'fd00::5'", "fd00::5").startswith(message)


def test_without_servers_and_without_hosts_the_hint_names_the_option(tmp_path: Path) -> None:
    ran = remote_tool("run", "--cmd", "true", cwd=make_project(tmp_path / "project", ()))
    assert ran.returncode == 2
    assert ran.stderr.endswith("hint: Add one under servers:, or give --hosts\n")


def test_an_unreachable_host_is_searched_in_ssh_config(bare: Path, own_home: Path) -> None:
    with (own_home / ".ssh" / "config").open("a") as file:
        file.write("Host away\n  HostName 127.0.0.1\n  Port 1\n")
    ran = remote_tool("run", "--hosts", "away:2", "--cmd", "true", cwd=bare)
    assert ran.returncode == 4
    assert "Check away in ~/.ssh/config" in ran.stderr


def test_init_writes_hosts_as_servers(tmp_path: Path, own_home: Path) -> None:
    (own_home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (own_home / ".ssh" / "config").write_text("Host gpu-lab\n  User somebody\n")
    (tmp_path / "hosts").write_text("me@10.0.0.1 slots=2\n[fd00::5]:4\n10.0.0.3\n")
    made = remote_tool("init", "--name", "digits", "--hostfile", "hosts", "--hosts", "gpu-lab", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "numbers of processes are not saved" in made.stderr
    servers = load(tmp_path).servers
    assert [(each.name, each.username, each.hostname) for each in servers.values()] == [
        ("gpu-lab", None, "gpu-lab"),
        ("10.0.0.1", "me", "10.0.0.1"),
        ("fd00--5", getpass.getuser(), "fd00::5"),
        ("10.0.0.3", getpass.getuser(), "10.0.0.3"),
    ]
