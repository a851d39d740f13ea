"""Find files by globs below a folder, within bounds, without entering our own folders.

Of links, only those are followed that lead into certain folders: between a project and its copies.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat

from remote_tool.protocol.job_folder import open_folder, open_plain
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Iterator, List, Optional, Tuple

# A larger folder is not one of artifacts: use a narrower glob.
MOST_ENTRIES = 200_000
# Each level holds a descriptor and a stack frame.
DEEPEST = 64
_MOST_LINKS = 8
_NEVER_ENTERED = frozenset([".git", ".remote", ".jobs", ".remote-scripts", ".remote-tool-partial"])
# Errors for missing, non-folder, link and unreadable entries.
_HIDDEN = frozenset([errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG])
_MAGIC = re.compile(r"[*?\[]")
_ANY_FOLDERS = "**"


class FoundArtifact(NamedTuple):
    """A regular file.

    Attributes:
        path: Relative to the root of the search.
        unit: What newest-N counts: the file, or the whole folder that the glob matches.
        status: Its stat result.
    """

    path: str
    unit: str
    status: os.stat_result


class _OpenFolder(NamedTuple):
    """An open folder of the search, and its path with a slash at the end; empty for the root."""

    folder: int
    path: str
    depth: int


class ArtifactSearch:
    """Searches for files below a folder.

    Attributes:
        is_cut: Whether the search stopped at its bound.
    """

    def __init__(
        self, root: int, own: FrozenSet[Tuple[int, int]] = frozenset(), followed: Tuple[str, ...] = ()
    ) -> None:
        """Start at an open folder.

        Args:
            root: The folder.
            own: Folders that are not entered, by device and inode.
            followed: Beginnings of the texts of links that are followed.
        """
        self.is_cut = False
        self._followed = followed
        self._root = root
        self._own = own
        self._left = MOST_ENTRIES

    def find(self, glob: str) -> Iterator[FoundArtifact]:
        """Yield the files matching a glob; one that ends with a slash matches whole folders."""
        parts = [part for part in glob.split("/") if part]
        # Consecutive ``**`` are the same as one, and would repeat the walk.
        parts = [part for index, part in enumerate(parts) if part != _ANY_FOLDERS or parts[index - 1 : index] != [part]]
        yield from self._walk(_OpenFolder(self._root, "", 0), parts, whole=glob.endswith("/"))

    def open_file(self, path: str) -> int:
        """Open a regular file by its path; OSError if it is none, or behind a link that is not followed."""
        place = _OpenFolder(self._root, "", 0)
        *folders, name = path.split("/")
        opened: List[int] = []
        try:
            for part in folders:
                opened.append(open_folder(*self._follow(place, part)))
                place = _OpenFolder(opened[-1], "", 0)
            path, folder = self._follow(place, name)
            return open_plain(path, folder)
        finally:
            for each in opened:
                os.close(each)

    def _walk(self, place: _OpenFolder, parts: List[str], *, whole: bool) -> Iterator[FoundArtifact]:
        first, rest = parts[0], parts[1:]
        if first == _ANY_FOLDERS:
            yield from self._walk(place, rest or ["*"], whole=whole)
            for name in self._names(place, "*", folders=True):
                yield from self._descend(place, name, parts, whole=whole)
            return
        for name in self._names(place, first, folders=bool(rest) or whole):
            if rest:
                yield from self._descend(place, name, rest, whole=whole)
            elif whole:
                yield from self._everything(place, name, place.path + name)
            else:
                yield from self._file(place, name, place.path + name)

    def _descend(self, place: _OpenFolder, name: str, parts: List[str], *, whole: bool) -> Iterator[FoundArtifact]:
        for inner in self._enter(place, name):
            yield from self._walk(inner, parts, whole=whole)

    def _everything(self, place: _OpenFolder, name: str, unit: str) -> Iterator[FoundArtifact]:
        for inner in self._enter(place, name):
            for entry in self._entries(inner):
                if self._is_folder(inner, entry):
                    yield from self._everything(inner, entry.name, unit)
                else:
                    yield from self._file(inner, entry.name, unit)

    def _enter(self, place: _OpenFolder, name: str) -> Iterator[_OpenFolder]:
        """Yield an opened folder, or nothing if it is not one or not to be entered."""
        if name in _NEVER_ENTERED:
            return
        if place.depth >= DEEPEST:
            self.is_cut = True
            return
        try:
            folder = open_folder(*self._follow(place, name))
        except OSError as error:
            _require_hidden(error)
            return
        try:
            status = os.fstat(folder)
            if (status.st_dev, status.st_ino) not in self._own:
                yield _OpenFolder(folder, f"{place.path}{name}/", place.depth + 1)
        finally:
            os.close(folder)

    def _names(self, place: _OpenFolder, part: str, *, folders: bool) -> List[str]:
        """Return the names in a folder that match a part of a glob: folders, or others."""
        if not _MAGIC.search(part):
            return [part]
        matches = re.compile(fnmatch.translate(part)).match
        return [
            entry.name
            for entry in self._entries(place)
            if matches(entry.name)
            and (part.startswith(".") or not entry.name.startswith("."))
            and self._is_folder(place, entry) == folders
        ]

    def _entries(self, place: _OpenFolder) -> List[os.DirEntry[str]]:
        entries = []
        try:
            with os.scandir(place.folder) as found:
                for entry in found:
                    if self._left <= 0:
                        self.is_cut = True
                        break
                    self._left -= 1
                    entries.append(entry)
        except OSError as error:
            _require_hidden(error)
        return sorted(entries, key=lambda entry: entry.name)

    def _file(self, place: _OpenFolder, name: str, unit: str) -> Iterator[FoundArtifact]:
        try:
            path, folder = self._follow(place, name)
            status = os.stat(path, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            _require_hidden(error)
            return
        if stat.S_ISREG(status.st_mode):
            yield FoundArtifact(place.path + name, unit, status)

    def _is_folder(self, place: _OpenFolder, entry: os.DirEntry[str]) -> bool:
        if not (self._followed and entry.is_symlink()):
            return entry.is_dir(follow_symlinks=False)
        path, folder = self._follow(place, entry.name)
        return folder is None and os.path.isdir(path)

    def _follow(self, place: _OpenFolder, name: str) -> Tuple[str, Optional[int]]:
        """Return the path of an entry, and the folder that it begins at; None for that of a link that is followed."""
        found: Tuple[str, Optional[int]] = (name, place.folder)
        for _ in range(_MOST_LINKS if self._followed else 0):
            try:
                text = os.readlink(found[0], dir_fd=found[1])
            except OSError:
                break
            if not text.startswith(self._followed):
                break
            found = (text, None)
        return found


def _require_hidden(error: OSError) -> None:
    """Re-raise a temporary error: a list lacking a file for a moment would be taken as complete."""
    if error.errno not in _HIDDEN:
        raise error


def newest_units(found: List[FoundArtifact], count: int) -> List[str]:
    """Return the units that were written last, newest first."""
    written: Dict[str, int] = {}
    for each in found:
        written[each.unit] = max(written.get(each.unit, 0), each.status.st_mtime_ns)
    return sorted(written, key=lambda unit: (written[unit], unit), reverse=True)[:count]
