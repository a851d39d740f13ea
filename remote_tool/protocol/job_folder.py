"""The folder of a job on its server: names, records and how they are read and written.

    spec.json      what was asked for; the folder appears with it, so a job without it does not exist
    started.json   which processes; the command runs only after this is on disk
    stop.json      that somebody wants it to end
    ended.json     how it ended; never written twice
    command        the text that the shell runs
    entry.json     of a job behind a launch command: how what runs there is reached
    begun          of the same: its command was about to begin
    setup          the script that it sources first, where there is one; setup-done: it went well
    job.out job.err ranks/   its output, exact bytes
    reserve        space kept free for ended.json, locked while the supervisor lives

Every record is JSON with ``"schema": 1``, is written beside and renamed, and is checked when it is read.
"""

from __future__ import annotations

import errno
import os
import stat

from remote_tool.protocol.lean.suppress import suppress
from remote_tool.protocol.records import RecordError, encode_record, is_job_id, parse_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from remote_tool.protocol.records import Record

COMMAND = "command"
OUT = "job.out"
ERR = "job.err"
RANKS = "ranks"
RESERVE = "reserve"
# Written by the script of the first node of an MPI launch: the commands that mpiexec asks for on the others.
PROXIES_FILE = "mpi-proxies"
# Written from behind a launch command when the command is about to begin.
BEGUN = "begun"

# In the folder of all jobs: tells it from every other, such as an empty disk that is mounted in its place.
FOLDER_ID = ".folder-id"
_HEX_DIGITS = "0123456789abcdef"
_ID_LENGTH = 32

RECORD_LIMIT = 1024 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# So many descriptors every process may have; and so many an operation needs for a moment.
_FEW_FILES, _SPARE_FILES = 16, 16
# What every other number says passes: a network disk that does not answer, too many open files.
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NO_PLAIN_FILE = {errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO}


class FolderError(Exception):
    """A folder cannot be trusted; the text says which and why."""


def open_folder(path: str, parent: int | None = None) -> int:
    """Open a folder that is no symbolic link; returns a descriptor."""
    return os.open(path, _FOLDER_FLAGS, dir_fd=parent)


def open_job(jobs: int | None, job_id: str) -> int | None:
    """Open the folder of a job; None when there is no such job, OSError when that cannot be told now."""
    if jobs is None or not is_job_id(job_id):
        return None
    try:
        return open_folder(job_id, jobs)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise


def allow_open_files(count: int) -> int:
    """Have room for so many more open files, as far as the system lets us; returns for how many there is."""
    if count <= _FEW_FILES:
        return max(1, count)
    import resource  # noqa: PLC0415 - few calls are about so many

    wanted = len(os.listdir("/proc/self/fd")) + _SPARE_FILES + count
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A limit below zero is none.
    if 0 <= usual < wanted:
        raised = wanted if most < 0 else min(wanted, most)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            usual = raised
    return count if usual < 0 else max(1, count - max(0, wanted - usual))


def path_of(folder: int) -> str:
    """Return the path of an open folder, absolute and without links."""
    return os.readlink(f"/proc/self/fd/{folder}")


def open_file_beneath(folder: int, path: str, *, for_writing: bool = False) -> int:
    """Open a regular file somewhere below a folder, following no symbolic link on the way."""
    parts = path.split("/")
    opened = []
    try:
        for part in parts[:-1]:
            folder = open_folder(part, folder)
            opened.append(folder)
        access = os.O_RDWR if for_writing else os.O_RDONLY
        file = os.open(parts[-1], access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    is_plain = False
    try:
        is_plain = stat.S_ISREG(os.fstat(file).st_mode)
    finally:
        if not is_plain:
            os.close(file)
    if not is_plain:
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def is_no_plain_file(error: OSError) -> bool:
    """Whether opening a file failed for what is there, and not because the system cannot just now."""
    return error.errno in _NO_PLAIN_FILE


def read_bytes(folder: int, name: str, limit: int = RECORD_LIMIT) -> bytes | None:
    """Return a small file's bytes, None when there is no such file.

    Raises:
        RecordError: It is no small plain file.
        OSError: It cannot be read now.
    """
    try:
        file = open_file_beneath(folder, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_no_plain_file(error):
            raise
        raise RecordError(f"{name}: {error.strerror}") from error
    with open(file, "rb") as stream:
        text = stream.read(limit + 1)
    if len(text) > limit:
        raise RecordError(f"{name}: is larger than {limit} bytes")
    return text


def read_record(folder: int, name: str, job_id: str) -> Record | None:
    """Return a record of a job's folder, None when it is not there.

    Raises:
        RecordError: It is malformed.
        OSError: It cannot be read now.
    """
    text = read_bytes(folder, name)
    return None if text is None else parse_record(name, text, job_id)


def exists(folder: int, name: str) -> bool:
    """Whether a name is there, whatever it is."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def write_record(folder: int, name: str, record: Mapping[str, Any], *, replace: bool = False) -> bool:
    """Write a record so that it appears whole or not at all.

    Args:
        folder: Descriptor of the job's folder.
        name: Of the record.
        record: Its fields but the schema.
        replace: Whether a record that is there gives way.

    Returns:
        Whether this one is now the record; False when there was one already.
    """
    temporary = f".{name}.{os.urandom(8).hex()}"
    try:
        write_file(folder, temporary, encode_record(record))
        return publish(folder, temporary, name, replace=replace)
    finally:
        remove(folder, temporary)


def publish(folder: int, temporary: str, name: str, *, replace: bool = False) -> bool:
    """Give a finished file its name; without ``replace`` the first one stays and the answer is False."""
    if replace:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:
            # Some file systems have no hard links, and a link may need an inode that a rename does not.
            if exists(folder, name):
                return False
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    sync_folder(folder)
    return True


def write_file(folder: int, name: str, data: bytes) -> None:
    """Make a file (0600), write it and see it on disk."""
    file = create_file(folder, name)
    try:
        write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(folder: int) -> None:
    """See a folder's names on disk, where the file system can."""
    with suppress(OSError):
        os.fsync(folder)


def create_file(folder: int, name: str) -> int:
    """Make a file (0600) whatever the umask; returns a descriptor. It must not exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    os.fchmod(file, 0o600)
    return file


def create_folder(name: str, parent: int | None = None) -> int:
    """Make a folder (0700) whatever the umask; returns a descriptor. It must not exist."""
    os.mkdir(name, 0o700, dir_fd=parent)
    folder = open_folder(name, parent)
    os.fchmod(folder, 0o700)
    return folder


def remove(folder: int, name: str) -> None:
    """Remove a file if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def explain(what: str, error: OSError) -> str:
    """Return what could not be written, why, and the number to search for."""
    return f"{what}: {error.strerror} (errno {error.errno})"


def write_all(file: int, data: bytes | memoryview) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def read_folder_id(jobs: int | None) -> str:
    """Return the id of the folder of all jobs; empty where it has none, or cannot be read now."""
    if jobs is None:
        return ""
    try:
        text = (read_bytes(jobs, FOLDER_ID, _ID_LENGTH + 1) or b"").decode("ascii").rstrip("\n")
    except (RecordError, OSError, ValueError):
        return ""
    return text if len(text) == _ID_LENGTH and not text.strip(_HEX_DIGITS) else ""


def make_folder_id(jobs: int) -> str:
    """Return the id of the folder of all jobs, and give it one where it has none: the first one stays."""
    if found := read_folder_id(jobs):
        return found
    temporary = f"{FOLDER_ID}.{os.urandom(8).hex()}"
    # Without an id a job that is missing later says nothing, and that is all: a start does not fail for it.
    with suppress(OSError):
        try:
            write_file(jobs, temporary, os.urandom(_ID_LENGTH // 2).hex().encode("ascii") + b"\n")
            publish(jobs, temporary, FOLDER_ID)
        finally:
            remove(jobs, temporary)
    return read_folder_id(jobs)


def open_jobs_folder(path: str, *, create: bool = False) -> int | None:
    """Open the folder of all jobs; None when there is none.

    Raises:
        FolderError: It is a symbolic link, no folder, or another user's.
    """
    try:
        folder = open_folder(path)
    except FileNotFoundError:
        if not create:
            return None
        try:
            return create_folder(path)
        except FileExistsError:
            return open_jobs_folder(path)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise FolderError(
                f"{path} is a symbolic link or no folder; jobs are kept in a plain folder only"
            ) from error
        raise
    status = os.fstat(folder)
    if status.st_uid != os.geteuid():
        os.close(folder)
        raise FolderError(f"{path} belongs to user {status.st_uid}, and this is user {os.geteuid()}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(folder, 0o700)
    return folder
