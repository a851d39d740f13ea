"""List and end the kept logins of a project, including those that no command would use."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.kept.folder import Place, private_folder
from remote_tool.transport.kept.master import ANSWER_SECONDS, Conversation, NoAnswerError, pid_of_master
from remote_tool.transport.kept.record import read_record

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from remote_tool.transport.kept.record import Record

LISTING_SECONDS = 5.0


def kept_logins(project: Path, servers: Collection[str]) -> list[tuple[Place, Record]]:
    """Return the kept logins of a project's servers, sorted by name."""
    base = private_folder()
    places = [Place(folder) for folder in base.iterdir() if folder.is_dir()] if base else []
    found = [(place, record) for place in places if (record := read_record(place)) is not None]
    ours = [(place, record) for place, record in found if record.project == str(project) and record.server in servers]
    return sorted(ours, key=lambda each: each[1].server)


async def end_kept(place: Place, record: Record) -> bool:
    """End a master, with SIGKILL if needed, and remove its record; return False if it had already ended."""
    pid = await pid_of_master(record.socket)
    with suppress(OSError):
        place.record.unlink()
    if pid is not None:
        with suppress(NoAnswerError, TimeoutError), Conversation(record.socket) as conversation:
            async with asyncio.timeout(ANSWER_SECONDS):
                await conversation.begin()
                await conversation.terminate()
                return True
    return await _kill(record.socket)


async def _kill(path: Path) -> bool:
    """Kill the ssh of a socket that does not answer, such as one that was stopped."""
    answer = await ask_program(Question(seconds=LISTING_SECONDS), "ps", "-xww", "-o", "pid=", "-o", "args=")
    lines = [line.split() for line in answer.output.decode(errors="replace").splitlines() if line.strip()]
    pids = [int(words[0]) for words in lines if str(path) in words and "ssh" in words[1]]
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        await asyncio.to_thread(path.unlink)
    return bool(pids)
