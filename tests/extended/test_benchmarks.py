"""The benchmarks run, and what they count is right."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import distance, queue, relay, sizes
from benchmarks.contest import BY_HAND, MEMORY, OURS, Contender, Goal, Work, hold
from benchmarks.delay import LongWire
from benchmarks.field import Field
from benchmarks.works import PLANS, jobs, syncs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def quiet(_text: str) -> None:
    """Print nothing."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path, which a socket in it needs."""
    path = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    yield path
    shutil.rmtree(path)


# Works of one server that take seconds because of what they wait for are left out.
SMALL = sorted({key for key, plan in PLANS.items() if plan.servers == 1} - {"launch-1", "print", "tail"})


@pytest.mark.slow
@pytest.mark.parametrize("key", SMALL)
def test_a_small_work_is_done_by_us_and_by_hand(key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "SMALL_FILES", 20)
    monkeypatch.setattr(syncs, "BIG_BYTES", 2_000_000)
    monkeypatch.setattr(jobs, "JOBS_PER_SERVER", 2)
    monkeypatch.setattr(jobs, "FINISHED", 50)
    with Field(folder / "field", PLANS[key].servers) as field:
        result = hold(PLANS[key].make(field), rounds=1, told=quiet)
    assert result.problems == {}
    assert all(cost > 0 for costs in result.costs.values() for cost in costs)
    assert OURS in result.costs
    assert result.work.against in {"", BY_HAND, "its rsync", "labml_remote"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "measure",
    [lambda: distance.measure(1, servers=2, delays=(0.02,)), lambda: sizes.measure(1), lambda: queue.measure(1)],
    ids=["distance", "sizes", "queue"],
)
def test_a_curve_is_measured(measure: Callable[[], dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    for counts in ("COUNTS", "WITH_SUFFIX", "WITH_OUTPUTS"):
        monkeypatch.setattr(sizes, counts, (150,))
    monkeypatch.setattr(sizes, "OUTPUTS", 30)
    assert measure()


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


def test_a_goal_says_what_it_limits_and_whether_it_is_met() -> None:
    costs = {BY_HAND: 2.0, OURS: 1.0, "third": 0.5, MEMORY: 130.0}
    contenders = tuple(Contender(name, lambda cost=cost: cost) for name, cost in costs.items())  # type: ignore[misc]
    goals = (Goal(0.5), Goal(0.9, "s"), Goal(1.0, against="third"), Goal(120, "MB", of=MEMORY), Goal(1, of="nobody"))
    judged = hold(Work("key", "title", contenders, goals, rounds=1), told=quiet).judged()
    assert [(goal["goal"], goal["value"], goal["met"]) for goal in judged] == [
        ("≤ 0.50", 0.5, True),
        ("≤ 0.9 s", 1.0, False),
        ("≤ 1.00 of third", 2.0, False),
        ("its memory ≤ 120 MB", 130.0, False),
        ("nobody ≤ 1.00", None, None),
    ]


def test_the_memory_of_a_program_is_not_that_of_the_benchmark(tmp_path: Path) -> None:
    field = Field(tmp_path, 0)
    field.home.mkdir()
    small = [sys.executable, "-S", "-c", "pass"]
    held = b"x" * 200_000_000
    assert field.spend(small, tmp_path).largest < len(held) / 2
    large = [sys.executable, "-S", "-c", f"b'x' * {len(held)}"]
    assert field.spend(large, tmp_path).largest > len(held)


def test_a_program_that_fails_or_is_killed_is_an_error_that_says_how_it_ended(tmp_path: Path) -> None:
    field = Field(tmp_path, 0)
    field.home.mkdir()
    with pytest.raises(RuntimeError, match="ended with 3: no luck"):
        field.spend(["sh", "-c", "echo no luck >&2; exit 3"], tmp_path)
    assert field.spend(["sh", "-c", "exit 3"], tmp_path, check=False).seconds > 0
    with pytest.raises(RuntimeError, match="ended with 137"):
        field.spend(["sh", "-c", "kill -KILL $$"], tmp_path)
