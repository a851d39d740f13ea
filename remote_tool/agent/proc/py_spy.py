"""Calls in C and C++ of a job's Python processes, as py-spy sees them.

With Yama's ptrace_scope 1, only a process that the traced one has named may trace it, or a descendant of that. The
start-up hook names the job's supervisor, which therefore runs py-spy when this program asks for it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress

from remote_tool.agent.activation import load_activation
from remote_tool.agent.proc.processes import send_signal
from remote_tool.agent.proc.stacks import Stack
from remote_tool.agent.proc.subprocess import talk
from remote_tool.protocol import job_folder, strict_json
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, NoReturn, Optional

    from remote_tool.agent.proc.processes import Process

_SECONDS = 10.0
# A supervisor takes a request at once, unless it is of an older version.
_TAKEN_SECONDS = 4.0
_PAUSE = 0.02
_LARGEST_ANSWER = 1024 * 1024
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
# Only root may trace, or nobody: asking the supervisor would not help.
_STRICT_SCOPES = ("2", "3")
# Part of what py-spy and the kernel say.
_FORBIDDEN = "ermission"
_REFUSED = {"text": "", "errors": _FORBIDDEN}


class Tracer:
    """Adds the stacks of py-spy to those of one job's processes."""

    def __init__(self, py_spy: str, folder: int, supervisor: Optional[Process]) -> None:
        self._py_spy = py_spy
        self._folder = folder
        self._supervisor = supervisor
        self._is_forbidden = False

    def add_native_calls(self, stack: Stack) -> Stack:
        """Return the stacks as py-spy sees them, else as Python does, with the reason."""
        pid = stack.process.pid
        seen = self._by_supervisor(pid) if self._is_forbidden else trace(self._py_spy, pid)
        if not self._is_forbidden and _FORBIDDEN in seen["errors"]:
            self._is_forbidden = True
            seen = self._by_supervisor(pid)
        if seen["text"]:
            return Stack(stack.process, seen["text"])
        why = seen["errors"].strip().partition("\n")[0] or "py-spy gave no answer"
        if _FORBIDDEN in why:
            why = f"the kernel forbids py-spy to trace it (kernel.yama.ptrace_scope is {_scope() or 'not set'})"
        return Stack(stack.process, stack.text, why)

    def _by_supervisor(self, pid: int) -> Dict[str, str]:
        """Return the answer of py-spy when the supervisor runs it, if that may help."""
        if self._supervisor is None or _scope() in _STRICT_SCOPES:
            return _REFUSED
        seen = self._ask(self._supervisor, pid)
        if not seen:
            # Of an older version: not asked again.
            self._supervisor = None
        return seen or _REFUSED

    def _ask(self, supervisor: Process, pid: int) -> Dict[str, str]:
        request_id = os.urandom(8).hex()
        answer = f"{job_folder.TRACE}.{request_id}"
        asked = strict_json.encode({"id": request_id, "py_spy": self._py_spy, "pid": str(pid)})
        job_folder.write_file(self._folder, f".{answer}", asked)
        try:
            job_folder.publish(self._folder, f".{answer}", job_folder.TRACE, replace=True)
            send_signal(supervisor, signal.SIGUSR1)
            return self._wait(answer)
        finally:
            job_folder.remove(self._folder, job_folder.TRACE)
            job_folder.remove(self._folder, answer)

    def _wait(self, answer: str) -> Dict[str, str]:
        began = time.monotonic()
        while time.monotonic() < began + _SECONDS + _TAKEN_SECONDS:
            text = job_folder.read_bytes(self._folder, answer, _LARGEST_ANSWER)
            if text is not None:
                return _read_texts(text)
            if time.monotonic() > began + _TAKEN_SECONDS and job_folder.exists(self._folder, job_folder.TRACE):
                break
            time.sleep(_PAUSE)
        return {}


def find_py_spy(activation: str) -> str:
    """Return the path of py-spy in the environment or on PATH; RequestError without one."""
    for folder in (*load_activation(activation).path, *os.environ.get("PATH", os.defpath).split(":")):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    raise RequestError("py-spy is not installed on this server", hint="remote-tool run -- pip install py-spy")


def trace(py_spy: str, pid: int) -> Dict[str, str]:
    """Run py-spy on a process; return its answer as ``text``, or else its ``errors``."""
    ended = talk([py_spy, "dump", "--native", "--json", "--pid", str(pid)], b"", {}, _SECONDS, _LARGEST_ANSWER // 2)
    text = ended.output.decode("utf-8", "replace").strip()
    is_answer = ended.is_all and text.startswith("[")
    return {"text": text if is_answer else "", "errors": ended.errors.decode("utf-8", "replace")}


def trace_if_asked(folder: int) -> None:
    """In the supervisor: fork a process that runs py-spy, if the job's folder has a request."""
    with suppress(OSError, RecordError):
        text = job_folder.read_bytes(folder, job_folder.TRACE)
        if text is not None:
            job_folder.remove(folder, job_folder.TRACE)
            if os.fork() == 0:
                _answer(folder, text)


def _answer(folder: int, text: bytes) -> NoReturn:
    try:
        asked = _read_texts(text)
        name = f"{job_folder.TRACE}.{int(asked['id'], 16):016x}"
        seen = trace(asked["py_spy"], int(asked["pid"]))
        job_folder.write_file(folder, f".{name}", strict_json.encode(seen))
        job_folder.publish(folder, f".{name}", name, replace=True)
    finally:
        os._exit(0)


def _read_texts(text: bytes) -> Dict[str, str]:
    """Return an object of texts; empty if it is anything else."""
    with suppress(ValueError, RecursionError):
        values = json.loads(text.decode("utf-8"))
        if isinstance(values, dict) and all(isinstance(value, str) for value in values.values()):
            return values
    return {}


def _scope() -> str:
    with suppress(OSError), open(_SCOPE, "rb") as stream:
        return stream.readline(100).decode("ascii", "replace").strip()
    return ""
