"""bandwidth between servers: who meets whom when, what is believed, and what is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.cli.commands.bandwidth import matrix, remarks
from remote_tool.errors import JobError
from remote_tool.workflows.servers.bandwidth import BandwidthAnswer, MeasuredLink, _read_link, readable_rate, tournament
from tests.described import undescribed
from tests.program import remote_tool

if TYPE_CHECKING:
    from remote_tool import Workspace

GOOD = {"address": "10.0.0.5", "interface": "eth0", "peer_interface": "ib0", "round_trip": 0.0002, "method": "own"}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_every_two_servers_meet_once_and_nobody_is_in_two_measurements(count: int) -> None:
    names = [f"gpu{number}" for number in range(count)]
    rounds = tournament(names)
    assert len(rounds) == (count if count % 2 else count - 1)
    for pairs in rounds:
        servers = [server for pair in pairs for server in pair]
        assert len(servers) == len(set(servers))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(names, 2))


def test_measurements_of_a_server_are_checked() -> None:
    link = _read_link(("a", "b"), GOOD)
    assert (link.source, link.interface, link.target_interface) == ("a", "ib0", "eth0")
    hostile: list[dict[str, Any]] = [{"round_trip": -1}, {"round_trip": "x"}, {"round_trip": True}, {"method": "magic"}]
    for change in [*hostile, {"round_trip": float("nan")}, {"round_trip": None}]:
        with pytest.raises(JobError, match="cannot read what it measured"):
            _read_link(("a", "b"), {**GOOD, **change})
    odd = _read_link(("a", "b"), {**GOOD, "interface": "\x1b[2J" + "x" * 1000, "address": "\x1b]0;x\x07"})
    assert len(odd.target_interface) == 64
    assert "\x1b" not in odd.target_interface + odd.address


@pytest.mark.slow
def test_two_servers_are_measured_in_words_and_in_json(workspace: Workspace) -> None:
    told = remote_tool("bandwidth", "--seconds", "0.2", cwd=workspace.root)
    assert told.returncode == 0, told.stderr
    head, first, second = told.stdout.splitlines()
    assert head.split() == ["Gbit/s", "first", "second"]
    assert (first.split()[:2], second.split()[0], second.split()[2]) == (["first", "-"], "second", "-")
    assert "first: bandwidth with second: done (" in told.stderr
    assert "slowest: " in told.stderr
    document = json.loads(remote_tool("bandwidth", "--seconds", "0.2", "--json", cwd=workspace.root).stdout)
    assert undescribed(document) == set()
    assert document["errors"] == []
    assert [(link["from"], link["to"]) for link in document["links"]] == [("first", "second"), ("second", "first")]
    assert all(link["gbit_per_second"] > 0.1 and link["interface"] == "lo" for link in document["links"])
    assert all(0 < link["round_trip_ms"] < 100 and link["method"] in {"own", "iperf3"} for link in document["links"])


def test_one_server_or_no_time_is_wrong_usage(workspace: Workspace) -> None:
    alone = remote_tool("bandwidth", "--server", "first", cwd=workspace.root)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "at least two servers" in alone.stderr
    assert remote_tool("bandwidth", "--seconds", "61", cwd=workspace.root).returncode == 2


def answer_of(gbit: float, count: int = 3) -> BandwidthAnswer:
    names = tuple(f"gpu{number}" for number in range(count))
    links = tuple(MeasuredLink(one, two, gbit=gbit, interface="eth0") for one in names for two in names if one != two)
    return BandwidthAnswer(names, links)


def test_the_matrix_has_eighty_columns_at_most() -> None:
    answer = answer_of(9.41)
    assert matrix(answer).splitlines() == [
        "Gbit/s   gpu0   gpu1   gpu2",
        "gpu0        -   9.41   9.41",
        "gpu1     9.41      -   9.41",
        "gpu2     9.41   9.41      -",
    ]
    long = answer_of(123.4, 30)
    lines = matrix(replace(long, servers=(*long.servers, "a-server-with-a-very-long-name"))).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("123") for line in lines) == 30 * 29
    assert any("?" in line for line in lines)


def test_low_bandwidth_is_reported() -> None:
    assert remarks(answer_of(9.99))[1:] == [
        "warning: below 10 Gbit/s; training over gpu0 to gpu1 waits for the network"
    ]
    assert "limited by gpu0 to gpu1" in remarks(answer_of(24.0))[1]
    assert remarks(answer_of(98.0)) == ["slowest: gpu0 to gpu1, 98.0 Gbit/s over eth0"]
    assert remarks(BandwidthAnswer(("a", "b"), ())) == []


def test_numbers_have_the_digits_that_count() -> None:
    assert [readable_rate(rate) for rate in (123.4, 98.32, 9.412, 0.0942)] == ["123", "98.3", "9.41", "0.094"]


def test_the_end_says_how_much_was_measured() -> None:
    failed = MeasuredLink("a", "b", error="no way")
    good = MeasuredLink("b", "a", gbit=1.0)
    unreachable = {"c": JobError("c: not prepared")}
    assert BandwidthAnswer(("a", "b"), (good,)).exit_code == 0
    assert BandwidthAnswer(("a", "b"), (good, failed)).exit_code == 3
    assert BandwidthAnswer(("a", "b"), (failed,)).exit_code == 1
    assert BandwidthAnswer(("a", "b", "c"), (good,), unreachable).exit_code == 3
    assert BandwidthAnswer(("b", "c"), (), unreachable).exit_code == 1
