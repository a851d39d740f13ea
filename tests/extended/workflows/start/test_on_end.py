"""A message when a job ends, as the guide shows it, to a real HTTP server; once for a launch."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.agent.proc.processes import find_alive
from remote_tool.config.limits import on_end_of
from remote_tool.errors import UsageError
from tests.extended.workflows.jobs.test_jobs import until
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sshd import TestServer

GUIDE = (Path(__file__).parents[4] / "docs" / "guide" / "messages.md").read_text()
NTFY, WEBHOOK = re.findall(r"```yaml\n(on_end:.*?)```", GUIDE, re.DOTALL)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
TOKEN = "tk_0123456789abcdef"


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posts: list[tuple[str, dict[str, str], str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.posts.append((self.path, dict(self.headers), text))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, daemon=True)
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


def configured(tmp_path: Path, servers: tuple[TestServer, TestServer], block: str) -> Workspace:
    """Return a prepared workspace with this part of the guide."""
    root = make_project(tmp_path / "project", servers, name=f"project-{tmp_path.name}", **yaml.safe_load(block))
    workspace = Workspace.find(root)
    workspace.prepare()
    return workspace


@pytest.mark.row(250)
def test_another_command_needs_and_gets_only_the_secrets_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_end = {"run": "./tell.sh", "secrets": ["WATCH_TOKEN", "TOKEN", "WATCH_URL"]}
    root = make_project(tmp_path / "project", [], on_end=on_end)
    config = Workspace.find(root).config
    for name in on_end["secrets"]:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"^on_end in configs\.yaml needs WATCH_TOKEN and TOKEN and WATCH_URL, "):
        on_end_of(config, None)
    assert on_end_of(config, "") is None
    assert on_end_of(config, "echo WATCH_TOKENS") == ("echo WATCH_TOKENS", {})
    with pytest.raises(UsageError, match=r"^The on_end command needs WATCH_TOKEN, "):
        on_end_of(config, 'curl -d "$WATCH_TOKEN" there')
    monkeypatch.setenv("WATCH_TOKEN", TOKEN)
    monkeypatch.setenv("WATCH_URL", "https://there")
    assert on_end_of(config, "curl ${WATCH_TOKEN}") == ("curl ${WATCH_TOKEN}", {"WATCH_TOKEN": TOKEN})


@pytest.mark.row(215, 216)
@needs_curl
def test_the_message_of_the_guide_arrives_with_its_secret(
    tmp_path: Path,
    shared_servers: tuple[TestServer, TestServer],
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workspace = configured(tmp_path, shared_servers, NTFY.replace("https://ntfy.sh", receiver.url))
    request = StartRequest("env; exit 3", ("first",), sync=False, name="digits")
    with pytest.raises(UsageError, match="needs NTFY_TOKEN, which is not set here"):
        workspace.start_jobs(request)
    monkeypatch.setenv("NTFY_TOKEN", TOKEN)
    (job,) = workspace.start_jobs(request).jobs
    until(lambda: receiver.posts)
    ((path, headers, text),) = receiver.posts
    assert (path, headers["Authorization"], text) == ("/my-jobs", f"Bearer {TOKEN}", "digits failed")
    workspace.wait_jobs(JobSelection(jobs=(job.id,)))
    workspace.pull_logs()
    kept = [each for each in workspace.config.local.job(job.id).rglob("*") if each.is_file()]
    assert kept
    assert [each for each in kept if TOKEN in each.read_text()] == []


@pytest.mark.row(215)
@needs_curl
def test_the_webhook_of_the_guide_is_called_once_for_a_launch(
    tmp_path: Path,
    shared_servers: tuple[TestServer, TestServer],
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBHOOK_URL", f"{receiver.url}/hook")
    workspace = configured(tmp_path, shared_servers, WEBHOOK)
    jobs = workspace.launch(LaunchRequest("exit 4", launcher="shell", name='a "quoted" name', sync=False)).jobs
    workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in jobs)), timeout=120)
    folder = f"project-{tmp_path.name}/.jobs"
    started = [server.home / folder / job.id / "started.json" for server, job in zip(shared_servers, jobs, strict=True)]
    supervisors = [json.loads(path.read_text())["supervisor"] for path in started]
    # Until then, another node may call it too.
    until(lambda: not any(map(find_alive, supervisors)))
    ((path, _, text),) = receiver.posts
    assert path == "/hook"
    assert json.loads(text)["text"].startswith('a "quoted" name: failed')
