"""A notebook is private: its socket, its token, and the page that opens it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.below import contents_below
from tests.forwarding import Forwarding
from tests.processes import parents, read_of
from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.promises.conftest import Desk

# Stands in for Jupyter Lab: it listens at its socket and writes its runtime file, as that does.
JUPYTERLAB = """
import json, os, pathlib, socket, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
listener = socket.socket(socket.AF_UNIX)
listener.bind(options["ServerApp.sock"])
os.chmod(options["ServerApp.sock"], int(options["ServerApp.sock_mode"], 8))
listener.listen()
runtime = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"], "jpserver-1.json")
runtime.touch(0o600)
runtime.write_text(json.dumps({"token": os.environ["JUPYTER_TOKEN"], "base_url": "/"}))
while True:
    caller, _ = listener.accept()
    caller.recv(65536)
    caller.sendall(b"HTTP/1.0 403 Forbidden\\r\\n\\r\\n")
    caller.close()
"""


class Jupyter(Forwarding):
    """The command jupyter."""

    command = "jupyter"


@pytest.fixture
def lab(desk: Desk) -> Iterator[Desk]:
    """A project whose server has the stand-in for Jupyter Lab."""
    package = desk.there() / "jupyterlab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(JUPYTERLAB)
    yield desk
    desk.tries("job-kill", "--all", "--yes", "--grace", "1")


@pytest.mark.row(239)
def test_a_notebook_and_its_token_are_for_nobody_else(lab: Desk, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\n{{ echo "$@"; cat "${{1#file://}}"; }} >{seen}.new; mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    with Jupyter("--port", "0", cwd=lab.root, environment={"BROWSER": f"{browser} %s"}) as notebook:
        url = notebook.wait_for("http://localhost:")
        token = url.partition("?token=")[2]
        (job,) = lab.jobs()
        folder = Path(f"/tmp/remote-tool-{job['id']}")
        until(seen.exists, "the browser is opened", 60)
        assert len(token) > 30
        assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "jupyter.sock")] == [0o700, 0o600]
        assert token not in b"".join(read_of(pid, "cmdline") for pid in parents()).decode(errors="replace")
        files = contents_below(lab.there(), lab.root)
        assert [path for path, data in files if token.encode() in data] == []
        notebook.stop()
    arguments, _, page = seen.read_text().partition("\n")
    assert token not in arguments
    assert f"url={url}" in page
    lab.does("job-kill", str(job["key"]), "--yes")
    until(lambda: not folder.exists(), "nothing of it is left")
