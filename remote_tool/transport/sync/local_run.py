"""One run of the local rsync: its command, its input, and its output about files and progress."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.transport.sync import server_script
from remote_tool.transport.sync import shell as rsync_shell
from remote_tool.transport.sync.failures import SOME_NOT_SENT, SOME_VANISHED
from remote_tool.transport.sync.local_rsync import environment, scratch_file
from remote_tool.transport.sync.server_script import PARTIAL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from remote_tool.transport.sync.bridge import Bridge
    from remote_tool.transport.sync.local_rsync import LocalRsync
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.push_options import PushOptions

MEBIBYTE = 1024 * 1024
MOMENT = 0.01


@dataclass(frozen=True)
class Selection:
    """The files that rsync sends.

    Attributes:
        snapshot: The project.
        names: The files to send; None: every file that rsync finds to differ.
        left_out: Files to exclude when rsync selects.
        trusts_times: Whether rsync may compare the named files by size and time in seconds.
        inside: The folder to which the names are relative, ended by a slash; the project if empty.
        inside_mode: The permissions to give to that folder; None: leave them.
    """

    snapshot: Snapshot
    names: Sequence[bytes] | None
    left_out: Collection[bytes] = ()
    trusts_times: bool = False
    inside: bytes = b""
    inside_mode: int | None = None


@dataclass
class LocalRun:
    """A run of rsync.

    Attributes:
        rsync: The program.
        selection: The files to send.
        options: The options of the sync.
        on_items: Called with the lines that rsync prints about files.
        sent: Keys: the files and links that were sent; one that rsync names in two runs is there once.
        done: Bytes of files that rsync reports as done.
    """

    rsync: LocalRsync
    selection: Selection
    options: PushOptions
    on_items: Callable[[bytes], None]
    sent: dict[str, None] = field(default_factory=dict)
    done: int = 0

    async def run(self, bridge: Bridge) -> tuple[int, bytes]:
        """Run rsync; return its exit status and its stderr."""
        ours, theirs = socket.socketpair()
        with ours, scratch_file() as items:
            with theirs:
                # In a session of its own, because Ctrl-C must reach only this process, which then ends rsync.
                process = await asyncio.create_subprocess_exec(
                    *self._command(),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=items,
                    stderr=asyncio.subprocess.PIPE,
                    env={**environment(), rsync_shell.SOCKET_VARIABLE: str(theirs.fileno())},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )

            async def ended_well() -> bool:
                # ``process.wait()`` would also wait for the streams, which the ssh stand-in still holds open.
                while process.returncode is None:  # noqa: ASYNC110 - another process sets it
                    await asyncio.sleep(MOMENT)
                return process.returncode in {0, SOME_NOT_SENT, SOME_VANISHED}

            try:
                async with asyncio.TaskGroup() as group:
                    place = self.selection.inside, self.selection.inside_mode
                    words = partial(server_script.receive_words, into=place[0], mode=place[1])
                    group.create_task(bridge.serve(ours, words, ended_well))
                    errors = group.create_task(self._attend(process, items.fileno()))
            except BaseExceptionGroup as problems:
                raise problems.exceptions[0] from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, errors.result()

    def _command(self) -> list[str]:
        rsync = self.rsync
        shell = " ".join(_quoted(word) for word in (sys.executable, "-I", "-S", str(Path(rsync_shell.__file__))))
        return [
            rsync.program,
            *self._selection(shell),
            # Keeps partial files, to resume them.
            f"--partial-dir={PARTIAL_FOLDER}",
            *rsync.item_options,
            *([] if self.options.dry_run else rsync.progress_options),
            *rsync.mode_options,
            *rsync.link_options,
            *rsync.plain_arguments,
            *(["-n"] if self.options.dry_run else []),
            *(["-c"] if self.options.checksum else []),
            f"{self.selection.snapshot.root}/{os.fsdecode(self.selection.inside)}",
            "server:.",
        ]

    def _selection(self, shell: str) -> Sequence[str]:
        if self.selection.names is not None:
            # rsync compares size and time in seconds, which may miss a change of a named file.
            force = [] if self.selection.trusts_times else ["-I"]
            return ("-lptO", *force, "--safe-links", "-0", "--files-from=-", "-e", shell)
        return (*("-rlptO", "--safe-links", "-0", "--exclude-from=-", "-e", shell),)

    async def _attend(self, process: asyncio.subprocess.Process, items: int) -> bytes:
        assert process.stdin is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(process.stdin))
            group.create_task(self._read_items(process, items))
            errors = group.create_task(process.stderr.read())
        await process.wait()
        return errors.result()

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        # An rsync that exits early leaves the rest unread; its exit status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            selection = self.selection
            if selection.names is None:
                stdin.write(selection.snapshot.rules_without(selection.left_out))
            else:
                # rsync takes names that begin with # or ; for comments.
                stdin.write(b"".join(b"./" + name.rstrip(b"/") + b"\0" for name in selection.names))
            await stdin.drain()
        stdin.close()

    async def _read_items(self, process: asyncio.subprocess.Process, items: int) -> None:
        """Poll the output, because a first sync prints a line per file."""
        rest, position, has_ended = b"", 0, False
        while not has_ended:
            # Polled for the same reason as above.
            has_ended = process.returncode is not None
            while data := os.pread(items, MEBIBYTE, position):
                position += len(data)
                *lines, rest = (rest + data).split(b"\n")
                self.done = self.rsync.parse_progress([*lines, rest]) or self.done
                self._take_items(lines)
                # A large file may print hours of progress before a newline.
                rest = rest[rest.rfind(b"\r") :] if rest.startswith(b"\r") else rest
            await asyncio.sleep(MOMENT)

    def _take_items(self, lines: Sequence[bytes]) -> None:
        items = [line for line in lines if not line.startswith(b"\r")]
        found = filter(None, map(self.rsync.parse_item, items))
        inside = self.selection.inside
        self.sent |= {os.fsdecode(inside + item.name): None for item in found if not item.is_folder}
        self.on_items(b"".join(line + b"\n" for line in items))


def _quoted(word: str) -> str:
    """Quote a word for ``rsync -e``, which escapes a quote by doubling it."""
    return '"' + word.replace('"', '""') + '"'
