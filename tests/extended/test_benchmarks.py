"""The benchmarks: their arithmetic, their page, and that they run."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as bench
from benchmarks import contest, distance, queue, relay, report, sizes
from benchmarks.contest import BY_HAND, MEMORY, OURS, Contender, Goal, Work, hold
from benchmarks.delay import LongWire
from benchmarks.field import Field
from benchmarks.works import PLANS, jobs, syncs

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def quiet(_text: str) -> None:
    """Print nothing."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path, which a socket in it needs."""
    path = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    yield path
    shutil.rmtree(path)


def sizes_rows() -> list[dict[str, object]]:
    """Return rows as :mod:`benchmarks.sizes` has them: two projects, each state twice as fast as by hand."""
    contenders = {
        BY_HAND: {"costs": [2.0], "median": 2.0, "ratio": 1.0},
        OURS: {"costs": [1.0], "median": 1.0, "ratio": 0.5},
        MEMORY: {"costs": [48.0, 60.0], "median": 54.0, "ratio": None},
    }
    projects = [sizes.Project(1000, ""), sizes.Project(5000, "")]
    return [
        {**asdict(project), "project": project.title, "state": state, "result": {"contenders": contenders}}
        for project in projects
        for state in sizes.STATES
    ]


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


def test_a_work_that_takes_long_is_done_three_times_unless_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PATIENCE", -1.0)
    work = Work("key", "title", (Contender(OURS, lambda: 1.0),), rounds=9)
    assert hold(work, told=quiet).costs == {OURS: [1.0] * 3}
    assert hold(work, rounds=5, told=quiet).costs == {OURS: [1.0] * 5}


def test_a_contender_that_fails_is_told_and_left_out_but_we_may_not_fail() -> None:
    def fail() -> float:
        raise RuntimeError("cannot do it")

    hand = Contender(BY_HAND, lambda: 1.0)
    others = (Contender("other", fail), Contender("once", fail, rounds=1))
    result = hold(Work("key", "title", (hand, *others), rounds=1), told=quiet)
    assert result.problems == dict.fromkeys(("other", "once"), "RuntimeError: cannot do it")
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
    goals = [Goal(0.8).judge(0.5), Goal(0.4, "s", why="A slow disk.").judge(1.0)]
    work = {"title": "a work", "goals": goals, "unit": "s", "contenders": costs}
    measured = {"run": {"1": [0.3, 0.5, 1.8], "8": [0.4, 0.6, 1.9]}}
    scale = {"counts": [1, 2], "seconds": {"run": [0.3, 0.4]}, "megabytes": {"run": [40, 41]}}
    ways = {"to each from here": [40.0, 41.0, 42.0], "relayed": [10.0, 10.25, 10.5]}
    sent = {"to each from here": 92e6, "relayed": 23e6}
    relayed = {"bytes": 23e6, "seconds": {"4": ways, "8": ways}, "sent": {"4": sent, "8": sent}}
    gaps = {"median": 0.2, "p99": 0.3}
    results = {
        "machine": report.machine(),
        "works": {"a": work},
        "scale": scale,
        "distance": {"seconds": measured, "goals": []},
        "sizes": {"rows": sizes_rows(), "goals": []},
        "relay": relayed,
        "queue": {"jobs": 2, "memory": 4e6, "largest": 5e6, "cpu": 4e-4, "status": 0.5, "handovers": 3, **gaps},
    }
    for _ in range(2):
        report.write_page(page, results)
    text = page.read_text()
    assert (
        text.count("| a work | ≤ 0.80 met; ≤ 0.4 s missed | **0.50** | 1.00 | – | – | 1 s; its memory 64.8 MB |") == 1
    )
    assert text.count("| a work: 1.00, goal ≤ 0.4 s | A slow disk. |") == 1
    assert "| run, s | 0.30 | 0.40 |" in text
    assert text.count("| 5,000 files |" + " 1.00 / 2.00 (**0.50**) |" * 4 + " 60 |") == 1
    assert text.count("| 4 | 41.0 | 10.2 | 0.25 | 92.0 | 23.0 |") == 1
    assert text.count("| CPU of all while they wait, % of a core | 0.040 |") == 1
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
    curve = {"goals": [{**Goal(1.2).judge(1.0), "of": "5,000 files"}]}
    judged[1]["why"] = "a slow disk"
    shown = report.goals({"works": {"key": {"title": "title", "goals": judged}}, "sizes": curve}).splitlines()
    assert shown[1:3] == ["  met            0.50, ≤ 0.50: title", "  missed         1.00, ≤ 0.9 s: title"]
    assert shown[3].strip() == "a slow disk"
    assert shown[-2:] == ["  not measured      –, nobody ≤ 1.00: title", "  met            1.00, ≤ 1.20: 5,000 files"]


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


def test_a_work_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_rounds: int) -> dict[str, object]:
        raise RuntimeError("no server")

    monkeypatch.setitem(bench.CURVES, "relay", fail)
    monkeypatch.setitem(bench.CURVES, "distance", lambda _rounds: {"seconds": {}, "goals": []})
    output = tmp_path / "results.json"
    with pytest.raises(SystemExit, match="1"):
        bench.main(["--output", str(output), "relay", "distance"])
    shown = capsys.readouterr().out
    assert "relay failed: RuntimeError: no server" in shown
    assert shown.endswith("Not measured: relay; to add them: make bench WORKS='relay' BENCH_OPTIONS=--keep\n")
    assert json.loads(output.read_text()).keys() == {"machine", "distance"}


def test_a_run_that_is_interrupted_keeps_what_it_has_and_names_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_rounds: int) -> dict[str, object]:
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.CURVES, "distance", lambda _rounds: {"seconds": {}, "goals": []})
    monkeypatch.setitem(bench.CURVES, "relay", interrupt)
    output = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        bench.main(["--output", str(output), "distance", "relay", "scale"])
    assert "Not measured: relay scale;" in capsys.readouterr().out
    assert json.loads(output.read_text()).keys() == {"machine", "distance"}


def test_a_part_does_not_replace_the_published_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(bench.CURVES, "relay", lambda _rounds: {})
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.json")
    bench.main(["relay"])
    assert list(tmp_path.iterdir()) == []


def test_the_page_tells_of_works_that_are_measured_and_in_their_order() -> None:
    results = json.loads((ROOT / "docs" / "benchmarks" / "results.json").read_text())
    assert list(results["works"]) == [key for key in PLANS if key in results["works"]]


@pytest.mark.slow
def test_a_work_is_measured_on_real_servers(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--rounds", "1", "--output", str(output), "run-1"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    contenders = json.loads(output.read_text())["works"]["run-1"]["contenders"]
    assert contenders[OURS]["ratio"] > 0
    assert contenders[BY_HAND]["ratio"] == 1


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
def test_distance_is_measured_on_one_server_and_on_several(capsys: pytest.CaptureFixture[str]) -> None:
    measured = distance.measure(1, servers=2, delays=(0.02,))
    for name, seconds in measured["seconds"].items():
        assert {count: len(costs) for count, costs in seconds.items()} == {"1": 1, "2": 1}, name
    assert measured["goals"][0]["value"] == measured["seconds"][distance.AGAIN]["1"][-1]
    assert "run, 2 servers: " in capsys.readouterr().out


@pytest.mark.slow
def test_syncs_are_measured_by_number_of_files_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "COUNTS", (150,))
    monkeypatch.setattr(sizes, "WITH_SUFFIX", (150,))
    monkeypatch.setattr(sizes, "WITH_OUTPUTS", (150,))
    monkeypatch.setattr(sizes, "OUTPUTS", 30)
    measured = sizes.measure(1)
    projects = ["150 files", "150 files .txt", "150 files, 30 outputs"]
    assert [(row["project"], row["state"]) for row in measured["rows"]] == [
        (project, state) for project in projects for state in sizes.STATES
    ]
    assert len(measured["goals"]) == len(measured["rows"])
    assert sizes.table(measured).count("\n") == len(projects) + 1
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, which only make bench installs")
    sizes.draw(measured, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"sizes.svg", "sizes.png"}


def test_jobs_that_wait_are_measured() -> None:
    measured = queue.measure(1)
    assert 0 < measured["memory"] <= measured["largest"]
    assert measured["handovers"] == 5
    assert 0 < measured["median"] <= measured["p99"]
    assert "| hand-over, median, s |" in queue.table(measured)
