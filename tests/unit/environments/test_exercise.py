"""What an exercise measured: who is slow, and lines that are anything."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from remote_tool.environments.checks.checks import Check, Status
from remote_tool.environments.checks.exercise import (
    NodeMeasurement,
    judge,
    read_measurement,
    readable_flops,
    with_medians,
)
from remote_tool.workflows.exercise import program

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def line(kind: str, **values: object) -> str:
    return json.dumps({"kind": kind, **values}) + "\n"


def rate(device: int, tera: float, name: str = H100) -> str:
    return line("rate", device=device, is_gpu=True, name=name, flops=tera * 1e12, type="bfloat16")


def measured(**printed: str) -> dict[str, NodeMeasurement]:
    return {server: read_measurement(server, text) for server, text in printed.items()}


def judged(found: dict[str, NodeMeasurement], ranks: int) -> dict[str, list[Check]]:
    devices = with_medians(each for node in found.values() for each in node.devices)
    return judge(found, devices, next((node.bits for node in found.values() if node.bits), None), ranks)


def the(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


@pytest.mark.row(319)
def test_a_gpu_is_compared_with_the_median_of_its_kind_on_all_servers() -> None:
    found = judged(
        measured(
            first=rate(0, 650) + rate(1, 655),
            second=rate(0, 648) + rate(1, 301) + rate(2, 220, A100),
            third=rate(0, 225, A100),
        ),
        6,
    )
    assert the(found["first"], "speed") == Check(
        "speed", Status.OK, f"2 x {H100}: 650 TFLOP/s to 655 TFLOP/s in bfloat16, median 649 TFLOP/s"
    )
    slow = the(found["second"], "speed")
    assert (slow.status, slow.value) == (
        Status.FAIL,
        f"GPU 1: 301 TFLOP/s, 46 % of 649 TFLOP/s, the median of {H100}",
    )
    assert the(found["third"], "speed").status is Status.OK


def test_other_programs_may_take_more_of_a_cpu_than_of_a_gpu() -> None:
    def cpu(flops: float) -> str:
        return line("rate", device=0, is_gpu=False, name="EPYC, 8 cores", flops=flops, type="float32")

    found = judged(measured(a=cpu(100e9), b=cpu(100e9), c=cpu(60e9), d=cpu(39e9)), 4)
    assert [the(found[server], "speed").status.value for server in "abcd"] == ["ok", "ok", "ok", "fail"]
    assert the(found["d"], "speed").value == "39.0 GFLOP/s, 49 % of 80.0 GFLOP/s, the median of EPYC, 8 cores"


def test_of_nodes_the_one_whose_both_links_are_slow_is_named() -> None:
    # The third one is slow: it receives slowly, and so does the one after it.
    rates = {"first": 9e9, "second": 9.1e9, "third": 0.9e9, "fourth": 0.9e9}
    printed = {name: line("exchange", bits=bits) for name, bits in rates.items()}
    printed["first"] += line("all-reduce", bits=0.9e9) + line("link", interface="eth0", mbit=10000)
    found = judged(measured(**printed), 4)
    assert {name: the(own, "all-reduce").status.value for name, own in found.items()} == {
        "first": "ok",
        "second": "ok",
        "third": "fail",
        "fourth": "ok",
    }
    assert the(found["first"], "all-reduce").value == "900 Mbit/s bus bandwidth, 4 ranks; eth0 has 10.0 Gbit/s"
    slow = the(found["third"], "all-reduce").value
    assert slow.startswith("900 Mbit/s with each neighbour, 10 % of 9.05 Gbit/s, the median of the nodes; ")


def test_of_two_nodes_neither_is_called_slow() -> None:
    found = judged(measured(a=line("all-reduce", bits=1e6), b=""), 2)
    assert [the(own, "all-reduce").status for own in found.values()] == [Status.OK, Status.OK]


def test_errors_heat_and_xids_are_told() -> None:
    def health(device: int, **values: object) -> str:
        usual = {"temperature": 60, "throttled": [], "uncorrected": 0, "corrected": 0}
        return line("health", device=device, **{**usual, **values})

    def health_of(printed: str) -> tuple[str, str]:
        check = the(judged(measured(a=printed), 1)["a"], "gpu health")
        return check.status.value, check.value

    quiet = line("xid", is_readable=True, errors=[])
    assert health_of(health(0) + health(1, temperature=71) + quiet) == ("ok", "no errors, up to 71 °C")
    assert health_of(health(0) + line("xid", is_readable=False, errors=[])) == (
        "ok",
        "no errors, up to 60 °C; the kernel's log, which has Xid errors, is not readable",
    )
    assert health_of(health(0, throttled=["heat"], temperature=92) + quiet) == (
        "warn",
        "GPU 0 was slowed down by heat at 92 °C; up to 92 °C",
    )
    assert health_of(health(0) + line("xid", is_readable=True, errors=[["0000:c1:00", 79]]))[0] == "warn"
    assert health_of(health(0, uncorrected=3, temperature=None) + quiet) == ("fail", "GPU 0: 3 uncorrected ECC errors")


def test_lines_that_are_anything_are_left_out() -> None:
    printed = "\n".join(
        [
            "a warning of torch",
            "[1, 2]",
            '{"kind": ["rate"]}',
            line("rate", device=-1, is_gpu=True, name="x", flops=1e12, type="y"),
            line("rate", device=0, is_gpu=True, name="x", flops=float("nan"), type="y"),
            line("rate", device=0, is_gpu=True, name=7, flops=1e12, type="y"),
            line("health", device=0, temperature="hot", throttled=3, uncorrected=0, corrected=0),
            line("link", interface="eth0", mbit=-1),
            "[" * 100_000,
        ]
    )
    assert read_measurement("a", printed) == NodeMeasurement(interface="eth0")


def test_the_program_can_be_read_by_python_3_8() -> None:
    ast.parse(inspect.getsource(program), feature_version=(3, 8))


def test_rates_have_about_three_digits() -> None:
    assert [readable_flops(value) for value in (655e12, 98.1e9, 1.2e15, 5e6)] == [
        "655 TFLOP/s",
        "98.1 GFLOP/s",
        "1.20 PFLOP/s",
        "0.005 GFLOP/s",
    ]
