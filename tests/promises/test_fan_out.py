"""helper-fan-out, as a user types it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.described import undescribed
from tests.program import remote_tool
from tests.promises.conftest import HeldRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

# Each runs the program several times.
pytestmark = pytest.mark.slow


def lines_of(output: str) -> list[str]:
    """Labels are aligned with those that came before, which differ."""
    return sorted(re.sub(r"(?m) +\|", " |", output).splitlines())


def test_a_dry_run_shows_the_plan_and_starts_nothing(project: Path) -> None:
    words = ("helper-fan-out", "--cmd", "hello.py {count} {{x}}", "--total", "5", "--tag", "dry", "--dry-run")
    shown = remote_tool(*words, cwd=project)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "2 shards on 2 slots of 2 servers",
        "first: shard 0 of 2, 0 to 3, no GPU",
        "  python hello.py 3 {x}",
        "second: shard 1 of 2, 3 to 5, no GPU",
        "  python hello.py 2 {x}",
    ]
    planned = json.loads(remote_tool(*words, "--json", cwd=project).stdout)
    assert [(each["server"], each["command"]) for each in planned["shards"]] == [
        ("first", "python hello.py 3 {x}"),
        ("second", "python hello.py 2 {x}"),
    ]
    assert planned["shards"][1]["environment"]["REMOTE_TOOL_START"] == "3"
    assert json.loads(remote_tool("job-list", "--stopped", "--tag", "dry", "--json", cwd=project).stdout)["jobs"] == []


def test_followed_each_line_says_its_shard_and_server_and_the_end_how_many_are_done(project: Path) -> None:
    command = "echo game {shard}; test {shard} != 1 || echo oops >&2; test {shard} != 1"
    ran = remote_tool("helper-fan-out", "--cmd", command, "--retries", "0", "--follow", cwd=project)
    assert (ran.returncode, lines_of(ran.stdout)) == (1, ["0 first | game 0", "1 second | game 1"])
    name = re.search(r"fan-out ([0-9a-f]{6}): 2 shards on 2 slots of 2 servers\n", ran.stderr)
    assert name is not None
    assert "1 second | oops\n" in ran.stderr
    assert re.search(r"(?m)^shard 0 on first: succeeded \(job \d+\)$", ran.stderr)
    assert re.search(r"(?m)^shard 1 on second: failed, exit code 1 \(job \d+\)$", ran.stderr)
    assert ran.stderr.splitlines()[-2:] == [
        f"fan-out {name[1]}: 1 of 2 shards done",
        f"to resume: remote-tool helper-fan-out --resume {name[1]}",
    ]
    again = remote_tool("helper-fan-out", "--resume", name[1], "--json", cwd=project)
    document = json.loads(again.stdout)
    assert (again.returncode, document["fan_out"]["done"], len(document["jobs"])) == (1, [0], 3)


def test_without_following_it_says_what_was_begun(project: Path) -> None:
    ran = remote_tool("helper-fan-out", "--cmd", "true", "--per-server", "2", "--json", cwd=project)
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["errors"], document["fan_out"]["shards"]) == (0, [], 4)
    assert undescribed(document) == set()
    assert [(job["server"], job["node_rank"]) for job in document["jobs"]] == [
        ("first", 0),
        ("first", 1),
        ("second", 2),
        ("second", 3),
    ]
    assert {job["launch_id"] for job in document["jobs"]} == {document["fan_out"]["launch_id"]}


def test_lines_of_a_file_are_handed_out(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "items"
    file.write_text("\ufeffa b\r\n\n  c\n", newline="")
    ran = remote_tool("helper-fan-out", "--cmd", "echo {item}", "--items", str(file), "--follow", cwd=project)
    assert (ran.returncode, lines_of(ran.stdout)) == (0, ["0 first | a b", "1 second |   c"])
    assert "2 of 2 shards done" in ran.stderr


def test_invalid_fan_out_options_are_refused_before_any_question(project: Path, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n \n")
    binary.write_bytes(b"\xff")
    for words, message in (
        (("--cmd", "x", "--items", str(tmp_path / "none")), f"--items {tmp_path}/none: No such file or directory"),
        (("--cmd", "x", "--items", str(empty)), f"--items {empty} has no lines"),
        (("--cmd", "x", "--items", str(binary)), f"--items {binary} is not UTF-8 text: invalid start byte at byte 0"),
        (
            ("--resume", "x", "--total", "5"),
            "--resume keeps the options of the start, so it cannot be combined with --total",
        ),
        (
            ("--resume", "x", "--retries", "0"),
            "--resume keeps the options of the start, so it cannot be combined with --retries",
        ),
        (("--resume", "000000"), "No fan-out '000000' was started here"),
        (("--cmd", "x {y}"), "--cmd: {y} is not a placeholder; use {shard}, {shards}"),
        ((), "--cmd is empty"),
        (("--cmd", "x", "--json", "--follow"), "--json and --follow both write to stdout"),
    ):
        refused = remote_tool("helper-fan-out", *words, cwd=project)
        assert (refused.returncode, bool(refused.stdout)) == (2, "--json" in words)
        assert refused.stderr.splitlines()[0].startswith(f"error: {message}")


def test_a_server_that_is_away_is_named_and_the_others_do_its_part(away: Path) -> None:
    ran = remote_tool("helper-fan-out", "--cmd", "echo {count}", "--total", "7", "--no-sync", "--follow", cwd=away)
    assert (ran.returncode, ran.stdout) == (3, "0 first | 7\n"), ran.stderr
    assert "1 of 1 shards done" in ran.stderr
    assert re.search(r"(?m)^error: away", ran.stderr)


def test_a_link_that_is_lost_before_the_answer_is_waited_for_and_each_shard_runs_once(desk_alone: Desk) -> None:
    desk, (server,) = desk_alone, desk_alone.servers.values()
    held = HeldRequest(desk, f"""grep -qs '"starting"' {desk.root}/.remote/jobs/*/job.yaml""")
    (desk.root / "items").write_text("one\ntwo\n")
    words = ("helper-fan-out", "--no-sync", "--follow", "--items", "items", "--cmd", "echo {item} >> ran")
    with desk.runs_meanwhile(*words) as program:
        held.wait()
        server.stop()
        held.let_go()
        assert program.stdout is not None
        said = ""
        while "was lost, so it may have been done" not in said:
            line = program.stdout.readline()
            assert line, said
            said += line
        assert "; trying again in" in line
        server.start()
        said += program.communicate()[0]
    assert program.returncode == 0, said
    assert "2 of 2 shards done" in said
    assert (desk.there() / "ran").read_text().split() == ["one", "two"]
