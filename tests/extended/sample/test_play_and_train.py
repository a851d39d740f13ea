"""The sample that plays on every server, gathers and trains; and its games, without any server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import Workspace
from tests.project import make_project

if TYPE_CHECKING:
    from tests.conftest import MakeServer

SAMPLE = Path(__file__).parents[3] / "sample"
SCRIPTS = ("self_play.py", "train_value.py", "play_and_train.py")


def run(folder: Path, *words: str) -> str:
    """Run a script of the sample as a user does; return what it prints."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SAMPLE.parent)},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def positions(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the scripts."""
    for name in SCRIPTS:
        shutil.copy(SAMPLE / name, tmp_path)
    return tmp_path


def test_games_follow_the_rules_and_a_seed_gives_them_again(folder: Path) -> None:
    printed = run(folder, "self_play.py", "--games", "20", "--out", "a/games.jsonl", "--seed", "3")
    assert re.fullmatch(r"20 games, \d+ of them drawn, \d+ positions in a/games\.jsonl\n", printed)
    found = positions(folder / "a" / "games.jsonl")
    for position in found:
        ours, theirs = position["board"].count(1), position["board"].count(-1)
        assert ours - theirs in {0, 1}
        assert position["value"] in {-1, 0, 1}
    assert sum(position["board"].count(0) == 8 for position in found) == 20
    run(folder, "self_play.py", "--games", "20", "--out", "b.jsonl", "--seed", "3")
    assert positions(folder / "b.jsonl") == found


@pytest.mark.slow
def test_both_servers_play_and_the_first_learns_from_all_games(make_server: MakeServer, tmp_path: Path) -> None:
    servers = [make_server("first"), make_server("second")]
    root = make_project(tmp_path / "project", servers)
    for name in SCRIPTS:
        shutil.copy(SAMPLE / name, root)
    Workspace.find(root).prepare()
    printed = run(root, "play_and_train.py", "--train", "master", "--rounds", "1", "--games", "301")
    assert printed.startswith("round 1: 301 games in 2 files\n")
    assert re.search(r"(?m)^  \d+ positions of 2 files$", printed)
    learnt = re.search(r"on 1 processes; (\d+) of 100 games not lost against chance", printed)
    assert learnt is not None
    # Chance itself loses half of them.
    assert int(learnt[1]) > 60
    games = sorted((root / "data" / "self_play").rglob("*.jsonl"))
    firsts = [sum(each["board"].count(0) == 8 for each in positions(file)) for file in games]
    assert firsts == [151, 150]
    model = json.loads((root / "models" / "value.json").read_text())
    assert sorted(model) == ["hidden", "hidden_bias", "output", "output_bias"]
