"""List and end the kept logins of a project, including those that no command would use."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.kept.folder import Place, private_folder
from remote_tool.transport.kept.master import ANSWER_SECONDS, Conversation, NoAnswerError
from remote_tool.transport.kept.record import read_record

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from remote_tool.transport.kept.record import Record

LISTING_SECONDS = 5.0


def kept_logins(project: Path, servers: Collection[str]) -> list[tuple[Place, Record]]:
    """Return the kept logins of a project's servers, sorted by name."""
    base = private_folder()
    places = [Place(folder) for folder in base.glob("*/")] if base else []
    found = [(place, record) for place in places if (record := read_record(place)) is not None]
    ours = [(place, record) for place, record in found if record.project == str(project) and record.server in servers]
    return sorted(ours, key=lambda each: each[1].server)


async def end_kept(place: Place, record: Record) -> bool:
    """End all masters of a place, with SIGKILL if needed, and remove its record; return False if there were none."""
    with suppress(OSError):
        place.record.unlink()
    was_ended = False
    with suppress(NoAnswerError, TimeoutError), Conversation(record.socket) as conversation:
        async with asyncio.timeout(ANSWER_SECONDS):
            await conversation.begin()
            await conversation.terminate()
            was_ended = True
    return await _kill(place.folder) or was_ended


async def _kill(folder: Path) -> bool:
    """Kill masters that do not answer, and those that another one has replaced after they did not answer."""
    pids: list[int] = []
    with suppress(OSError):
        answer = await ask_program(Question(seconds=LISTING_SECONDS), "ps", "-xww", "-o", "pid=", "-o", "args=")
        lines = answer.output.decode(errors="surrogateescape").splitlines()
        pids = [int(line.split()[0]) for line in lines if f" -S {folder}/s" in line]
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(_remove_sockets, folder)
    return bool(pids)


def _remove_sockets(folder: Path) -> None:
    for socket in folder.glob("s????"):
        with suppress(OSError):
            socket.unlink()
