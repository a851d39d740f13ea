"""The benchmarks: their arithmetic, their page, and that they run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import distance, relay, report
from benchmarks.contest import BY_HAND, OURS, Contender, Work, hold
from benchmarks.delay import LongWire
from benchmarks.works import PLANS

ROOT = Path(__file__).parent.parent


def quiet(_text: str) -> None:
    """Print nothing."""


def test_all_take_part_in_every_round_and_each_round_begins_with_another() -> None:
    order: list[str] = []

    def run(name: str, cost: float) -> Contender:
        def done() -> float:
            order.append(name)
            return cost

        return Contender(name, done)

    work = Work("key", "title", (run(BY_HAND, 2.0), run(OURS, 1.0), run("third", 4.0)), rounds=2)
    result = hold(work, told=quiet)
    assert order == [BY_HAND, OURS, "third", BY_HAND, OURS, "third", OURS, "third", BY_HAND]
    assert result.costs == {BY_HAND: [2.0] * 2, OURS: [1.0] * 2, "third": [4.0] * 2}
    assert (result.ratio(OURS), result.ratio("third")) == (0.5, 2.0)


def test_a_contender_that_fails_is_told_and_left_out_but_we_may_not_fail() -> None:
    def fail() -> float:
        raise RuntimeError("cannot do it")

    hand = Contender(BY_HAND, lambda: 1.0)
    result = hold(Work("key", "title", (hand, Contender("other", fail)), rounds=1), told=quiet)
    assert result.problems == {"other": "RuntimeError: cannot do it"}
    assert result.as_json()["contenders"].keys() == {BY_HAND}
    with pytest.raises(RuntimeError, match="cannot do it"):
        hold(Work("key", "title", (hand, Contender(OURS, fail))), told=quiet)


def test_the_page_gets_its_tables_and_keeps_its_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    costs = {
        BY_HAND: {"costs": [2.0], "median": 2.0, "ratio": 1.0},
        OURS: {"costs": [1.0], "median": 1.0, "ratio": 0.5},
        "its memory, MB": {"costs": [64.84], "median": 64.84, "ratio": None},
    }
    work = {"title": "a work", "goal": "≤ 0.8", "unit": "s", "contenders": costs}
    measured = {"run": {"1": [0.3, 0.5, 1.8], "8": [0.4, 0.6, 1.9]}}
    scale = {"counts": [1, 2], "seconds": {"run": [0.3, 0.4]}, "megabytes": {"run": [40, 41]}}
    ways = {"to each from here": [40.0, 41.0, 42.0], "relayed": [10.0, 10.25, 10.5]}
    sent = {"to each from here": 92e6, "relayed": 23e6}
    relayed = {"bytes": 23e6, "seconds": {"4": ways, "8": ways}, "sent": {"4": sent, "8": sent}}
    results = {
        "machine": report.machine(),
        "works": {"a": work},
        "scale": scale,
        "distance": measured,
        "relay": relayed,
    }
    for _ in range(2):
        report.write_page(page, results)
    text = page.read_text()
    assert text.count("| a work | ≤ 0.8 | **0.50** | 1.00 | – | – | 1 s; its memory 64.8 MB |") == 1
    assert "| run, s | 0.30 | 0.40 |" in text
    assert text.count("| 4 | 41.0 | 10.2 | 0.25 | 92.0 | 23.0 |") == 1
    assert "labml_remote* is version 0.1.1" in text


def test_round_trips_are_the_slope_over_the_delay() -> None:
    measured = {"1": [0.31, 0.5, 1.8], "8": [0.38, 0.6, 1.9]}
    assert distance.round_trips(measured) == pytest.approx(10.0)
    assert distance.predict(measured, 1, 0.150) == pytest.approx(1.8)
    assert distance.predict(measured, 101, 0.001) == pytest.approx(1.31)


def test_a_relay_on_paper_pays_the_line_once_and_a_step_for_each_tripling() -> None:
    unchanged = {"1": [0.3, 0.3, 0.3], "8": [0.3, 0.3, 0.3]}
    assert relay.predict(unchanged, 0, 81, 0.0, relayed=False) == pytest.approx(0.3 + 81 * 40)
    assert relay.predict(unchanged, 0, 81, 0.0, relayed=True) == pytest.approx(0.3 + 40 + 4 * 1.6)
    assert relay.predict(unchanged, 25e3, 100, 0.1, relayed=True) == pytest.approx(0.3 + 40 + 1 + 5 * (1.6 + 0.3))
    ways = {"4": {"relayed": 30e6}, "8": {"relayed": 30.4e6}}
    assert relay.each_costs({"sent": ways}) == pytest.approx(1e5)
    assert "| relayed | " in "\n".join(relay.paper(unchanged, 1e5))


def test_what_goes_through_a_long_wire_arrives_whole_and_no_sooner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, LongWire(server.getsockname()[1], 0.2) as wire:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", wire.port)) as client:
            client.sendall(b"there")
            peer, _ = server.accept()
            with peer:
                assert peer.recv(5, socket.MSG_WAITALL) == b"there"
                peer.sendall(b"back")
                assert client.recv(4, socket.MSG_WAITALL) == b"back"
        assert time.monotonic() - began >= 0.4


def test_the_page_tells_of_every_work_that_is_measured() -> None:
    results = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    assert list(results["works"]) == list(PLANS)


@pytest.mark.slow
def test_a_work_is_measured_on_real_servers(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", "--output", str(output), "run-1"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    contenders = json.loads(output.read_text())["works"]["run-1"]["contenders"]
    assert contenders[OURS]["ratio"] > 0
    assert contenders[BY_HAND]["ratio"] == 1
