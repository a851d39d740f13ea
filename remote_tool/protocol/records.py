"""The contents of a job's records, and their validation.

Every record is a JSON object with ``"schema": 1``. No record is trusted: the client validates those from servers with
the same functions.
"""

from __future__ import annotations

import signal
import time

from remote_tool.protocol import job_fields, strict_json
from remote_tool.protocol.job_fields import is_count, is_flag, is_number, is_seconds, is_text, is_texts, record_checks
from remote_tool.protocol.limits import LONGEST_GRACE, LONGEST_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping

    Record = Dict[str, Any]

SCHEMA = 1
# A longer command is cut in spec.json, so that a list of jobs stays small; the file "command" has all of it.
COMMAND_LIMIT = 16 * 1024
SPEC = "spec.json"
STARTED = job_fields.STARTED
STOP = "stop.json"
WITHDRAW = "withdraw.json"
HELD = "held.json"
ENDED = job_fields.ENDED
ENTRY = "entry.json"

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BEGINNINGS = f"{_LETTERS}{_LETTERS.lower()}0123456789"
_SHOWN = 60


class RecordError(Exception):
    """A record is invalid; the message says which and why."""


def is_job_id(text: object) -> bool:
    """Return whether this can be the name of a job's folder."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_ID:
        return False
    return text[0] in _BEGINNINGS and not text.strip(f"{_BEGINNINGS}._-")


def is_variable_name(text: object) -> bool:
    """Return whether this can be the name of an environment variable."""
    return isinstance(text, str) and text.isascii() and text.isidentifier()


def state_of_ended(ended: Mapping[str, Any]) -> str:
    """Return ``killed``, ``succeeded`` or ``failed``."""
    if ended["killed"]:
        return "killed"
    # Whatever its exit code, it did not end on its own.
    if ended.get("stopped_with_launch"):
        return "failed"
    return "succeeded" if ended["exit_code"] == 0 else "failed"


def _is_pids(value: object) -> bool:
    return isinstance(value, list) and all(is_count(item) for item in value)


def is_grace(value: object) -> bool:
    """Return whether this is a valid grace period: up to a week, in seconds."""
    return is_seconds(value, LONGEST_GRACE)


def is_signal(value: object) -> bool:
    """Return whether this names a signal of this machine, like ``SIGTERM``."""
    return isinstance(value, str) and value in signal.Signals.__members__


def signal_name(number: int) -> str:
    """Return the name of a signal of this machine; ``SIGRTMIN+3`` if it has none of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _is_place(value: object) -> bool:
    names = ("hostname", "machine_id", "boot_id", "pid_namespace")
    return isinstance(value, dict) and all(is_text(value.get(name)) for name in names)


def _is_process(value: object) -> bool:
    return isinstance(value, dict) and is_count(value.get("pid")) and is_count(value.get("start_time"))


def _is_resources(value: object) -> bool:
    names = ("user_seconds", "system_seconds", "max_rss_bytes")
    return isinstance(value, dict) and all(is_number(value.get(name)) for name in names)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_FIELDS: Dict[str, Dict[str, Callable[[object], bool]]] = {
    SPEC: {
        **record_checks(job_fields.REQUEST),
        "id": is_job_id,
        "command_length": is_count,
        "environment_names": is_texts,
        "received_at": is_number,
        "place": _is_place,
    },
    STARTED: {
        **record_checks(STARTED),
        "id": is_job_id,
        "command": _is_process,
        "supervisor": _is_process,
        "place": _is_place,
        "monotonic": is_number,
        "subreaper": is_flag,
        "locked": is_flag,
    },
    ENTRY: {"id": is_job_id, "ask": is_texts, "end": is_texts},
    STOP: {"id": is_job_id, "signal": is_signal, "grace": is_grace, "requested_at": is_number},
    WITHDRAW: {"id": is_job_id, "moved_to": is_text, "moved_as": is_job_id, "moved_copy": is_text},
    HELD: {
        "id": is_job_id,
        "by": is_text,
        "reference": is_text,
        "reason": is_text,
        "attempts": _or_none(is_texts),
        "ending": _or_none(is_flag),
    },
    ENDED: {
        **record_checks(ENDED),
        "id": is_job_id,
        "core_dumped": is_flag,
        "killed": is_flag,
        "reason": is_text,
        "duration": _or_none(is_number),
        "leftovers": is_count,
        "unkillable": _is_pids,
        "resources": _or_none(_is_resources),
    },
}


def check_record(name: str, record: object, job_id: str) -> Record:
    """Return a record if it is of this kind and of this job.

    Args:
        name: ``spec.json``, ``entry.json``, ``started.json``, ``stop.json``, ``withdraw.json``, ``held.json`` or
            ``ended.json``.
        record: The parsed value, from any source.
        job_id: The expected job.

    Raises:
        RecordError: The record is invalid.
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
    """Parse and validate a record; RecordError if malformed."""
    try:
        record = strict_json.parse(text)
    except ValueError as error:
        raise RecordError(f"{name}: not valid JSON: {error}") from error
    return check_record(name, record, job_id)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def end_without_record(job_id: str, reason: str, *, killed: bool) -> Dict[str, Any]:
    """Return ``ended.json`` of a job whose command never ran, or whose supervisor left none."""
    return {
        "schema": SCHEMA,
        "id": job_id,
        "exit_code": None,
        "signal": None,
        "core_dumped": False,
        "killed": killed,
        "reason": reason,
        "ended_at": time.time(),
        "duration": None,
        "leftovers": 0,
        "unkillable": [],
        "resources": None,
    }


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record, schema included."""
    return strict_json.encode({"schema": SCHEMA, **record}) + b"\n"
