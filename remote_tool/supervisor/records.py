"""What the records of a job hold, and the check that every one passes when it is read.

Every record is a JSON object with ``"schema": 1``. No record is trusted: the client checks those that a server sends
with the same functions.
"""

from __future__ import annotations

import math

from . import quick_json, strict_json
from .signals import number_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping

    Record = Dict[str, Any]

SCHEMA = 1
# A week, in seconds.
LONGEST_GRACE = 7 * 86400
# A longer command is cut in spec.json, so that a list of jobs stays small; the file "command" has it whole.
COMMAND_LIMIT = 16 * 1024
SPEC = "spec.json"
STARTED = "started.json"
STOP = "stop.json"
ENDED = "ended.json"
ENTRY = "entry.json"

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BEGINNINGS = f"{_LETTERS}{_LETTERS.lower()}0123456789"
_LONGEST_ID = 128
_LONGEST_SIGNAL = 12
_HIGHEST_EXIT_CODE = 255
_SHOWN = 60


class RecordError(Exception):
    """A record is not what it must be; the text says which and why."""


def is_job_id(text: object) -> bool:
    """Whether this can be the name of a job's folder."""
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_ID:
        return False
    return text[0] in _BEGINNINGS and not text.strip(f"{_BEGINNINGS}._-")


def is_variable_name(text: object) -> bool:
    """Whether this can be the name of an environment variable."""
    return isinstance(text, str) and text.isascii() and text.isidentifier()


def state_of_ended(ended: Mapping[str, Any]) -> str:
    """``killed``, ``succeeded`` or ``failed``."""
    if ended["killed"]:
        return "killed"
    # Whatever its exit code, it did not come to its own end.
    if ended.get("stopped_with_launch"):
        return "failed"
    return "succeeded" if ended["exit_code"] == 0 else "failed"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_pids(value: object) -> bool:
    return isinstance(value, list) and all(_is_count(item) for item in value)


def is_grace(value: object) -> bool:
    """Whether a job can be given this many seconds to end: up to a week."""
    return _is_number(value) and 0 <= value <= LONGEST_GRACE  # type: ignore[operator]


def is_signal(value: object) -> bool:
    """Whether this names a signal of this machine, as in ``SIGTERM``."""
    return isinstance(value, str) and value.startswith("SIG") and number_of(value) is not None


def _is_signal_name(value: object) -> bool:
    if not isinstance(value, str) or not value.startswith("SIG"):
        return False
    rest = value[len("SIG") :]
    return 0 < len(rest) <= _LONGEST_SIGNAL and not rest.strip(f"{_LETTERS}0123456789+-")


def _is_place(value: object) -> bool:
    names = ("hostname", "machine_id", "boot_id", "pid_namespace")
    return isinstance(value, dict) and all(_is_text(value.get(name)) for name in names)


def _is_process(value: object) -> bool:
    return isinstance(value, dict) and _is_count(value.get("pid")) and _is_count(value.get("start_time"))


def _is_resources(value: object) -> bool:
    names = ("user_seconds", "system_seconds", "max_rss_bytes")
    return isinstance(value, dict) and all(_is_number(value.get(name)) for name in names)


def _is_exit_code(value: object) -> bool:
    return _is_count(value) and value <= _HIGHEST_EXIT_CODE  # type: ignore[operator]


def _are_patterns(value: object) -> bool:
    if value == []:
        return True
    from .artifact_patterns import are_patterns  # noqa: PLC0415 - few jobs have some, and every answer would wait for it

    return are_patterns(value)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_FIELDS: Dict[str, Dict[str, Callable[[object], bool]]] = {
    SPEC: {
        "id": is_job_id,
        "server": _is_text,
        "command": _is_text,
        "command_length": _is_count,
        "environment_names": _is_texts,
        "tags": _is_texts,
        "launch_id": _is_text,
        "node_rank": _or_none(_is_count),
        "rank_offset": _or_none(_is_count),
        "grace": is_grace,
        "snapshot": _is_text,
        # Records of older supervisors lack it.
        "artifacts": _or_none(_are_patterns),
        "created_at": _is_number,
        "received_at": _is_number,
        "place": _is_place,
    },
    STARTED: {
        "id": is_job_id,
        "pid": _is_count,
        "command": _is_process,
        "supervisor": _is_process,
        "place": _is_place,
        "started_at": _is_number,
        "monotonic": _is_number,
        "subreaper": _is_flag,
        "locked": _is_flag,
    },
    ENTRY: {"id": is_job_id, "ask": _is_texts, "end": _is_texts},
    STOP: {"id": is_job_id, "signal": is_signal, "grace": is_grace, "requested_at": _is_number},
    ENDED: {
        "id": is_job_id,
        "exit_code": _or_none(_is_exit_code),
        "signal": _or_none(_is_signal_name),
        "core_dumped": _is_flag,
        "killed": _is_flag,
        "reason": _is_text,
        "ended_at": _is_number,
        "duration": _or_none(_is_number),
        "leftovers": _is_count,
        "unkillable": _is_pids,
        # Records of older supervisors lack these three.
        "stopped_with_launch": _or_none(_is_flag),
        "lost_node": _or_none(_is_count),
        "taken_port": _or_none(_is_count),
        "resources": _or_none(_is_resources),
    },
}


def check_record(name: str, record: object, job_id: str) -> Record:
    """Return the record when it is one of this kind and of this job.

    Args:
        name: ``spec.json``, ``entry.json``, ``started.json``, ``stop.json`` or ``ended.json``.
        record: What was parsed; it may come from anywhere.
        job_id: Whose it must be.

    Raises:
        RecordError: It is not.
    """
    if not isinstance(record, dict):
        raise RecordError(f"{name}: must be an object, found {type(record).__name__}")
    schema = record.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        remedy = "; a newer remote-tool wrote it, so update this one" if type(schema) is int and schema > SCHEMA else ""
        raise RecordError(f"{name}: schema must be {SCHEMA}, found {_shown(schema)}{remedy}")
    for field, check in _FIELDS[name].items():
        if not check(record.get(field)):
            raise RecordError(f"{name}: {field} cannot be {_shown(record.get(field))}")
    if record["id"] != job_id:
        raise RecordError(f"{name}: is of job {record['id']}")
    return record


def parse_record(name: str, text: bytes, job_id: str) -> Record:
    """Return the record in a file's bytes, checked; RecordError when it is malformed."""
    try:
        record = strict_json.parse(text)
    except ValueError as error:
        raise RecordError(f"{name}: is no JSON: {error}") from error
    return check_record(name, record, job_id)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record, schema included."""
    return quick_json.dumps({"schema": SCHEMA, **record}).encode("ascii") + b"\n"
