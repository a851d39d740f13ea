"""Planning a Ray cluster is pure: what each node is told, and what servers have to have in common."""

from __future__ import annotations

import shlex

import pytest

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.plan import LaunchNames, LaunchPlan, NodeFacts, Rendezvous, Route
from remote_tool.launchers.ray import LAUNCHER, check_nodes, plan_ray
from remote_tool.launchers.ray_node import OPEN_TO_ALL, count_gpus
from remote_tool.launchers.request import LaunchRequest

ID = "20261128-081500-0123456789abcdef0123456789abcdef"


def node(server: str, ray: str = "2.60.0", python: str = "3.11.7", place: str = "") -> NodeFacts:
    return NodeFacts(server, python, "", 0, place=place or server, ray=ray)


def plan(command: str = "tune.py --trials 8", *, port: int | None = None, restart_workers: bool = False) -> LaunchPlan:
    routes = {"a": Route("10.0.0.5", "eth1"), "b": Route("10.0.0.6", "eth1")}
    names = LaunchNames(ID, ("job-a", "job-b"), ".jobs")
    request = LaunchRequest(command, launcher="ray", master_port=port, restart_workers=restart_workers)
    return plan_ray(request, [node("a"), node("b")], Rendezvous("10.0.0.5", 23456, routes), names)


def options(command: str) -> dict[str, str]:
    words = shlex.split(command, comments=True)[3:]
    return {name: value for name, value in zip(words, [*words[1:], ""], strict=True) if name.startswith("--")}


def test_the_first_node_runs_the_program_and_the_others_join_at_its_address() -> None:
    first, second = (options(each.command) for each in plan().nodes)
    assert first["--shell-command"] == "python tune.py --trials 8"
    assert "--shell-command" not in second
    assert (first["--rank"], second["--rank"], second["--nodes"]) == ("0", "1", "2")
    assert (second["--master-addr"], second["--master-port"]) == ("10.0.0.5", "23456")
    assert (first["--own-address"], second["--own-address"]) == ("10.0.0.5", "10.0.0.6")


def test_the_folder_is_short_enough_for_the_sockets_of_ray() -> None:
    folder = options(plan().nodes[0].command)["--folder"]
    assert len(f"{folder}/{OPEN_TO_ALL}/session_2026-11-28_08-07-23_340078_4194304/sockets/plasma_store") < 108


def test_lists_begin_with_what_runs() -> None:
    assert [each.command.partition("\n")[0] for each in plan().nodes] == [
        "# ray python tune.py --trials 8",
        "# ray worker 1",
    ]
    assert plan("").nodes[0].command.startswith("# ray head\n")


def test_only_workers_are_restarted() -> None:
    assert ["--restart" in options(each.command) for each in plan(restart_workers=True).nodes] == [False, True]
    with pytest.raises(UsageError, match="restart_workers is for the launcher ray"):
        LaunchRequest("train.py", restart_workers=True)


@pytest.mark.parametrize("more", [{"processes": 4}, {"max_restarts": 2}])
def test_options_of_other_launchers_are_refused(more: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="without processes or max_restarts"):
        LaunchRequest("tune.py", launcher="ray", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listed", "count"), [("", 0), ("-1", 0), ("NoDevFiles", 0), ("0", 1), ("2, 3", 2), ("GPU-1,-1,GPU-2", 1)]
)
def test_ray_is_told_how_many_gpus_it_may_use(listed: str, count: int) -> None:
    assert count_gpus(listed) == count


def test_all_nodes_have_one_secret_and_no_command_has_it() -> None:
    planned = plan()
    (token,) = {each.environment["RAY_AUTH_TOKEN"] for each in planned.nodes}
    assert len(token) == 64
    assert plan().nodes[0].environment["RAY_AUTH_TOKEN"] != token
    assert token not in planned.text()
    assert token not in repr(planned)


@pytest.mark.parametrize("port", [10002, 19999])
def test_a_port_of_the_workers_of_ray_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match=f"--master-port {port} is in the range"):
        plan(port=port)


def test_a_cluster_needs_no_program_and_other_launches_do() -> None:
    assert "--shell-command" not in options(plan("").nodes[0].command)
    with pytest.raises(UsageError, match="--cmd is empty"):
        LaunchRequest("", launcher="shell")


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (node("b", ray=""), "b does not have ray in its environment"),
        (node("b", ray="2.51.2"), "b has Ray 2.51.2, which lets everybody"),
        (node("b", ray="2.61.0"), "Ray differs between the servers: a 2.60.0, b 2.61.0"),
        (node("b", python="3.11.9"), "Python differs between the servers: a 3.11.7, b 3.11.9"),
        (node("b", place="a"), "a and b are the same machine"),
    ],
)
def test_servers_that_cannot_form_a_cluster_are_refused(second: NodeFacts, problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        check_nodes([node("a"), second])


def test_a_launch_of_ray_goes_on_without_a_worker() -> None:
    assert LAUNCHER.goes_on_without_workers
