"""Launches as people know them from torchrun."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import PATIENCE, HeldRequest, until
from tests.promises.kinds import works

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

LAUNCH = ("helper-torch-launch", "--follow")
# The second node shows the name of its launch, the name that it is told at the port of its launch, and the port.
MEETS = """
import os, socket, sys, time
port = int(os.environ["MASTER_PORT"])
if os.environ["NODE_RANK"] == "0":
    socket.create_server(("", port)).accept()[0].sendall(sys.argv[1].encode())
    sys.exit()
while True:
    try:
        peer = socket.create_connection((os.environ["MASTER_ADDR"], port))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
print(sys.argv[1], peer.recv(99).decode(), port)
"""


@pytest.mark.slow
def test_the_first_servers_are_taken_and_torchruns_spellings_and_variables_are_there(desk_of_two: Desk) -> None:
    desk = desk_of_two
    (desk.root / "train.py").write_text(
        "import os; print(os.environ['NODE_RANK'] == os.environ['GROUP_RANK'] == '0')\n"
    )
    shown = desk.does(*LAUNCH, "--nnodes", "1", "--nproc_per_node=1", "--cmd", "train.py")
    assert shown.splitlines() == ["first:0 | True"]
    assert [job["server"] for job in desk.jobs()] == ["first"]
    refused = desk.refuses(*LAUNCH, "--nnodes", "3", "--cmd", "train.py", status=2)
    assert "--nnodes 3 needs as many servers, and there are 2: first, second" in refused


@pytest.mark.slow
def test_a_script_that_wants_its_local_rank_as_an_argument_is_told_the_line_to_add(desk: Desk) -> None:
    (desk.root / "train.py").write_text(
        "import argparse, os\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int, required=True)\n"
        "print(parser.parse_args().local_rank)\n"
    )
    line = 'parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))'
    refused = desk.tries(*LAUNCH, "--cmd", "train.py")
    assert (refused.returncode, line in refused.stderr) == (1, True)
    assert line in desk.does("job-show", "1")
    script = (desk.root / "train.py").read_text()
    (desk.root / "train.py").write_text(
        script.replace("parser.add_argument('--local_rank', type=int, required=True)", line)
    )
    assert desk.does(*LAUNCH, "--cmd", "train.py").endswith("| 0\n")


@pytest.mark.row(159)
@pytest.mark.slow
def test_the_first_error_of_a_launch_is_that_of_the_node_that_failed_first(desk_of_two: Desk) -> None:
    desk = desk_of_two
    script = "import os, time\nif os.environ['RANK'] == '1':\n    raise RuntimeError('boom')\ntime.sleep(1000)\n"
    (desk.root / "train.py").write_text(script)
    desk.does("helper-torch-launch", "--cmd", "train.py")
    # The other node is named there too, and may have failed before.
    stopped = re.compile(r"(?m)^state +failed")
    until(lambda: stopped.search(desk.tries("job-show", "1").stdout), "the first node is stopped")
    assert "rank 1 on second: RuntimeError: boom" in desk.does("job-show", "1")


@pytest.mark.slow
@pytest.mark.row(166)
@pytest.mark.skipif(not works("mpiexec.hydra --version"), reason="there is no mpiexec.hydra: install mpich")
def test_a_rank_that_fails_ends_the_launch_although_other_processes_of_its_server_go_on(desk_of_two: Desk) -> None:
    fails = "[ $PMI_RANK = 0 ] || exec sleep 1000; sleep 1000 & exit 7"
    desk_of_two.does("helper-mpi-launch", "--ppn", "2", "--cmd", fails)
    first, second = desk_of_two.waits_for(1, "failed"), desk_of_two.waits_for(2, "failed")
    assert (first["exit_code"], second["exit_code"] != 0) == (7, True)
    assert "first (node 0) ended with exit code 7" in second["reason"]


@pytest.mark.row(162)
def test_a_command_runs_once_on_each_server_and_knows_its_place(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.does(
        "helper-launch", "--follow", "--cmd", 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR $MASTER_PORT" >> place'
    )
    first, second = ((desk.there(name) / "place").read_text() for name in ("first", "second"))
    rank, _, count, *rendezvous = first.split()
    assert (rank, count) == ("0", "2")
    assert second.split() == ["1", "of", "2", *rendezvous]
    assert len(rendezvous) == 3


@pytest.mark.row(93)
def test_a_port_in_use_is_refused_before_anything_starts(desk: Desk) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        said = desk.refuses("helper-launch", "--no-sync", "--master-port", str(port), "--cmd", "true")
    assert f"Port {port} is in use on first" in said
    assert desk.jobs() == []


@pytest.mark.row(93)
@pytest.mark.slow
def test_a_launch_whose_port_is_taken_in_the_last_moment_says_so_and_goes_on_with_another(desk: Desk) -> None:
    (desk.root / "train.py").write_text("import os; print('at', os.environ['MASTER_PORT'])\n")
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    with desk.runs_meanwhile(*LAUNCH, "--cmd", "train.py") as program:
        held.wait()
        (record,) = (desk.root / ".remote" / "jobs").glob("*/job.yaml")
        (port,) = re.findall(r"--master-port (\d+)", record.read_text())
        with socket.create_server(("", int(port))):
            held.let_go()
            said, _ = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, said
    reason = f"another program took port {port} before torchrun could listen on it"
    assert reason in said
    assert reason in desk.job(1)["reason"]
    assert [job["state"] for job in desk.jobs()] == ["failed", "succeeded"]
    (other,) = re.findall(r"(?m)\| at (\d+)$", said)
    assert other != port


@pytest.mark.row(93)
def test_a_launch_of_any_command_whose_port_is_taken_in_the_last_moment_goes_on_with_another(desk: Desk) -> None:
    # As torch says it when it cannot listen there.
    says = "failed to listen on any local network address. port: $MASTER_PORT, code: -98, name: EADDRINUSE"
    command = f'[ -e taken ] && exec echo at $MASTER_PORT; echo $MASTER_PORT >taken; echo "{says}" >&2; exit 1'
    ran = desk.tries("helper-launch", "--server", "first", "--follow", "--cmd", command)
    assert ran.returncode == 0, ran.stderr
    port = (desk.there() / "taken").read_text().strip()
    assert f"another program took port {port} before the launch could listen on it" in desk.job(1)["reason"]
    assert ran.stdout.split()[-2] == "at"
    assert ran.stdout.split()[-1] != port


@pytest.mark.row(93)
def test_two_launches_at_once_have_ports_of_their_own_and_never_meet(desk_of_two: Desk) -> None:
    desk = desk_of_two
    (desk.root / "meets.py").write_text(MEETS)
    desk.does("rsync")
    words = ("helper-launch", "--no-sync", "--follow", "--cmd")
    with ExitStack() as stack:
        programs = [
            stack.enter_context(desk.runs_meanwhile(*words, f"python meets.py {name} >> met"))
            for name in ("one", "two")
        ]
        said = [program.communicate(timeout=PATIENCE)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
    one, two = sorted(line.split() for line in (desk.there("second") / "met").read_text().splitlines())
    assert (one[:2], two[:2]) == (["one", "one"], ["two", "two"])
    assert one[2] != two[2]
