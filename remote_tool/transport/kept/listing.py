"""List and end the kept logins of a project, usable or not."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.programs import run_program
from remote_tool.transport.kept.folder import KeptFolder, private_folder
from remote_tool.transport.kept.master import ANSWER_SECONDS, MasterClient, MasterError
from remote_tool.transport.kept.record import read_record

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from remote_tool.transport.kept.record import Record

LISTING_SECONDS = 5.0


def kept_logins(project: Path, servers: Collection[str]) -> list[tuple[KeptFolder, Record]]:
    """Return the folders and records of a project's kept logins, sorted by server."""
    base = private_folder()
    folders = [KeptFolder(path) for path in base.glob("*/")] if base else []
    records = [(folder, record) for folder in folders if (record := read_record(folder)) is not None]
    own = [each for each in records if each[1].project == str(project) and each[1].server in servers]
    return sorted(own, key=lambda each: each[1].server)


async def end_kept(folder: KeptFolder, record: Record) -> bool:
    """End all masters of a folder, with SIGKILL if needed, and remove its record; return False if there were none."""
    with suppress(OSError):
        folder.record.unlink()
    had_master = False
    with suppress(MasterError, TimeoutError), MasterClient(record.socket) as master:
        async with asyncio.timeout(ANSWER_SECONDS):
            await master.connect()
            # Even if it confirms its end too late.
            had_master = True
            await master.terminate()
    return await _kill(folder.path) or had_master


async def _kill(folder: Path) -> bool:
    """Kill the masters of a folder that still run: they did not answer, and another may have replaced them."""
    pids: list[int] = []
    with suppress(OSError):
        result = await run_program("ps", "-xww", "-o", "pid=", "-o", "args=", seconds=LISTING_SECONDS)
        lines = result.output.decode(errors="surrogateescape").splitlines()
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
