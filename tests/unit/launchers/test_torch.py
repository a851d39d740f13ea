"""Planning a launch is pure: facts in, one job per server out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.command import script_file
from remote_tool.launchers.plan import LaunchNames, LaunchPlan, NodeFacts, Rendezvous, Route
from remote_tool.launchers.request import LaunchRequest
from remote_tool.launchers.torch import check_nodes, plan_launch
from remote_tool.workflows.launch.launch import make_specs


def node(
    server: str, *, gpus: int = 0, torch: str = "2.13.0", python: str = "3.11.7", nccl: str = "2.27.3"
) -> NodeFacts:
    return NodeFacts(server, python, torch, gpus, nccl=nccl)


def plan(request: LaunchRequest, *nodes: NodeFacts, address: str = "10.0.0.5") -> LaunchPlan:
    routes = {each.server: Route(f"10.0.0.{index}", "eth1") for index, each in enumerate(nodes, 5)}
    names = LaunchNames(
        "launch", tuple(f"job-{each.server}-{index}" for index, each in enumerate(nodes)), "project/.jobs"
    )
    return plan_launch(request, nodes, Rendezvous(address, 23456, routes), names)


@pytest.mark.row(96)
def test_ranks_and_world_size_follow_unequal_gpu_counts() -> None:
    made = plan(LaunchRequest("train.py", processes="auto"), node("a", gpus=2), node("b"), node("c", gpus=3))
    assert [node.rank_offset for node in made.nodes] == [0, 2, 3]
    assert [node.node_rank for node in made.nodes] == [0, 1, 2]
    assert made.world_size == 6
    assert "--nproc-per-node 3" in made.nodes[2].command


def test_static_rendezvous_names_address_port_and_rank() -> None:
    made = plan(LaunchRequest("train.py --lr 0.1"), node("a"), node("b"))
    assert "--nnodes 2 --node-rank 1 --master-addr 10.0.0.5 --master-port 23456" in made.nodes[1].command
    assert made.nodes[1].command.endswith("train.py --lr 0.1")
    assert "rdzv" not in made.nodes[1].command


@pytest.mark.row(90)
def test_restarts_use_the_elastic_rendezvous_and_say_who_hosts() -> None:
    made = plan(LaunchRequest("train.py", max_restarts=2), node("a"), node("b"), address="fd00::5")
    first, second = (spec.command for spec in made.nodes)
    assert "--rdzv-endpoint '[fd00::5]:23456'" in first
    assert "--rdzv-conf is_host=1 --local-addr 10.0.0.5" in first
    assert "--rdzv-conf is_host=0 --local-addr 10.0.0.6" in second
    assert all(spec.rank_offset is None for spec in made.nodes)


@pytest.mark.row(92)
def test_the_interface_is_set_unless_the_user_set_it() -> None:
    request = LaunchRequest("train.py", environment={"NCCL_SOCKET_IFNAME": "ib0"})
    variables = plan(request, node("a")).nodes[0].environment
    assert variables["GLOO_SOCKET_IFNAME"] == "eth1"
    assert variables["NCCL_SOCKET_IFNAME"] == "ib0"


def test_only_the_first_job_is_the_master_and_all_share_a_run() -> None:
    request = LaunchRequest("train.py", tags=("x",))
    made = plan(request, node("a"), node("b"))
    specs = make_specs(made, request)
    assert [spec.tags for spec in specs] == [("x", "master"), ("x",)]
    assert {spec.environment["RUN_UUID"] for spec in specs} == {made.launch_id}


@pytest.mark.row(92)
def test_variables_of_the_configuration_win_over_what_was_found_and_options_over_both() -> None:
    request = LaunchRequest("train.py", environment={"RATE": "0.2"})
    configured = {"NCCL_SOCKET_IFNAME": "ib0", "RATE": "0.1", "ONLY": "1"}
    variables = plan(request, replace(node("a"), variables=configured)).nodes[0].environment
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RATE", "ONLY")
    assert [variables.get(name) for name in names] == ["ib0", "eth1", "0.2", "1"]


@pytest.mark.row(2)
def test_torchrun_gets_more_time_than_it_needs_to_stop() -> None:
    request = LaunchRequest("train.py")
    assert all(spec.grace > 32 for spec in make_specs(plan(request, node("a")), request))


@pytest.mark.row(97)
@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((node("a"), node("b", torch="")), "b does not have torch"),
        ((node("a"), node("b", torch="2.12.0")), "torch differs between the servers: a 2.13.0, b 2.12.0"),
        ((node("a"), node("b", python="3.12.1")), "Python differs"),
        (
            (node("a"), node("b", nccl=""), node("c", nccl="2.28.0")),
            r"NCCL differs between the servers: a 2\.27\.3, c 2\.28\.0",
        ),
    ],
)
def test_servers_that_cannot_train_together_are_refused(nodes: tuple[NodeFacts, ...], text: str) -> None:
    with pytest.raises(JobError, match=text):
        check_nodes(nodes)


@pytest.mark.row(98)
def test_a_server_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="a is listed twice"):
        plan(LaunchRequest("train.py"), node("a"), node("a"))


def test_unequal_processes_with_restarts_are_refused() -> None:
    with pytest.raises(UsageError, match="same number of processes"):
        plan(LaunchRequest("train.py", processes="auto", max_restarts=1), node("a", gpus=2), node("b"))


@pytest.mark.row(158)
def test_the_supervisors_of_a_launch_are_told_how_long_to_wait_for_a_silent_one() -> None:
    request = LaunchRequest("train.py", lost_after=300)
    watches = [spec.watch for spec in make_specs(plan(request, node("a"), node("b")), request)]
    assert [watch.lost_after for watch in watches if watch] == [300, 300]
    for seconds, found in ((3.0, "3"), (4.9, "4.9"), (86_401, "86401"), (float("nan"), "nan")):
        with pytest.raises(UsageError, match=f"--lost-after must be from 5 to 86400 seconds, found {found}$"):
            LaunchRequest("train.py", lost_after=seconds)


def test_a_host_list_says_how_many_processes_unless_an_option_does() -> None:
    nodes = replace(node("a", gpus=8), listed=2), replace(node("b"), listed=3), node("c")
    assert [each.processes for each in plan(LaunchRequest("train.py"), *nodes).nodes] == [2, 3, 1]
    assert [each.rank_offset for each in plan(LaunchRequest("train.py"), *nodes).nodes] == [0, 2, 5]
    assert [each.processes for each in plan(LaunchRequest("train.py", processes=4), *nodes).nodes] == [4, 4, 4]
    assert [each.processes for each in plan(LaunchRequest("train.py", processes="auto"), *nodes).nodes] == [8, 1, 1]


def test_auto_starts_one_process_for_each_chosen_gpu_and_every_rank_sees_them() -> None:
    nodes = replace(node("a", gpus=8), devices=("0", "3")), node("b", gpus=4)
    made = plan(LaunchRequest("train.py", processes="auto"), *nodes)
    assert [each.processes for each in made.nodes] == [2, 4]
    assert made.nodes[0].environment["CUDA_VISIBLE_DEVICES"] == "0,3"
    assert "CUDA_VISIBLE_DEVICES" not in made.nodes[1].environment


def test_auto_counts_what_a_variable_of_the_request_makes_visible() -> None:
    request = LaunchRequest("train.py", processes="auto", environment={"CUDA_VISIBLE_DEVICES": "2,4,5"})
    assert plan(request, node("a", gpus=8)).world_size == 3


def test_chosen_gpus_win_over_a_variable_of_the_configuration_which_auto_counts_where_none_are_chosen() -> None:
    configured = replace(node("a", gpus=8), variables={"CUDA_VISIBLE_DEVICES": "7"})
    nodes = replace(configured, devices=("2", "3")), replace(configured, server="b")
    made = plan(LaunchRequest("train.py", processes="auto"), *nodes)
    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in made.nodes] == ["2,3", "7"]
    assert [each.processes for each in made.nodes] == [2, 1]


@pytest.mark.parametrize("wish", [{"processes": 3}, {"listed": 3}])
def test_more_processes_than_chosen_gpus_are_refused(wish: dict[str, int]) -> None:
    request = LaunchRequest("train.py", processes=wish.get("processes"))
    with pytest.raises(UsageError, match="a cannot run 3 processes on 2 GPUs: 0,3") as caught:
        plan(request, replace(node("a", gpus=8), devices=("0", "3"), listed=wish.get("listed")))
    assert "--nproc-per-node auto" in caught.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": " "},
        {"processes": 0},
        {"max_restarts": -1},
        {"master_port": 80},
        {"devices": ("x",)},
        {"devices": (0,), "environment": {"CUDA_VISIBLE_DEVICES": "1"}},
    ],
)
def test_requests_that_cannot_be_meant_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LaunchRequest(**{"command": "train.py", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("train.py --a b", "train.py"),
        ("python train.py", "train.py"),
        ("-m package.train", None),
        ("$SCRIPT", None),
        ("", None),
    ],
)
def test_the_script_of_a_command_is_found(command: str, file: str | None) -> None:
    assert script_file(command) == file


def test_an_unfinished_quote_is_named() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        script_file("train.py 'a")


def test_the_plan_reads_well_and_secrets_are_not_in_it() -> None:
    made = plan(LaunchRequest("train.py", environment={"TOKEN": "hush"}), node("a"), node("b"))
    assert "a: node rank 0, 1 process, eth1" in made.text()
    assert "hush" not in made.text() + str(made.as_json()) + repr(made)


def test_processes_can_be_counted_by_gpus_or_cpus() -> None:
    nodes = (node("a", gpus=2), replace(node("b", gpus=1), cpus=16))
    assert [each.processes for each in plan(LaunchRequest("x.py", processes="gpu"), *nodes).nodes] == [2, 1]
    assert [each.processes for each in plan(LaunchRequest("x.py", processes="cpu"), *nodes).nodes] == [1, 16]
    with pytest.raises(UsageError, match="b has no GPU for --nproc-per-node gpu"):
        plan(LaunchRequest("x.py", processes="gpu"), node("a", gpus=2), node("b"))


def test_workers_that_start_again_do_not_share_the_store_of_the_agents_unless_the_user_says_so() -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    once, again = (plan(LaunchRequest("x.py", max_restarts=count), node("a"), node("b")) for count in (0, 1))
    assert [each.environment.get(name) for each in (*once.nodes, *again.nodes)] == [None, None, "1", "1"]
    chosen = plan(LaunchRequest("x.py", max_restarts=1, environment={name: "0"}), node("a"))
    assert chosen.nodes[0].environment[name] == "0"


@pytest.mark.parametrize(
    ("launcher", "hint"),
    [
        ("torchrun", "remote-tool helper-torch-launch --cmd train.py"),
        ("shell", "remote-tool helper-launch --cmd ./run_train.sh"),
        ("mpi", "remote-tool helper-mpi-launch --cmd solve.py"),
    ],
)
def test_without_a_command_the_hint_names_the_command_that_was_typed(launcher: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--cmd is empty") as refused:
        LaunchRequest(" ", launcher=launcher)
    assert refused.value.hint == hint
