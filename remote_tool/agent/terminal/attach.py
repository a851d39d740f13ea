"""Attach to the terminal of a job: carry bytes between the client and the socket of its supervisor."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from remote_tool.agent.requests import Request, is_text
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import ENDED, SPEC, RecordError, is_job_id
from remote_tool.protocol.terminal import NONCE, SOCKET, message, seen_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_PIECE = 64 * 1024
# A job that is about to begin has no socket yet.
_START_SECONDS = 5.0


def attach(request: Request) -> None:
    """Answer op ``attach`` until the job ends; this program exits when the client leaves."""
    folders = request.folders()
    job_id = request.get("job", is_job_id)
    label = request.get("label", is_text, default="the job")
    folder = job_folder.open_job(job_folder.open_jobs_folder(folders.jobs), job_id)
    if folder is None:
        raise RequestError(f"{label} is not on this server", hint="remote-tool job-list")
    _refuse_others(folder, job_id, label)
    begin = seen_message(request.get("seen", _is_count, default=-1)) + message(NONCE, request.nonce.encode("ascii"))
    connection = _connect(folder)
    if connection is None or not _carry(connection, begin):
        ended = job_folder.exists(folder, ENDED)
        why = "has ended" if ended else "has lost its terminal: its supervisor does not answer"
        raise RequestError(f"{label} {why}", hint=request.get("hint", is_text, default="remote-tool job-list"))


def _is_count(value: object) -> bool:
    return type(value) is int and -1 <= value < 1 << 63


def _carry(connection: socket.socket, begin: bytes) -> bool:
    """Carry bytes until the supervisor closes the connection; return whether it has answered.

    It leaves connections unanswered that come as the job ends.
    """
    has_answered = False
    with suppress(OSError):
        connection.sendall(begin)
        threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
        while True:
            output = connection.recv(_PIECE)
            if not output:
                break
            has_answered = True
            job_folder.write_all(1, output)
    return has_answered


def _refuse_others(folder: int, job_id: str, label: str) -> None:
    try:
        spec = job_folder.read_record(folder, SPEC, job_id)
    except RecordError as error:
        raise RequestError(str(error)) from error
    if spec is None or not spec.get("terminal"):
        raise RequestError(f"{label} has no terminal", hint="Start it with remote-tool job-run --tty")


def _connect(folder: int) -> Optional[socket.socket]:
    """Connect to the supervisor; None when the job has ended, or has no supervisor."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        # A supervisor that is stopped accepts no connection, and the next one would wait for it.
        connection.settimeout(_START_SECONDS)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
        except OSError:
            connection.close()
            if job_folder.exists(folder, ENDED) or time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        else:
            connection.settimeout(None)
            return connection


def _send_input(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            data = os.read(0, _PIECE)
            if not data or not _send(connection, data):
                break
    # The other thread may be waiting for a client that does not read.
    os._exit(0)


def _send(connection: socket.socket, data: bytes) -> bool:
    """Send data; return False if the client leaves while the program takes no input."""
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    poll.register(0, select.POLLRDHUP)
    while data:
        if connection.fileno() not in dict(poll.poll()):
            return False
        with suppress(BlockingIOError):
            data = data[connection.send(data, socket.MSG_DONTWAIT) :]
    return True
