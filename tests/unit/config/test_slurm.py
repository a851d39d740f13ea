"""slurm: of a server: options of sbatch by their names, and those that are set here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.config.loading import load
from remote_tool.config.slurm import Slurm
from remote_tool.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read(root: Path, server: str) -> Slurm | None:
    """Return slurm: of a server that has these keys."""
    (root / ".remote").mkdir(exist_ok=True)
    (root / ".remote" / "configs.yaml").write_text(f"name: project\nservers:\n  login: {{{server}}}\n")
    return load(root).servers["login"].slurm


def test_options_are_words_of_sbatch(tmp_path: Path) -> None:
    options = "partition: gpu, time: 8:00:00, mem_per_gpu: 40G, requeue: false, nodes: 2"
    slurm = read(tmp_path, f"hostname: a, slurm: {{{options}}}")
    assert slurm is not None
    words = ["--partition=gpu", "--time=8:00:00", "--mem-per-gpu=40G", "--no-requeue"]
    assert slurm.words() == [*words, "--nodes=1", "--ntasks-per-node=1"]
    assert slurm.nodes == 2
    flags = Slurm({"exclusive": "true", "requeue": "true"})
    assert flags.words(nodes=3)[:3] == ["--exclusive", "--requeue", "--nodes=3"]


@pytest.mark.parametrize(
    ("options", "gpus", "with_two"),
    [
        ({}, 0, "--gres=gpu:2"),
        ({"gres": "gpu:4"}, 4, "--gres=gpu:2"),
        ({"gres": "gpu:a100:4"}, 4, "--gres=gpu:a100:2"),
        ({"gres": "gpu:a100"}, 1, "--gres=gpu:a100:2"),
        ({"gres": "nvme:1,gpu:4"}, 4, "--gres=nvme:1,gpu:2"),
        ({"gpus-per-node": "a100:4"}, 4, "--gres=gpu:a100:2"),
        ({"gpus": "1"}, 1, "--gres=gpu:2"),
    ],
)
def test_gpus_are_those_of_a_node_and_a_job_may_have_its_own_number(
    options: dict[str, str], gpus: int, with_two: str
) -> None:
    slurm = Slurm(options)
    assert slurm.gpus == gpus
    words = slurm.words(gpus=2)
    assert [word for word in words if "gpu" in word] == [with_two]


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("hostname: a, slurm: ", "servers.login.slurm: must be a mapping, such as {partition: gpu}"),
        ("hostname: a, slurm: {nodes: 300}", "servers.login.slurm.nodes: must be at most 128"),
        ("hostname: a, slurm: gpu", "servers.login.slurm: must be a mapping of options of sbatch"),
        ("hostname: a, slurm: {array: 1-5}", "servers.login.slurm.array: is set by remote-tool"),
        ("hostname: a, slurm: {clusters: b}", "servers.login.slurm.clusters: is set by the login node"),
        ("hostname: a, slurm: {signal: B:USR2@90}", "servers.login.slurm.signal: must be another signal than USR2"),
        ("hostname: a, slurm: {output: x}", "servers.login.slurm.output: is set by the logs of jobs"),
        (
            "hostname: a, slurm: {P: gpu}",
            "servers.login.slurm.P: the name must be the long name of an option",
        ),
        ("hostname: a, slurm: {nodes: many}", "servers.login.slurm.nodes: must be a whole number of nodes"),
        ("hostname: a, slurm: {gres: [gpu]}", "servers.login.slurm.gres: must be a value of one line for sbatch"),
        ("hostname: a, slurm: {partition: gpu}, devices: [0]", "servers.login.devices: cannot be combined with slurm"),
        ("localhost: true, slurm: {partition: gpu}", "servers.login.slurm: cannot be combined with localhost"),
        (
            "hostname: a, slurm: {partition: gpu}, container: torch",
            "servers.login.container: cannot be combined",
        ),
    ],
)
def test_what_slurm_cannot_have_is_named_with_its_key(tmp_path: Path, server: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, server)
    assert problem in str(error.value)
