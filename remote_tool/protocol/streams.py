"""The output files of a job, and their names on the wire."""

from __future__ import annotations

import itertools
import os
import stat

from remote_tool.protocol.job_folder import ERR, OUT, RANKS, open_file_beneath, open_folder
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterator, List, Optional, Tuple

# More are not from a launch of ours; of a job that creates a million files, the first are handled.
MOST_STREAMS = 4096
# Of each output file: enough for the last lines.
LAST_BYTES = 2048
_ATTEMPT = "attempt_"
_MOST_DIGITS = 6
_RANK_FILES = {"stdout.log": "out", "stderr.log": "err", "error.json": "error"}


class TorchrunAttempt(NamedTuple):
    """One attempt of torchrun: a folder ``ranks/<run id>_<random>/attempt_<n>``."""

    born: int
    run: str
    number: int
    path: str


def _see_nothing(_folder: int) -> None:
    """Ignore folders."""


def find_streams(folder: int, visit: Callable[[int], None] = _see_nothing) -> Dict[str, str]:
    """Return the path of every existing stream below the job's folder.

    ``out`` and ``err`` always; for torchrun's ``--log-dir`` the streams ``ranks/<attempt>/<local rank>/out``, ``err``
    and ``error``. Attempts are counted across several torchrun runs of a job. Streams beyond MOST_STREAMS are left
    out. Each searched folder is first passed to ``visit`` as an open descriptor.
    """
    streams = {"out": OUT, "err": ERR}
    for stream, path in _rank_streams(folder, visit):
        if len(streams) >= MOST_STREAMS:
            break
        streams[stream] = path
    return streams


def _rank_streams(folder: int, visit: Callable[[int], None]) -> Iterator[Tuple[str, str]]:
    for number, path in _number_attempts(_find_attempts(folder, visit)):
        for rank in _list(folder, path, visit):
            if not _is_number(rank):
                continue
            for name in _list(folder, f"{path}/{rank}", visit):
                if name in _RANK_FILES:
                    yield f"ranks/{number}/{int(rank)}/{_RANK_FILES[name]}", f"{path}/{rank}/{name}"


def stream_sizes(folder: int) -> Dict[str, int]:
    """Return the size of each stream."""
    return {stream: size_of(folder, path) or 0 for stream, path in find_streams(folder).items()}


def last_output(folder: int) -> List[str]:
    """Return the end of a job's own output, and of that of its first rank in the last attempt of torchrun."""
    streams = find_streams(folder)
    ranks = [stream for stream in streams if stream.startswith(RANKS) and not stream.endswith("error")]
    newest = max((int(stream.split("/")[1]) for stream in ranks), default=0)
    # They are in the order of their ranks.
    first = [stream for stream in ranks if int(stream.split("/")[1]) == newest][:2]
    tails = (_tail(folder, streams[stream]) for stream in ("out", "err", *first))
    return [tail for tail in tails if tail]


def _tail(folder: int, path: str) -> str:
    try:
        file = open_file_beneath(folder, path)
    except OSError:
        return ""
    with open(file, "rb", buffering=0) as stream:
        stream.seek(max(0, os.fstat(file).st_size - LAST_BYTES))
        return stream.read(LAST_BYTES).decode("utf-8", "replace")


def size_of(folder: int, path: str) -> Optional[int]:
    """Return the size of a plain file below a folder; None if missing."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _find_attempts(folder: int, visit: Callable[[int], None]) -> List[TorchrunAttempt]:
    attempts: List[TorchrunAttempt] = []
    for run in _list(folder, RANKS, visit):
        for name in _list(folder, f"{RANKS}/{run}", visit):
            number = name[len(_ATTEMPT) :] if name.startswith(_ATTEMPT) else ""
            path = f"{RANKS}/{run}/{name}"
            if _is_number(number) and len(attempts) < MOST_STREAMS:
                attempts.append(TorchrunAttempt(_born(folder, path), run, int(number), path))
    return attempts


def _is_number(text: str) -> bool:
    return 0 < len(text) <= _MOST_DIGITS and not text.strip("0123456789")


def _number_attempts(attempts: List[TorchrunAttempt]) -> List[Tuple[int, str]]:
    runs: Dict[str, List[TorchrunAttempt]] = {}
    for attempt in attempts:
        runs.setdefault(attempt.run, []).append(attempt)
    numbered = []
    first = 0
    # Runs ordered by their first attempts, each numbered from the end of the previous one.
    for run in sorted(runs, key=lambda run: (min(attempt.born for attempt in runs[run]), run)):
        numbered += [(first + attempt.number, attempt.path) for attempt in runs[run]]
        first += 1 + max(attempt.number for attempt in runs[run])
    return numbered


def _born(folder: int, path: str) -> int:
    """Return when a folder last gained or lost an entry: torchrun creates the folders of all ranks at once."""
    try:
        return os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _list(folder: int, path: str, visit: Callable[[int], None]) -> List[str]:
    """List a folder below the job's, following no symbolic link on the way; empty if missing."""
    opened: List[int] = []
    try:
        for part in path.split("/"):
            folder = open_folder(part, folder)
            opened.append(folder)
        visit(folder)
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in itertools.islice(entries, MOST_STREAMS))
    except OSError:
        return []
    finally:
        for descriptor in opened:
            os.close(descriptor)
