"""check, as a user types it: the table on a terminal, lines in a pipe, JSON, and the exit status."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.described import undescribed
from tests.extended.environments.test_facts import stub
from tests.extended.environments.test_machine import answering
from tests.program import remote_tool
from tests.project import make_project
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer


@pytest.mark.slow
def test_a_pipe_gets_a_line_for_each_check_and_stderr_what_mends_it(project: Path) -> None:
    looked = remote_tool("check", cwd=project)
    head, *lines = looked.stdout.splitlines()
    assert head.split() == ["SERVER", "CHECK", "STATUS", "VALUE"]
    rows = [line.split(None, 3) for line in lines]
    # The machine of the tests may have faults of its own, such as little memory or an old driver.
    is_fit = "FAIL" not in {row[2] for row in rows}
    assert looked.returncode == (0 if is_fit else 1), looked.stdout + looked.stderr
    assert {row[2] for row in rows} <= {"ok", "warn", "?", "FAIL"}
    assert {(row[0], row[1]) for row in rows} >= {
        (server, name) for server in ("first", "second") for name in ("login", "host-key", "rsync", "gpus", "clock")
    }
    last = "2 servers ready for training" if is_fit else r"2 servers: \d+ failures?"
    assert re.match(last, looked.stderr.splitlines()[-1])


def test_json_has_every_check_of_every_server(make_server: MakeServer, tmp_path: Path) -> None:
    servers = [make_server("gpu1"), make_server("gpu2")]
    stub(servers[0].programs, "nvidia-smi", "printf '\\033]0;owned\\007'; exit 9")
    looked = remote_tool("check", "--json", cwd=make_project(tmp_path / "project", servers))
    document = json.loads(looked.stdout)
    assert (looked.returncode, document["errors"], undescribed(document)) == (1, [], set())
    assert [each["name"] for each in document["servers"]] == ["gpu1", "gpu2"]
    for server in document["servers"]:
        for check in server["checks"]:
            assert list(check) == ["name", "status", "value", "hint"]
            assert check["status"] in {"ok", "warn", "fail", "unknown"}
    gpus = next(check for check in document["servers"][0]["checks"] if check["name"] == "gpus")
    assert gpus["status"] == "fail"


@pytest.mark.slow
def test_some_away_is_3_and_all_away_is_4_and_each_is_in_the_answer(away: Path) -> None:
    some = remote_tool("check", cwd=away)
    assert some.returncode == 3
    (line,) = [line for line in some.stdout.splitlines() if line.startswith("away")]
    assert re.search(r"^away +connection +FAIL +away: 127.0.0.1:1 refused the connection$", line)
    everything = remote_tool("check", "--server", "away", "--json", cwd=away)
    assert everything.returncode == 4
    document = json.loads(everything.stdout)
    assert [each["server"] for each in document["errors"]] == ["away"]
    assert document["servers"][0]["checks"][0]["status"] == "fail"


def table_of(terminal: Terminal) -> list[str]:
    """Return the lines of the table, none of which is wider than the terminal."""
    lines = terminal.text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.rstrip() == "gpu1" or line.startswith("CHECK"))
    table = [line for line in lines[begin:] if not line.startswith(("hint", "2 servers", "3 servers"))]
    assert max(map(len, table)) <= 80
    return table


@pytest.mark.slow
def test_two_servers_stand_side_by_side_on_a_terminal_and_nothing_of_theirs_steers_it(
    make_server: MakeServer, tmp_path: Path
) -> None:
    servers = [make_server("gpu1"), make_server("gpu2")]
    stub(servers[0].programs, "nvidia-smi", answering())
    stub(servers[1].programs, "nvidia-smi", answering(csv="\\033]0;owned\\007"))
    with Terminal("check", cwd=make_project(tmp_path / "project", servers)) as terminal:
        assert terminal.end() == 1
    assert b"\x1b]0;owned" not in terminal.raw
    lines = table_of(terminal)
    assert any(line.split() == ["CHECK", "gpu1", "gpu2"] for line in lines)
    (row,) = [line for line in lines if line.startswith("gpus ")]
    assert "ok 1 x NVIDIA H100" in row
    assert "FAIL nvidia-smi:" in row
    assert "hint: gpu2: gpus: " in terminal.text


@pytest.mark.slow
def test_many_servers_stand_one_below_the_other(make_server: MakeServer, tmp_path: Path) -> None:
    servers = [make_server(f"gpu{number}") for number in range(1, 4)]
    with Terminal("check", cwd=make_project(tmp_path / "project", servers)) as terminal:
        assert terminal.end() == 1
    lines = table_of(terminal)
    assert {"gpu1", "gpu2", "gpu3"} <= {line.rstrip() for line in lines}
    assert sum(bool(re.match(r"  environment +FAIL +not prepared", line)) for line in lines) == 3
