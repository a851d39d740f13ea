"""Every kind of job keeps the old promises."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import pytest

from tests.below import contents_below
from tests.processes import is_running, parents, read_of
from tests.project import make_project
from tests.promises.conftest import PATIENCE, Desk, until
from tests.promises.kinds import DIES, FIRST, KINDS, LAUNCH, NAMESPACE, Kind, works
from tests.promises.test_reboot import reboot
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow
# It has no artifacts, as the job before it had none.
AGAIN = "that was run again"
CONFIGURED = "configured-0f3c9a7e51"
TOKEN = "token-7d1b60c2f4"
# It has a session of its own, nothing of the job's environment, and does not listen to SIGTERM.
STUBBORN = (
    "env -i setsid sh -c 'trap \"\" TERM HUP INT; touch {mark}; while [ -e {mark} ]; do sleep 0.2; done' {mark} &"
)


@pytest.fixture(scope="session")
def machines(
    two_machines: dict[str, TestServer], tmp_path_factory: pytest.TempPathFactory, ssh_key: Path
) -> Iterator[dict[str, TestServer]]:
    """Three servers."""
    with TestServer("third", tmp_path_factory.mktemp("machines") / "third", ssh_key) as third:
        yield {**two_machines, "third": third}


def make_office(folder: Path, machines: Mapping[str, TestServer], **settings: object) -> Desk:
    """Prepare a project on three servers; on two of them, commands begin behind a launch command."""
    name = f"p-{os.urandom(4).hex()}"
    desk = Desk(make_project(folder / name, machines.values(), name=name, **settings), machines)
    servers = desk.settings()["servers"]
    servers["second"]["launch"] = LAUNCH
    servers["third"]["launch"] = NAMESPACE
    if not works(f"{NAMESPACE} true"):
        del servers["third"]
    desk.configure(servers=servers)
    for words in (("prepare",), FIRST):
        desk.does(*words, environment={"HOME": str(folder), "SSH_AUTH_SOCK": ""})
    return desk


@pytest.fixture(scope="session")
def office(machines: dict[str, TestServer], tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A project that the tests of one process share."""
    return make_office(tmp_path_factory.mktemp("office"), machines, env={"CONFIGURED": CONFIGURED})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of job that this machine can run."""
    found = KINDS[str(request.param)]
    if not works(found.needs):
        pytest.skip(f"{found.needs} does not work here")
    return found


def going(mark: str) -> list[int]:
    """Return the processes with a mark in their arguments."""
    return [pid for pid in parents() if mark.encode() in read_of(pid, "cmdline") and is_running(pid)]


@pytest.mark.row(6, 16)
def test_the_exit_code_is_real_everywhere_and_nothing_outlives_the_command(
    office: Desk, kind: Kind, tmp_path: Path
) -> None:
    mark = tmp_path / os.urandom(8).hex()
    command = f"{STUBBORN.format(mark=mark)} until [ -e {mark} ]; do sleep 0.05; done; exit 7"
    ran = office.tries(*kind.of(command, *(["--follow"] if kind.follows else [])))
    assert ran.returncode == (kind.follow_status or 7 if kind.follows else 0), ran.stderr
    job = kind.newest(office)
    assert office.tries("job-wait", str(job["key"])).returncode == 7
    job = office.job(job["key"])
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", 7, None)
    assert mark.exists()
    assert going(str(mark)) == []
    assert "Traceback" not in ran.stderr


@pytest.mark.row(1, 2)
def test_a_stop_ends_every_process(office: Desk, kind: Kind, tmp_path: Path) -> None:
    mark = tmp_path / os.urandom(8).hex()
    key = str(kind.start(office, f"{STUBBORN.format(mark=mark)} sleep 1000; sleep 1000")["key"])
    until(mark.exists, "the child has started")
    assert going(str(mark)) != []
    office.does("job-kill", key, "--grace", "0.5", "--yes")
    assert going(str(mark)) == []
    job = office.job(key)
    assert (job["state"], job["exit_code"]) == ("killed", None)
    assert job["signal"] in {"SIGTERM", "SIGKILL"}
    expected = 128 + {"SIGTERM": 15, "SIGKILL": 9}[job["signal"]]
    assert office.tries("job-wait", key).returncode == expected


def test_a_stop_begins_with_the_signal_that_the_job_was_started_with(office: Desk, kind: Kind, tmp_path: Path) -> None:
    said, ready = tmp_path / "said", tmp_path / "ready"
    command = f"trap 'echo INT >> {said}; exit 3' INT; trap 'echo TERM >> {said}' TERM; touch {ready}; "
    command += "while :; do sleep 0.1; done"
    # A job that is run again has its signal from its record.
    options = () if kind.words[0] == "job-rerun" else ("--stop-signal", "SIGINT")
    job = kind.start(office, command, *options)
    until(ready.exists, "the traps")
    office.does("job-kill", str(job["key"]), "--grace", "5", "--yes")
    assert said.read_text() == ("INT\n" if options else "TERM\n")
    assert office.job(job["key"])["stop_signal"] == ("SIGINT" if options else "SIGTERM")


@pytest.mark.row(7, 150)
def test_output_arrives_whole_when_the_link_is_lost_and_a_signal_is_named(
    office: Desk, kind: Kind, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command = f"seq 1 3000; until [ -e {go} ]; do sleep 0.05; done; seq 3001 6000; printf end; {kind.dies}"
    job = kind.start(office, command)
    key = str(job["key"])
    out = tmp_path / "out"
    with out.open("wb") as to, following(office, key, to) as tail:
        until(lambda: "3000" in out.read_text().split(), "the first half")
        office.servers[kind.server].drop_connections()
        go.touch()
        office.servers[kind.server].drop_connections()
        tail.wait(PATIENCE)
    expected = "".join(f"{number}\n" for number in range(1, 6001)) + "end"
    assert plain(office.root / ".remote" / "jobs" / job["id"] / "job.out") == expected
    # Where lines begin with the server's name, the last one ends too.
    assert plain(out) in {expected, f"{expected}\n"}
    assert office.tries("job-wait", key).returncode == 128 + 9
    job = office.job(key)
    died = (None, "SIGKILL") if kind.dies == DIES else (128 + 9, None)
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", *died)


@contextmanager
def following(desk: Desk, key: str, out: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    """Follow a job meanwhile."""
    words = [sys.executable, "-m", "remote_tool", "job-tail", key]
    tail = subprocess.Popen(words, cwd=desk.root, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    try:
        yield tail
    finally:
        tail.kill()
        tail.wait()


def plain(path: Path) -> str:
    """Return output as the command wrote it.

    A terminal ends lines in its own way, those of nodes and shards are named, and a line is between two attempts.
    """
    return re.sub(r"(?m)^(first|0 first) \| |^remote-tool: .*\n", "", path.read_bytes().decode().replace("\r\n", "\n"))


@pytest.mark.row(111)
def test_values_of_variables_are_in_no_file_and_in_no_arguments_and_are_not_said(
    office: Desk, kind: Kind, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    shown = 'printf \'%s %s\' "$TOKEN" "$CONFIGURED" | sha256sum'
    wrong = "printf 'ValueError: %s\\n' \"$TOKEN\" >&2"
    command = f"{shown}; until [ -e {go} ]; do sleep 0.05; done; {wrong}; exit 1"
    with arguments_of_all() as arguments:
        ran = office.tries(*kind.of(command, "--env", "TOKEN", TOKEN), "-vv")
        assert ran.returncode == 0, ran.stderr
        job = kind.newest(office)
        key = str(job["key"])
        output = office.there(kind.server) / ".jobs" / job["id"] / "job.out"
        digest = hashlib.sha256(f"{TOKEN} {CONFIGURED}".encode()).hexdigest()
        until(lambda: digest in output.read_text(), "the job has the variables")
        meanwhile = leaks(office)
        go.touch()
        waited = office.tries("job-wait", key, "-vv")
    said = {"the start": ran.stdout + ran.stderr, "the wait": waited.stdout + waited.stderr}
    said["the list"] = office.does("job-list", "--json", "--stopped")
    said |= {f"arguments: {words}": words for words in arguments}
    assert [name for name, text in said.items() if TOKEN in text or CONFIGURED in text] == []
    assert (meanwhile, leaks(office)) == ([], [])


def leaks(desk: Desk) -> list[str]:
    """Return the files here and on the servers that hold a value, but what the job printed and what the user wrote."""
    folders = [desk.root, *(folder for each in desk.servers.values() for folder in (each.home, each.leases))]
    ours = {"job.out", "job.err", "configs.yaml"}
    found = contents_below(*folders)
    values = (TOKEN.encode(), CONFIGURED.encode())
    said = [path for path, data in found if any(value in data for value in values)]
    return [str(path) for path in said if path.name not in ours and "ranks" not in path.parts]


@contextmanager
def arguments_of_all() -> Iterator[set[str]]:
    """Collect the arguments of all processes meanwhile, but those of the program that was given the values."""
    found: set[str] = set()
    is_over = threading.Event()

    def collect() -> None:
        while not is_over.wait(0.03):
            all_words = {read_of(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace") for pid in parents()}
            found.update(words for words in all_words if f"--env TOKEN {TOKEN}" not in words)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def run_again(desk: Desk) -> None:
    for job in desk.jobs():
        # The program that split the work gives its shards again.
        if not any(tag.startswith("fan-out") for tag in job["tags"]) and not job["node_rank"]:
            desk.does("job-rerun", str(job["key"]))
    until(lambda: all(job["ended_at"] for job in desk.jobs()), "the end of all reruns")


def reboots(desk: Desk) -> None:
    for server in desk.servers:
        reboot(desk, server)
    desk.does("job-list")


def is_renamed(desk: Desk) -> None:
    """Give the project another name, and do what the program says for that."""
    desk.configure(name=f"{desk.settings()['name']}-new")
    said = desk.tries("rsync").stderr
    commands = dict(re.findall(r"remote-tool run --server (\w+) --cmd ('.*')$", said, re.MULTILINE))
    assert set(commands) == set(desk.settings()["servers"]), said
    for server, command in commands.items():
        desk.does("run", "--server", server, "--cmd", shlex.split(command)[0])
    desk.does("prepare")


def is_moved(desk: Desk) -> None:
    desk.root = desk.root.rename(desk.root.with_name("moved"))


def fetch(desk: Desk) -> None:
    desk.does("job-pull")
    pulled = {path.parent.name for path in desk.root.glob(".remote/jobs/*/artifacts/out/*/model.pt")}
    names = list(possible())
    assert [names[int(number)] for number in sorted(pulled, key=int)] == [name for name in names if name != AGAIN]


def is_cleaned(desk: Desk) -> None:
    desk.does("clean", "--yes", "--artifacts")
    # Those of a sweep and a fan-out that can be resumed stay for a while.
    assert [job["key"] for job in desk.jobs() if not job["launch_id"]] == []


def is_cleaned_entirely(desk: Desk) -> None:
    servers = desk.settings()["servers"]
    desk.does("clean", "--all", *(f"--server={name}" for name in servers), "--yes")
    assert [name for name in servers if (desk.there(name) / ".remote-scripts").exists()] == []


# The last of each removes the jobs, and so what is known of their ends.
LATER = {
    "reruns, a reboot, and clean --all": (run_again, reboots, is_cleaned_entirely),
    "a move, another name, and clean": (is_moved, is_renamed, fetch, is_cleaned),
}


@pytest.mark.row(5, 22, 175, 296)
@pytest.mark.parametrize("later", LATER)
def test_what_jobs_wrote_and_how_they_ended_stays_after(
    later: str, machines: dict[str, TestServer], tmp_path: Path
) -> None:
    desk = make_office(tmp_path, machines)
    started = write_with_all(desk, "exit 7")
    kinds = list(started)
    until(lambda: all(job["ended_at"] for job in desk.jobs()), "the end of all")
    *keeping, removing = LATER[later]
    assert kept(desk) == kinds
    assert ends(desk, started) == dict.fromkeys(kinds, ("failed", 7))
    for event in keeping:
        event(desk)
        assert kept(desk) == kinds, event
        assert ends(desk, started) == dict.fromkeys(kinds, ("failed", 7)), event
    removing(desk)
    assert kept(desk) == kinds, removing


@pytest.mark.row(5, 296)
def test_what_jobs_wrote_stays_when_a_reboot_ends_them(machines: dict[str, TestServer], tmp_path: Path) -> None:
    desk = make_office(tmp_path, machines)
    started = write_with_all(desk, f"touch {tmp_path}/{{number}}; sleep 1000; sleep 1000")
    kinds = list(started)
    until(lambda: all((tmp_path / str(number)).exists() for number in range(len(kinds))), "all have written")
    reboots(desk)
    assert ends(desk, started) == dict.fromkeys(kinds, ("lost", None))
    assert kept(desk) == kinds
    desk.does("clean", "--yes")
    assert kept(desk) == kinds


def write_with_all(desk: Desk, then: str) -> dict[str, str]:
    """Start a job of each kind that writes two files; return their ids by kind."""
    (desk.root / "src").mkdir()
    started = {}
    for number, (name, kind) in enumerate(possible().items()):
        # So each frozen job has a copy of its own.
        (desk.root / "src" / "settings.py").write_text(f"NUMBER = {number}\n")
        write = f"mkdir -p out/{number}; echo {number} > out/{number}/model.pt; echo {number} > src/{number}.log"
        options = () if name == AGAIN else ("--artifact", f"out/{number}/*.pt")
        started[name] = kind.start(desk, f"{write}; {then.format(number=number)}", *options)["id"]
    return started


def possible() -> dict[str, Kind]:
    """Return the kinds of jobs that this machine can run."""
    return {name: kind for name, kind in KINDS.items() if works(kind.needs)}


def kept(desk: Desk) -> list[str]:
    """Return the kinds of which all output is in the project's folder of its server."""

    def is_kept(path: Path, number: int) -> bool:
        return path.is_file() and not path.is_symlink() and path.read_text() == f"{number}\n"

    return [
        name
        for number, (name, kind) in enumerate(possible().items())
        if all(
            is_kept(desk.there(kind.server) / place, number)
            for place in (f"out/{number}/model.pt", f"src/{number}.log")
        )
    ]


def ends(desk: Desk, started: Mapping[str, str]) -> dict[str, tuple[str, int | None]]:
    """Return how the jobs ended, by kind."""
    jobs = {job["id"]: job for job in desk.jobs()}
    return {name: (jobs[job_id]["state"], jobs[job_id]["exit_code"]) for name, job_id in started.items()}


TRAINING = """\
import hashlib, os, pathlib, subprocess, sys, time
mark, go = sys.argv[1:]
child = ["sh", "-c", "trap '' TERM HUP INT; touch $0; while [ -e $0 ]; do sleep 0.2; done", mark]
subprocess.Popen(child, env={}, start_new_session=True)
pathlib.Path("out/torch").mkdir(parents=True)
pathlib.Path("out/torch/model.pt").write_text("weights")
print(hashlib.sha256(f"{os.environ['TOKEN']} {os.environ['CONFIGURED']}".encode()).hexdigest())
print(*range(1, 3001), sep="\\n", flush=True)
while not os.path.exists(go):
    time.sleep(0.05)
print(*range(3001, 6001), sep="\\n")
print("end", end="", flush=True)
raise ValueError(f"bad token {os.environ['TOKEN']}")
"""


@pytest.mark.row(1, 111, 150, 159, 296)
def test_a_node_of_torchrun_keeps_all_of_these_promises(office: Desk, tmp_path: Path) -> None:
    (office.root / "train.py").write_text(TRAINING)
    mark, go, out = (tmp_path / name for name in (os.urandom(8).hex(), "go", "tail"))
    launch = Kind(("helper-torch-launch", "--server", "first", "--frozen", "-vv", "--env", "TOKEN", TOKEN))
    with arguments_of_all() as arguments, out.open("wb") as to:
        started = office.tries(*launch.of(f"train.py {mark} {go}"))
        assert started.returncode == 0, started.stderr
        job = launch.newest(office)
        with following(office, str(job["key"]), to) as tail:
            until(lambda: "3000" in out.read_text().split(), "the first half")
            meanwhile = leaks(office)
            office.servers["first"].drop_connections()
            go.touch()
            tail.wait(PATIENCE)
    digest = hashlib.sha256(f"{TOKEN} {CONFIGURED}".encode()).hexdigest()
    expected = "".join(f"{line}\n" for line in [digest, *range(1, 6001)]) + "end"
    (rank,) = (office.root / ".remote" / "jobs" / job["id"] / "ranks").glob("*/0/out")
    assert rank.read_text() == expected
    assert [line.partition(" | ")[2] for line in out.read_text().splitlines()] == expected.splitlines()
    assert office.tries("job-wait", str(job["key"])).returncode == 1
    job = office.job(job["key"])
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", 1, None)
    assert "ValueError: bad token ***" in job["reason"]
    assert (mark.exists(), going(str(mark))) == (True, [])
    assert (office.there() / "out" / "torch" / "model.pt").read_text() == "weights"
    said = [started.stdout, started.stderr, office.does("job-list", "--json", "--stopped"), *arguments]
    assert [text for text in said if TOKEN in text or CONFIGURED in text] == []
    assert (meanwhile, leaks(office)) == ([], [])
