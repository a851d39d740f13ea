"""Files that a job writes come home: those that are wanted, whole, and no others."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, RunningJob, StartRequest, Workspace
from remote_tool.config.artifacts import ArtifactLimit
from remote_tool.errors import ConnectError, JobError, RemoteToolError, UsageError
from remote_tool.jobs.artifacts import ArtifactFolder, RemoteFile, Stamp
from remote_tool.jobs.job import new_job_id
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.workflows.artifacts import pull as artifacts
from remote_tool.workflows.artifacts import transfer as transfers
from remote_tool.workflows.artifacts.limits import DiskBudget, Quota
from remote_tool.workflows.artifacts.listing import ArtifactListing
from remote_tool.workflows.artifacts.transfer import Transfer
from remote_tool.workflows.events import Notice
from remote_tool.workspace import Hooks
from tests.below import files_below
from tests.extended.workflows.jobs.test_jobs import until
from tests.project import make_project
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from remote_tool.workflows.artifacts.answer import PulledJob
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

MEBIBYTE = 1 << 20
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"


class Desk:
    """A laptop's workspace, and a job that waits for what the test does in its name.

    Attributes:
        folder: Of this test alone, in the project on the server.
    """

    def __init__(self, workspace: Workspace, server: TestServer) -> None:
        self.told: list[str] = []
        self.workspace = Workspace(workspace.config, Hooks(report=self._hear))
        self.server = server
        self.name = new_job_id()
        self.folder = server.home / "project" / self.name
        self.jobs: list[RunningJob] = []

    def start(self, command: str = "", *globs: str | ArtifactPattern) -> RunningJob:
        """Start a job that goes on until it is told to end; globs begin in the folder of this test."""
        here = [
            f"{self.name}/{each}" if isinstance(each, str) else ArtifactPattern(f"{self.name}/{each.glob}", each.newest)
            for each in globs
        ]
        wait = "touch begun; until test -e end; do sleep 0.05; done"
        command = f"mkdir -p {self.name}; cd {self.name}; {command or ':'}; {wait}"
        self.jobs.append(self.workspace.start(self.server.name, command, sync=False, artifacts=here))
        until((self.folder / "begun").exists)
        return self.jobs[-1]

    def end(self) -> None:
        """Let the jobs end."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "end").touch()
        for job in self.jobs:
            self.workspace.wait_jobs(by_id(job), timeout=300)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file as the job would."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def pull(self, job: RunningJob, *globs: str) -> PulledJob:
        here = [f"{self.name}/{each}" for each in globs]
        (pulled,) = self.workspace.pull_jobs(by_id(job), here).jobs
        return pulled

    def here(self, job: RunningJob) -> dict[str, bytes]:
        """What is here of a job's files, by name."""
        home = self.workspace.config.local.job(job.id) / "artifacts" / self.name
        return {str(path.relative_to(home)): path.read_bytes() for path in files_below(home)}

    def parts(self, job: RunningJob) -> list[Path]:
        """What is here of files that are not whole."""
        return list(files_below(self.workspace.config.local.job(job.id) / "artifacts" / ".remote-tool" / "partial"))

    def _hear(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.told.append(event.text)


def by_id(*jobs: RunningJob) -> JobSelection:
    return JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)


def names(files: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Reasons by the last part of a name."""
    return {name.rpartition("/")[2]: why for name, why in files}


@pytest.fixture
def desk(workspace: Workspace, shared_servers: tuple[TestServer, TestServer]) -> Iterator[Desk]:
    made = Desk(workspace, shared_servers[0])
    yield made
    made.end()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """What is called with the number of bytes that have come, while they come."""
    listeners: list[Callable[[int], None]] = []
    count = transfers._Meter.count

    def counted(self: Any, name: str, size: int) -> None:
        count(self, name, size)
        for listener in listeners:
            listener(self.received)

    monkeypatch.setattr(transfers._Meter, "count", counted)
    return listeners


def test_what_jobs_wrote_is_here_when_they_have_ended_and_somebody_waited(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    """On both servers, each in the folder of its job; what was there before stays where it is."""
    name = new_job_id()
    for server in shared_servers:
        (server.home / "project" / name).mkdir()
        (server.home / "project" / name / "old.pt").write_bytes(b"of another job")
    command = f"mkdir -p {name}/in && echo $REMOTE_TOOL_SERVER > {name}/in/model.pt && touch {name}/other.txt"
    jobs = [
        workspace.start(server, command, sync=False, artifacts=[f"{name}/**/*.pt"]) for server in ("first", "second")
    ]
    workspace.wait_jobs(by_id(*jobs), timeout=300).raise_if_any_failed()
    for job in jobs:
        home = workspace.config.local.job(job.id) / "artifacts"
        (path,) = [path for path in files_below(home) if ".remote-tool" not in path.parts]
        assert (path.relative_to(home).as_posix(), path.read_text()) == (f"{name}/in/model.pt", f"{job.job.server}\n")
        assert path.stat().st_mode & 0o777 == 0o600
    assert all(job.artifacts_complete for job in workspace.select_local(by_id(*jobs)))


def test_a_job_that_runs_is_pulled_from_and_what_it_replaces_is_replaced_here(desk: Desk) -> None:
    job = desk.start("", "last.pt", "*.onnx")
    desk.write("last.pt", b"one")
    assert [file.name for file in desk.pull(job).files] == [f"{desk.name}/last.pt"]
    desk.write("new.pt", b"two").replace(desk.folder / "last.pt")
    desk.write("model.onnx", b"model")
    assert [file.is_new for file in desk.pull(job).files] == [True, True]
    assert desk.here(job) == {"last.pt": b"two", "model.onnx": b"model"}
    assert [file.is_new for file in desk.pull(job).files] == [False, False]
    assert not desk.workspace.select_local(by_id(job))[0].artifacts_complete


def test_the_logs_of_all_jobs_bring_their_artifacts_along(desk: Desk) -> None:
    job = desk.start("echo model > model.pt", "*.pt")
    desk.workspace.pull_logs(by_id(job)).raise_if_any_failed()
    assert desk.here(job) == {"model.pt": b"model\n"}


def test_the_api_returns_where_the_files_are(desk: Desk) -> None:
    job = desk.start("echo a > a.pt; echo b > b.txt", "*.pt")
    home = desk.workspace.config.local.job(job.id) / "artifacts" / desk.name
    assert job.pull() == [home / "a.pt"]
    assert job.pull(f"{desk.name}/*.txt") == [home / "b.txt"]
    assert job.pull() == [home / "a.pt"]
    without = desk.workspace.start("first", "true", sync=False)
    with pytest.raises(UsageError, match="No selected job has artifacts") as refused:
        without.pull()
    assert refused.value.hint == f"remote-tool job-pull {without.job.key} --artifact 'checkpoints/*.pt'"


def test_only_the_newest_are_here_and_what_was_pulled_by_hand_stays(desk: Desk) -> None:
    job = desk.start("", ArtifactPattern("*.pt", 2))
    for number in range(4):
        os.utime(desk.write(f"{number}.pt", b"%d" % number), (2e9 + number, 2e9 + number))
    desk.pull(job)
    assert set(desk.here(job)) == {"2.pt", "3.pt"}
    desk.pull(job, "0.pt", "2.pt")
    os.utime(desk.write("4.pt", b"4"), (2e9 + 4, 2e9 + 4))
    desk.pull(job)
    assert set(desk.here(job)) == {"0.pt", "2.pt", "3.pt", "4.pt"}
    os.utime(desk.write("5.pt", b"5"), (2e9 + 5, 2e9 + 5))
    desk.pull(job)
    assert set(desk.here(job)) == {"0.pt", "2.pt", "4.pt", "5.pt"}


def test_what_is_gone_from_the_server_stays_here_without_newer_files(desk: Desk) -> None:
    job = desk.start("", ArtifactPattern("*.pt", 2))
    for number in range(2):
        desk.write(f"{number}.pt", b"%d" % number)
    desk.pull(job)
    (desk.folder / "0.pt").unlink()
    (desk.folder / "1.pt").unlink()
    desk.write("2.pt", b"2")
    desk.pull(job)
    assert set(desk.here(job)) == {"1.pt", "2.pt"}


def test_the_newest_of_whole_folders_come_with_all_that_is_in_them(desk: Desk) -> None:
    job = desk.start("", ArtifactPattern("run-*/", 1))
    for number in range(3):
        for name in ("model.safetensors", "in/state.json"):
            os.utime(desk.write(f"run-{number}/{name}", b"x"), (2e9 + number, 2e9 + number))
    desk.pull(job)
    assert set(desk.here(job)) == {"run-2/model.safetensors", "run-2/in/state.json"}


@pytest.mark.row(109)
def test_secrets_links_sent_files_and_what_is_ours_stay_where_they_are(desk: Desk, tmp_path: Path) -> None:
    """Whatever the globs say, and though the job has written them."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "passwd").write_text("secret")
    (tmp_path / "private").write_text("secret")
    for name in ("sent.txt", "results.csv"):
        (desk.workspace.config.local.root / name).write_text("sent")
    desk.workspace.rsync().raise_if_any_failed()
    job = desk.start(f"ln -s {tmp_path}/private link.pt; ln -s {tmp_path}/outside folder; mkfifo pipe", "**", ".*")
    (desk.server.home / "project" / "results.csv").write_text("changed by the job")
    for name in (".env", "in/.env.local", "id_rsa", ".git/config", ".ssh/known_hosts", "in/.remote-scripts/x"):
        desk.write(name, b"secret")
    (desk.folder / "shared.txt").write_text(KEY)
    desk.write("good.pt", b"good")
    pulled = desk.pull(job, "**", ".*", "**/.*", ".ssh/*", "in/.remote-scripts/*", "folder/*", ".git/*")
    pulled_all = desk.workspace.pull_jobs(
        by_id(job), ["**", ".jobs/**/*", ".remote-scripts/*", "sent.txt", "*.csv"]
    ).jobs[0]
    assert {file.name.rpartition("/")[2] for file in (*pulled.files, *pulled_all.files)} >= {
        "good.pt",
        "begun",
        "results.csv",
    }
    root = desk.workspace.config.local.job(job.id) / "artifacts"
    here = {path.name for path in files_below(root)} - {"lock"}
    assert not here & {"link.pt", "passwd", ".env", ".env.local", "id_rsa", "config", "known_hosts", "x", "sent.txt"}
    assert not here & {"shared.txt", "spec.json", "job.out", "activation.json", "pipe"}
    reasons = names(pulled.left_out)
    assert reasons["shared.txt"] == "it is a private key"
    assert reasons["id_rsa"].endswith("is a private key")
    assert reasons[".env"].endswith("may contain secrets")


@pytest.mark.row(145)
def test_of_two_jobs_at_once_each_brings_its_own_home_or_says_that_nobody_knows(desk: Desk) -> None:
    """A path with the id of a job is that job's; the newest of one are not those of the other."""
    jobs = [desk.start("", ArtifactPattern("$REMOTE_TOOL_JOB_ID/*.pt", 1), ArtifactPattern("*.pt", 1)) for _ in "ab"]
    for job in jobs:
        desk.write(f"{job.id}/own.pt", job.id.encode())
    for job in jobs:
        assert [file.name for file in desk.pull(job).files] == [f"{desk.name}/{job.id}/own.pt"]
    assert not any("may have written" in told for told in desk.told)
    desk.write("any.pt", b"x")
    for job in jobs:
        desk.pull(job)
        assert desk.here(job) == {f"{job.id}/own.pt": job.id.encode(), "any.pt": b"x"}
    text = f"may have written 1 of these files, such as {desk.name}/any.pt; to keep them apart"
    assert sum(text in told for told in desk.told) == 2


def test_what_another_job_writes_after_the_end_is_not_of_this_one(desk: Desk) -> None:
    job = desk.start("echo mine > mine.pt", "*.pt")
    desk.end()
    desk.write("theirs.pt", b"theirs")
    assert [file.name for file in desk.pull(job).files] == [f"{desk.name}/mine.pt"]


def test_names_that_no_terminal_or_disk_should_have_are_left_out(desk: Desk) -> None:
    job = desk.start("", "*")
    for name in ("new\nline", "\x1b[2J", "A.pt", "a.PT"):
        desk.write(name, b"x")
    (Path(os.fsdecode(os.fsencode(desk.folder) + b"/\xff"))).write_bytes(b"x")
    pulled = desk.pull(job)
    assert set(desk.here(job)) == {"A.pt", "begun"}
    assert sorted(why for _, why in pulled.left_out) == [
        f"its name differs from {desk.name}/A.pt only in case",
        *["its name has characters that cannot be printed"] * 3,
    ]


@pytest.mark.usefixtures("shared_project")
def test_files_that_are_too_large_stay_and_are_named(
    shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    root = make_project(tmp_path / "here", shared_servers, artifact_limit={"file": "1MB", "job": "1500KB"})
    desk = Desk(Workspace.find(root), shared_servers[0])
    job = desk.start("", "*.pt")
    for name, size in (("a.pt", 1000), ("b.pt", 2000), ("c.pt", 700), ("d.pt", 100)):
        desk.write(name, b"x" * size * 1024)
    pulled = desk.pull(job)
    desk.end()
    assert set(desk.here(job)) == {"a.pt", "d.pt"}
    reasons = names(pulled.left_out)
    assert reasons["b.pt"] == "it has 2.0 MiB; artifact_limit allows 1.0 MiB per file"
    assert reasons["c.pt"] == "its 700.0 KiB would exceed the 1.5 MiB per job that artifact_limit allows"
    assert any("b.pt was not pulled: it has 2.0 MiB" in text for text in desk.told)
    assert desk.workspace.select_local(by_id(job))[0].artifacts_complete


def test_a_pull_resumes_where_the_link_broke(desk: Desk, heard: list[Callable[[int], None]]) -> None:
    """Over new connections, with no byte twice."""
    data = os.urandom(24 * MEBIBYTE)
    job = desk.start("", "*.pt")
    desk.write("big.pt", data)
    cuts = [18 * MEBIBYTE, 6 * MEBIBYTE]
    received = 0

    def cut(count: int) -> None:
        nonlocal received
        received = count
        if cuts and count > cuts[-1]:
            cuts.pop()
            desk.server.drop_connections()

    heard.append(cut)
    desk.pull(job)
    assert desk.here(job)["big.pt"] == data
    assert not cuts
    assert received == len(data)
    assert not desk.parts(job)


class StoppedError(RemoteToolError):
    """A test has seen enough."""


def break_off(desk: Desk, heard: list[Callable[[int], None]], job: RunningJob, at: int) -> Path:
    """Begin a pull and end it in the middle; return what is left of the file here."""

    def stop(count: int) -> None:
        if count > at:
            raise StoppedError("stop")

    heard.append(stop)
    with pytest.raises(StoppedError):
        desk.pull(job)
    heard.pop()
    (part,) = desk.parts(job)
    assert at < part.stat().st_size < 8 * MEBIBYTE
    assert desk.here(job) == {}
    return part


@pytest.mark.parametrize("damage", ["none", "a flipped bit", "other bytes on the server", "longer than the file"])
def test_the_next_pull_goes_on_with_just_what_is_a_part_of_the_file(
    desk: Desk, heard: list[Callable[[int], None]], damage: str
) -> None:
    data = os.urandom(8 * MEBIBYTE)
    job = desk.start("", "*.pt")
    path = desk.write("big.pt", data)
    part = break_off(desk, heard, job, 3 * MEBIBYTE)
    if damage == "a flipped bit":
        part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])
    elif damage == "other bytes on the server":
        data = os.urandom(len(data))
        path.write_bytes(data)
    elif damage == "longer than the file":
        part.write_bytes(data + b"more")
    counts: list[int] = []
    heard.append(counts.append)
    desk.pull(job)
    assert desk.here(job)["big.pt"] == data
    assert (counts[-1] < len(data)) == (damage == "none")
    assert not desk.parts(job)


def test_a_file_that_changes_while_it_comes_is_left_for_the_next_time(
    desk: Desk, heard: list[Callable[[int], None]]
) -> None:
    job = desk.start("", "*.pt")
    # More than is on the way at any time: the server is still reading when the first of it is here.
    path = desk.write("big.pt", os.urandom(32 * MEBIBYTE))

    def change(_count: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    heard.append(change)
    pulled = desk.pull(job)
    assert names(pulled.left_out) == {"big.pt": "it kept changing while it was read; the next pull tries again"}
    assert (desk.here(job), desk.parts(job)) == ({}, [])
    heard.clear()
    desk.pull(job)
    assert desk.here(job)["big.pt"] == path.read_bytes()


def test_a_file_that_grew_since_it_was_listed_comes_as_it_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = desk.start("", "*.log")
    path = desk.write("metrics.log", b"1\n")
    fetch = transfers.fetch_files

    async def fetch_later(*arguments: Any) -> None:
        path.write_bytes(b"1\n2\n")
        await fetch(*arguments)

    monkeypatch.setattr(artifacts, "fetch_files", fetch_later)
    desk.pull(job)
    assert desk.here(job)["metrics.log"] == b"1\n2\n"


@pytest.mark.row(76)
@pytest.mark.usefixtures("shared_project")
def test_what_files_grow_by_after_the_list_counts_too(
    shared_servers: tuple[TestServer, TestServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server could list a thousand empty files and send as many large ones."""
    root = make_project(tmp_path / "here", shared_servers, artifact_limit={"file": "1MB", "job": "1500KB"})
    desk = Desk(Workspace.find(root), shared_servers[0])
    job = desk.start("", "*.pt")
    paths = [desk.write(name, b"") for name in ("a.pt", "b.pt", "c.pt")]
    fetch = transfers.fetch_files

    async def fetch_later(*arguments: Any) -> None:
        for path, size in zip(paths, (2000, 1000, 1000), strict=True):
            path.write_bytes(b"x" * size * 1024)
        await fetch(*arguments)

    monkeypatch.setattr(artifacts, "fetch_files", fetch_later)
    with pytest.raises(JobError, match=r"c\.pt grew during the pull, beyond artifact_limit"):
        desk.pull(job)
    assert set(desk.here(job)) <= {"b.pt"}
    monkeypatch.undo()
    assert set(names(desk.pull(job).left_out)) == {"a.pt", "c.pt"}
    assert set(desk.here(job)) == {"b.pt"}
    desk.end()


@pytest.mark.row(76)
def test_what_a_file_may_grow_by_is_what_the_limits_and_the_disk_have_left(tmp_path: Path) -> None:
    room = DiskBudget(tmp_path)
    allowance = Quota(ArtifactLimit(file=50, job=100), room)
    allowance.used, room.left = 40, 30
    assert [allowance.most(size) for size in (0, 10, 30, 60)] == [30, 40, 50, 60]
    assert allowance.grow(20)
    assert (allowance.used, room.left) == (60, 10)
    assert not allowance.grow(11), "the disk"
    room.left = 1000
    assert not allowance.grow(41), "the job"
    assert allowance.most(0) == 40


def test_a_disk_that_takes_no_more_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Such as a quota; the limit of this process stands for it."""
    (folder := ArtifactFolder(tmp_path / "job")).parent.mkdir()
    stamp = [1 << 20, 10**18, 7]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for piece in ({"offset": 4096}, {}):
        file = RemoteFile("model.pt", Stamp(*stamp))
        transfer = Transfer(folder, file, Quota(ArtifactLimit(), DiskBudget(tmp_path)))
        transfer.take({"begin": stamp, "offset": 0}, b"")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        try:
            with pytest.raises(JobError, match=r"Cannot write .*/artifacts/model\.pt: File too large"):
                transfer.take(piece, b"x") if piece else transfer.end("whole")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            transfer.leave()


@pytest.mark.parametrize("gone", [False, True])
def test_an_error_that_may_pass_completes_nothing_and_one_that_stays_does(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    job = desk.start("", "*.pt")
    (desk.folder / "end").touch()
    until(lambda: job.state.is_finished)

    async def fail(_context: Any, _server: str, wanted: Any) -> dict[str, ArtifactListing]:
        listings = {job_id: ArtifactListing() for job_id in wanted}
        for listing in listings.values():
            listing.take({"error": "Input/output error", "gone": gone})
        return listings

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "list_files", fail)
        desk.pull(job)
    assert any("Input/output error" in text for text in desk.told)
    assert desk.workspace.select_local(by_id(job))[0].artifacts_complete is gone


def test_the_holes_of_a_file_take_no_room_and_no_time(desk: Desk, heard: list[Callable[[int], None]]) -> None:
    job = desk.start("", "*.bin")
    path = desk.write("sparse.bin", b"")
    with path.open("r+b") as file:
        file.truncate(4 << 30)
        for offset in (1 << 30, 3 << 30):
            os.pwrite(file.fileno(), b"data", offset)
    if path.stat().st_blocks * 512 > MEBIBYTE * 64:
        pytest.skip("this file system has no holes")
    counts: list[int] = []
    heard.append(counts.append)
    desk.pull(job)
    (here,) = [each for each in files_below(desk.workspace.config.local.job(job.id)) if each.name == "sparse.bin"]
    assert here.stat().st_size == 4 << 30
    assert here.stat().st_blocks * 512 < 64 * MEBIBYTE
    assert counts[-1] < 64 * MEBIBYTE
    with here.open("rb") as file:
        assert [os.pread(file.fileno(), 5, offset) for offset in (1 << 30, 3 << 30)] == [b"data\0"] * 2


def test_many_small_files_come(desk: Desk) -> None:
    job = desk.start("seq 600 | xargs touch", "[0-9]*")
    assert len(desk.pull(job).files) == 600
    assert len(desk.here(job)) == 600


@pytest.mark.usefixtures("shared_project")
def test_without_room_here_nothing_is_begun_and_the_rest_comes(
    shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    root = make_project(tmp_path / "here", shared_servers)
    with small_disk(root / ".remote" / "jobs", "size=80m") as jobs:
        desk = Desk(Workspace.find(root), shared_servers[0])
        job = desk.start("", "*.pt")
        desk.write("large.pt", b"x" * 30 * MEBIBYTE)
        desk.write("small.pt", b"x")
        with pytest.raises(
            JobError, match=r"Not enough disk space in .* for 1 file of first \(30\.0 MiB\), such as .*large\.pt"
        ) as caught:
            desk.pull(job)
        assert caught.value.hint == f"df -h {jobs}"
        assert set(desk.here(job)) == {"small.pt"}
        (desk.folder / "large.pt").unlink()
        desk.end()


def test_one_server_that_is_away_holds_up_no_other(
    shared_servers: tuple[TestServer, TestServer], desk: Desk, tmp_path: Path
) -> None:
    job = desk.start("echo a > a.pt", "*.pt")
    away = Desk(desk.workspace, shared_servers[1])
    other = away.start("", "*.pt")
    root = make_project(tmp_path / "there", shared_servers)
    text = (root / ".remote" / "configs.yaml").read_text()
    there = Workspace.find(root)
    there.list_jobs().raise_if_any_failed()
    (root / ".remote" / "configs.yaml").write_text(text.replace(f"port: {shared_servers[1].port}", "port: 1"))
    answer = Workspace.find(root).pull_jobs(by_id(job, other), check=False)
    away.end()
    assert list(answer.errors) == ["second"]
    assert isinstance(answer.errors["second"], ConnectError)
    assert [file.path.read_bytes() for pulled in answer.jobs for file in pulled.files] == [b"a\n"]
    assert answer.exit_code == 3


@pytest.mark.row(109)
def test_nothing_is_written_through_a_link_that_was_planted_here(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    job_folder = tmp_path / "job"
    (job_folder / "artifacts").mkdir(parents=True)
    folder = ArtifactFolder(job_folder)
    file = RemoteFile("in/model.pt", Stamp(4, 10**18, 7))
    (job_folder / "artifacts" / "in").symlink_to(outside)
    with folder.receiving(file, 0) as arrival:
        arrival.add(0, b"data")
        arrival.complete()
    with pytest.raises(JobError, match="links are not followed"):
        folder.publish(file)
    (job_folder / "artifacts" / "in").unlink()
    (job_folder / "artifacts" / "in").mkdir()
    (job_folder / "artifacts" / "in" / "model.pt").symlink_to(outside / "planted")
    folder.publish(file)
    assert not list(outside.iterdir())
    assert folder.has(file)


@pytest.mark.usefixtures("shared_project")
def test_a_job_carries_which_files_come_home_to_another_laptop(
    shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    own = ("out/*.onnx", ArtifactPattern("checkpoints/*.pt", 2))
    here = Workspace.find(make_project(tmp_path / "here", shared_servers, artifacts=["metrics.json"]))
    jobs = here.start_jobs(StartRequest("true", ("first", "second"), sync=False, artifacts=own)).jobs
    patterns = (ArtifactPattern("metrics.json"), ArtifactPattern("out/*.onnx"), ArtifactPattern("checkpoints/*.pt", 2))
    assert [job.artifacts for job in jobs] == [patterns] * 2
    there = Workspace.find(make_project(tmp_path / "there", shared_servers))
    there.list_jobs()
    adopted = there.select_local(JobSelection(jobs=tuple(job.id for job in jobs)))
    assert [job.artifacts for job in adopted] == [patterns] * 2


@pytest.mark.parametrize("glob", ["../x", "/etc/passwd", "~/x", "", "a\nb", "./"])
def test_a_glob_that_leaves_the_project_is_refused(glob: str) -> None:
    with pytest.raises(UsageError, match="must be a glob inside the project"):
        StartRequest("true", artifacts=(glob,))


@pytest.mark.row(167)
@pytest.mark.slow
def test_artifacts_come_to_the_folder_that_is_configured_and_are_never_sent(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server("first")
    for written, here in {
        "results": tmp_path / "project" / "results",
        "linked": tmp_path / "disk",
        "linked/deep": tmp_path / "disk" / "deep",
        str(tmp_path / "elsewhere"): tmp_path / "elsewhere",
    }.items():
        (tmp_path / "disk").mkdir(exist_ok=True)
        root = make_project(tmp_path / "project", [server], artifacts=["out/*"], artifacts_folder=written)
        if not (root / "linked").is_symlink():
            (root / "linked").symlink_to(tmp_path / "disk")
        workspace = Workspace.find(root)
        workspace.prepare()
        job = workspace.start("first", "mkdir -p out; echo 1 > out/one")
        assert job.wait(300).is_final
        assert [path.relative_to(here) for path in job.pull()] == [Path(job.id, "out", "one")]
        assert (here / job.id / "out" / "one").read_text() == "1\n"
        assert not (workspace.config.local.job(job.id) / "artifacts").exists()
        (pulled,) = workspace.select_local(by_id(job))
        assert pulled.artifacts_complete
        assert workspace.rsync().values["first"].sent == ()
        assert not (server.home / "project" / "results").exists()
        shutil.rmtree(here)


@pytest.mark.row(167)
@pytest.mark.slow
def test_a_pull_goes_to_a_folder_of_ones_choice(
    make_server: MakeServer, tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", [make_server("first")], artifacts=["out/*"]))
    workspace.prepare()
    job = workspace.start("first", "mkdir -p out; echo 1 > out/one")
    assert job.wait(300).is_final
    usual = job.pull()
    monkeypatch.chdir(own_home)
    for _ in range(2):
        assert job.pull(to="~/models") == [own_home / "models" / job.id / "out" / "one"]
    assert job.pull(to="more") == [own_home / "more" / job.id / "out" / "one"]
    assert job.pull() == usual
    (own_home / "file").write_text("")
    for place, problem in {
        str(workspace.root): "is the project",
        "~": "your home folder",
        "/": "your home folder",
        str(workspace.root / "results"): "is inside the project, so the next sync would send it",
        str(workspace.root / ".remote" / "jobs" / job.id): "contains remote-tool's own files",
        str(workspace.root / ".remote"): "contains remote-tool's own files",
        "~/.ssh/keys": "is inside .ssh",
        "file": "is not a folder",
    }.items():
        with pytest.raises(UsageError, match=problem) as caught:
            job.pull(to=place)
        assert caught.value.hint
    with pytest.raises(JobError, match=r"Cannot make the folder .*/not/there: No such file") as failed:
        job.pull(to="not/there")
    assert failed.value.hint == f"mkdir -p {own_home}/not/there"
    assert job.pull(to=workspace.root / ".remote" / "models")[0].is_file()
