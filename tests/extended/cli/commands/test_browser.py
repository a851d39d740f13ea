"""jupyter and tensorboard, with the real programs, as a person uses them."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from remote_tool import JobSelection, Workspace
from remote_tool.errors import JobError
from remote_tool.workflows.forward import jupyter
from tests.below import contents_below
from tests.containers import IMAGE, OPTIONS
from tests.extended.sample.test_frameworks import FRAMEWORKS, lacks
from tests.extended.workflows.jobs.test_jobs import until
from tests.forwarding import Forwarding, agents_in
from tests.kept_logins import keeping_logins, wait_for_logins
from tests.processes import parents, processes_of, read_of
from tests.program import remote_tool
from tests.project import kill, make_project, start
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool import Job
    from tests.conftest import MakeServer
    from tests.containers import Podman

pytestmark = pytest.mark.slow
needs_jupyter = pytest.mark.skipif(
    not (FRAMEWORKS / "bin" / "python").exists() or lacks("jupyterlab"), reason="no jupyterlab in .cache/frameworks"
)
needs_tensorboard = pytest.mark.skipif(
    not (FRAMEWORKS / "bin" / "tensorboard").exists(), reason="no tensorboard in .cache/frameworks"
)
NOBODY = 65534


class Jupyter(Forwarding):
    """The command jupyter."""

    command = "jupyter"


class Tensorboard(Forwarding):
    """The command tensorboard, with the program of the frameworks on PATH."""

    command = "tensorboard"

    def __init__(self, *arguments: str, cwd: Path) -> None:
        path = f"{FRAMEWORKS / 'bin'}:{os.environ['PATH']}"
        super().__init__("--no-browser", "--interval", "1", *arguments, cwd=cwd, environment={"PATH": path})


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[TestServer]:
    """A server whose environment has the frameworks."""
    with TestServer("gpu1", tmp_path_factory.mktemp("lab") / "gpu1", ssh_key) as it:
        yield it


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, lab: TestServer) -> Path:
    root = make_project(
        tmp_path_factory.mktemp("browser") / "project", [lab], environment={"existing": str(FRAMEWORKS)}
    )
    prepared = remote_tool("prepare", cwd=root, timeout=110)
    assert prepared.returncode == 0, prepared.stderr
    return root


@pytest.fixture
def _no_notebook_left(workspace: Path) -> Iterator[None]:
    """End what a failed test has left."""
    yield
    left = [job for job in Workspace.find(workspace).list_jobs().jobs if job.name == "jupyter"]
    if left:
        kill(workspace, *left)


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser that writes down its arguments, then the page that it was given."""
    script = tmp_path / "browser"
    script.write_text('#!/bin/sh\n{ echo "$@"; cat "${1#file://}"; } >"$0.new"\nmv "$0.new" "$0.seen"\n')
    script.chmod(0o755)
    return script


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.loads(answer.read())


def token_of(url: str) -> str:
    found = re.fullmatch(r"http://localhost:\d+/lab\?token=([0-9a-f]{48})", url)
    assert found, url
    return found[1]


def notebook_of(root: Path, server: TestServer) -> Job:
    """The only notebook that runs."""
    (job,) = (
        each
        for each in Workspace.find(root).list_jobs(JobSelection(servers=(server.name,))).jobs
        if each.name == "jupyter"
    )
    return job


def arguments_of_everyone() -> bytes:
    return b"".join(read_of(pid, "cmdline") for pid in parents())


def files_with(text: str, *folders: Path) -> list[Path]:
    return [path for path, data in contents_below(*folders) if text.encode() in data and not path.is_symlink()]


def connects_as_nobody(path: Path) -> bool:
    """Whether another user of the machine reaches a socket."""
    leave = f"import os, socket; os.setgid({NOBODY}); os.setuid({NOBODY})"
    code = f"{leave}; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd="/")
    assert ran.returncode == 0 or "PermissionError" in ran.stderr, ran.stderr
    return ran.returncode == 0


@needs_jupyter
@pytest.mark.usefixtures("_no_notebook_left")
@pytest.mark.row(239, 240)
def test_jupyter_is_private_and_found_again_until_its_job_ends(workspace: Path, lab: TestServer, browser: Path) -> None:
    with Jupyter("--port", "0", cwd=workspace, environment={"BROWSER": f"{browser} %s"}) as first:
        url = first.wait_for("http://localhost:")
        token, job = token_of(url), notebook_of(workspace, lab)
        path = Path(f"/tmp/remote-tool-{job.id}/jupyter.sock")
        assert_opened(url, token, browser)
        assert_shown(url, token)
        assert_private(path, token)
        assert files_with(token, lab.home, workspace) == []
        assert first.stop() == 130
        assert first.lines[-1] == (
            "interrupted; Jupyter Lab keeps running; to open it again: remote-tool jupyter --server gpu1;"
            f" to stop it: remote-tool job-kill {job.key}"
        )
    # The supervisor of the job.
    until(lambda: len(agents_in(lab)) == 1)
    with Jupyter("--no-browser", "--port", "0", cwd=workspace) as second:
        assert token_of(second.wait_for("http://localhost:")) == token
        second.wait_for(f"job {job.key} on gpu1: Jupyter Lab was running already")
        listed = remote_tool("job-list", cwd=workspace).stdout
        assert re.search(r"jupyter .* Jupyter Lab$", listed, re.MULTILINE), listed
        assert "mkdir" not in listed
        assert remote_tool("job-kill", str(job.key), cwd=workspace).returncode == 0
        assert second.process.wait(60) == 0
        second.wait_for(f"Jupyter Lab, job {job.key}, has ended; the port is closed")
    assert processes_of(job.id) == []
    assert not path.parent.exists()
    until(lambda: agents_in(lab) == [])


def assert_opened(url: str, token: str, browser: Path) -> None:
    """The browser got a private page that leads there."""
    seen = browser.with_name("browser.seen")
    until(seen.exists, 60)
    arguments, _, page = seen.read_text().partition("\n")
    assert token not in arguments
    assert f"url={url}" in page


def assert_shown(url: str, token: str) -> None:
    """The notebook serves the project, to those who have the token."""
    base = url.partition("/lab")[0]
    assert "hello.py" in {each["name"] for each in get(f"{base}/api/contents?token={token}")["content"]}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(f"{base}/api/contents")


def assert_private(path: Path, token: str) -> None:
    """No other user can connect, or see the token."""
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    (runtime,) = path.parent.glob("jpserver-*.json")
    assert token in runtime.read_text()
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o600
    if os.geteuid() == 0:
        assert not connects_as_nobody(path)
    assert token.encode() not in arguments_of_everyone()


@needs_jupyter
@pytest.mark.row(239)
def test_behind_a_launch_command_the_socket_is_in_the_project(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("gpu1")
    # A long path, which no socket's address has room for.
    root = make_project(tmp_path / "project", [server], name="deep/" + "x" * 100)
    file = root / ".remote" / "configs.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["servers"]["gpu1"] |= {"launch": "env A=1", "environment": {"existing": str(FRAMEWORKS)}}
    file.write_text(yaml.safe_dump(settings))
    prepared = remote_tool("prepare", cwd=root, timeout=110)
    assert prepared.returncode == 0, prepared.stderr
    with Jupyter("--no-browser", "--port", "0", cwd=root) as lab:
        url = lab.wait_for("http://localhost:")
        job = notebook_of(root, server)
        try:
            assert_shown(url, token_of(url))
            (path,) = {
                Path(parent, name)
                for parent, _, names in os.walk(server.home)
                for name in names
                if name == "jupyter.sock"
            }
            assert path.parent.parent.name == job.id
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        finally:
            kill(root, job)


@needs_jupyter
@pytest.mark.row(253)
def test_in_a_container_jupyter_is_private_and_reached(make_server: MakeServer, tmp_path: Path, podman: Podman) -> None:
    if podman.problem:
        pytest.skip(podman.problem)
    search = f"HOME={tmp_path}/servers/gpu1/home PATH={podman.bin}:{os.environ['PATH']}"
    server = make_server("gpu1", SetEnv=search)
    root = make_project(tmp_path / "project", [server])
    file = root / ".remote" / "configs.yaml"
    settings = yaml.safe_load(file.read_text())
    del settings["environment"]
    settings["servers"]["gpu1"]["container"] = shlex.join([*OPTIONS, *with_this_python(), IMAGE])
    file.write_text(yaml.safe_dump(settings))
    prepared = remote_tool("prepare", cwd=root, timeout=110)
    assert prepared.returncode == 0, prepared.stderr
    with Jupyter("--no-browser", "--port", "0", cwd=root) as notebook:
        url = notebook.wait_for("http://localhost:", seconds=200)
        job = notebook_of(root, server)
        assert_shown(url, token_of(url))
        (path,) = server.home.rglob("jupyter.sock")
        assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
        assert token_of(url).encode() not in arguments_of_everyone()
        stopped = remote_tool("job-kill", str(job.key), cwd=root, timeout=300)
        assert stopped.returncode == 0, stopped.stderr
        assert notebook.process.wait(200) == 0
    assert not path.parent.exists()
    assert podman.names() == []


def with_this_python() -> list[str]:
    """Options of a container that has the Python of the frameworks, and the libraries of this machine."""
    python = FRAMEWORKS / "bin" / "python"
    # Its packages may be elsewhere.
    asked = [str(python), "-c", "import sys; print(*sys.path, sep='\\n')"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    folders = {str(python.resolve().parents[1]), str(FRAMEWORKS), "/usr", "/lib", "/lib64", *found}
    mounts = [
        f"--mount=type=bind,source={path},target={path},readonly" for path in folders if Path(path or "-").is_dir()
    ]
    return [*sorted(mounts), f"--env=PATH={FRAMEWORKS / 'bin'}:/usr/bin:/bin"]


@needs_jupyter
@pytest.mark.parametrize("is_kept", [False, True], ids=["own login", "kept login"])
@pytest.mark.usefixtures("_no_notebook_left")
@pytest.mark.row(254)
def test_after_a_cut_link_a_notebook_is_reached_at_the_same_port_and_its_end_is_noticed(
    workspace: Path, lab: TestServer, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    with ExitStack() as stack:
        if is_kept:
            folder = stack.enter_context(keeping_logins(monkeypatch))
            assert remote_tool("run", "--cmd", "true", cwd=workspace).returncode == 0
            wait_for_logins(folder, 1)
        notebook = stack.enter_context(Jupyter("--no-browser", "--port", "0", cwd=workspace))
        url = notebook.wait_for("http://localhost:")
        assert_shown(url, token_of(url))
        lab.drop_connections()
        notebook.wait_for("reconnecting")
        until(lambda: is_served(url), 60)
        job = notebook_of(workspace, lab)
        assert remote_tool("job-kill", str(job.key), cwd=workspace).returncode == 0
        assert notebook.process.wait(60) == 0
        notebook.wait_for(f"Jupyter Lab, job {job.key}, has ended; the port is closed")


def is_served(url: str) -> bool:
    try:
        assert_shown(url, token_of(url))
    except (OSError, http.client.HTTPException):
        return False
    return True


@needs_jupyter
@pytest.mark.usefixtures("_no_notebook_left")
@pytest.mark.row(255)
def test_a_second_laptop_finds_the_notebook(workspace: Path, lab: TestServer, tmp_path: Path) -> None:
    other = make_project(tmp_path / "project", [lab], environment={"existing": str(FRAMEWORKS)})
    with ExitStack() as stack:
        first = stack.enter_context(Jupyter("--no-browser", "--port", "0", cwd=workspace))
        token = token_of(first.wait_for("http://localhost:"))
        second = stack.enter_context(Jupyter("--no-browser", "--port", "0", cwd=other))
        url = second.wait_for("http://localhost:")
        job = notebook_of(other, lab)
        assert token_of(url) == token
        assert_shown(url, token)
        second.wait_for(f"job {job.key} on gpu1: Jupyter Lab was running already")
        assert notebook_of(workspace, lab).id == job.id
        assert remote_tool("job-kill", str(job.key), cwd=other).returncode == 0
        assert first.process.wait(60) == 0
        assert second.process.wait(60) == 0


@pytest.mark.row(241)
def test_what_jupyter_cannot_do_is_one_sentence(project: Path) -> None:
    for words, status, error, hint in (
        (("--server", "first"), 1, "first: Jupyter Lab is not installed in the environment there", "pip install"),
        ((), 2, "Jupyter Lab needs one server, and 2 are selected: first, second", "jupyter --server first"),
        (("--server", "gpu9"), 2, "Unknown server 'gpu9'", ""),
        (
            ("--server", "first", "--port", "70000"),
            2,
            "--port must be a whole number from 0 to 65535",
            "",
        ),
    ):
        refused = remote_tool("jupyter", "--no-browser", *words, cwd=project)
        assert (refused.returncode, refused.stdout) == (status, ""), refused.stderr
        assert refused.stderr.count("error: ") == 1
        assert f"error: {error}" in refused.stderr
        assert hint in refused.stderr
    assert not [
        job for job in Workspace.find(project).select_local(JobSelection(stopped=True)) if job.name == "jupyter"
    ]


def test_a_notebook_that_takes_too_long_to_start_is_named_and_goes_on(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jupyter, "START_SECONDS", 1.0)
    server = make_server()
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    package = server.home / "project" / "jupyterlab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(JobError, match="first: Jupyter Lab did not start within 1 s") as raised:
        workspace.jupyter(jupyter.JupyterRequest(("first",), port=0), lambda _: None)
    (job,) = workspace.list_jobs().jobs
    assert (job.name, raised.value.hint) == ("jupyter", f"remote-tool job-tail {job.key}")
    kill(workspace.root, job)


WRITES_EVENTS = """\
import pathlib, time
from tensorboard.summary import Writer
writer = Writer("runs/a b")
for step in range(3):
    writer.add_scalar("loss", 1.0 / (step + 1), step)
    writer.flush()
    while not pathlib.Path(f"go-{step}").exists():
        time.sleep(0.05)
"""


@needs_tensorboard
@pytest.mark.row(242)
def test_tensorboard_shows_what_a_running_job_has_written(workspace: Path, lab: TestServer) -> None:
    (workspace / "train.py").write_text(WRITES_EVENTS)
    job = start(workspace, "exec python train.py", server="gpu1")
    project = lab.home / "project"
    try:
        with Tensorboard("--job", str(job.key), "--port", "0", cwd=workspace) as board:
            base = board.wait_for("http://localhost:").rstrip("/")
            assert steps_in(base, job, 1) == [0]
            folder = folder_of(board)
            (project / "go-0").touch()
            # Read on from where it was.
            assert steps_in(base, job, 2) == [0, 1]
            (project / "go-1").touch()
            assert steps_in(base, job, 3) == [0, 1, 2]
            assert board.stop() == 130
            assert board.lines[-1] == "interrupted; TensorBoard has ended; the jobs keep running"
        assert not folder.exists()
        assert str(folder).encode() not in arguments_of_everyone()
        assert Workspace.find(workspace).list_jobs(JobSelection(jobs=(str(job.key),))).jobs[0].may_run
        # The files have come home, and no other ones.
        (pulled,) = (workspace / ".remote" / "jobs" / job.id / "artifacts" / "runs" / "a b").iterdir()
        assert pulled.name.startswith("events.out.tfevents.")
    finally:
        kill(workspace, job)
    # It is shown without a selection too, with all other jobs, though it has ended; a signal ends everything.
    with Tensorboard("--port", "0", cwd=workspace) as board:
        assert steps_in(board.wait_for("http://localhost:").rstrip("/"), job, 3) == [0, 1, 2]
        folder = folder_of(board)
        assert board.stop(signal.SIGTERM) == 143
    assert not folder.exists()
    assert str(folder).encode() not in arguments_of_everyone()


@needs_tensorboard
@pytest.mark.row(256)
def test_after_sigkill_no_tensorboard_and_no_folder_is_left(workspace: Path) -> None:
    waiting = start(workspace, "exec sleep 600", server="gpu1")
    try:
        with Tensorboard(str(waiting.key), "--port", "0", cwd=workspace) as board:
            board.wait_for("http://localhost:")
            folder = folder_of(board)
            assert str(folder).encode() in arguments_of_everyone()
            assert board.stop(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not folder.exists(), 60)
        until(lambda: str(folder).encode() not in arguments_of_everyone(), 60)
    finally:
        kill(workspace, waiting)


def steps_in(base: str, job: Job, count: int) -> list[int]:
    """The steps that TensorBoard shows of a job, when there are so many."""
    found: list[int] = []

    def has_come() -> bool:
        url = f"{base}/data/plugin/scalars/scalars?tag=loss&run={job.key}/runs/a%20b"
        try:
            found[:] = [int(step) for _, step, _ in get(url)]
        except urllib.error.HTTPError:
            # The run is not there yet.
            found.clear()
        return len(found) >= count

    until(has_come, 60)
    return found


def folder_of(board: Tensorboard) -> Path:
    """The folder that TensorBoard reads."""
    (folder,) = {
        Path(word)
        for pid, parent in parents().items()
        if parent == board.process.pid
        for word in os.fsdecode(read_of(pid, "cmdline")).split("\0")
        if "remote-tool-tensorboard-" in word
    }
    return folder


@pytest.mark.row(242)
def test_what_tensorboard_cannot_do_is_one_sentence(project: Path) -> None:
    # The Python of the tests has none.
    nowhere = remote_tool("tensorboard", cwd=project, environment={"PATH": "/nowhere"})
    assert nowhere.returncode == 2
    assert nowhere.stderr == ("error: TensorBoard is not installed on this machine\nhint: pipx install tensorboard\n")


@needs_tensorboard
@pytest.mark.row(242)
def test_jobs_without_event_files_and_a_taken_port_are_one_sentence(workspace: Path) -> None:
    with Tensorboard("--tag", "none", cwd=workspace) as board:
        assert board.process.wait(60) == 2
        board.wait_for("error: No job matches")
    job = start(workspace, "true", server="gpu1")
    Workspace.find(workspace).wait_jobs(JobSelection(jobs=(job.id,)), timeout=300)
    with Tensorboard(str(job.key), cwd=workspace) as board:
        assert board.process.wait(60) == 2
        board.wait_for("error: The selected jobs have written no event files (events.out.tfevents.*)")
    waiting = start(workspace, "exec sleep 600", server="gpu1")
    try:
        with socket.create_server(("localhost", 0)) as taken:
            port = taken.getsockname()[1]
            with Tensorboard(str(waiting.key), "--port", str(port), cwd=workspace) as board:
                assert board.process.wait(110) == 1
                assert "error: TensorBoard has ended" in board.wait_for("error: ")
                board.wait_for("hint: Choose another port with --port")
    finally:
        kill(workspace, waiting)
