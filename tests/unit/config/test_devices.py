"""Which GPUs a command sees: what CUDA would misread is refused, and who says it wins in a fixed order."""

from __future__ import annotations

import pytest

from remote_tool.config.devices import (
    check_devices,
    command_environment,
    devices_of,
    parse_devices,
    refuse_missing,
    visible_devices,
    with_devices,
)
from remote_tool.config.servers import Server
from remote_tool.errors import JobError, UsageError


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0", ("0",)),
        ("0, 3", ("0", "3")),
        ("GPU-8932f937,GPU-5ac02f11-1111-2222-3333-444455556666", None),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", None),
        ("MIG-8932f937-d72c-4106-c12f-20bd9faed9f6", None),
    ],
)
def test_devices_are_numbers_or_uuids(text: str, devices: tuple[str, ...] | None) -> None:
    assert parse_devices(text) == (devices or tuple(text.split(",")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "found ''"),
        ("0,,1", "found ''"),
        ("-1", "found '-1'"),
        ("01", "found '01'"),
        ("all", "found 'all'"),
        ("0-3", "found '0-3'"),
        ("GPU-", "found 'GPU-'"),
        ("GPU-$(x)", "found"),
        ("0,3,0", "0 is given twice"),
        ("0,GPU-8932f937", "cannot be mixed"),
        ("GPU-8932f937,MIG-8932f937", "cannot be mixed"),
    ],
)
def test_what_cuda_would_misread_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_devices(text)
    assert problem in caught.value.message
    assert "--devices 0,3" in caught.value.hint


def test_the_option_wins_over_the_key_and_a_variable_over_the_key() -> None:
    server = Server("a", "a", devices=("1",))
    assert devices_of(server.devices, (0, 3), {}) == ("0", "3")
    assert devices_of(server.devices, (), {}) == ("1",)
    assert devices_of(server.devices, (), {"CUDA_VISIBLE_DEVICES": "2"}) == ()
    assert devices_of(Server("b", "b").devices, (), {}) == ()


def test_the_option_and_the_variable_are_refused_together() -> None:
    with pytest.raises(UsageError, match="--devices and --env CUDA_VISIBLE_DEVICES cannot be combined"):
        check_devices((0,), {"CUDA_VISIBLE_DEVICES": "0"})
    check_devices((), {"CUDA_VISIBLE_DEVICES": "0"})


def test_numbers_are_those_of_nvidia_smi() -> None:
    """CUDA counts the fastest first, unless it is told to count as nvidia-smi does."""
    numbered = {"CUDA_VISIBLE_DEVICES": "0,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert with_devices({"A": "b"}, ("0", "3")) == {"A": "b", **numbered}
    assert with_devices({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ("0",))["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert with_devices({}, ("GPU-1f",)) == {"CUDA_VISIBLE_DEVICES": "GPU-1f"}
    assert with_devices({"A": "b"}, ()) == {"A": "b"}


@pytest.mark.parametrize(
    ("device", "gpus", "uuids", "problem"),
    [
        ("3", 4, [], ""),
        ("4", 4, [], "gpu1 has only GPUs 0 to 3, not 4"),
        ("1", 1, [], "gpu1 has only GPU 0, not 1"),
        ("0", 0, [], "gpu1 has no GPU, but device 0 is requested"),
        ("GPU-1f", 2, ["GPU-1f00", "GPU-2f00"], ""),
        ("GPU-1F", 2, ["GPU-1f00", "GPU-2f00"], ""),
        ("GPU-1f", 2, [], ""),
        ("GPU-3f", 2, ["GPU-1f00", "GPU-2f00"], "gpu1 has no GPU GPU-3f"),
        ("GPU-1f", 2, ["GPU-1f00", "GPU-1f01"], "gpu1 has 2 GPUs whose UUID starts with GPU-1f"),
        ("MIG-1f", 1, ["GPU-1f00"], ""),
        ("MIG-1f", 0, [], "gpu1 has no GPU, but device MIG-1f is requested"),
    ],
)
def test_devices_that_a_server_does_not_have_are_refused(
    device: str, gpus: int, uuids: list[str], problem: str
) -> None:
    if not problem:
        refuse_missing("gpu1", (device,), gpus, uuids)
        return
    with pytest.raises(JobError) as caught:
        refuse_missing("gpu1", (device,), gpus, uuids)
    assert caught.value.message == problem
    assert caught.value.hint == "remote-tool run --server gpu1 --cmd 'nvidia-smi -L'"


@pytest.mark.parametrize(
    ("value", "devices"), [("", []), ("0,1", ["0", "1"]), ("0,-1,1", ["0"]), ("GPU-1f, GPU-2f", ["GPU-1f", "GPU-2f"])]
)
def test_visible_devices_are_those_that_cuda_takes(value: str, devices: list[str]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}) == devices
    assert visible_devices({}) is None


def test_devices_win_over_the_variables_of_the_configuration_and_a_variable_of_the_command_over_both() -> None:
    configured = {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "RATE": "1"}
    chosen = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "RATE": "2"}
    assert command_environment(configured, {"RATE": "2"}, ("0",)) == chosen
    assert command_environment(configured, {}, ()) == configured
    assert command_environment(configured, {"CUDA_VISIBLE_DEVICES": "1"}, ())["CUDA_VISIBLE_DEVICES"] == "1"
