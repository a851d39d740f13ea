"""Links in a copy to the project's files and folders that were not sent: data, outputs, our folder of jobs."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent.frozen.copying import NEVER_LINKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator, List, Set, Tuple

_LARGEST_LIST = 512 * 1024 * 1024


def sent_names(path: str) -> List[bytes]:
    """Return the names in a list of sent files."""
    try:
        with open(path, "rb") as file:
            records = file.read(_LARGEST_LIST).split(b"\0")
    except FileNotFoundError:
        return []
    names = [record.split(b" ", 2)[2] for record in records if record.count(b" ") > 1]
    return [name for name in names if not name.startswith(b"/") and b".." not in name.split(b"/")]


def code_names(scripts: str) -> List[bytes]:
    """Return the names of the files of a project: as sent by syncs, and as listed where it is used in place."""
    return [name for each in ("sent", "own") for name in sent_names(os.path.join(scripts, each))]


def with_folders(names: Iterable[bytes]) -> Set[str]:
    """Return names and the folders that they are in, relative to the project."""
    found: Set[str] = set()
    for name in names:
        path = os.fsdecode(name.rstrip(b"/"))
        while path and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def link_others(code: str, scripts: str, sent: Set[str], *also: str) -> List[str]:
    """Link what a copy lacks, remove links that lead nowhere; return the names of all that lead to the project's own.

    Args:
        code: The copy's folder in place of the project's.
        scripts: Our own folder in the project.
        sent: What syncs have sent, by :func:`with_folders`: code of a later sync is not part of this state.
        also: Names to link even if the project lacks them.
    """
    linked: List[str] = []
    project, own = os.path.split(scripts)
    for folder, present, required in _folders(code, project, {own, *sent}, also):
        for name in present - required:
            path = f"{code}/{folder}{name}"
            # A program could not create its folder in the place of a link that leads nowhere.
            if leads_to(path) == f"{project}/{folder}{name}":
                os.unlink(path)
        for name in required:
            path, target = f"{code}/{folder}{name}", f"{project}/{folder}{name}"
            if name not in present:
                with suppress(FileExistsError):
                    os.symlink(target, path)
            if leads_to(path) == target:
                linked.append(folder + name)
    return linked


def _folders(
    code: str, project: str, sent: Set[str], also: Tuple[str, ...]
) -> Iterator[Tuple[str, Set[str], Set[str]]]:
    """Yield each folder of a copy with a slash at its end, its names, and those that it should have as links."""
    waiting = [""]
    for folder in waiting:
        beside = set(_names(f"{project}/{folder}"))
        if not folder:
            beside.update(also)
        required = {name for name in beside.difference(NEVER_LINKED) if folder + name not in sent}
        with os.scandir(f"{code}/{folder}") as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        yield folder, set(found), required
        # A link to a folder of a copy would be followed into that copy.
        waiting += [
            f"{folder}{name}/"
            for name, is_folder in found.items()
            if is_folder and name not in NEVER_LINKED and not os.path.islink(f"{project}/{folder}{name}")
        ]


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def leads_to(path: str) -> str:
    """Return the text of a link; empty if it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
