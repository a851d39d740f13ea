"""Limits of a job and of what servers send, and the defaults that both sides know.

The client enforces them before recording or sending, and the server before starting; the same limits apply when
reading a server's answers, so that every started job can be listed.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence, Tuple

MOST_TAGS = 100
LONGEST_TAG = 1024
# In bytes: with the rest of a job they have to fit into its record on the server, which has 1 MiB.
LONGEST_TAGS = 128 * 1024
# In bytes. Each may become six in JSON, and a client's record may have 32 MiB.
LONGEST_COMMAND = 4 * 1024 * 1024
LONGEST_SERVER = 256
LONGEST_LAUNCH_ID = 80
LONGEST_STARTED_BY = 256
LONGEST_REASON = 4096
LONGEST_PATH = 4096
LONGEST_COMMIT = 64
LONGEST_BRANCH = 1024
LONGEST_NAME = 80
# The on_end command is ended after this many seconds.
LONGEST_ON_END = 60.0
# The name of a copy of the project, and what a request has in its place for one that is to be made.
LONGEST_COPY, NEW_COPY = 40, "new"
LONGEST_HASH = 64
LONGEST_NOTE = 1000
# Status values of one job.
MOST_VALUES = 50
LONGEST_VALUE = 250
HIGHEST_NODE_RANK = 100_000
HIGHEST_RANK_OFFSET = 10_000_000
# Names of variables in a record: this many, each of this many characters. Other jobs have none in theirs.
NAMES_OF_VARIABLES = (1024, 128)
# What a launch was asked for, as JSON.
LONGEST_LAUNCH_OPTIONS = 16 * 1024
# GPUs of one job, by number or UUID.
MOST_GPUS = 1024
LONGEST_GPU = 128
# Of a job that waits: higher begins earlier.
HIGHEST_PRIORITY = 100
# Jobs that one job waits for, and their ids.
MOST_AFTER = 100
# Servers that a job may be moved to.
MOST_ANY_OF = 100
# Why a job is lost, as servers of any version say it.
REBOOTED = "the server rebooted"
# Why a job has failed whose start the server never got.
NEVER_ARRIVED = "its start never reached the server"
# Jobs of a sweep on one server, each with a supervisor there.
MOST_SLOTS = 1000
LONGEST_ID = 128
# Range of niceness: higher is less of the CPU.
HIGHEST_NICE = 19
# Seconds that a job may take, or that its GPUs may be idle: a year.
LONGEST_DURATION = 366 * 86400
MOST_RETRIES = 100
# What to retry on: exit codes and names of signals. How an attempt ended, in a record.
MOST_RETRY_ON, LONGEST_RETRY_ON = 64, 16
LONGEST_ATTEMPT = 64
# A week, in seconds.
LONGEST_GRACE = 7 * 86400
# Seconds that a launch waits for a silent node.
DEFAULT_LOST_AFTER = 60.0
SHORTEST_LOST_AFTER = 5
LONGEST_LOST_AFTER = 86_400
# Seconds for which a GPU that was used without being reserved must be idle.
DEFAULT_IDLE_AFTER = 60.0
LONGEST_IDLE_AFTER = 86_400
# In bytes, for each output file of a job.
DEFAULT_LOG_LIMIT = 4 * 1024**3
SMALLEST_LOG_LIMIT = 1024**2
# Files pulled from one job.
MOST_ARTIFACTS = 10_000
# Seconds since the epoch.
LATEST_MOMENT = 2**34
# Seconds between the samples of ``top``.
SHORTEST_INTERVAL = 0.5
DEFAULT_INTERVAL = 2.0
# The most that check --exercise takes by default.
EXERCISE_SECONDS = 60.0
LONGEST_INTERVAL = 3600
# Linux allows 128 KiB for NAME=VALUE with its terminator. All together may have 2 MiB, including the login's.
LONGEST_VARIABLE = 128 * 1024 - 1
LARGEST_ENVIRONMENT = 2 * 1024 * 1024 - 128 * 1024

_LAUNCH_ID = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
# The program on the terminal of a job: its command, or the user's shell in its place.
COMMAND, SHELL = "command", "shell"
TERMINALS = ("", COMMAND, SHELL)


class LimitError(ValueError):
    """A job exceeds a limit.

    Attributes:
        field: ``command``, ``tags`` or ``environment``.
        problem: The problem, to continue after the field's name; includes no value of a variable.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def is_lost_after(value: object) -> bool:
    """Return whether a launch may wait this many seconds for a silent node."""
    return type(value) in {int, float} and SHORTEST_LOST_AFTER <= value <= LONGEST_LOST_AFTER  # type: ignore[operator]


def check_command(command: str) -> None:
    """Refuse a command that no server accepts.

    Raises:
        LimitError: It is too long, or not a string.
    """
    if "\0" in command:
        raise LimitError("command", "cannot hold a NUL")
    size = _size("command", "", command)
    if size > LONGEST_COMMAND:
        raise LimitError("command", f"has {size:,} bytes; at most {LONGEST_COMMAND:,} are possible")


def check_tags(tags: Sequence[str], most: int = MOST_TAGS) -> None:
    """Refuse too many or too long tags.

    Raises:
        LimitError: They exceed a limit.
    """
    if len(tags) > most:
        raise LimitError("tags", f"is given {len(tags)} times; at most {most} are possible")
    for tag in tags:
        if len(tag) > LONGEST_TAG:
            raise LimitError("tags", f"{tag[:20]!r}… has {len(tag):,} characters; at most {LONGEST_TAG:,} are possible")
    size = sum(_size("tags", "", tag) for tag in tags)
    if size > LONGEST_TAGS:
        raise LimitError("tags", f"has {size:,} bytes in all tags together; at most {LONGEST_TAGS:,} are possible")


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse variables that Linux would not pass to a command.

    Raises:
        LimitError: They are too long, or not strings.
    """
    total = 0
    for name, value in environment.items():
        if "\0" in value:
            raise LimitError("environment", f"{name}: a value cannot hold a NUL")
        # Including the equals sign.
        size = _size("environment", f"{name}: ", name) + _size("environment", f"{name}: ", value) + 1
        if size > LONGEST_VARIABLE:
            text = f"{name} has {size:,} bytes with its name; at most {LONGEST_VARIABLE:,} are possible"
            raise LimitError("environment", text)
        total += size + 1
    if total > LARGEST_ENVIRONMENT:
        text = f"gives the job {total:,} bytes of variables; at most {LARGEST_ENVIRONMENT:,} are possible"
        raise LimitError("environment", text)


def is_launch_id(text: object) -> bool:
    """Return whether this can be a launch's id; empty without a launch."""
    return isinstance(text, str) and len(text) <= LONGEST_LAUNCH_ID and not text.strip(_LAUNCH_ID)


def _size(field: str, where: str, text: str) -> int:
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise LimitError(field, f"{where}it holds half a character, which no server takes") from None


def is_min_free(value: object) -> bool:
    """Return whether this is a valid threshold of free space: bytes, and hundredths of the disk."""
    return isinstance(value, list) and len(value) == 2 and all(type(each) in {int, float} for each in value)  # noqa: PLR2004


def disk_space_of(path: str) -> Tuple[int, int]:
    """Return a disk's bytes available to us and its size; zeros if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def is_low(free: int, total: int, least: Sequence[float]) -> bool:
    """Return whether less is free than the smaller of some bytes and some hundredths of the disk."""
    return total > 0 and free < min(least[0], total * least[1] / 100)
