"""Copies of the project that jobs run from: one for each state of the project, shared by the jobs of that state.

    copies/<name>/code     the sent files, and links to the project's other files and folders
    copies/<name>/files    mode, size, nanoseconds and name of each of them, as copied
    copies/<name>/linked   the same of those that are hard links to the project's
    copies/<name>/states   the ids of the syncs after which the project was in this state, one a line
    copies/<name>/wanted   its time: when a copy was made for a job that has not started yet
    copies/<name>/guests/  the jobs that have begun in it, until their output has come home
    copies/<name>/beside   what was kept beside the project's own, as pairs of names in the copy and the project
    copies/.new-…          a copy that is being made

Copies are caches: what jobs write comes home into the project's folder, see :mod:`remote_tool.agent.frozen.home`.

A copy appears complete, by a rename. A start locks the folder of the copies, shared, until its jobs have folders of
their own; only the holder of the exclusive lock removes unfinished and unused copies.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress

from remote_tool.agent.frozen import copying, guests, links, locks, moving
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.limits import NEW_COPY
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from remote_tool.agent.requests import Folders

CODE, SPARE = "code", "link"
FILES, _LINKED = "files", "linked"
_STATES, _WANTED = "states", "wanted"
# A launch that waits for GPUs for longer may find its copy removed.
_WANTED_SECONDS = 7 * 86400.0
_LONGEST_STATE = 1024
NEW = ".new-"
# Of a sync; the client waits longer for the answer.
_PATIENCE = 15.0
_LARGEST_LIST = 512 * 1024 * 1024
_HEX_DIGITS = "0123456789abcdef"
_NAME_LENGTH = 16
_REMOVAL_SECONDS = 5.0


class Copy(NamedTuple):
    """A copy.

    Attributes:
        name: Of its folder.
        path: Its folder.
        environment_hash: Of the environment in which a job starts in it.
    """

    name: str
    path: str
    environment_hash: str = ""

    @property
    def code(self) -> str:
        """The folder in place of the project's."""
        return f"{self.path}/{CODE}"

    @property
    def scripts(self) -> str:
        """Our own folder in the project."""
        return os.path.dirname(os.path.dirname(self.path))

    @property
    def project(self) -> str:
        """The project's folder."""
        return os.path.dirname(self.scripts)


def is_copy_name(value: object) -> bool:
    """Return whether this can be the name of a copy: hexadecimal digits, and a number after the first."""
    if not isinstance(value, str):
        return False
    state, _, number = value.partition("-")
    is_number = number == "" or (number.isascii() and number.isdigit() and len(number) < _NAME_LENGTH)
    return len(state) == _NAME_LENGTH and not state.strip(_HEX_DIGITS) and is_number and not value.endswith("-")


def copy_of(folders: Folders, name: object) -> Optional[Copy]:
    """Return the copy in a job's record; None if it runs in the project."""
    return Copy(str(name), f"{folders.copies}/{name}") if is_copy_name(name) else None


def copies_in(folders: Folders) -> List[Copy]:
    """Return all copies of a project."""
    try:
        names = sorted(filter(is_copy_name, os.listdir(folders.copies)))
    except FileNotFoundError:
        return []
    found = [Copy(name, f"{folders.copies}/{name}") for name in names]
    return [copy for copy in found if os.path.isdir(copy.code)]


class Copies:
    """The copies of a project, locked so that none is removed until this program exits."""

    def __init__(self, folders: Folders) -> None:
        """Open and lock the folder, and remove the unfinished copies of killed starts.

        Raises:
            OSError: It cannot be created.
        """
        self._folders = folders
        self._path = folders.copies
        self._known: Dict[Tuple[str, str], Optional[Copy]] = {}
        with suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        self.folder = job_folder.open_folder(self._path)
        if lock_alone(self.folder):
            for name in removing.names_in(self.folder):
                if name.startswith((NEW, removing.MARK)):
                    removing.remove(self.folder, name, time.monotonic() + _REMOVAL_SECONDS)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self.folder, fcntl.LOCK_SH)

    def _environment_hash(self) -> str:
        """Return a hash of the environment's activation and of the packages that setup has installed."""
        texts = []
        for name in ("activation.json", "packages"):
            with suppress(FileNotFoundError), open(os.path.join(self._folders.scripts, name), "rb") as file:
                texts.append(file.read(_LARGEST_LIST))
        return copying.digest_of(texts)

    def copy_for(self, job_id: str, asked: object, sent: object = "", *, is_held: bool = False) -> Optional[Copy]:
        """Return the requested copy for a job; None for one that runs in the project, or has been started before.

        Args:
            job_id: The job.
            asked: The copy's name, or ``new``.
            sent: Id of the sync that sent the files of a new copy; empty to copy the present ones.
            is_held: Whether the job has a folder already, and is started now.

        Raises:
            RequestError: There is no such copy, or none can be made now.
            OSError: It cannot be made.
        """
        if not asked or (not is_held and os.path.lexists(os.path.join(self._folders.jobs, job_id))):
            return None
        name, state = str(asked), str(sent or "")
        if (name, state) not in self._known:
            copy = self.take(state) if name == NEW_COPY else self._find(name)
            if copy is not None:
                copy = copy._replace(environment_hash=self._environment_hash())
                # From here on, a job needs it, or this program does.
                job_folder.remove(self.folder, f"{copy.name}/{_WANTED}")
            self._known[name, state] = copy
        return self._known[name, state]

    def take(self, sent: str) -> Optional[Copy]:
        """Return a copy of the files that a sync has sent, or of the present ones; None if nothing was sent.

        Raises:
            RequestError: Another sync has changed the project since, and no copy was made before.
            OSError: It cannot be made.
        """
        sync = _hold_sync(self._folders.scripts, self._folders.project)
        try:
            if sent and not self._is_as_sent(sent):
                return self._find_of(sent)
            self._folders.refuse_half_a_project()
            copy = self._take()
            if copy is not None and sent and sent not in _states_of(copy):
                with open(f"{copy.path}/{_STATES}", "a", encoding="utf-8") as file:
                    file.write(f"{sent}\n")
            return copy
        finally:
            os.close(sync)

    def _is_as_sent(self, sent: str) -> bool:
        """Return whether the last sync is the one with this id, and has finished."""
        try:
            with open(self._folders.sync_state, encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_STATE).split() == ["complete", sent]
        except FileNotFoundError:
            return True  # the user's own copy

    def _find_of(self, sent: str) -> Copy:
        """Return the copy that was made of the files of an earlier sync; RequestError if there is none."""
        for copy in copies_in(self._folders):
            if sent in _states_of(copy) and not first_change(copy, FILES):
                self._link_others(copy.code, files_of(copy))
                return copy
        try:
            with open(os.path.join(self._folders.scripts, "sync-owner"), encoding="utf-8", errors="replace") as file:
                who = f" by {file.read(_LONGEST_STATE).partition(' ')[2].strip()}"
        except OSError:
            who = ""
        raise RequestError(
            f"Another sync{who} has changed {self._folders.project} since yours, so the job would run other code",
            hint="Run the command again",
        )

    def _find(self, name: str) -> Copy:
        """Return an existing copy; RequestError when it does not exist, or its files have changed."""
        copy = copy_of(self._folders, name)
        if copy is None or not job_folder.exists(self.folder, name):
            raise RequestError(f"The copy {name:.60} of the project is not on this server any longer")
        changed = first_change(copy, FILES)
        if changed:
            raise RequestError(f"{changed} in the copy {name} of the project has changed since it was made")
        self._link_others(copy.code, files_of(copy))
        return copy

    def _take(self) -> Optional[Copy]:
        """Return a copy of the project's present state, which is made unless there is one; None if nothing was sent."""
        found = copying.look(self._folders.project, _names(self._folders))
        if not found:
            return None  # never synced by us: the user's own copy
        state = copying.digest_of(each.record for each in found)[:_NAME_LENGTH]
        copy = self._place_for(state)
        if job_folder.exists(self.folder, copy.name):
            self._link_others(copy.code, found)
            return copy
        return self._make(state, found)

    def _place_for(self, state: str) -> Copy:
        """Return the copy of a state, or one that does not exist yet.

        Jobs may have changed files of their copy: it is of no state of the project then.
        """
        number = 1
        while True:
            name = state if number == 1 else f"{state}-{number}"
            copy = Copy(name, f"{self._path}/{name}")
            if not job_folder.exists(self.folder, name) or not first_change(copy, FILES):
                return copy
            number += 1

    def _make(self, state: str, found: List[copying.File]) -> Copy:
        temporary = f"{self._path}/{NEW}{os.urandom(8).hex()}"
        code = f"{temporary}/{CODE}"
        os.mkdir(temporary, 0o700)
        try:
            os.mkdir(code, 0o700)
            os.chmod(code, stat.S_IMODE(os.stat(self._folders.project).st_mode) | stat.S_IRWXU)
            is_in_place = os.path.exists(os.path.join(self._folders.scripts, "own"))
            linked = copying.copy_all(found, self._folders.project, code, may_link=not is_in_place)
            guests.make_folder(temporary)
            self._link_others(code, found)
            for name, files in ((FILES, found), (_LINKED, linked)):
                with open(f"{temporary}/{name}", "xb") as file:
                    file.write(b"\0".join(each.record for each in files))
            return self._promote(temporary, state)
        finally:
            if os.path.lexists(temporary):
                removing.remove(self.folder, os.path.basename(temporary), time.monotonic() + _REMOVAL_SECONDS)

    def _promote(self, temporary: str, state: str) -> Copy:
        """Move a finished copy into its place, unless another start has made one meanwhile."""
        while True:
            copy = self._place_for(state)
            if job_folder.exists(self.folder, copy.name):
                return copy
            try:
                os.rename(temporary, copy.path)
            except OSError:
                if not job_folder.exists(self.folder, copy.name):
                    raise
            else:
                return copy

    def _link_others(self, code: str, found: List[copying.File]) -> None:
        """Link the project's files and folders that were not sent: excluded data, outputs, our folder of jobs."""
        # Code that a later sync has sent is not part of this state.
        names = [*links.code_names(self._folders.scripts), *(each.name for each in found)]
        # Programs find the job's own folder there, even the project's first one.
        jobs = os.path.basename(self._folders.jobs)
        moving.follow_project(code, self._folders.project, jobs, f"{os.path.dirname(code)}/{SPARE}")
        links.link_others(code, self._folders.scripts, links.with_folders(names), jobs)


def link_new(copy: Copy) -> List[str]:
    """Link new files of the project, such as the output of a job that this one waited for; return their names."""
    sync = -1
    # Files of a sync that is running are not in its list yet.
    with suppress(RequestError, OSError):
        sync = _hold_sync(copy.scripts, copy.project)
    try:
        return links.link_others(copy.code, copy.scripts, links.with_folders(sent_to(copy)))
    finally:
        if sync >= 0:
            os.close(sync)


def sent_to(copy: Copy) -> List[bytes]:
    """Return the names that syncs have sent to a copy's project."""
    return links.code_names(copy.scripts)


def _states_of(copy: Copy) -> List[str]:
    try:
        with open(f"{copy.path}/{_STATES}", encoding="utf-8") as file:
            return file.read().split("\n")
    except FileNotFoundError:
        return []


def want(copy: Copy) -> None:
    """Keep a copy for a job that will be started in it."""
    with open(f"{copy.path}/{_WANTED}", "w", encoding="utf-8"):
        pass


def is_wanted(copy: str) -> bool:
    """Return whether a copy was made for a job that may still start."""
    try:
        return time.time() - os.stat(f"{copy}/{_WANTED}").st_mtime < _WANTED_SECONDS
    except OSError:
        return False


def lock_alone(folder: int) -> bool:
    """Lock the folder of the copies exclusively; return whether that succeeded."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _hold_sync(scripts: str, project: str) -> int:
    """Keep syncs away after waiting for one that is running.

    Raises:
        RequestError: It takes long.
        OSError: The lock cannot be opened.
    """
    try:
        return locks.hold(f"{scripts}/{locks.SYNC}", fcntl.LOCK_SH, _PATIENCE)
    except BlockingIOError:
        raise RequestError(
            f"A sync to {project} is running, so its code cannot be copied now", hint="try again later"
        ) from None


def changed_link(copy: Copy) -> str:
    """Return a file of a copy that shares its bytes with the project and was changed; empty if there is none."""
    return first_change(copy, _LINKED)


def sent_records(copy: Copy) -> List[bytes]:
    """Return ``size time name`` of each copied file, as in the list of sent files."""
    return [each.sent_record for each in files_of(copy)]


def files_of(copy: Copy) -> List[copying.File]:
    """Return the files of a copy, as copied."""
    return _read_list(copy, FILES)


def first_change(copy: Copy, name: str) -> str:
    """Return a file that is not as it was copied; empty if all are."""
    files = _read_list(copy, name)
    if not files and name == FILES:
        return "the list of files"
    code = os.fsencode(copy.code)
    for each in files:
        if not copying.is_as(code, each):
            return os.fsdecode(each.name)
    return ""


def _read_list(copy: Copy, name: str) -> List[copying.File]:
    try:
        with open(f"{copy.path}/{name}", "rb") as file:
            text = file.read(_LARGEST_LIST)
        return [copying.parse(record) for record in text.split(b"\0") if record]
    except (FileNotFoundError, ValueError):
        return []  # cut off in a power cut: the copy is of no known state


def _names(folders: Folders) -> List[bytes]:
    """Return the names that syncs have sent; of files from other jobs, those in folders that were sent."""
    sent = links.code_names(folders.scripts)
    tops = {name.split(b"/", 1)[0] for name in sent}
    of_jobs = links.sent_names(os.path.join(folders.scripts, "from-job", "sent"))
    beside: Dict[bytes, None] = dict.fromkeys(name for name in of_jobs if name.split(b"/", 1)[0] in tops)
    return list({**dict.fromkeys(sent), **beside})
