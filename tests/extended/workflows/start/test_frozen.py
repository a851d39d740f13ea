"""Jobs that run in a copy of the project: on a real server, from the start to their artifacts."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, StartRequest, Workspace
from remote_tool.cli.output.json_output import job_as_json
from remote_tool.config.loading import load
from remote_tool.config.model import Snapshots
from remote_tool.launchers.job_request import JobRequest
from remote_tool.workflows import git_state
from remote_tool.workflows.git_state import read_changes
from remote_tool.workflows.start.send import is_frozen
from tests.extended.workflows.test_git_state import git
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tests.conftest import MakeServer

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXktdjEA" * 5 + "\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.row(291)
@pytest.mark.parametrize(
    ("configured", "request_options", "frozen"),
    [
        ("queued", {}, False),
        ("queued", {"gpus": 1}, True),
        ("queued", {"after": ("1",)}, True),
        ("queued", {"frozen": True}, True),
        ("always", {}, True),
        ("always", {"frozen": False}, False),
        ("never", {"gpus": 1}, False),
    ],
)
def test_jobs_that_wait_run_in_copies_unless_configured_otherwise(
    tmp_path: Path, configured: str, request_options: dict[str, object], frozen: bool
) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text(f"name: project\nsnapshots: {configured}\n")
    config = load(tmp_path)
    assert config.snapshots is Snapshots(configured)
    request = StartRequest("true", **request_options)  # type: ignore[arg-type]
    assert isinstance(request, JobRequest)
    assert is_frozen(config, request) is frozen


@pytest.fixture
def place(make_server: MakeServer, tmp_path: Path) -> tuple[Workspace, Path]:
    """A prepared workspace with changes that are not committed, and its folder on the server."""
    server = make_server("first")
    root = make_project(tmp_path / "project", [server])
    (root / "train.py").write_text("print('committed')\n")
    git(root, "init")
    git(root, "add", "train.py")
    git(root, "commit", "-m", "first")
    (root / "train.py").write_text("print('old')\n")
    (root / ".env").write_text("TOKEN=never-sent\n")
    workspace = Workspace.find(root)
    workspace.prepare()
    return workspace, server.home / "project"


@pytest.mark.slow
@pytest.mark.row(291, 296)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_frozen_job_runs_the_code_of_its_start_and_its_files_come_home(place: tuple[Workspace, Path]) -> None:
    workspace, there = place
    wait = "until [ -e ~/go ]; do sleep 0.05; done"
    command = f"{wait}; python train.py; mkdir -p out; echo weights >out/model.pt"
    job = workspace.start("first", command, frozen=True, artifacts=["out/*.pt"])
    (workspace.root / "train.py").write_text("print('new')\n")
    warnings = workspace.rsync().values["first"].warnings
    assert [text for text in warnings if "running" in text] == []
    (there.parent / "go").touch()
    assert job.wait(timeout=120) is JobState.SUCCEEDED
    assert list(job.tail()) == ["old"]
    assert [path.read_text() for path in job.pull()] == ["weights\n"]
    assert (there / "out" / "model.pt").read_text() == "weights\n"
    again = workspace.start("first", "python train.py; cat out/model.pt", frozen=True, from_job=str(job.job.key))
    assert again.wait(timeout=120) is JobState.SUCCEEDED
    assert list(again.tail()) == ["new", "weights"]
    done = remote_tool("clean", "--yes", "--server", "first", cwd=workspace.root)
    assert "copies of the project" in done.stdout
    assert list((there / ".remote-scripts" / "copies").iterdir()) == []


@pytest.mark.slow
@pytest.mark.row(291, 300)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_frozen_job_is_recorded_with_its_copy_and_changes_and_others_are_not(place: tuple[Workspace, Path]) -> None:
    workspace, _ = place
    frozen, usual = workspace.start("first", "true", frozen=True), workspace.start("first", "true")
    for job in (frozen, usual):
        assert job.wait(timeout=120) is JobState.SUCCEEDED
    jobs_folder = workspace.root / ".remote" / "jobs"
    patch = (jobs_folder / frozen.id / "changes.patch").read_text()
    assert ("+print('old')" in patch, "never-sent" in patch) == (True, False)
    assert not (jobs_folder / usual.id / "changes.patch").exists()
    documents = [job_as_json(job, jobs_folder) for job in workspace.known_jobs([frozen.id, usual.id])]
    lengths = [[len(each[key] or "") for key in ("copy", "environment_hash")] for each in documents]
    assert lengths == [[16, 64], [0, 0]]


def everything(names: Collection[bytes]) -> set[bytes]:
    return set(names)


def patch_of(root: Path, *unsent: bytes) -> str:
    return asyncio.run(read_changes(root, lambda names: set(names) - set(unsent))).decode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project with one commit of text, a script, a binary file and a key."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\nprint(2)\n")
    (root / "src" / "a b.py").write_text("x = 1\n")
    (root / "old.py").write_text("former content\n")
    (root / "id.pem").write_text(KEY)
    (root / ".env").write_text("TOKEN=former-secret\n")
    git(root, "init")
    git(root, "add", "-A")
    git(root, "commit", "-m", "first")
    return root


@pytest.mark.row(300)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_patch_makes_the_code_again(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("print(1)\nprint(3)\n")
    (repository / "src" / "a b.py").write_text("x = 2\n")
    (repository / "new.py").write_bytes(b"a\r\nb = 1\n\x0cno newline at the end")
    (repository / "empty.py").write_text("")
    patch = asyncio.run(read_changes(repository, everything))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (tmp_path / "changes.patch").write_bytes(patch)
    git(clone, "apply", str(tmp_path / "changes.patch"))
    for name in ("train.py", "src/a b.py", "new.py", "empty.py"):
        assert (clone / name).read_bytes() == (repository / name).read_bytes()


@pytest.mark.row(300)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_patch_has_nothing_that_is_never_sent(repository: Path) -> None:
    (repository / "train.py").write_text("print(3)\n")
    (repository / "old.py").unlink()
    (repository / ".env").unlink()
    (repository / "id.pem").write_text("it was a key\n")
    (repository / "new-key.txt").write_text(KEY)
    (repository / "excluded.txt").write_text("excluded content\n")
    (repository / "notes").write_bytes(b"binary \0 content")
    (repository / "link").symlink_to("/etc/hostname")
    patch = patch_of(repository, b"excluded.txt")
    assert "+print(3)" in patch
    assert "deleted file mode" in patch
    assert "b/old.py" in patch
    assert "Binary files /dev/null and b/notes differ" in patch
    for secret in (
        "former content",
        "former-secret",
        ".env",
        "PRIVATE KEY",
        "b3Blbn",
        "excluded",
        "hostname",
        "binary",
    ):
        assert secret not in patch


@pytest.mark.row(300)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_file_that_is_not_sent_is_not_in_the_patch(repository: Path) -> None:
    (repository / "train.py").write_text("print(3)\n")
    (repository / ".env").write_text("TOKEN=present-secret\n")
    (repository / "src" / "a b.py").write_text("excluded\n")
    patch = patch_of(repository, b".env", b"src/a b.py")
    assert "+print(3)" in patch
    assert ("secret" in patch, "excluded" in patch) == (False, False)


@pytest.mark.row(300)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_patch_hides_secret_values_and_ends_at_its_limit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_tool.redaction import hide  # noqa: PLC0415 - what it hides is forgotten after each test

    hide(["a-secret-of-mine"])
    (repository / "train.py").write_text("print('a-secret-of-mine')\n" + "print(4)\n" * 100)
    patch = patch_of(repository)
    assert "+print('***')" in patch
    monkeypatch.setattr(git_state, "LARGEST_PATCH", 400)
    cut = patch_of(repository)
    assert cut.endswith("+print(4)\n# remote-tool: the patch is longer; the rest was left out\n")
    assert len(cut) < 600
