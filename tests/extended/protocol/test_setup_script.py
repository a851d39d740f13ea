"""The setup script is sourced before the command, and a command never runs after one that failed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol.setup_script import put_before_attached
from tests.extended.agent.conftest import PATIENCE
from tests.extended.agent.jobs.test_run import read_to_end

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.agent.conftest import PretendServer

WAYS_TO_FAIL = {
    "/no/such/file": "ended with exit code 127",
    "return 5": "ended with exit code 5",
    "exit 0": "ended with exit code 0",
    "set -e\nfalse\ntrue": "ended with exit code 1",
    "if then": "ended with exit code 2",
    "kill -TERM $$; sleep 60": "was ended by SIGTERM",
}


def test_the_command_has_what_the_script_exports_and_defines(server: PretendServer) -> None:
    (server.project / "tools.sh").write_text("export MODULE=loaded\ngreet() { echo hello; }\n")
    job_id = server.start('echo "$MODULE"; greet', setup="source ./tools.sh")
    assert server.wait(job_id)[job_id]["exit_code"] == 0
    assert server.output(job_id) == "loaded\nhello\n"


@pytest.mark.parametrize(("script", "how"), WAYS_TO_FAIL.items())
def test_after_a_script_that_failed_the_command_does_not_run(server: PretendServer, script: str, how: str) -> None:
    job_id = server.start("touch ran", setup=script)
    ended = server.wait(job_id)[job_id]
    assert server.status(job_id)["state"] == "failed"
    assert ended["reason"].startswith("ended by SIGTERM" if "SIGTERM" in how else "the command did not run")
    assert f"the command did not run: the setup script (setup: in configs.yaml) {how}" in ended["reason"]
    assert ended["exit_code"] is None or ended["exit_code"] > 0
    assert not (server.project / "ran").exists()


def test_a_failing_command_is_not_reported_as_a_failing_setup_script(server: PretendServer) -> None:
    job_id = server.start("exit 3", setup="true")
    ended = server.wait(job_id)[job_id]
    assert (ended["exit_code"], ended["reason"]) == (3, "")


def test_a_job_that_is_killed_during_its_setup_is_killed(server: PretendServer) -> None:
    job_id = server.start("true", setup="echo waiting; sleep 600")
    server.wait_for_output(job_id, "waiting")
    answer = server.stop(job_id)
    assert (answer["state"], answer["ended"]["reason"]) == ("killed", "stopped with SIGTERM")


def test_the_commands_mistakes_keep_their_line_and_it_has_no_descriptor_of_ours(server: PretendServer) -> None:
    job_id = server.start("ls /proc/self/fd | wc -l\nno-such-program", setup="sleep 0 & true")
    server.wait(job_id)
    # Three descriptors and the one for the listing.
    assert server.output(job_id) == "4\n"
    assert "line 2: no-such-program" in server.output(job_id, "err")


@pytest.mark.skipif(shutil.which("dash") is None, reason="there is no dash")
def test_it_works_where_there_is_no_bash(server: PretendServer, tmp_path: Path) -> None:
    """As on Alpine; the shell is found on the login's PATH, and /bin/bash may be there all the same."""
    shell = tmp_path / "bin" / "bash"
    shell.parent.mkdir()
    shell.symlink_to(str(shutil.which("dash")))
    job = server.new_job('echo "$A"', setup="export A=1")
    path = f"{shell.parent}:{os.environ['PATH']}"
    with server.open("start", jobs=[job], login={"PATH": path}) as call:
        call.rest()
    server.wait(job["id"])
    assert server.output(job["id"]) == "1\n"


def test_an_attached_command_has_it_too(server: PretendServer) -> None:
    command = put_before_attached('echo "$A"; ls /proc/self/fd | wc -l', 'export A=1\necho "it\'s" >&2')
    with server.open("run", command=command, environment={}) as call:
        assert read_to_end(call) == (b"1\n4\n", b"it's\n")
        assert call.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(("script", "code", "status"), [("exit 0", 0, 1), ("return 5", 5, 5), ("if then", 2, 2)])
def test_an_attached_command_does_not_run_either(server: PretendServer, script: str, code: int, status: int) -> None:
    with server.open("run", command=put_before_attached("echo ran", script), environment={}) as call:
        out, err = read_to_end(call)
        assert call.process.wait(PATIENCE) == status
    assert out == b""
    said = (
        f"remote-tool: the command did not run: the setup script (setup: in configs.yaml) ended with exit code {code}\n"
    )
    assert said.encode() in err


def test_a_setup_script_that_is_not_text_is_refused(server: PretendServer) -> None:
    answer = server.call("start", jobs=[server.new_job("true", setup="a\0b")])
    assert "its setup script is not text" in answer["error"]
