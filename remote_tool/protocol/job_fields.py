"""The fields of a job, each declared once, for both sides.

This table drives the start request, ``spec.json``, validation of a server's answers, the client's records and index,
updates of a record, and ``--json``. The attributes of ``Job`` and ``JobSpec`` are its typed counterpart; a
test compares them with it.

A new field is a row here, an attribute of ``JobSettings``, ``JobSpec`` or ``Job``, and the code that uses it; it is set
from the option of the same name, if there is one. Values
that must not be written to disk (variables, a launch's secret) have no row: the request has them beside the fields.
"""

from __future__ import annotations

import math

from remote_tool.protocol import artifact_patterns, limits
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

# Who sets a field, and where it is read from.
REQUEST = "request"  # the client that starts the job: in the request and in spec.json
STARTED = "started.json"  # the supervisor
ENDED = "ended.json"  # the supervisor
ANSWER = "answer"  # the server, in each answer
CLIENT = "client"  # only the client's record

# How a server's answer changes a recorded field.
NEVER = "never"  # kept as first recorded
ONCE = "once"  # kept, but filled in if unknown
SEEN = "seen"  # replaced by the answer
LAST_KNOWN = "last known"  # replaced, unless missing in the answer

_REQUIRED = object()
_LETTERS_AND_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
_LONGEST_SIGNAL = 12
_LARGEST_NUMBER = 2**34
_ATTEMPTS = (limits.MOST_RETRIES, limits.LONGEST_ATTEMPT)
# JSON may have longer ones, which no float can hold.
_LARGEST_FLOAT = 2.0**1023
_GPUS = (limits.MOST_GPUS, limits.LONGEST_GPU)


def is_text(value: object, _limit: object = None) -> bool:
    """Return whether this is a string."""
    return isinstance(value, str)


def is_flag(value: object, _limit: object = None) -> bool:
    """Return whether this is a Boolean."""
    return isinstance(value, bool)


def is_number(value: object, _limit: object = None) -> bool:
    """Return whether this is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST_FLOAT


def is_count(value: object, limit: float = math.inf) -> bool:
    """Return whether this is an integer from 0 to the limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def is_seconds(value: object, limit: float = limits.LATEST_MOMENT) -> bool:
    """Return whether this is a duration, or seconds since the epoch, up to the limit."""
    return is_number(value) and 0 <= value <= limit  # type: ignore[operator]


def is_texts(value: object, _limit: object = None) -> bool:
    """Return whether this is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_signal_name(value: object, _limit: object = None) -> bool:
    """Return whether this looks like a signal's name; another machine may have it."""
    if not isinstance(value, str) or not value.startswith("SIG"):
        return False
    rest = value[len("SIG") :]
    return 0 < len(rest) <= _LONGEST_SIGNAL and not rest.strip(_LETTERS_AND_DIGITS)


def are_patterns(value: object, _limit: object = None) -> bool:
    """Return whether this is a list of artifact patterns."""
    if value == []:
        return True
    return artifact_patterns.are_patterns(value)


def _any_size(_value: object, _limit: object) -> bool:
    return True


def _is_short(value: str, longest: int) -> bool:
    return len(value) <= longest


def _are_short(value: Tuple[str, ...], limit: Tuple[int, int]) -> bool:
    most, longest = limit
    return len(value) <= most and all(len(item) <= longest for item in value)


class Kind(NamedTuple):
    """A type of field values.

    Attributes:
        check: Whether a JSON value is of the type, given the field's limit.
        fits: Whether a valid value is within the field's limit, if records may hold a longer one.
        form: The form of valid values, for messages, with a placeholder for the limit.
    """

    check: Callable[[Any, Any], bool]
    form: str
    fits: Callable[[Any, Any], bool] = _any_size


TEXT = Kind(is_text, "a text of at most {} characters", _is_short)
LAUNCH_ID = Kind(is_text, "the id of a launch", lambda value, _: limits.is_launch_id(value))
TEXTS = Kind(is_texts, "a list of at most {0[0]} texts of at most {0[1]} characters", _are_short)
COUNT = Kind(is_count, "a whole number from 0 to {}")
SECONDS = Kind(is_seconds, "a number of seconds from 0 to {}")
MOMENT = Kind(is_seconds, "seconds since the epoch, from 0 to {}")
FLAG = Kind(is_flag, "true or false")
SIGNAL = Kind(is_signal_name, "the name of a signal")
PATTERNS = Kind(are_patterns, "a list of patterns of files inside the project")
STATE = Kind(is_text, "a state of a job")
TERMINAL = Kind(is_text, '"command", "shell" or empty', lambda value, _: value in limits.TERMINALS)


class Field(NamedTuple):
    """A field of a job.

    Attributes:
        name: In requests and records, and of the attribute.
        kind: The type of its values.
        limit: The highest number, the longest string, or the most strings and the longest one.
        origin: Who sets it, and where it is read from.
        default: Used if a record lacks it; without a default it is required.
        null: Whether a server's record may lack it or have null: no value, or written by an older version.
        changes: How a server's answer changes a recorded value.
        of_job: Whether the client keeps it; otherwise only the server does.
        option: The option of a request that it is set from, if that has another name.
        shown: Its key in ``--json``, where a dot leads into an object; empty: not shown.
        blank: Shown by ``--json`` in place of an empty string.
        phrase: A limit or a setting as ``job-show`` says it, with a placeholder for the value; empty: in its own way.
    """

    name: str
    kind: Kind
    limit: Any = None
    origin: str = REQUEST
    default: Any = _REQUIRED
    null: bool = False
    changes: str = NEVER
    of_job: bool = True
    option: str = ""
    shown: str = ""
    blank: Any = None
    phrase: str = ""

    @property
    def is_required(self) -> bool:
        """Return whether records of any version must have it."""
        return self.default is _REQUIRED

    def accepts(self, value: object) -> bool:
        """Return whether a value is valid."""
        return self.kind.check(value, self.limit)

    def is_recordable(self, value: object) -> bool:
        """Return whether a record on a server may have this value."""
        return (self.null and value is None) or self.kind.check(value, self.limit)

    def fits(self, value: object) -> bool:
        """Return whether a valid value is within the limits; None always is."""
        return value is None or self.kind.fits(value, self.limit)


# In the order of --json.
FIELDS = (
    Field("key", COUNT, _LARGEST_NUMBER, CLIENT, shown="key"),
    Field("id", TEXT, limits.LONGEST_ID, shown="id"),
    Field("launch_id", LAUNCH_ID, default="", shown="launch_id"),
    Field("node_rank", COUNT, limits.HIGHEST_NODE_RANK, default=None, null=True, shown="node_rank"),
    Field("server", TEXT, limits.LONGEST_SERVER, shown="server"),
    Field("name", TEXT, limits.LONGEST_NAME, default="", null=True, changes=ONCE, shown="name"),
    Field("state", STATE, origin=ANSWER, changes=SEEN, shown="state"),
    Field("exit_code", COUNT, 255, ENDED, default=None, null=True, changes=SEEN, shown="exit_code"),
    Field("signal", SIGNAL, origin=ENDED, default=None, null=True, changes=SEEN, shown="signal"),
    Field("reason", TEXT, limits.LONGEST_REASON, ANSWER, default="", changes=SEEN, shown="reason"),
    Field("pid", COUNT, 2**31, STARTED, default=None, changes=SEEN, shown="pid"),
    Field("slurm_job", TEXT, limits.LONGEST_ID, ANSWER, default="", changes=LAST_KNOWN, shown="slurm.job"),
    Field("slurm_node", TEXT, limits.LONGEST_SERVER, ANSWER, default="", changes=LAST_KNOWN, shown="slurm.node"),
    Field("tags", TEXTS, (limits.MOST_TAGS, limits.LONGEST_TAG), default=[], shown="tags"),
    Field("note", TEXT, limits.LONGEST_NOTE, CLIENT, default="", shown="note"),
    Field("started_by", TEXT, limits.LONGEST_STARTED_BY, default="", null=True, changes=ONCE, shown="started_by"),
    Field("command", TEXT, limits.LONGEST_COMMAND, shown="command"),
    Field("workdir", TEXT, limits.LONGEST_PATH, default="", null=True, shown="workdir", blank="."),
    Field("git_commit", TEXT, limits.LONGEST_COMMIT, default="", null=True, shown="git.commit"),
    Field("git_branch", TEXT, limits.LONGEST_BRANCH, default="", null=True, shown="git.branch"),
    Field("git_dirty", FLAG, default=None, null=True, shown="git.dirty"),
    Field("copy", TEXT, limits.LONGEST_COPY, default="", null=True, changes=SEEN, shown="copy"),
    Field("environment_hash", TEXT, limits.LONGEST_HASH, default="", null=True, changes=SEEN, shown="environment_hash"),
    Field("nice", COUNT, limits.HIGHEST_NICE, default=None, null=True, changes=ONCE, shown="nice", phrase="nice {}"),
    Field("gpus", TEXTS, _GPUS, default=None, null=True, changes=ONCE, shown="gpus"),
    Field(
        "gpu_count", COUNT, limits.MOST_GPUS, default=None, null=True, changes=ONCE, option="gpus", shown="gpu_count"
    ),
    Field("leased_gpus", TEXTS, _GPUS, STARTED, default=None, null=True, changes=SEEN, shown="leased_gpus"),
    Field(
        "priority",
        COUNT,
        limits.HIGHEST_PRIORITY,
        default=None,
        null=True,
        changes=ONCE,
        shown="priority",
        phrase="priority {}",
    ),
    Field("after", TEXTS, (limits.MOST_AFTER, limits.LONGEST_ID), default=[], null=True, shown="after"),
    Field("after_any", FLAG, default=False, null=True),
    Field("backfill", FLAG, default=False, null=True),
    Field("slots", COUNT, limits.MOST_SLOTS, default=None, null=True, changes=ONCE),
    Field("terminal", TERMINAL, default="", null=True, changes=ONCE, shown="terminal"),
    Field("variables", TEXTS, limits.NAMES_OF_VARIABLES, default=None, null=True, changes=ONCE, shown="variables"),
    Field("rerun_of", TEXT, limits.LONGEST_ID, default="", null=True, changes=ONCE, shown="rerun_of"),
    Field(
        "max_duration",
        SECONDS,
        limits.LONGEST_DURATION,
        default=None,
        null=True,
        changes=ONCE,
        shown="max_duration",
        phrase="stopped after {}",
    ),
    Field(
        "stop_if_idle",
        SECONDS,
        limits.LONGEST_DURATION,
        default=None,
        null=True,
        changes=ONCE,
        shown="stop_if_idle",
        phrase="stopped when its GPUs are idle for {}",
    ),
    Field(
        "first_signal",
        SIGNAL,
        default="SIGTERM",
        null=True,
        changes=ONCE,
        option="stop_signal",
        shown="stop_signal",
        phrase="stopped with {}",
    ),
    Field("retries", COUNT, limits.MOST_RETRIES, default=None, null=True, changes=ONCE, shown="retries"),
    Field("retry_on", TEXTS, (limits.MOST_RETRY_ON, limits.LONGEST_RETRY_ON), default=[], null=True),
    Field("failed_attempts", TEXTS, _ATTEMPTS, STARTED, default=[], null=True, changes=SEEN, shown="failed_attempts"),
    Field("created_at", MOMENT, limits.LATEST_MOMENT, shown="created_at"),
    Field("started_at", MOMENT, limits.LATEST_MOMENT, STARTED, default=None, changes=SEEN, shown="started_at"),
    Field("ended_at", MOMENT, limits.LATEST_MOMENT, ENDED, default=None, changes=SEEN, shown="ended_at"),
    Field("status_values", TEXTS, (limits.MOST_VALUES, limits.LONGEST_VALUE), CLIENT, default=[], changes=LAST_KNOWN),
    Field("configured_variables", TEXTS, limits.NAMES_OF_VARIABLES, default=None, null=True, changes=ONCE),
    Field("launch_options", TEXT, limits.LONGEST_LAUNCH_OPTIONS, default="", null=True, changes=ONCE),
    Field("any_of", TEXTS, (limits.MOST_ANY_OF, limits.LONGEST_SERVER), default=[], null=True),
    Field("rank_offset", COUNT, limits.HIGHEST_RANK_OFFSET, default=None, null=True),
    Field("grace", SECONDS, limits.LONGEST_GRACE, default=10.0, of_job=False),
    Field("snapshot", TEXT, limits.LONGEST_PATH, default="", of_job=False),
    Field("artifacts", PATTERNS, default=[], null=True),
    Field("stopped_with_launch", FLAG, origin=ENDED, default=False, null=True, changes=SEEN),
    Field("lost_node", COUNT, limits.HIGHEST_NODE_RANK, ENDED, default=None, null=True, changes=SEEN),
    Field("taken_port", COUNT, 65_535, ENDED, default=None, null=True, changes=SEEN),
    Field("trained_alone", FLAG, origin=ENDED, default=False, null=True, changes=SEEN),
    Field("moved_to", TEXT, limits.LONGEST_SERVER, ENDED, default="", null=True, changes=SEEN),
    Field("moved_as", TEXT, limits.LONGEST_ID, ENDED, default="", null=True, changes=SEEN),
    Field("moved_copy", TEXT, limits.LONGEST_COPY, ENDED, default="", null=True, changes=SEEN),
    Field("seen_at", MOMENT, limits.LATEST_MOMENT, CLIENT, default=None, changes=SEEN),
    Field("folder_id", TEXT, 32, CLIENT, default="", changes=LAST_KNOWN),
    Field("processes_left", COUNT, _LARGEST_NUMBER, CLIENT, default=0, changes=SEEN),
    Field("logs_complete", FLAG, origin=CLIENT, default=False, changes=SEEN),
    Field("artifacts_complete", FLAG, origin=CLIENT, default=False, changes=SEEN),
    Field("stop_signal", TEXT, 64, CLIENT, default="", changes=LAST_KNOWN),
    Field("stop_grace", SECONDS, limits.LATEST_MOMENT, CLIENT, default=None, changes=SEEN),
    Field("cleaned", FLAG, origin=CLIENT, default=False, changes=SEEN),
)
REQUEST_FIELDS = tuple(field for field in FIELDS if field.origin == REQUEST)
JOB_FIELDS = tuple(field for field in FIELDS if field.of_job)


def record_checks(origin: str) -> Dict[str, Callable[[object], bool]]:
    """Return the checks of the fields in one of a server's records, by name."""
    return {field.name: field.is_recordable for field in FIELDS if field.origin == origin}
