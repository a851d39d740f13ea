"""The way home of the files in one copy: where each goes, and the link in its place."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from remote_tool.agent.frozen import copies, copying, links, moving
from remote_tool.agent.frozen.links import leads_to
from remote_tool.protocol.job_folder import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Set, Tuple

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.frozen.guests import Guest
    from remote_tool.agent.frozen.moving import Copier

# In a copy: the files kept beside the project's own, as pairs of names.
_BESIDE = "beside"
_LARGEST_LIST = 512 * 1024 * 1024
_LONGEST_NAME = 200
_MOST_SHOWN = 3


class Homecoming:
    """The result of bringing the files of a copy home.

    Attributes:
        beside: The names, in the project, of files and folders whose own name was taken.
        stuck: What is still in the copy only, and why.
    """

    def __init__(self) -> None:
        self.beside: List[str] = []
        self.stuck: List[Tuple[str, str]] = []

    def describe(self, copy: str) -> List[str]:
        """Return sentences for the job's record; none if all came home under its own name."""
        notes = []
        if self.beside:
            notes.append(f"kept beside the project's own: {listed(self.beside)}")
        if self.stuck:
            names, why = [name for name, _ in self.stuck], self.stuck[0][1]
            notes.append(f"still in the copy {copy} and not in the project: {listed(names)}: {why}")
        return notes


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of others."""
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(printable(name) for name in names[:_MOST_SHOWN]) + more


def kept_beside(copy: Copy) -> List[str]:
    """Return the files of a copy's jobs that are beside the project's own."""
    return [name for name in _read_beside(copy).values() if os.path.lexists(f"{copy.project}/{name}")]


def _read_beside(copy: Copy) -> Dict[str, str]:
    try:
        with open(f"{copy.path}/{_BESIDE}", "rb") as file:
            names = [os.fsdecode(name) for name in file.read(_LARGEST_LIST).split(b"\0")]
    except FileNotFoundError:
        return {}
    return {names[at]: names[at + 1] for at in range(0, len(names) - 1, 2)}


class Way:
    """The way home of the files in one copy.

    A path in the copy (``path``) and where it goes in the project (``target``) are relative, and mostly the same.

    Attributes:
        result: What it did.
        own_names: The names of our own folders in the project.
        links_folders: Whether the project may get links to folders: a sync that is running could write through them.
        copy_file: Copies a file to another disk.
    """

    def __init__(self, copy: Copy, present: List[Guest], writer: str, *, moves: bool, stays: bool) -> None:
        """Initialize.

        Args:
            copy: The copy.
            present: The jobs that may have written there.
            writer: The job whose id is added to a name that is taken.
            moves: Whether to move, instead of linking from the project.
            stays: Whether the copy stays, so that it needs links.
        """
        self.result = Homecoming()
        self.own_names: Set[str] = set()
        self.links_folders = True
        self.copy_file: Copier = copying.copy_file
        self._copy = copy
        self._writer = writer
        self._moves = moves
        self._stays = stays
        self._spare = f"{copy.path}/{copies.SPARE}"
        copied = copies.files_of(copy)
        self._copied = {os.fsdecode(each.name): each for each in copied}
        self._folders = links.with_folders(each.name + b"/" if each.is_folder else each.name for each in copied)
        self._folders -= {name for name, each in self._copied.items() if not each.is_folder}
        self._sent = links.with_folders(copies.sent_to(copy))
        self._beside = _read_beside(copy)
        self._since = min((each.since for each in present), default=0)
        self._linked: Set[str] = set.intersection(*({*each.linked} for each in present)) if present else set()

    def _here(self, path: str) -> str:
        return f"{self._copy.code}/{path}" if path else self._copy.code

    def _home(self, target: str) -> str:
        return f"{self._copy.project}/{target}" if target else self._copy.project

    def bring_folder(self, path: str, target: str, *, seen: bool) -> None:
        """Bring home the new files of a folder that stays.

        Args:
            path: In the copy.
            target: In the project.
            seen: Whether the jobs had a link to the project's folder in its place, and it is as it was then.
        """
        here = self._here(path)
        for name in sorted(moving.with_rights(lambda: os.listdir(here), here)):
            if name in copying.NEVER_LINKED:
                continue
            inner, goal = (f"{each}/{name}" if each else name for each in (path, target))
            try:
                self._bring(inner, goal, seen=seen)
            except OSError as error:
                self.result.stuck.append((inner, str(error.strerror)))
                if isinstance(error, PermissionError):
                    self._link_foreign(inner, goal)
            except RecursionError:
                self.result.stuck.append((inner, "too many folders inside each other"))

    def _bring(self, path: str, target: str, *, seen: bool) -> None:
        status = os.lstat(self._here(path))
        if stat.S_ISLNK(status.st_mode) and leads_to(self._here(path)) in self._left_for(path):
            return
        if path in self._folders and stat.S_ISDIR(status.st_mode):
            place = self._folder_for(path, target)
            self.bring_folder(path, place, seen=False)
            if place != target and os.path.lexists(self._home(place)):
                self.result.beside.append(place)
        elif path in self._copied or path in self._folders:
            self._keep_changed(path, target, status)
        else:
            seen = path in self._linked or (seen and self._is_older(target))
            if stat.S_ISDIR(status.st_mode):
                self._bring_new_folder(path, target, seen=seen)
            else:
                self._bring_new_file(path, target, status, seen=seen)

    def _left_for(self, path: str) -> Set[str]:
        """Return the texts of the links that passes leave in a place."""
        return {self._home(path), self._home(self._beside.get(path, path))}

    def _folder_for(self, path: str, target: str) -> str:
        """Return where to bring new files of a folder that was sent: a file may have taken its place since."""
        home = self._home(target)
        if os.path.isdir(home):
            return target
        if os.path.lexists(home):
            return self._name_beside(path, target)
        return target

    def _leads_here(self, home: str, path: str) -> bool:
        """Return whether a name in the project is a link to this path in the copy, also of a project that moved."""
        inner = f"/{os.path.basename(self._copy.scripts)}/copies/{self._copy.name}/{copies.CODE}/{path}"
        if leads_to(home).endswith(inner):
            return True
        here = self._here(path)
        # Anything moved by way of such a link would replace itself.
        return os.path.islink(home) and not os.path.islink(here) and os.path.realpath(home) == os.path.realpath(here)

    def _is_older(self, target: str) -> bool:
        """Return whether the project has had a file or folder, unchanged, since before the jobs began."""
        try:
            return os.lstat(self._home(target)).st_ctime_ns < self._since
        except OSError:
            return False

    def _bring_new_folder(self, path: str, target: str, *, seen: bool) -> None:
        home = self._home(target)
        is_ours = target in self.own_names
        if self._leads_here(home, path):
            if self._moves:
                os.unlink(home)
                self._move_folder(path, target)
        elif not os.path.lexists(home) and not is_ours and target not in self._sent:
            self._bring_free_folder(path, target)
        elif os.path.isdir(home) and not is_ours:
            self.bring_folder(path, target, seen=seen)
            self._fold(path, target)
        elif self._moves:
            self._keep_beside(path, target)

    def _bring_free_folder(self, path: str, target: str) -> None:
        if self._moves:
            self._move_folder(path, target)
        elif self.links_folders:
            self._link_from_home(path, target)
        else:
            self._make_folder(path, target)
            self.bring_folder(path, target, seen=False)

    def _move_folder(self, path: str, target: str) -> None:
        here, home = self._here(path), self._home(target)
        self._turn_links(path)
        self._make_parent(path, target)
        if moving.move_folder(here, home):
            self._leave(path, target)
            return
        moving.make_folder(home, here)
        self.bring_folder(path, target, seen=False)
        self._fold(path, target)

    def _fold(self, path: str, target: str) -> None:
        """Replace a folder by a link to the project's, if it has nothing else than links into that."""
        here, home = self._here(path), self._home(target)
        if not self._moves:
            return
        names = os.listdir(here)
        if all(leads_to(f"{here}/{name}") == f"{home}/{name}" for name in names):
            for name in names:
                moving.with_rights(lambda name=name: os.unlink(f"{here}/{name}"), here)  # type: ignore[misc]
            moving.with_rights(lambda: os.rmdir(here), os.path.dirname(here))
            self._leave(path, target)

    def _bring_new_file(self, path: str, target: str, status: os.stat_result, *, seen: bool) -> None:
        here, home = self._here(path), self._home(target)
        there = _look(home)
        if there is None and target not in self._sent:
            if self._moves:
                self._move_file(path, target)
            else:
                self._link_from_home(path, target)
        elif there is not None and self._is_replaced(path, home, there, seen=seen and target not in self._sent):
            if self._moves:
                self._turn_links(path)
                moving.replace(here, home, self.copy_file)
                self._leave(path, target)
            else:
                moving.put_link(here, home, self._spare)
        elif not self._moves:
            return  # it is seen when the last job of the copy has ended
        elif there is not None and (_is_one(status, there) or moving.is_same(here, home)):
            self._leave(path, target)
        else:
            self._keep_beside(path, target)

    def _is_replaced(self, path: str, home: str, there: os.stat_result, *, seen: bool) -> bool:
        """Return whether a file takes the place of the project's: of a link to it, or of one that the job replaced."""
        if stat.S_ISLNK(there.st_mode) and self._leads_here(home, path):
            return self._moves
        return seen and not stat.S_ISDIR(there.st_mode) and there.st_ctime_ns < self._since

    def _move_file(self, path: str, target: str) -> None:
        self._turn_links(path)
        self._make_parent(path, target)
        try:
            moving.add(self._here(path), self._home(target), copy=self.copy_file)
        except FileExistsError:
            self._keep_beside(path, target)
        else:
            self._leave(path, target)

    def _link_from_home(self, path: str, target: str) -> None:
        self._make_parent(path, target)
        # Another one may have come meanwhile.
        with suppress(FileExistsError):
            home = self._home(target)
            moving.with_rights(lambda: os.symlink(self._here(path), home), os.path.dirname(home))

    def _link_foreign(self, path: str, target: str) -> None:
        """Link from the project to a path that cannot move, such as another user's folder that a container made."""
        with suppress(OSError):
            if target not in self._sent and not os.path.lexists(self._home(target)):
                self._link_from_home(path, target)

    def _make_parent(self, path: str, target: str) -> None:
        """Make the project's folders for a target, with the modes of the copy's."""
        parent = target.rpartition("/")[0]
        if parent:
            self._make_folder(path.rpartition("/")[0], parent)

    def _make_folder(self, path: str, target: str) -> None:
        if not os.path.isdir(self._home(target)):
            self._make_parent(path, target)
            with suppress(FileExistsError):
                moving.make_folder(self._home(target), self._here(path))

    def _leave(self, path: str, target: str) -> None:
        """Leave a link in the place of a file or folder that has come home."""
        here = self._here(path)
        if self._stays:
            # Without space for it, the next job gets its link.
            with suppress(OSError):
                moving.put_link(self._home(target), here, self._spare)
                return
        with suppress(FileNotFoundError):
            moving.with_rights(lambda: os.unlink(here), os.path.dirname(here))

    def _keep_changed(self, path: str, target: str, status: os.stat_result) -> None:
        """Keep a sent file that a job has changed: it stays in the copy, and gets a name in the project."""
        here, home = self._here(path), self._home(target)
        copied = self._copied.get(path)
        if copied is not None and copying.is_as(os.fsencode(self._copy.code), copied):
            return
        if not stat.S_ISREG(status.st_mode):
            if self._moves:
                self._keep_beside(path, target)
            return
        there, kept = _look(home), _look(self._home(self._beside.get(path, target)))
        is_known = any(each is not None and _is_one(status, each) for each in (there, kept))
        if is_known or (there is not None and moving.is_same(here, home)):
            return
        if kept is not None and moving.is_same(here, self._home(self._beside.get(path, target))):
            return  # a copy of it, made by an earlier pass
        name = self._name_beside(path, target)
        self._make_parent(path, name)
        moving.add(here, self._home(name), stays=True, copy=self.copy_file)
        self.result.beside.append(name)

    def _keep_beside(self, path: str, target: str) -> None:
        name = self._name_beside(path, target)
        here, home = self._here(path), self._home(name)
        self._turn_links(path)
        self._make_parent(path, name)
        if os.path.isdir(here) and not os.path.islink(here):
            self._move_folder(path, name)
        else:
            if not os.path.lexists(home):
                moving.add(here, home, copy=self.copy_file)
            self._leave(path, name)
        self.result.beside.append(name)

    def _name_beside(self, path: str, target: str) -> str:
        """Return a name beside a taken one, and record it before it exists."""
        folder, slash, last = target.rpartition("/")
        stem = f"{folder}{slash}{os.fsdecode(os.fsencode(last)[:_LONGEST_NAME])}.{self._writer}"
        name, number = stem, 1
        while not self._is_free(name, path):
            number += 1
            name = f"{stem}.{number}"
        if self._beside.get(path) != name:
            self._beside[path] = name
            with open(f"{self._copy.path}/{_BESIDE}", "ab") as file:
                file.write(b"".join(os.fsencode(each) + b"\0" for each in (path, name)))
        return name

    def _is_free(self, name: str, path: str) -> bool:
        there = _look(self._home(name))
        return there is None or _is_one(there, os.lstat(self._here(path)))

    def _turn_links(self, path: str) -> None:
        code = self._copy.code
        moving.turn_links(self._here(path), (code, os.path.realpath(code)), self._copy.project, self._spare)


def _look(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _is_one(status: os.stat_result, other: os.stat_result) -> bool:
    """Return whether two names are of one file."""
    return (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino)
