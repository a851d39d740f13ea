"""A job's folder on its server: names, and reading and writing of records.

    spec.json      the specification; the folder appears with it, so a job without it does not exist
    started.json   the processes; the command runs only after this is on disk
    stop.json      a request to stop the job
    withdraw.json  a request to end it if it still waits, and what takes its place on which server
    held.json      who starts the job later, with which reference, and what it waits for
    ended.json     how it ended; written once
    command        the shell command
    entry.json     with a launch command: how to reach the processes behind it
    begun          with a launch command: the command was about to begin
    setup          the script to source first, if any; setup-done: it succeeded
    queued         its supervisor, and what it waits for, if it has waited before its command began
    job.out job.err ranks/   output, exact bytes
    on-end.log     what the on_end command printed, and how it ended
    on-empty.log   what the on_empty command printed, and how it ended
    notice         why a running job is about to be stopped
    stacks.txt     where its Python processes were before they were stopped
    nccl-rank-N    the last collectives of a rank, written by torch when one fails or times out
    reserve        space reserved for ended.json, locked while the supervisor is alive

Every record is JSON with ``"schema": 1``, is written atomically, and is validated when read.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from contextlib import suppress

from remote_tool.protocol.records import RecordError, encode_record, is_job_id, parse_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence, Union

    from remote_tool.protocol.records import Record

COMMAND = "command"
OUT = "job.out"
ERR = "job.err"
RANKS = "ranks"
RESERVE = "reserve"
# Written by the script of an MPI launch's first node: the commands that mpiexec runs on the others.
PROXIES_FILE = "mpi-proxies"
# Written from behind a launch command when the command is about to begin.
BEGUN = "begun"
QUEUED = "queued"
ON_END = "on-end.log"
ON_EMPTY = "on-empty.log"
# Of a running job that is about to be stopped.
NOTICE = "notice"
STACKS = "stacks.txt"
# A request to the supervisor to run py-spy; the answer has its id after this name.
TRACE = "trace"
# torch adds the rank.
FLIGHT_RECORD = "nccl-rank-"
# Limits for the files that the client fetches beside the output.
LARGEST_KEPT, MOST_KEPT = 64 * 1024 * 1024, 1000
# Of a job on a terminal, behind a launch command: a named pipe.
TERMINAL_SCRIPT = "terminal-script"

# In the folder of all jobs: distinguishes it from any other, such as an empty disk mounted in its place.
FOLDER_ID = ".folder-id"
_HEX_DIGITS = "0123456789abcdef"
_ID_LENGTH = 32

RECORD_LIMIT = 1024 * 1024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Every process may have this many descriptors; and an operation may briefly need this many.
_FEW_FILES, _SPARE_FILES = 16, 16
# Other errors may be temporary: a network disk that does not answer, too many open files.
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NO_PLAIN_FILE = {errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO}


class FolderError(Exception):
    """A folder cannot be trusted; the message says which and why."""


def is_kept(name: str) -> bool:
    """Return whether a name in a job's folder is that of a file which the client fetches beside the output."""
    rank = name[len(FLIGHT_RECORD) :]
    return name in {ON_EMPTY, ON_END, STACKS} or (name.startswith(FLIGHT_RECORD) and rank.isdigit() and rank.isascii())


def open_folder(path: str, parent: int | None = None) -> int:
    """Open a folder that is not a symbolic link; return a descriptor."""
    return os.open(path, _FOLDER_FLAGS, dir_fd=parent)


def open_job(jobs: int | None, job_id: str) -> int | None:
    """Open the folder of a job; None if the job does not exist, OSError if unknown now."""
    if jobs is None or not is_job_id(job_id):
        return None
    try:
        return open_folder(job_id, jobs)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise


def allow_open_files(count: int) -> int:
    """Raise the limit of open files by a number, as far as allowed; return how many can be open."""
    if count <= _FEW_FILES:
        return max(1, count)
    needed = len(os.listdir("/proc/self/fd")) + _SPARE_FILES + count
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A negative limit means unlimited.
    if 0 <= usual < needed:
        raised = needed if most < 0 else min(needed, most)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            usual = raised
    return count if usual < 0 else max(1, count - max(0, needed - usual))


def path_of(folder: int) -> str:
    """Return the path of an open folder, absolute and without links."""
    return os.readlink(f"/proc/self/fd/{folder}")


def open_file_beneath(folder: int, path: str, *, for_writing: bool = False) -> int:
    """Open a regular file below a folder, following no symbolic link on the way."""
    parts = path.split("/")
    opened = []
    try:
        for part in parts[:-1]:
            folder = open_folder(part, folder)
            opened.append(folder)
        return open_plain(parts[-1], folder, for_writing=for_writing)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def open_plain(path: str, folder: int | None = None, *, for_writing: bool = False) -> int:
    """Open a regular file; OSError if it is none."""
    access = os.O_RDWR if for_writing else os.O_RDONLY
    file = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
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
    """Return whether a file could not be opened because of its type, not because of a temporary error."""
    return error.errno in _NO_PLAIN_FILE


def read_bytes(folder: int, name: str, limit: int = RECORD_LIMIT) -> bytes | None:
    """Return a small file's bytes, None if it does not exist.

    Raises:
        RecordError: It is not a small plain file.
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
    """Return a record in a job's folder, None if it does not exist.

    Raises:
        RecordError: It is malformed.
        OSError: It cannot be read now.
    """
    text = read_bytes(folder, name)
    return None if text is None else parse_record(name, text, job_id)


def is_full(folder: Union[int, str]) -> bool:
    """Return whether the disk of a folder has no space left for us."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    # Some file systems allocate inodes on demand and report none.
    return disk.f_bavail == 0 or (disk.f_files > 0 and disk.f_favail == 0)


def exists(folder: int, name: str) -> bool:
    """Return whether a name exists, of any type."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def write_record(folder: int, name: str, record: Mapping[str, Any], *, replace: bool = False) -> bool:
    """Write a record atomically.

    Args:
        folder: Descriptor of the job's folder.
        name: The record's name.
        record: Its fields, without the schema.
        replace: Whether to replace an existing record.

    Returns:
        Whether this is now the record; False if another one existed.
    """
    temporary = f".{name}.{os.urandom(8).hex()}"
    try:
        write_file(folder, temporary, encode_record(record))
        return publish(folder, temporary, name, replace=replace)
    finally:
        remove(folder, temporary)


def publish(folder: int, temporary: str, name: str, *, replace: bool = False) -> bool:
    """Move a finished file into place; without ``replace`` an existing one is kept and the result is False."""
    if replace:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:
            # Some file systems have no hard links, and a link may need an inode where a rename does not.
            if exists(folder, name):
                return False
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    sync_folder(folder)
    return True


def write_file(folder: int, name: str, data: bytes) -> None:
    """Create a file (0600), write it and sync it."""
    file = create_file(folder, name)
    try:
        write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(folder: int) -> None:
    """Sync a folder's names, where the file system supports it."""
    with suppress(OSError):
        os.fsync(folder)


def create_file(folder: int, name: str) -> int:
    """Create a new file (0600) regardless of the umask; return a descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    os.fchmod(file, 0o600)
    return file


def create_folder(name: str, parent: int | None = None) -> int:
    """Create a new folder (0700) regardless of the umask; return a descriptor."""
    os.mkdir(name, 0o700, dir_fd=parent)
    folder = open_folder(name, parent)
    os.fchmod(folder, 0o700)
    return folder


def remove(folder: int, name: str) -> None:
    """Remove a file if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def explain(what: str, error: OSError) -> str:
    """Return an error message for a failed write, with the errno to search for."""
    return f"{printable(what)}: {error.strerror} (errno {error.errno})"


def printable(text: str) -> str:
    r"""Return a text, such as a file's name, with each unprintable character written out, such as ``\\x1b``."""
    # A lone surrogate need not stand for a byte.
    with suppress(UnicodeEncodeError):
        text = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def add_lines(folder: int, lines: Sequence[str]) -> None:
    """Add lines of ours to a job's output; OSError when it cannot be written."""
    file = os.open(ERR, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        write_all(file, "".join(f"remote-tool: {printable(line)}\n" for line in lines).encode())
    finally:
        os.close(file)


def write_all(file: int, data: bytes | memoryview) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def read_folder_id(jobs: int | None) -> str:
    """Return the id of the folder of all jobs; empty if it has none or is unreadable now."""
    if jobs is None:
        return ""
    try:
        text = (read_bytes(jobs, FOLDER_ID, _ID_LENGTH + 1) or b"").decode("ascii").rstrip("\n")
    except (RecordError, OSError, ValueError):
        return ""
    return text if len(text) == _ID_LENGTH and not text.strip(_HEX_DIGITS) else ""


def make_folder_id(jobs: int) -> str:
    """Return the id of the folder of all jobs, creating one if missing; the first one written is kept."""
    if found := read_folder_id(jobs):
        return found
    temporary = f"{FOLDER_ID}.{os.urandom(8).hex()}"
    # Without an id, nothing can be concluded from a job missing later; a start must not fail for that.
    with suppress(OSError):
        try:
            write_file(jobs, temporary, os.urandom(_ID_LENGTH // 2).hex().encode("ascii") + b"\n")
            publish(jobs, temporary, FOLDER_ID)
        finally:
            remove(jobs, temporary)
    return read_folder_id(jobs)


def open_jobs_folder(path: str, *, create: bool = False) -> int | None:
    """Open the folder of all jobs; None if it does not exist.

    Raises:
        FolderError: It is a symbolic link, not a folder, or another user's.
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
