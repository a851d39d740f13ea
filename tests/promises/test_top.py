"""top, as a user types it: the table, the document, and the screen on a terminal that is left as it was."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, StartRequest, Workspace
from tests.described import undescribed
from tests.program import remote_tool
from tests.project import kill, start
from tests.stand_in_gpus import gpu_line, put_nvidia_smi
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.fixture
def gpus(two_machines: dict[str, TestServer]) -> Iterator[None]:
    """Give the first server two GPUs."""
    programs = two_machines["first"].programs
    program = put_nvidia_smi(programs, gpu_line(0), gpu_line(1, load=13), processes="GPU-1, 4194305, 512\n")
    yield
    program.unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_a_pipe_gets_tables_of_servers_gpus_and_jobs(project: Path) -> None:
    job = start(project, "echo 'step 3/10 loss 0.5'; exec sleep 600")
    try:
        printed = remote_tool("top", "--once", cwd=project)
    finally:
        kill(project, job)
    assert printed.returncode == 0, printed.stderr
    servers, gpus, jobs = printed.stdout.split("\n\n")
    assert servers.splitlines()[0].split()[:3] == ["SERVER", "GPUS", "USE"]
    assert servers.splitlines()[1].split()[:4] == ["first", "2", "55", "%"]
    assert servers.splitlines()[2].startswith("second")
    assert gpus.splitlines()[2].endswith("another container")
    assert str(job.key) in [line.split()[0] for line in jobs.splitlines()[1:]]


@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_json_has_every_value_and_who_could_not_be_asked(away: Path) -> None:
    printed = remote_tool("top", "--json", cwd=away)
    document = json.loads(printed.stdout)
    assert (printed.returncode, undescribed(document)) == (3, set())
    (server,) = document["servers"]
    assert (server["server"], [gpu["load"] for gpu in server["gpus"]]) == ("first", [97.0, 13.0])
    assert server["gpus"][1]["processes"] == [{"pid": 4194305, "memory": 512 * 1024**2, "user": "", "job": ""}]
    assert [each["server"] for each in document["errors"]] == ["away"]
    table = remote_tool("top", "--once", cwd=away)
    assert (table.returncode, table.stdout.splitlines()[1].split()[:3]) == (3, ["away", "?", "?"])


@pytest.mark.row(233)
def test_nothing_is_claimed_about_jobs_if_no_server_answers(away: Path) -> None:
    file = away / ".remote" / "configs.yaml"
    head, _, gone = file.read_text().partition("  first:")
    file.write_text(head + gone[gone.index("  away:") :])
    printed = remote_tool("top", "--once", cwd=away)
    assert printed.returncode == 4
    assert [line.split()[:3] for line in printed.stdout.splitlines()[1:]] == [["away", "?", "?"]]
    assert "no server answered\n" in printed.stderr
    assert "jobs" not in printed.stderr


def test_without_a_terminal_it_names_what_needs_none(project: Path) -> None:
    refused = remote_tool("top", cwd=project)
    assert refused.returncode == 2
    assert refused.stderr == "error: top needs a terminal\nhint: remote-tool top --once works without one\n"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("q", 0), ("SIGTERM", 143), ("SIGINT", 130)])
def test_the_terminal_is_left_as_it_was(project: Path, how: str, status: int) -> None:
    with Terminal("top", cwd=project) as terminal:
        before = terminal.modes
        terminal.until("2/2 servers answer", seconds=60)
        assert terminal.is_raw
        if how == "q":
            terminal.type("q")
        else:
            terminal.process.send_signal(signal.Signals[how])
        assert terminal.end(seconds=40) == status
        assert terminal.modes == before
    assert terminal.raw.rfind(b"\x1b[?1049l") > terminal.raw.rfind(b"\x1b[?1049h")
    assert terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l")


@pytest.mark.slow
def test_s_sorts_the_table_with_the_cursor_by_its_next_column(project: Path) -> None:
    with Terminal("top", cwd=project) as terminal:
        terminal.until("sorted by name and key", seconds=60)
        terminal.type("s\ts")
        terminal.until("sorted by use and server", seconds=40)
        terminal.type("q")
        assert terminal.end(seconds=40) == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_over", [False, True], ids=["attached", "asked for Enter"])
def test_a_signal_ends_top_while_the_terminal_of_a_job_is_shown(project: Path, *, is_over: bool) -> None:
    request = StartRequest("echo $((600 + 14)); exec cat", ("first",), terminal="command")
    (job,) = Workspace.find(project).start_jobs(request).jobs
    try:
        with Terminal("top", cwd=project) as terminal:
            before = terminal.modes
            terminal.until("echo $((600", seconds=60)
            terminal.type("\x1b[B" * 30)
            terminal.type("a")
            terminal.until("614", seconds=60)
            if is_over:
                terminal.type("\x1d")
                terminal.until("Press Enter to go back to top.", seconds=40)
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.end(seconds=40) == 143
            assert terminal.modes == before
    finally:
        kill(project, job)


@pytest.mark.slow
def test_a_job_is_followed_on_the_screen_and_killed_after_yes(project: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    wait = f"until [ -e {more} ]; do sleep 0.1; done"
    job = start(project, f"echo $((30 * 1021)); {wait}; echo $((30 * 1022)); exec sleep 613")
    try:
        with Terminal("top", cwd=project) as terminal:
            terminal.until("echo $((30 *", seconds=60)
            # Jobs that another test has started, and that have just ended, may be above it.
            terminal.type("\x1b[B" * 30)
            terminal.type("l")
            terminal.until("30630", seconds=60)
            more.touch()
            terminal.until("30660", seconds=60)
            shown = terminal.text.count("Attach")
            terminal.type("q")
            # The keys are those of the table again.
            terminal.until("Attach", shown + 1, seconds=40)
            terminal.type("k")
            terminal.until(f"Stop job {job.key} on first: echo $((30 * 1021));", seconds=40)
            terminal.until("? [y/N]", seconds=40)
            terminal.type("y")
            terminal.until(f"job {job.key} on first: killed")
            terminal.type("q")
            assert terminal.end(seconds=40) == 0
    finally:
        kill(project, job)
    (ended,) = Workspace.find(project).select_local(JobSelection(jobs=(job.id,)))
    assert ended.state.value == "killed"
