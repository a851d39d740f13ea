"""Run the user's on_end command once the end of a job is on disk: with a time limit, and no effect on the job."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from remote_tool.agent.activation import check_user
from remote_tool.agent.proc.subprocess import open_script
from remote_tool.agent.supervisor.plan import OnEnd
from remote_tool.agent.supervisor.shell import decode_status, describe_end, restore_signals, run_open_script
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.limits import LONGEST_ON_END
from remote_tool.protocol.records import state_of_ended
from remote_tool.protocol.streams import last_output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, NoReturn

    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.protocol.records import Record

_OUTPUT_LIMIT = 64 * 1024
_LAST_LINES = 20
_PREFIX = "REMOTE_TOOL_JOB_"


def read_on_end(value: Any, name: str) -> OnEnd:  # noqa: ANN401 - from the request, checked here
    """Return the command of a request; RequestError when it is malformed."""
    if not isinstance(value, dict) or not isinstance(value.get("command"), str):
        raise RequestError("The request's on_end is not a command")
    secrets = value.get("secrets") or {}
    check_user(secrets)
    return OnEnd(value["command"], secrets, name)


def run(plan: Plan, ended: Record) -> None:
    """Run the command with its output in the job's folder; stop waiting after a minute."""
    assert plan.request.on_end is not None
    # A full disk, or too many processes: the job's end is recorded all the same.
    with suppress(OSError):
        log = job_folder.create_file(plan.folder, job_folder.ON_END)
        run_logged(plan, plan.request.on_end.command, _environment(plan, plan.request.on_end, ended), log, "on_end")


def run_logged(plan: Plan, command: str, environment: Mapping[bytes, bytes], log: int, name: str) -> None:
    """Run a command of the user's in the working folder, bounded; OSError when it cannot start."""
    output, writer = os.pipe()
    script = open_script(command.encode("utf-8", "surrogateescape"))
    pid = os.fork()
    if pid == 0:
        _become_command(plan, script, writer, environment)
    os.close(script)
    os.close(writer)
    how = _watch(pid, output, log)
    with suppress(OSError):
        job_folder.write_all(log, f"remote-tool: the {name} command {how}\n".encode())


def _become_command(plan: Plan, script: int, output: int, environment: Mapping[bytes, bytes]) -> NoReturn:
    try:
        os.setsid()
        restore_signals()
        os.dup2(output, 1)
        os.dup2(output, 2)
        with suppress(OSError):
            os.chdir(plan.workdir)
        run_open_script(script, environment)
    finally:
        os._exit(127)


def _environment(plan: Plan, on_end: OnEnd, ended: Record) -> Dict[bytes, bytes]:
    lines = "\n".join(last_output(plan.folder)).replace("\0", "").splitlines()[-_LAST_LINES:]
    described = {
        "ID": plan.job_id,
        "NAME": on_end.name,
        "STATE": state_of_ended(ended),
        "EXIT_CODE": "" if ended["exit_code"] is None else str(ended["exit_code"]),
        "REASON": ended["reason"],
        "DURATION": f"{ended['duration']:.0f}",
        "LAST_LINES": "\n".join(lines),
    }
    return with_variables(plan, {**{f"{_PREFIX}{name}": value for name, value in described.items()}, **on_end.secrets})


def with_variables(plan: Plan, variables: Mapping[str, str]) -> Dict[bytes, bytes]:
    """Return the environment of a command of the user's: the job's, and more variables."""
    as_bytes = {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in variables.items()}
    return {**plan.environment, **as_bytes}


def _watch(pid: int, output: int, log: int) -> str:
    """Copy the output to the log until the command and all that hold its output have ended; return how it ended."""
    deadline = time.monotonic() + LONGEST_ON_END
    space_left = _OUTPUT_LIMIT
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        data = os.read(output, 65536)
        if not data:
            break
        with suppress(OSError):
            job_folder.write_all(log, data[:space_left])
        space_left -= min(space_left, len(data))
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return describe_end(decode_status(status))
        time.sleep(0.02)
    return f"did not end within {LONGEST_ON_END:.0f} s"
