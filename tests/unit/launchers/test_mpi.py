"""Planning an MPI launch is pure; what a server wants started on the others is looked at word by word."""

from __future__ import annotations

import shlex

import pytest

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.mpi import plan_mpi, proxy_script, read_mpi_line, read_proxies
from remote_tool.launchers.plan import LaunchNames, LaunchPlan, NodeFacts, Rendezvous, Route
from remote_tool.launchers.request import LaunchRequest

# As mpiexec 4.0.2 says it.
LINE = (
    "/usr/bin/hydra_pmi_proxy --control-port 10.0.0.5:23456 --rmk user --launcher manual --demux poll --pgid 0"
    " --retries 10 --usize -2 --pmi-port 0 --gpus-per-proc -2 --proxy-id 1"
)


def plan(command: str = "./solve", *, address: str = "10.0.0.5", processes: int = 2) -> LaunchPlan:
    facts = [NodeFacts(name, "3.11.7", "", 0) for name in ("a", "b")]
    routes = {"a": Route("10.0.0.5", "eth1"), "b": Route("10.0.0.6", "eth1")}
    names = LaunchNames("launch", ("job-a", "job-b"), ".jobs")
    return plan_mpi(LaunchRequest(command, processes=processes), facts, Rendezvous(address, 23456, routes), names)


def test_mpiexec_listens_where_all_were_seen_to_reach_it_on_a_port_of_the_launch() -> None:
    first, second = plan().nodes
    assert "MPIEXEC_PORT_RANGE=23456:23456 mpiexec.hydra -launcher manual -localhost 10.0.0.5" in first.command
    assert "-hosts node-0:2,node-1:2 -genvnone" in first.command
    assert second.command.startswith("# mpiexec, node 1: ./solve\n")
    assert (first.rank_offset, second.rank_offset) == (0, 2)


def test_a_node_tells_the_others_the_address_by_which_it_reaches_them() -> None:
    assert [each.environment["MPIR_CVAR_CH3_INTERFACE_HOSTNAME"] for each in plan().nodes] == ["10.0.0.5", "10.0.0.6"]


def test_chosen_gpus_win_over_a_variable_of_the_configuration() -> None:
    facts = [NodeFacts("a", "", "", 8, devices=("2",), variables={"CUDA_VISIBLE_DEVICES": "7", "RATE": "1"})]
    names, meeting = LaunchNames("launch", ("job-a",), ".jobs"), Rendezvous("10.0.0.5", 23456, {"a": Route("", "")})
    environment = plan_mpi(LaunchRequest("./solve"), facts, meeting, names).nodes[0].environment
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["RATE"]) == ("2", "1")


@pytest.mark.parametrize(
    ("command", "runs"),
    [("train.py\t--lr 1", "python train.py\t--lr 1"), ("./solve a.py", "./solve a.py"), ("python x.py", "python x.py")],
)
def test_a_python_program_is_run_by_the_environments_python(command: str, runs: str) -> None:
    assert f" rank {shlex.quote(runs)} .jobs" in plan(command).nodes[0].command


@pytest.mark.parametrize("line", ["mpirun -np 4 python solve.py", "/usr/bin/mpiexec.hydra ./solve", "srun ./solve"])
def test_a_line_that_starts_the_ranks_itself_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="starts its own processes") as refused:
        read_mpi_line(line)
    assert "--cmd 'python solve.py' --ppn 2" in refused.value.hint
    assert read_mpi_line("./solve mpirun").text == "./solve mpirun"


def test_hydra_wants_an_address_without_colons() -> None:
    with pytest.raises(JobError, match="IPv4"):
        plan(address="fd00::5")


def test_what_mpiexec_wants_is_started_by_the_nodes_own_proxy() -> None:
    options = read_proxies([LINE], plan())[1]
    script = proxy_script(options, 1, "./solve", ".jobs/job-b")
    assert f"\nhydra_pmi_proxy {LINE.partition(' ')[2]} </dev/null 2>" in script


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [LINE, LINE],
        [7],
        [LINE.replace("hydra_pmi_proxy", "sh")],
        [LINE.replace("10.0.0.5", "10.6.6.6")],
        [LINE.replace("23456", "22")],
        [LINE.replace("--proxy-id 1", "--proxy-id 0")],
        [f"{LINE} --exec-path /tmp/x"],
        [f"{LINE} ; rm -rf ~"],
        [LINE.replace("poll", "$(id)")],
        [LINE.replace("--demux poll", "--demux")],
        [f"{LINE} --proxy-id 1"],
        ["x" * 5000],
        ["a"],
        [""],
    ],
)
def test_everything_else_is_refused(answer: object) -> None:
    with pytest.raises(JobError, match="a: refused the commands of its mpiexec for the other servers"):
        read_proxies(answer, plan())
