"""job-pull and the options around it, as the program shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.described import undescribed
from tests.program import remote_tool


def test_a_followed_job_brings_its_files_and_job_pull_says_where_they_are(project: Path) -> None:
    """In a pipe the paths are data, and all else is on stderr."""
    command = "mkdir -p cli-out && echo model > cli-out/model.pt && echo printed"
    ran = remote_tool(
        *("job-run", "--server", "first", "--cmd", command, "--artifact", "cli-out/*.pt", "--follow"), cwd=project
    )
    assert (ran.returncode, ran.stdout) == (0, "printed\n")
    assert "first: artifacts: done" in ran.stderr
    assert "1 file (6 B)" in ran.stderr
    key = re.findall(r"job (\d+) on first", ran.stderr)[0]
    again = remote_tool("job-pull", "--job", key, cwd=project)
    assert (again.returncode, again.stdout) == (0, "")
    assert f"job {key} on first: 0 new, 1 already here" in again.stderr
    (file,) = (project / ".remote" / "jobs").glob("*/artifacts/cli-out/model.pt")
    file.unlink()
    pulled = remote_tool("job-pull", "--job", key, cwd=project)
    assert pulled.stdout == f"{file.relative_to(project)}\n"
    assert file.read_text() == "model\n"


def test_a_job_that_fails_brings_its_files_and_keeps_its_exit_status(project: Path) -> None:
    command = "echo last > failed.pt; exit 7"
    ran = remote_tool(
        *("job-run", "--server", "second", "--cmd", command, "--artifact", "failed.pt", "--follow"), cwd=project
    )
    assert ran.returncode == 7
    assert "second: artifacts: done" in ran.stderr
    quick = remote_tool(*("job-run", "--server", "second", "--cmd", "true", "--artifact", "failed.pt"), cwd=project)
    key = re.findall(r"job (\d+) on second", quick.stderr)[0]
    remote_tool("job-tail", "--job", key, "--no-follow", cwd=project)
    waited = remote_tool("job-wait", "--job", key, cwd=project)
    assert waited.returncode == 0
    assert "artifacts" not in waited.stderr


def test_job_pull_tells_programs_what_is_here_and_what_is_not(project: Path) -> None:
    ran = remote_tool(
        *(
            "job-run",
            "--cmd",
            "mkdir -p json-out; echo x > json-out/a.pt; echo x > json-out/.env",
            "--tag",
            "pull-json",
        ),
        cwd=project,
    )
    assert ran.returncode == 0, ran.stderr
    waited = remote_tool("job-wait", "--tag", "pull-json", cwd=project)
    assert waited.returncode == 0, waited.stderr
    pulled = remote_tool(
        *("job-pull", "--tag", "pull-json", "--artifact", "json-out/*.pt", "--artifact", "json-out/.*", "--json"),
        cwd=project,
    )
    document = json.loads(pulled.stdout)
    assert (document["errors"], undescribed(document)) == ([], set())
    assert [job["server"] for job in document["jobs"]] == ["first", "second"]
    for job in document["jobs"]:
        (file,) = job["files"]
        assert (file["name"], file["size"], file["new"]) == ("json-out/a.pt", 2, True)
        assert Path(file["path"]).read_text() == "x\n"
        assert job["left_out"] == [{"name": "json-out/.env", "reason": "json-out/.env may contain secrets"}]


def test_without_anything_to_pull_the_next_thing_to_type_is_said(project: Path) -> None:
    pulled = remote_tool("job-pull", "--tag", "no-such-tag", cwd=project)
    assert pulled.returncode == 2
    assert "error: No job matches" in pulled.stderr
    wrong = remote_tool("job-run", "--cmd", "true", "--artifact", "../x", cwd=project)
    assert wrong.returncode == 2
    assert "--artifact '../x': must be a glob inside the project" in wrong.stderr


def test_a_server_that_is_away_is_named_and_the_others_are_pulled(away: Path) -> None:
    started = remote_tool(
        *("job-run", "--server", "first", "--cmd", "echo x > away.pt", "--artifact", "away.pt", "--no-sync", "--json"),
        cwd=away,
    )
    assert started.returncode == 0, started.stderr
    job_id = json.loads(started.stdout)["jobs"][0]["id"]
    assert remote_tool("job-wait", "--job", job_id, cwd=away).returncode == 0
    pulled = remote_tool("job-pull", "--artifact", "away.pt", cwd=away)
    assert pulled.returncode == 3
    assert re.search(r"^error: away\b", pulled.stderr, re.MULTILINE), pulled.stderr
    assert (away / ".remote" / "jobs" / job_id / "artifacts" / "away.pt").read_text() == "x\n"
