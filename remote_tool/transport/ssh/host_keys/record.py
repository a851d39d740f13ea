"""Add a host key to a known_hosts file, and remove keys of former servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remote_tool.system.files import replacing
from remote_tool.system.locks import lock, unlock
from remote_tool.transport.ssh.host_keys.entries import UnusableFileError, hash_name, parse
from remote_tool.transport.ssh.host_keys.known_hosts import CheckResult, KnownHosts, KnownHostsFile, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.ssh.host_keys.entries import HostKey, KnownHostsEntry

LOCK_SECONDS = 5.0


def accept(
    file: Path,
    name: str,
    key: HostKey,
    *,
    hashes_name: bool = False,
    note: str = "",
    is_forgotten: Callable[[KnownHostsEntry], bool] = lambda _entry: False,
) -> CheckResult:
    """Add the key of a host to a file atomically, unless another process was faster.

    Args:
        file: Created if missing.
        name: The first of :func:`lookup_names`.
        key: The key to record.
        hashes_name: Whether to hash the name, as with ``HashKnownHosts``.
        note: The comment from :func:`note_for`; a line without one is never forgotten.
        is_forgotten: Whether to remove a line, because its server has left the configuration.

    Returns:
        NEW if the key was added, KNOWN if the file has it already, CHANGED if the file has a different one.

    Raises:
        UnusableFileError: The file cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _open_locked(file)
        try:
            content = _remove_lines(descriptor, file, is_forgotten)[0]
            entries = parse(content, file)[0]
            result = KnownHosts([KnownHostsFile(entries)]).check((name,), key)
            has_note = any(entry.note == note for entry in result.entries)
            if result.verdict is Verdict.NEW or (result.verdict is Verdict.KNOWN and not has_note):
                words = (hash_name(name), key.text) if hashes_name else (name, key.text, note)
                _append(descriptor, content, " ".join(filter(None, words)))
            return result
        finally:
            unlock(descriptor)
    except OSError as error:
        raise UnusableFileError(f"The host key cannot be recorded in {file}: {error.strerror}") from None


def forget(file: Path, is_forgotten: Callable[[KnownHostsEntry], bool], *, dry_run: bool = False) -> int:
    """Remove lines from a file atomically, and return their number.

    Raises:
        UnusableFileError: The file cannot be written.
    """
    try:
        if not file.exists():
            return 0
        descriptor = _open_locked(file)
        try:
            return _remove_lines(descriptor, file, is_forgotten, dry_run=dry_run)[1]
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


def _remove_lines(
    descriptor: int, file: Path, is_forgotten: Callable[[KnownHostsEntry], bool], *, dry_run: bool = False
) -> tuple[bytes, int]:
    """Remove lines from a locked file; return the remaining content, and the number of lines."""
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
    # The caller's descriptor becomes the new file, which has the lock.
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
