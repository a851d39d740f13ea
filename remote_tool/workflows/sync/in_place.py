"""The project on this machine, where jobs use it as it is: nothing is sent, and nothing is removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.protocol.artifact_patterns import of_job
from remote_tool.protocol.artifact_search import ArtifactSearch
from remote_tool.system.files import write_atomically
from remote_tool.transport.sync.last_sync import each_record, name_in

if TYPE_CHECKING:
    from remote_tool.paths import RemotePaths
    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.transport.sync.project.contents import Snapshot

# Git, and programs that go by its rules, look into none of our folders.
_IGNORED = b"*\n"
_SLASH = ord("/")


def note_files(server: str, paths: RemotePaths, snapshot: Snapshot, artifacts: tuple[ArtifactPattern, ...]) -> None:
    """List the files that a sync would send, without artifacts: the code of jobs that run in a copy.

    Raises:
        SyncError: The list cannot be written.
    """
    try:
        for folder in (Path(paths.scripts), Path(paths.jobs)):
            folder.mkdir(mode=0o700, exist_ok=True)
            if not (folder / ".gitignore").exists():
                _write(folder / ".gitignore", _IGNORED)
        records = _without(_matching(paths.project, artifacts), [*each_record(snapshot.sent_list)])
        _write(Path(paths.own_files), b"".join(record + b"\0" for record in records))
    except OSError as error:
        message = f"{server}: {error.filename or paths.project}: {error.strerror}"
        raise SyncError(message, hint=f"ls -ld {paths.project}; df -h {paths.project}", server=server) from error


def _matching(project: str, patterns: tuple[ArtifactPattern, ...]) -> set[bytes]:
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        search = ArtifactSearch(folder)
        globs = [pattern.glob for pattern in of_job(patterns, "*")]
        return {os.fsencode(found.path) for glob in globs for found in search.find(glob)}
    finally:
        os.close(folder)


def _without(names: set[bytes], records: list[bytes]) -> list[bytes]:
    """Leave out files, and the folders that have nothing else."""
    if not names:
        return records
    kept = [name for each in records if not (name := name_in(each)).endswith(b"/") and name not in names]
    folders = {name[: end + 1] for name in kept for end, letter in enumerate(name) if letter == _SLASH}
    stays = folders.union(kept)
    return [each for each in records if name_in(each) in stays]


def _write(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)
