"""The local record of a job: YAML with one ``name: value`` per line, each value JSON, a subset of YAML.

It is human-readable, and loads without a YAML parser. This module is the only one that knows the format.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job
from remote_tool.jobs.records import CONVERTERS
from remote_tool.protocol import strict_json
from remote_tool.protocol.job_fields import JOB_FIELDS
from remote_tool.system.files import read_bounded

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = 1
# A command may have 4 MiB, and each character up to six in JSON.
LARGEST_RECORD = 32 * 1024 * 1024
LARGEST_KEY = 2**34
# Ten thousand records are read at once, so the checks of each field are looked up once.
_DEFAULTS = {each.name: each.default for each in JOB_FIELDS if not each.is_required}
_CHECKS = [(each.name, each.kind.check, each.limit) for each in JOB_FIELDS]
_MAY_BE_NONE = frozenset(each.name for each in JOB_FIELDS if each.default is None)
_REMEDY = "remote-tool job-list writes it again when its server tells of the job"


class DamagedRecordError(JobError):
    """A truncated or overwritten record: nothing in it is trusted, but its server may still know the job."""


def format_record(job: Job) -> bytes:
    """Return the text of a job's record."""
    values = {"schema": SCHEMA, **{each.name: getattr(job, each.name) for each in JOB_FIELDS}}
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()).encode()


def read_record(path: Path) -> Job:
    """Read a record.

    Raises:
        DamagedRecordError: It is not a record; the message names the file.
        JobError: It cannot be read now, or is from a newer version.
        FileNotFoundError: It does not exist.
    """
    return read_stamped(str(path), path.parent.name)[0]


def read_stamped(path: str, job_id: str) -> tuple[Job, os.stat_result]:
    """Read a job's record, with the status of its file."""
    try:
        text, state = read_bounded(path, LARGEST_RECORD)
        values = _pairs(text)
        schema = values.pop("schema")
        if schema != SCHEMA:
            raise JobError(f"{path}: written by a newer version of remote-tool (schema {schema!r})")
        job = as_job(values)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRecordError(f"{path}: not a job record ({error}); {_REMEDY}", hint=_REMEDY) from error
    if job.id != job_id:
        raise DamagedRecordError(f"{path}: not the record of this job; {_REMEDY}", hint=_REMEDY)
    return job, state


def read_key(path: Path) -> int:
    """Return the key in a record that may be damaged; 0 if it cannot be read."""
    with suppress(OSError, ValueError):
        for line in read_bounded(path, LARGEST_RECORD)[0].splitlines(keepends=True):
            name, _, value = line.partition(b": ")
            # A truncated line may have lost digits.
            if name == b"key" and value.endswith(b"\n") and value.strip().isdigit() and 0 < int(value) < LARGEST_KEY:
                return int(value)
    return 0


def as_job(values: Mapping[str, Any]) -> Job:
    """Return the job of a record's values; fields missing in older versions get their defaults.

    Raises:
        ValueError: A value is of the wrong type.
        KeyError: A value is missing.
    """
    fields = {**_DEFAULTS, **values}
    for name, check, limit in _CHECKS:
        value = fields[name]
        if not check(value, limit) and (value is not None or name not in _MAY_BE_NONE):
            raise ValueError(f"{name} is of the wrong type")
    for name, convert in CONVERTERS.items():
        fields[name] = None if fields[name] is None else convert(fields[name])
    return Job(**{name: fields[name] for name, _, _ in _CHECKS})


def _pairs(text: bytes) -> dict[str, Any]:
    """Parse ``name: value`` lines; decoding all values at once is much faster than one by one."""
    lines = [line.partition(b": ") for line in text.splitlines()]
    names = [name.decode() for name, _, _ in lines]
    values = strict_json.parse(b"[%s]" % b",".join(value for _, _, value in lines))
    if len(values) != len(names) or len(set(names)) != len(names):
        raise ValueError("not one name and value a line")
    return dict(zip(names, values, strict=True))
