"""Commands about jobs, as a user types them."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import Workspace
from remote_tool.cli.commands.kill import signal_name
from remote_tool.errors import UsageError
from remote_tool.jobs.job import MASTER_TAG, Job, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.workflows.selection import JobSelection
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import kill, make_project, start
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

# Each runs the program several times.
pytestmark = pytest.mark.slow

KEYS = [
    *("key", "id", "launch_id", "node_rank", "server", "name", "state", "exit_code", "signal", "reason", "pid"),
    *("slurm", "tags", "note", "started_by", "command", "workdir", "git", "copy", "environment_hash"),
    *("nice", "gpus", "gpu_count", "leased_gpus", "priority", "after", "terminal", "variables", "rerun_of"),
    *("max_duration", "stop_if_idle", "stop_signal", "retries", "failed_attempts"),
    *("created_at", "started_at", "ended_at", "values", "log"),
]

COLUMNS = ("KEY", "SERVER", "STATE", "EXIT", "LAUNCH", "STARTED", "DURATION", "TAGS", "REASON", "COMMAND")


def listed(project: Path, job: Job, *options: str) -> dict[str, Any] | None:
    """Return a job as ``job-list --json`` shows it; None when it is not shown."""
    answer = remote_tool("job-list", "--json", *options, cwd=project)
    assert answer.returncode == 0, answer.stderr
    return next((each for each in json.loads(answer.stdout)["jobs"] if each["id"] == job.id), None)


def test_a_job_as_json_has_the_fields_of_the_interface(project: Path) -> None:
    words = ("--server", "first", "--cmd", "exit 3", "--tag", "sweep", "--tag", "two words", "--no-sync")
    started = remote_tool("job-run", *words, "--json", cwd=project)
    (version, (job,), errors) = json.loads(started.stdout).values()
    assert (started.returncode, started.stderr, version, errors, list(job)) == (0, "", 1, [], KEYS)
    assert (job["server"], job["command"], job["tags"]) == ("first", "exit 3", ["sweep", "two words"])
    assert job["started_by"] == f"{getpass.getuser()}@{socket.gethostname()}"
    waited = remote_tool("job-wait", "--job", str(job["key"]), "--json", cwd=project)
    (ended,) = json.loads(waited.stdout)["jobs"]
    assert (waited.returncode, ended["state"], ended["exit_code"], ended["signal"]) == (3, "failed", 3, None)
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", ended[name]) for name in KEYS if name.endswith("_at")
    )
    assert ended["log"] == str(project / ".remote" / "jobs" / job["id"])


def test_keys_and_commands_are_taken_as_plain_arguments(project: Path) -> None:
    ran = remote_tool("run", "--server", "first", "--", "printf", "%s|", "two words", "$HOME", cwd=project)
    assert (ran.returncode, ran.stdout) == (0, "two words|$HOME|")
    words = ("--server", "first", "--no-sync", "--json", "--", "sh", "-c", "echo $0; exit 4", "a b")
    (job,) = json.loads(remote_tool("job-run", *words, cwd=project).stdout)["jobs"]
    assert job["command"] == "sh -c 'echo $0; exit 4' 'a b'"
    key = str(job["key"])
    assert remote_tool("job-wait", key, cwd=project).returncode == 4
    assert remote_tool("job-tail", key, cwd=project).stdout == "a b\n"
    assert remote_tool("job-pull", key, "--artifact", "no*", cwd=project).returncode == 0
    first, second = start(project, "sleep 1000"), start(project, "sleep 1000")
    assert remote_tool("job-kill", str(first.key), "--job", str(second.key), cwd=project).returncode == 0
    assert processes_of(first.id) + processes_of(second.id) == []


def test_a_misspelt_script_is_asked_back(project: Path) -> None:
    (project / "train_digits.py").touch()
    try:
        ran = remote_tool("helper-torch-launch", "--cmd", "train_digit.py", cwd=project)
    finally:
        (project / "train_digits.py").unlink()
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, "hint: Did you mean train_digits.py?")


def test_a_list_shows_running_jobs_and_others_when_asked(project: Path) -> None:
    running, hidden = start(project, "sleep 1000"), start(project, "sleep 1001", "hidden")
    older = start(project, "sleep 1002", "__hidden__")
    assert listed(project, running) is not None
    assert listed(project, hidden) is listed(project, older) is None
    assert listed(project, hidden, "--hidden") is not None
    assert listed(project, older, "--hidden") is not None
    table = remote_tool("job-list", "--server", "first", cwd=project)
    assert table.stdout.splitlines()[0].split() == list(COLUMNS)
    row = next(line for line in table.stdout.splitlines() if line.startswith(f"{running.key} "))
    assert re.fullmatch(r"\d+ +first +running +- +- +\d{4}-\d\d-\d\dT\d\d:\d\d +\d+[sm]\d* *s? +- +- +sleep 1000", row)
    kill(project, running, hidden, older)
    assert listed(project, running) is None
    ended = listed(project, running, "--stopped")
    assert ended is not None
    assert (ended["state"], ended["signal"]) == ("killed", "SIGKILL")


def test_a_list_has_the_states_that_are_asked_for_the_newest_and_an_order(project: Path) -> None:
    running = start(project, "sleep 1000", "order")
    failed, killed = start(project, "exit 3", "order"), start(project, "sleep 1000", "order", server="second")
    kill(project, killed)
    remote_tool("job-wait", str(failed.key), cwd=project)

    def keys(*options: str) -> list[int]:
        answer = remote_tool("job-list", "--tag", "order", "--json", *options, cwd=project)
        return [job["key"] for job in json.loads(answer.stdout)["jobs"]]

    assert keys() == [running.key]
    assert keys("--state", "failed") == [failed.key]
    assert keys("--state", "failed", "--state", "running") == [running.key, failed.key]
    assert keys("--last", "2") == [failed.key, killed.key]
    assert keys("--last", "1", "--state", "failed") == [failed.key]
    assert keys("--last", "9", "--sort", "-started") == [killed.key, failed.key, running.key]
    assert keys("--last", "9", "--sort", "state") == [failed.key, killed.key, running.key]
    assert keys("--last", "9", "--sort", "server")[-1] == killed.key
    assert keys("--last", "9", "--sort", "-duration")[0] == running.key
    for options, problem in {
        ("--state", "dead"): "error: --state 'dead' is not a state",
        ("--sort", "color"): "error: --sort 'color' is not a field",
    }.items():
        wrong = remote_tool("job-list", *options, cwd=project)
        assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, problem)
    kill(project, running)


def test_everybody_on_the_account_sees_who_started_a_job(project: Path, tmp_path: Path) -> None:
    words = ("job-run", "--server", "first", "--no-sync", "--tag", "who", "--cmd", "sleep 1000")
    for name in ("ann", "bob"):
        assert remote_tool(*words, cwd=project, environment={"LOGNAME": name}).returncode == 0
    other = tmp_path / "other"
    shutil.copytree(project / ".remote", other / ".remote", ignore=shutil.ignore_patterns("jobs", "logs"))
    names = [f"ann@{socket.gethostname()}", f"bob@{socket.gethostname()}"]
    table = remote_tool("job-list", "--tag", "who", cwd=other).stdout.splitlines()
    assert table[0].split()[7] == "WHO"
    assert sorted(row.split()[7] for row in table[1:]) == names
    shown = json.loads(remote_tool("job-list", "--tag", "who", "--json", cwd=other).stdout)["jobs"]
    assert sorted(job["started_by"] for job in shown) == names
    assert remote_tool("job-kill", "--tag", "who", cwd=project).returncode == 0


def test_nothing_is_said_of_jobs_on_servers_that_did_not_answer(away: Path) -> None:
    some = remote_tool("job-list", "--tag", "none", cwd=away)
    assert "no running jobs on first; --stopped lists the others" in some.stderr.splitlines()
    none = remote_tool("job-list", "--tag", "none", "--server", "away", cwd=away)
    assert none.returncode == 4
    assert "no running jobs" not in none.stderr


@pytest.mark.row(128)
def test_an_empty_list_says_so_on_stderr(make_server: MakeServer, tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", [make_server("gpu1")])
    empty = remote_tool("job-list", cwd=root)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr.splitlines()[-1] == "no running jobs; --stopped lists the others"
    running = remote_tool("job-list", "--stopped", "--state", "running", cwd=root)
    assert running.stderr.splitlines()[-1] == "no running jobs"
    assert json.loads(remote_tool("job-list", "--json", cwd=root).stdout) == {"schema": 1, "jobs": [], "errors": []}
    tail = remote_tool("job-tail", cwd=root)
    assert (tail.returncode, tail.stderr) == (2, "error: There are no jobs\nhint: remote-tool job-run --cmd '…'\n")


@pytest.mark.row(125)
def test_a_server_out_of_reach_shows_the_last_state_and_is_named(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("gpu1")
    root = make_project(tmp_path / "project", [server])
    Workspace.find(root).prepare()
    job = start(root, "sleep 1000", server="gpu1")
    server.stop()
    away = remote_tool("job-list", cwd=root)
    assert away.returncode == 4
    assert re.search(r"(?m)^1 +gpu1 +unreachable .* last seen running, \d+ s ago +sleep 1000$", away.stdout)
    assert re.match(r"error: .*gpu1", away.stderr)
    server.start()
    kill(root, job)


@pytest.mark.parametrize("command", ["job-list", "job-rsync"])
def test_a_server_that_answers_counts_though_it_has_no_job(command: str, away: Path) -> None:
    assert remote_tool(command, cwd=away).returncode == 3
    assert remote_tool(command, "--server", "away", cwd=away).returncode == 4


@pytest.mark.row(128)
def test_tail_shows_exact_bytes_and_says_how_the_job_ended(project: Path) -> None:
    job = start(project, "printf 'a\\n\\tb'; echo warning >&2; exit 3")
    shown = remote_tool("job-tail", "--job", job.id[:30], cwd=project)
    assert (shown.returncode, shown.stdout) == (0, "a\n\tb")
    assert shown.stderr == f"warning\njob {job.key} on first: failed, exit code 3\n"


def test_tail_says_which_job_it_shows_when_none_is_running(project: Path) -> None:
    job = start(project, "echo done", "alone", MASTER_TAG)
    Workspace.find(project).wait_jobs(JobSelection(jobs=(job.id,)), timeout=300)
    shown = remote_tool("job-tail", "--tag", "alone", cwd=project)
    assert (shown.returncode, shown.stdout) == (0, "done\n")
    assert shown.stderr.splitlines()[0] == f"no selected job is running; showing the last launch, job {job.key}"


def test_tail_begins_with_the_last_lines_and_can_leave_at_once(project: Path) -> None:
    job = start(project, "seq 1 1000; sleep 1000")
    words = ("job-tail", "--job", str(job.key), "--lines", "2", "--no-follow")
    while (shown := remote_tool(*words, cwd=project)).stdout != "999\n1000\n":
        assert shown.returncode == 0, shown.stderr
    assert shown.stderr == f"job {job.key} on first: running\n"
    kill(project, job)


@pytest.mark.row(101)
def test_tail_of_several_jobs_labels_whole_lines(project: Path) -> None:
    jobs = [start(project, f"printf 'on {name}'", server=name) for name in ("first", "second")]
    chosen = [f"--job={job.id}" for job in jobs]
    shown = remote_tool("job-tail", *chosen, cwd=project)
    assert {line.split(" ", 1)[0]: line.partition("| ")[2] for line in shown.stdout.splitlines()} == {
        "first": "on first",
        "second": "on second",
    }
    twin = start(project, "echo twin")
    shown = remote_tool("job-tail", chosen[0], "--job", twin.id, cwd=project)
    assert {line.split(" ", 1)[0]: line.partition("| ")[2] for line in shown.stdout.splitlines()} == {
        f"first#{jobs[0].key}": "on first",
        f"first#{twin.key}": "twin",
    }


@pytest.mark.row(129)
def test_following_a_start_ends_as_the_job_does(project: Path) -> None:
    words = ("job-run", "--server", "first", "--follow", "--no-sync", "--cmd")
    failed = remote_tool(*words, "echo out; exit 7", cwd=project)
    assert (failed.returncode, failed.stdout) == (7, "out\n")
    assert failed.stderr.splitlines()[-1].endswith(" on first: failed, exit code 7")
    killed = remote_tool(*words, "kill -SEGV $$", cwd=project)
    assert killed.returncode == 139
    assert killed.stderr.splitlines()[-1].endswith(" on first: failed, ended by SIGSEGV")


def test_where_nothing_was_started_nothing_is_followed(away: Path) -> None:
    Workspace.find(away).start("first", "echo of another", sync=False).wait()
    refused = remote_tool("job-run", "--server", "away", "--follow", "--cmd", "true", cwd=away)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.startswith("error: away: 127.0.0.1:1 refused")


@pytest.mark.parametrize("command", ["helper-torch-launch", "helper-mpi-launch", "helper-ray-launch"])
def test_a_launch_that_a_server_fails_prints_its_document_too(command: str, project: Path, away: Path) -> None:
    shutil.copytree(project, away, ignore=shutil.ignore_patterns(".remote"), dirs_exist_ok=True)
    for options, status in (((), 3), (("--no-sync",), 3), (("--server", "away"), 4)):
        refused = remote_tool(command, "--cmd", "hello.py", "--json", *options, cwd=away)
        document = json.loads(refused.stdout)
        assert (refused.returncode, document["jobs"]) == (status, [])
        assert [each["server"] for each in document["errors"]] == ["away"]


@pytest.mark.parametrize(
    "words", ["job-kill --job 1 --grace inf", "job-kill --orphans --grace inf", "job-rsync --delay inf"]
)
def test_a_time_without_end_is_refused(words: str, tmp_path: Path) -> None:
    refused = remote_tool(*words.split(), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(r"--(grace|delay) must be a number from 0 to \d+, found 'inf'\n", refused.stderr)


def test_following_as_json_is_refused(project: Path) -> None:
    refused = remote_tool("job-run", "--cmd", "true", "--json", "--follow", cwd=project)
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["errors"][0]["message"] == "--json and --follow both write to stdout"
    assert refused.stderr.startswith("error: --json and --follow both write to stdout\nhint: ")


@pytest.mark.row(127)
def test_nothing_is_killed_without_a_selection_when_nobody_can_be_asked(project: Path) -> None:
    job = start(project, "sleep 1000")
    for words in (["job-kill"], ["job-kill", "--yes"]):
        refused = remote_tool(*words, cwd=project)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith("error: No job is selected, so none was stopped\nhint: --job KEY")
    typo = remote_tool("job-kill", "--tag", "swep", cwd=project)
    assert typo.returncode == 2
    assert len(processes_of(job.id)) >= 1
    kill(project, job)
    assert processes_of(job.id) == []


@pytest.mark.row(127)
def test_kill_asks_which_on_a_terminal_and_no_means_no(project: Path) -> None:
    job, other = start(project, "sleep 1000"), start(project, "sleep 1001")
    with Terminal("job-kill", "--grace", "0", cwd=project) as terminal:
        terminal.until("Jobs to stop (keys, or all): ")
        assert re.search(rf"(?m)^ *{job.key} +first +running", terminal.text)
        terminal.type(f"{job.key}\n")
        terminal.until(f"Stop {job.key} (sleep 1000)? [y/N]: ")
        terminal.type("\n")
        assert terminal.end() == 1
        assert terminal.text.endswith("nothing was stopped\n")
    with Terminal("job-kill", "--grace", "0", cwd=project) as terminal:
        terminal.until("Jobs to stop (keys, or all): ")
        terminal.type(f"{job.key}\n")
        terminal.until("[y/N]: ")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert processes_of(job.id) == []
    assert len(processes_of(other.id)) >= 1
    kill(project, other)


def test_kill_names_the_servers_that_it_could_not_ask(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text("servers: {away: {hostname: 127.0.0.1, port: 1}}\nname: p")
    with Terminal("job-kill", cwd=tmp_path) as terminal:
        assert terminal.end() == 4
        assert "error: away: 127.0.0.1:1 refused the connection\n" in terminal.text
        assert "No job is running" not in terminal.text


@pytest.mark.parametrize(("text", "name"), [("SIGKILL", "SIGKILL"), ("kill", "SIGKILL"), ("15", "SIGTERM")])
def test_a_signal_is_a_name_or_a_number(text: str, name: str) -> None:
    assert signal_name(text) == name


@pytest.mark.parametrize("text", ["", "0", "SIG", "STOPP", "999"])
def test_an_unknown_signal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a signal"):
        signal_name(text)


def test_waiting_longer_than_the_timeout_is_a_failure(project: Path) -> None:
    job = start(project, "sleep 1000")
    late = remote_tool("job-wait", "--job", job.id, "--timeout", "0.2", "--json", cwd=project)
    (waited,) = json.loads(late.stdout)["jobs"]
    assert (late.returncode, waited["id"], waited["state"]) == (1, job.id, "running")
    assert late.stderr == f"error: Still running after 0.2 s: job {job.key}\nhint: remote-tool job-tail\n"
    kill(project, job)


def test_logs_come_home_again_and_again_until_ctrl_c(project: Path) -> None:
    job = start(project, "echo one; sleep 1000")
    once = remote_tool("job-rsync", "--server", "first", cwd=project)
    # Artifacts of other tests' jobs may come along.
    told = once.stderr.splitlines()[-1]
    assert re.fullmatch(rf"fetched logs of \d+ jobs? into {re.escape(str(project))}/.remote/jobs", told)
    with Terminal("job-rsync", "--delay", "0.05", cwd=project) as terminal:
        terminal.until("logs of ", times=2)
        terminal.type("\x03")
        assert terminal.end() == 130
    log = project / ".remote" / "jobs" / job.id / "job.out"
    until(lambda: remote_tool("job-rsync", cwd=project).returncode == 0 and log.read_bytes() == b"one\n")
    kill(project, job)


def test_the_shell_is_offered_jobs_and_tags(project: Path) -> None:
    job = start(project, "true", "a-tag-of-its-own")
    for words, value in ((f"--job {job.key}", str(job.key)), ("--tag a-tag", "a-tag-of-its-own")):
        shown = subprocess.run(
            [sys.executable, "-m", "remote_tool"],
            cwd=project,
            check=False,
            capture_output=True,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "_REMOTE_TOOL_COMPLETE": "complete_bash",
                "COMP_WORDS": f"remote-tool job-kill {words}",
                "COMP_CWORD": "3",
            },
        )
        assert value in shown.stdout.split()


def test_a_plan_is_shown_and_nothing_started(project: Path) -> None:
    words = ("helper-torch-launch", "--cmd", "hello.py --lr 0.1", "--nproc-per-node", "2", "--dry-run")
    shown = remote_tool(*words, cwd=project)
    assert shown.returncode == 0, shown.stderr
    first, *rest = shown.stdout.splitlines()
    assert re.fullmatch(r"world size 4, rendezvous \S+:\d+", first)
    assert [line.split(",")[0] for line in rest[::2]] == ["first: node rank 0", "second: node rank 1"]
    assert all(line.endswith(" hello.py --lr 0.1") for line in rest[1::2])
    plan = json.loads(remote_tool(*words, "--json", cwd=project).stdout)
    assert [node["node_rank"] for node in plan["nodes"]] == [0, 1]
    jobs = json.loads(remote_tool("job-list", "--stopped", "--json", cwd=project).stdout)["jobs"]
    assert not any("hello.py --lr" in job["command"] for job in jobs)


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5", "²"])
def test_a_number_of_processes_that_cannot_be_is_refused(number: str, project: Path) -> None:
    refused = remote_tool("helper-torch-launch", "--cmd", "x.py", f"--nproc-per-node={number}", cwd=project)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: --nproc-per-node must be ")


@pytest.mark.row(126)
def test_jobs_of_a_server_that_was_removed_are_listed_and_a_stop_says_why_it_cannot(away: Path) -> None:
    job = Job(0, new_job_id(), "removed", "python train.py", JobState.RUNNING, created_at=time.time())
    Registry(away / ".remote" / "jobs").adopt([job])
    assert "python train.py" in remote_tool("job-list", cwd=away).stdout
    stopped = remote_tool("job-kill", "--job", job.id, "--yes", cwd=away)
    assert stopped.returncode != 0
    assert "error: removed is no longer in the configuration" in stopped.stderr


@pytest.mark.row(71)
def test_every_sending_command_gives_notice_of_changes_under_a_running_job(project: Path) -> None:
    """As a line for people and in the document for programs."""

    def send(*words: str) -> tuple[dict[str, Any], str]:
        (project / "changed.py").write_text(f"x = {time.monotonic()}\n")
        ended = remote_tool(*words, "--json", cwd=project)
        assert ended.returncode == 0
        return json.loads(ended.stdout), ended.stderr

    first, _ = send("job-run", "--server", "first", "--cmd", "sleep 100")
    job_id, named = first["jobs"][0]["id"], f"(job {first['jobs'][0]['key']})"
    try:
        for words in (
            ("job-run", "--server", "first", "--cmd", "true"),
            ("rsync", "--server", "first"),
            ("prepare", "--server", "first"),
        ):
            document, said = send(*words)
            (warning,) = document["warnings"] if "jobs" in document else document["servers"][0]["warnings"]
            assert named in (warning["message"] if isinstance(warning, dict) else warning)
            assert named in said
    finally:
        Workspace.find(project).stop_jobs(JobSelection(jobs=(job_id,)), signal="SIGKILL")
        # Other tests share this project, and find it as it was.
        (project / "changed.py").unlink()
        Workspace.find(project).prepare()


@pytest.mark.row(154)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tag", "x" * 1025], "--tag 'xxxxxxxxxxxxxxxxxxxx'… has 1,025 characters; at most 1,024 are possible"),
        (["--tag", "x"] * 101, "--tag is given 101 times; at most "),
        (["--env", "NAME", "x" * 131_067], "--env NAME has 131,072 bytes with its name; at most 131,071 are possible"),
        (["--env", "REMOTE_TOOL_JOB_ID", "x"], "--env REMOTE_TOOL_JOB_ID is set by remote-tool"),
        ([word for n in range(101) for word in ("--artifact", f"{n}.pt")], "at most 100 globs, found 101"),
    ],
    ids=["a long tag", "many tags", "a long variable", "a variable of ours", "many globs"],
)
@pytest.mark.parametrize("command", ["job-run", "helper-torch-launch", "helper-fan-out"])
def test_more_than_a_job_may_have_is_refused_before_anything_is_recorded_or_sent(
    command: str, words: list[str], said: str, tmp_path: Path
) -> None:
    """The server cannot even be reached."""
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text("servers: {away: {hostname: 127.0.0.1, port: 1}}\nname: p")
    ended = remote_tool(command, "--cmd", "hello.py", *words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert "xxxxxxxxxxxxxxxxxxxxx" not in ended.stderr
    assert not (tmp_path / ".remote" / "jobs").exists()


def test_options_of_labml_remote_are_taken(project: Path) -> None:
    started = start(project, "echo begun; sleep 1000")
    key = str(started.key)
    until(lambda: remote_tool("job-tail", key, "--delay", "0", cwd=project).stdout == "begun\n")
    kill(project, started)
    tailed = remote_tool("job-tail", key, "--delay", "5", cwd=project)
    assert (tailed.stdout, tailed.returncode) == ("begun\n", 0), tailed.stderr
    synced = remote_tool("job-rsync", "--delay", "0", "--show-output", cwd=project)
    assert synced.returncode == 0, synced.stderr
    words = ("helper-torch-launch", "--python-cmd", "hello.py", "--nproc-per-node", "2", "--use-env", "--dry-run")
    planned = remote_tool(*words, cwd=project)
    assert (planned.returncode, "hello.py" in planned.stdout) == (0, True), planned.stderr


def test_a_list_shows_the_name_the_progress_and_the_note_of_a_job(project: Path) -> None:
    words = (
        "--server",
        "first",
        "--no-sync",
        "--name",
        "warm up",
        "--json",
        "--cmd",
        "echo step 3/10 loss 0.5; sleep 600",
    )
    (started,) = json.loads(remote_tool("job-run", *words, cwd=project).stdout)["jobs"]
    job, key = Registry(project / ".remote" / "jobs").find([started["id"]])[started["id"]], str(started["key"])
    until(lambda: (listed(project, job) or {})["values"] == {"step": "3/10", "loss": "0.5"})
    noted = remote_tool("job-note", key, "lr too high", cwd=project)
    assert (noted.returncode, noted.stderr) == (0, f"job {key}: note saved\n")
    fields = ("name", "note", "values")
    shown = listed(project, job, "--rsync")
    assert shown
    assert [shown[name] for name in fields] == ["warm up", "lr too high", {"step": "3/10", "loss": "0.5"}]
    header, row = remote_tool("job-list", cwd=project).stdout.splitlines()
    for name, value in (("NAME", "warm up"), ("VALUES", "step=3/10,loss=0.5"), ("NOTE", "lr too high")):
        assert row.index(value) == header.index(name)
    assert remote_tool("job-kill", key, cwd=project).returncode == 0
    ended = listed(project, job, "--stopped")
    assert ended
    assert [ended[name] for name in fields] == [shown[name] for name in fields]
    assert remote_tool("job-note", key, "", cwd=project).stderr == f"job {key}: note removed\n"
    assert "NOTE" not in remote_tool("job-list", "--stopped", cwd=project).stdout


def test_a_bad_note_or_name_is_refused(project: Path) -> None:
    none = remote_tool("job-note", "99", "text", cwd=project)
    assert (none.returncode, none.stderr.splitlines()[0]) == (2, "error: No job '99'")
    for words in (["job-note", "99", "a\nb"], ["job-run", "--name", "x" * 81, "--", "true"]):
        refused = remote_tool(*words, cwd=project)
        assert (refused.returncode, refused.stderr.splitlines()[0][:7]) == (2, "error: ")
        assert "must be one line of at most" in refused.stderr
