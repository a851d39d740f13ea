"""The ports and addresses of launches, and which of their nodes is named."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, open_files, parents, processes_of
from tests.promises.conftest import HeldRequest, before_each_request, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.promises.conftest import Desk

# As torch says that it cannot listen.
TAKEN = "failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE,"
RUNS = "echo $$ > pid-$NODE_RANK; exec sleep 1000"
FAILED_BEFORE = """
if [ $NODE_RANK = 1 ]; then
    ranks=.jobs/$REMOTE_TOOL_JOB_ID/ranks/x/attempt_0/1
    mkdir -p $ranks
    echo '{error}' > $ranks/error.json
    touch {mark}
    exec sleep 1000
fi
until [ -e {mark} ]; do sleep 0.1; done
sleep 0.5
exit 1
"""
LISTENS = "0A"


@pytest.fixture
def running(desk_of_two: Desk) -> Iterator[list[int]]:
    """The commands of a launch on both servers."""
    desk = desk_of_two
    meet_at(desk, "127.0.0.1")
    desk.configure(lost_after=86400)
    desk.does("helper-launch", "--no-sync", "--cmd", RUNS)
    files = [desk.there(name) / f"pid-{rank}" for rank, name in enumerate(("first", "second"))]
    until(lambda: all(file.exists() and file.read_text() for file in files), "both run")
    yield [int(file.read_text()) for file in files]
    desk.tries("job-kill", "--all", "--yes", "--signal", "SIGKILL")


def meet_at(desk: Desk, address: str) -> None:
    """Have the nodes of launches meet at this address of the first server."""
    servers = desk.settings()["servers"]
    servers["first"]["address"] = address
    desk.configure(servers=servers)


def listening(pid: int) -> set[str]:
    """Return the addresses at which a process takes connections, as the kernel writes them."""
    sockets = set(open_files(pid).values())
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {
        fields[1].partition(":")[0] for fields in lines if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets
    }


@pytest.mark.row(88)
@pytest.mark.slow
def test_the_rest_is_stopped_when_all_processes_of_the_first_node_die(desk_of_two: Desk, running: list[int]) -> None:
    first, second = running
    supervisor = parents()[first]
    for pid in (supervisor, first):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(second), "the other node is stopped", 90)
    job = desk_of_two.waits_for(2, "failed")
    assert "first (node 0) has not responded" in job["reason"]
    assert desk_of_two.waits_for(1, "lost")["exit_code"] is None


@pytest.mark.row(88)
@pytest.mark.slow
def test_a_start_is_not_reported_before_the_first_node_knows_the_node_unless_it_is_late(desk_of_two: Desk) -> None:
    desk = desk_of_two
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    with desk.runs_meanwhile("helper-launch", "--no-sync", "--cmd", RUNS) as program:
        held.wait()
        until(lambda: reported(desk), "the second node has started")
        (started,) = (desk.there("second") / ".jobs").glob("*/started.json")
        # It has waited for the first one, of which nothing was heard, for two seconds.
        assert reported(desk)[0].stat().st_mtime - started.stat().st_mtime > 1
        held.let_go()
        said, _ = program.communicate()
    assert program.returncode == 0, said
    desk.does("job-kill", "--all", "--yes")


def reported(desk: Desk) -> list[Path]:
    """Return the records of jobs here that are known to run."""
    records = (desk.root / ".remote" / "jobs").glob("*/job.yaml")
    return [record for record in records if '"running"' in record.read_text()]


@pytest.mark.row(105)
def test_a_launch_listens_only_where_its_nodes_meet(running: list[int]) -> None:
    first, second = (parents()[pid] for pid in running)
    assert listening(first) == {"0100007F"}
    assert listening(second) == set()


@pytest.mark.row(87, 93)
@pytest.mark.slow
def test_a_first_node_whose_port_is_taken_in_the_last_moment_stops_the_launch(desk_of_two: Desk) -> None:
    desk = desk_of_two
    before = given(desk)
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    with desk.runs_meanwhile("helper-launch", "--no-sync", "--cmd", RUNS) as program, ExitStack() as taken:
        held.wait()
        for port in given(desk) - before:
            taken.enter_context(socket.create_server(("", port)))
        held.let_go()
        said, _ = program.communicate()
    assert program.returncode not in {0, None}
    assert re.search(r"could not be started: \S+ port \d+: Address already in use", said), said
    assert [job["state"] for job in desk.jobs()] == ["failed", "killed"]
    assert [processes_of(job["id"]) for job in desk.jobs()] == [[], []]


def given(desk: Desk) -> set[int]:
    """Return the ports that the first server has given to launches."""
    notes = (desk.servers["first"].home / ".cache" / "remote-tool" / "ports").glob("*-*")
    return {int(note.name.rpartition("-")[2]) for note in notes}


@pytest.mark.row(93)
def test_the_ports_of_a_launch_are_not_of_those_that_the_kernel_gives_to_anybody(desk: Desk) -> None:
    low, high = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low <= 20000 and high >= 64998:
        pytest.skip("the kernel gives all ports to anybody")
    before = given(desk)
    desk.does("helper-launch", "--no-sync", "--dry-run", "--cmd", "true")
    ports = given(desk) - before
    assert len(ports) == 2
    assert [port for port in ports if low <= port <= high] == []


@pytest.mark.row(93)
def test_the_ports_that_a_launch_has_tested_are_free_when_it_begins(desk: Desk) -> None:
    before_each_request(desk, '(cat; sleep 1) | "$python" "$@"; exit')
    before = given(desk)
    desk.does("helper-launch", "--no-sync", "--dry-run", "--cmd", "true")
    ports = given(desk) - before
    assert len(ports) == 2
    for port in ports:
        socket.create_server(("", port)).close()


def free_port() -> str:
    with socket.create_server(("", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.row(93)
@pytest.mark.slow
def test_a_port_that_is_taken_again_and_again_is_given_up_and_one_that_the_user_chose_at_once(desk: Desk) -> None:
    words = ("helper-launch", "--no-sync", "--follow", "--cmd")
    says = f"echo '{TAKEN.format(port='%s')}'; exit 1" % "'$MASTER_PORT'"
    said = desk.tries(*words, f"exec >&2; {says}")
    assert (said.returncode, len(desk.jobs())) == (1, 3), said.stderr
    assert "another program took port" in said.stderr
    port = free_port()
    said = desk.tries(*words, f"exec >&2; {says}", "--master-port", port)
    assert (said.returncode, len(desk.jobs())) == (1, 4), said.stderr
    assert f"another program took port {port}" in said.stderr
    # This is a port of the program itself.
    said = desk.tries(*words, f"echo '{TAKEN.format(port=1)}' >&2; exit 1")
    assert (said.returncode, len(desk.jobs())) == (1, 5), said.stderr
    assert "another program took port" not in f"{said.stderr} {desk.job(5)['reason']}"


@pytest.mark.row(90)
def test_an_address_that_no_server_reaches_is_named_before_anything_starts(desk_of_two: Desk) -> None:
    desk = desk_of_two
    meet_at(desk, "nowhere.invalid")
    said = desk.refuses("helper-launch", "--no-sync", "--cmd", "true")
    assert "cannot reach first at nowhere.invalid:" in said
    assert desk.jobs() == []


@pytest.mark.row(90)
def test_the_nodes_of_a_launch_use_the_network_at_which_they_meet(desk_of_two: Desk) -> None:
    desk = desk_of_two
    meet_at(desk, "127.0.0.1")
    told = "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"
    shown = desk.does("helper-launch", "--no-sync", "--follow", "--cmd", told)
    assert {line.partition("| ")[2] for line in shown.splitlines()} == {"127.0.0.1 lo lo"}


@pytest.mark.row(88)
@pytest.mark.slow
def test_the_node_that_failed_first_is_named_even_when_another_one_ends_before_it(
    desk_of_two: Desk, tmp_path: Path
) -> None:
    desk = desk_of_two
    error = json.dumps({"message": {"message": "ValueError: rank had enough", "extraInfo": {}}})
    command = FAILED_BEFORE.format(error=error, mark=tmp_path / "failed")
    desk.does("helper-launch", "--no-sync", "--cmd", command)
    first, second = desk.waits_for(1, "failed"), desk.waits_for(2, "failed", "killed")
    assert first["reason"] == "first second (node 1) local rank 1: ValueError: rank had enough"
    assert second["state"] == "failed"
    # It was ended, but neither because of another node nor by a signal from nowhere.
    assert not any(text in second["reason"] for text in ("stopped because", "ended by SIG"))


@pytest.mark.row(157)
@pytest.mark.slow
def test_a_first_node_that_may_not_open_enough_files_says_so(desk_of_two: Desk) -> None:
    desk = desk_of_two
    before_each_request(desk, "ulimit -n 33")
    said = desk.refuses("helper-launch", "--no-sync", "--cmd", "sleep 1000")
    assert "2 nodes need 34 open files here, and `ulimit -Hn` allows 33" in said
    assert {job["server"]: job["state"] for job in desk.jobs()} == {"first": "failed", "second": "killed"}
