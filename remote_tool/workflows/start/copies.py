"""The copies of the project that jobs ran in: whether servers still have them, and how their code differs."""

from __future__ import annotations

import hashlib
import shlex
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteCommandError
from remote_tool.paths import shell_path
from remote_tool.transport.pool import on_every

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.transport.pool import Results
    from remote_tool.workflows.context import Context

# Names in one question.
MOST_NAMES = 1000
LARGEST_LIST = 64 * 1024 * 1024
LARGEST_DIFF = 4 * 1024 * 1024
SECONDS = 60.0
_DIFF = 'diff -uN -L "a/$1" -L "b/$1" {one}/code/"$1" {other}/code/"$1"'


async def ask_for_copies(context: Context, copies: Mapping[str, str]) -> Results[bool]:
    """Ask each server whether it has its copy, given by name."""

    async def has_copy(server: str) -> bool:
        place = _place(context, server, copies[server])
        host = await context.pool.host(server)
        return (await host.run(f"test -d {place}", check=False, label="kept code")).ok

    return await on_every(copies, has_copy)


async def changed_since_copy(context: Context, server: str, copy: str) -> list[str]:
    """Return the files of a copy that are different here now, or gone.

    Raises:
        RemoteToolError: The server does not say.
    """
    root = context.config.local.root
    changed, doubtful = [], []
    for name, was in (await _list_files(context, server, copy)).items():
        try:
            status = (root / name).lstat()
        except OSError:
            changed.append(name)
            continue
        if status.st_size != was[0]:
            changed.append(name)
        # A server's disk may keep seconds only.
        elif was[1] not in (status.st_mtime_ns, status.st_mtime_ns // 10**9 * 10**9):
            doubtful.append(name)
    hashes = await _hashes(context, server, copy, doubtful[:MOST_NAMES])
    for name in doubtful:
        with suppress(OSError):
            if hashes.get(name) == hashlib.sha256((root / name).read_bytes()).hexdigest():
                continue
        changed.append(name)
    return sorted(changed)


async def diff_copies(context: Context, server: str, one: str, other: str) -> bytes:
    """Return a unified diff of the code of two copies on a server.

    Raises:
        RemoteToolError: The server does not say, or no longer has them.
    """
    before, after = await _list_files(context, server, one), await _list_files(context, server, other)
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    each = _DIFF.format(one=shlex.quote(one), other=shlex.quote(other))
    return await _ask_about(context, server, "", f"xargs -0 -n 1 sh -c {shlex.quote(each)} sh || :", names)


async def _list_files(context: Context, server: str, copy: str) -> dict[str, tuple[int, int]]:
    """Return size and time, in nanoseconds, of each file of a copy as it was sent."""
    host = await context.pool.host(server)
    script = f"cd {_place(context, server, copy)} && cat files"
    answer = await host.run(script, timeout=SECONDS, limit=LARGEST_LIST, label="files of the kept code")
    found = {}
    for record in answer.stdout.split(b"\0"):
        try:
            mode, size, modified, name = record.split(b" ", 3)
            if stat.S_ISREG(int(mode, 8)):
                found[name.decode(errors="surrogateescape")] = int(size), int(modified)
        except ValueError:
            continue
    return found


async def _hashes(context: Context, server: str, copy: str, names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a copy, as far as the server can tell."""
    with suppress(RemoteCommandError):
        answer = await _ask_about(context, server, f"{copy}/code", "xargs -0 sha256sum -z --", names)
        pairs = (record.decode(errors="surrogateescape").partition("  ") for record in answer.split(b"\0") if record)
        return {name: digest for digest, _, name in pairs}
    return {}


async def _ask_about(context: Context, server: str, folder: str, script: str, names: Sequence[str]) -> bytes:
    """Run a script in the folder of the copies, with names on its input."""
    if not names:
        return b""
    host = await context.pool.host(server)
    stdin = b"".join(name.encode(errors="surrogateescape") + b"\0" for name in names[:MOST_NAMES])
    whole = f"cd {_place(context, server, folder)} && {script}"
    answer = await host.run(whole, stdin=stdin, timeout=SECONDS, limit=LARGEST_DIFF, label="kept code")
    return answer.stdout


def _place(context: Context, server: str, folder: str) -> str:
    """Return a folder among the copies on a server, quoted for its shell."""
    return shell_path(f"{context.config.remote_on(server).copies}/{folder}")
