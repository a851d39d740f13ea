"""Sweeps and fan-outs do each part once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk, until
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer


def begin(desk: Desk, kind: str, ran: Path) -> str:
    """Start three parts that note that they ran, and return the name of the work when they have ended."""
    words = {
        "sweep": ("helper-sweep", "--cmd", f"echo {{n}} >> {ran}", "--grid", "n=1..3", "--per-server", "3"),
        "fan-out": ("helper-fan-out", "--cmd", f"echo {{shard}} >> {ran}", "--total", "3", "--per-server", "3"),
    }
    started = json.loads(desk.does(*words[kind], "--no-sync", "--json"))
    until(lambda: all(job["state"] == "succeeded" for job in desk.jobs()), "all have ended")
    (launch_id,) = {job["launch_id"] for job in started["jobs"]}
    return str(launch_id)


WORDS = "keeps them apart"


def test_combinations_that_write_the_same_file_are_warned_of_once(desk: Desk) -> None:
    sweep = ("helper-sweep", "--no-sync", "--per-server", "2", "--grid", "n=1..3", "--cmd")
    said = desk.tries(*sweep, "echo {n} > out/best.txt", "--dry-run").stderr
    assert said.splitlines() == [
        "all 3 combinations write out/best.txt; a name such as out/best-{number}.txt keeps them apart"
    ]
    assert WORDS not in desk.tries(*sweep, "echo {n} > out/{number}.txt", "--dry-run").stderr
    started = desk.tries(*sweep, "sh -c 'echo $0 > best.txt' {n}", "--artifact", "best.txt")
    assert started.stderr.count(WORDS) == 1
    until(lambda: all(job["state"] == "succeeded" for job in desk.jobs()), "all have ended")
    resumed = desk.tries("helper-sweep", "--no-sync", "--resume", str(desk.job(1)["launch_id"]))
    assert WORDS not in resumed.stderr


def test_the_last_value_stays_beside_the_best_one_where_parameters_take_the_room(desk: Desk) -> None:
    sweep = ("helper-sweep", "--no-sync", "--cmd", "echo loss: {lr} {optimizer} {scheduler_name} {wd}")
    grids = ("lr=0.0001", "optimizer=adamw-with-a-name", "scheduler_name=cosine-with-warmup", "wd=0.01")
    desk.does(*sweep, *(word for grid in grids for word in ("--grid", grid)))
    desk.waits_for(1, "succeeded")
    with Terminal("sweep-show", "--metric", "loss", cwd=desk.root) as terminal:
        assert terminal.end() == 0
        (heading,) = (line for line in terminal.text.splitlines() if "NUMBER" in line)
    assert "MIN loss  LAST loss" in heading
    assert len(heading) <= 80


def test_the_best_value_is_there_with_the_last_one_and_the_table_fits_a_terminal(desk: Desk) -> None:
    command = 'for loss in 9 {learning_rate}5 7; do echo "loss: $loss lr: 0.1 step: 3/3 grad_norm: 0.12345"; done'
    values = "a-value-that-is-long-enough-for-no-column,0.01"
    sweep = ("helper-sweep", "--no-sync", "--per-server", "2", "--cmd", f"true {{optimizer}}; {command}")
    desk.does(*sweep, "--grid", "learning_rate=0.1,0.01", "--grid", f"optimizer={values}")
    until(lambda: all(job["state"] == "succeeded" for job in desk.jobs()), "all have ended")
    heading, *rows = desk.does("sweep-show", "--metric", "loss").splitlines()
    assert "MIN loss  LAST loss" in heading
    place = heading.index("MIN loss")
    assert [row[place:].split()[:2] for row in rows] == [[best, "7"] for best in ("0.015", "0.015", "0.15", "0.15")]
    with Terminal("sweep-show", "--metric", "loss", cwd=desk.root) as terminal:
        assert terminal.end() == 0
        lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert any("MIN loss  LAST loss" in line for line in lines)
    assert any("…" in line and "a-value" in line for line in lines)


@pytest.mark.row(173)
def test_clean_says_that_it_keeps_the_jobs_of_a_sweep_that_is_not_done(desk: Desk) -> None:
    desk.does("helper-sweep", "--no-sync", "--per-server", "3", "--grid", "n=0..2", "--cmd", "exit {n}")
    until(lambda: all(job["state"] in ("succeeded", "failed") for job in desk.jobs()), "all have ended")
    said = desk.tries("clean", "--yes").stderr
    assert "kept jobs 1, 2, 3: a sweep or fan-out may still be resumed; clean --job KEY removes a job of it" in said
    assert len(desk.jobs()) == 3


@pytest.mark.row(308)
@pytest.mark.parametrize("kind", ["sweep", "fan-out"])
@pytest.mark.parametrize("removing", ["clean", "one job", "keep_jobs"])
def test_what_is_done_is_not_done_again_after_its_jobs_were_removed(
    desk: Desk, tmp_path: Path, kind: str, removing: str
) -> None:
    ran = tmp_path / "ran"
    name = begin(desk, kind, ran)
    if removing == "keep_jobs":
        desk.configure(keep_jobs=1)
        desk.does("job-run", "--no-sync", "--cmd", "true")
        left = 1
    elif removing == "one job":
        desk.does("clean", "--yes", "--job", "2")
        left = 2
    else:
        desk.does("clean", "--yes")
        left = 0
    of_work = [job for job in desk.jobs() if job["launch_id"] == name]
    assert len(of_work) == left
    said = json.loads(desk.does(f"helper-{kind}", "--resume", name, "--no-sync", "--json"))
    assert said["jobs"] == [] if kind == "sweep" else len(said["jobs"]) == left
    assert said[kind.replace("-", "_")]["done"] == [0, 1, 2]
    assert len(ran.read_text().splitlines()) == 3
    if kind == "sweep":
        shown = json.loads(desk.does("sweep-show", name, "--json"))["sweep"]["combinations"]
        assert [each["state"] for each in shown] == ["succeeded"] * 3


@pytest.mark.row(308)
def test_resuming_leaves_what_runs_and_does_again_what_failed(desk: Desk, tmp_path: Path) -> None:
    ran, go, good = (tmp_path / name for name in ("ran", "go", "good"))
    command = f"[ {{n}} != 1 ] || [ -e {good} ] || exit 3; until [ -e {go} ]; do sleep 0.05; done; echo {{n}} >> {ran}"
    words = ("--cmd", command, "--grid", "n=1..3", "--per-server", "3")
    name = json.loads(desk.does("helper-sweep", *words, "--no-sync", "--json"))["sweep"]["name"]
    until(lambda: sorted(job["state"] for job in desk.jobs()) == ["failed", "running", "running"], "one has failed")
    good.touch()
    assert len(json.loads(desk.does("helper-sweep", "--resume", name, "--no-sync", "--json"))["jobs"]) == 1
    go.touch()
    until(lambda: [job["state"] for job in desk.jobs()].count("succeeded") == 3, "all are done")
    assert sorted(ran.read_text().split()) == ["1", "2", "3"]


@pytest.mark.row(312)
def test_a_value_is_one_word_for_the_shell_and_an_unknown_placeholder_starts_nothing(desk: Desk) -> None:
    assert "{m} is not a parameter" in desk.refuses("helper-sweep", "--grid", "n=1", "--cmd", "echo {m}", status=2)
    assert "does not use the parameter n" in desk.refuses(
        "helper-sweep", "--grid", "n=1", "--cmd", "echo done", status=2
    )
    assert desk.jobs() == []
    value = 'it\'s; $(touch began) & "x"'
    desk.does("helper-sweep", "--grid", f"n={value}", "--cmd", "printf %s {n} > value")
    desk.waits_for(1, "succeeded")
    assert (desk.there() / "value").read_text() == value
    assert not (desk.there() / "began").exists()


@pytest.mark.row(309)
def test_combinations_of_a_server_that_went_away_are_resumed_when_it_is_back_and_each_is_done_once(
    make_server: MakeServer, tmp_path: Path
) -> None:
    servers = {name: make_server(name) for name in ("first", "second")}
    desk = Desk(make_project(tmp_path / "project", servers.values()), servers)
    desk.does("prepare")
    go, done = tmp_path / "go", tmp_path / "done"
    command = f"until [ -e {go} ]; do sleep 0.05; done; echo {{n}} >> {done}"
    sweep = json.loads(desk.does("helper-sweep", "--cmd", command, "--grid", "n=1..4", "--json"))["sweep"]["name"]
    until(lambda: [job["state"] for job in desk.jobs()].count("running") == 2, "one runs on each server")
    desk.end_all("second")
    servers["second"].stop()
    resume = ("helper-sweep", "--resume", sweep, "--no-sync")
    said = " ".join(desk.refuses(*resume).split())
    assert "combinations may still run there, and will not be started elsewhere" in said
    assert f"remote-tool job-kill --tag sweep-{sweep} --server second" in said
    assert len(json.loads(desk.tries("job-list", "--stopped", "--json").stdout)["jobs"]) == 4
    servers["second"].start()
    desk.does(*resume)
    go.touch()
    desk.tries("job-wait", "--tag", f"sweep-{sweep}")
    assert sorted(done.read_text().split()) == ["1", "2", "3", "4"]
    assert sorted(job["state"] for job in desk.jobs()) == ["lost"] * 2 + ["succeeded"] * 4
