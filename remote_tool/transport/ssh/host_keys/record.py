"""Add a host key to a known_hosts file, and remove keys of former servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remote_tool.system.files import replacing
from remote_tool.system.locks import lock, unlock
from remote_tool.transport.ssh.host_keys import hashed_names
from remote_tool.transport.ssh.host_keys.entries import UnusableFileError, parse
from remote_tool.transport.ssh.host_keys.known_hosts import Answer, KnownHosts, Lines, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.ssh.host_keys.entries import Entry, HostKey

LOCK_SECONDS = 5.0


def accept(
    file: Path,
    name: str,
    key: HostKey,
    *,
    hash_name: bool = False,
    note: str = "",
    is_forgotten: Callable[[Entry], bool] = lambda _entry: False,
) -> Answer:
    """Add the key of a host to a file atomically, unless another process was faster.

    Args:
        file: Created if missing.
        name: As from :func:`lookup_names`.
        key: The presented key.
        hash_name: Whether to hash the name, as for ``HashKnownHosts``.
        note: The server it is for, see :func:`note_for`; empty for a line that stays when servers leave.
        is_forgotten: Selects lines to remove, because their server has left the configuration.

    Returns:
        NEW: it was added; KNOWN: the file already has it; CHANGED: the file has a different one.

    Raises:
        UnusableFileError: The file cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _open_locked(file)
        try:
            content = _without(descriptor, file, is_forgotten)[0]
            entries = parse(content, file)[0]
            answer = KnownHosts([Lines(entries)]).check((name,), key)
            is_noted = any(entry.note == note for entry in answer.entries)
            if answer.verdict is Verdict.NEW or (answer.verdict is Verdict.KNOWN and not is_noted):
                shown = hashed_names.hash_name(name) if hash_name else name
                _append(descriptor, content, " ".join(filter(None, (shown, key.text, "" if hash_name else note))))
            return answer
        finally:
            unlock(descriptor)
    except OSError as error:
        raise UnusableFileError(f"The host key cannot be recorded in {file}: {error.strerror}") from None


def forget(file: Path, is_forgotten: Callable[[Entry], bool], *, dry_run: bool = False) -> int:
    """Remove lines from a file atomically; return their number.

    Raises:
        UnusableFileError: The file cannot be written.
    """
    try:
        if not file.exists():
            return 0
        descriptor = _open_locked(file)
        try:
            return _without(descriptor, file, is_forgotten, dry_run=dry_run)[1]
        finally:
            unlock(descriptor)
    except OSError as error:
        raise UnusableFileError(f"{file} cannot be written: {error.strerror}") from None


def _open_locked(file: Path) -> int:
    """Open a file and lock it, even if another process replaces it meanwhile."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            lock(descriptor, seconds=LOCK_SECONDS)
            if os.path.samestat(os.fstat(descriptor), os.stat(file, follow_symlinks=False)):  # noqa: PTH116
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _without(
    descriptor: int, file: Path, is_forgotten: Callable[[Entry], bool], *, dry_run: bool = False
) -> tuple[bytes, int]:
    """Remove lines from a locked file; return the remaining content and their number."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    numbers = {entry.line for entry in parse(content, file)[0] if is_forgotten(entry)}
    if not numbers or dry_run:
        return content, len(numbers)
    lines = content.split(b"\n")
    content = b"\n".join(line for number, line in enumerate(lines, 1) if number not in numbers)
    with replacing(file) as new:
        new.write(content)
        lock(new.fileno())
        renamed = os.dup(new.fileno())
    # From now on this file is the one that is locked and written.
    os.dup2(renamed, descriptor, inheritable=False)
    os.close(renamed)
    return content, len(numbers)


def _append(descriptor: int, content: bytes, line: str) -> None:
    start = b"" if not content or content.endswith(b"\n") else b"\n"
    try:
        _write(descriptor, start + f"{line}\n".encode())
    except OSError:
        os.ftruncate(descriptor, len(content))
        raise


def _write(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) != len(data):
        raise OSError(28, "No space left on device")
