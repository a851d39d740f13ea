"""Writes docs/schema.json, the shapes of what ``--json`` prints: ``python -m remote_tool.cli.schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_tool.cli.output.json_output import SCHEMA
from remote_tool.protocol.job_fields import COUNT, FLAG, JOB_FIELDS, MOMENT, SECONDS, TEXTS

if TYPE_CHECKING:
    from remote_tool.protocol.job_fields import Field

FILE = Path(__file__).parents[2] / "docs" / "schema.json"
Shape = dict[str, Any]
TEXT: Shape = {"type": "string"}
INTEGER: Shape = {"type": "integer"}
NUMBER: Shape = {"type": "number"}
YES: Shape = {"type": "boolean"}


def many(each: Shape) -> Shape:
    """An array."""
    return {"type": "array", "items": each}


def maybe(shape: Shape) -> Shape:
    """Null is possible."""
    return {"anyOf": [shape, {"type": "null"}]}


def named(name: str) -> Shape:
    """One of the definitions."""
    return {"$ref": f"#/$defs/{name}"}


def record(keys: dict[str, Shape], optional: tuple[str, ...] = ()) -> Shape:
    """An object with these keys; later versions may add more."""
    return {"type": "object", "properties": keys, "required": [key for key in keys if key not in optional]}


def by_name(each: Shape) -> Shape:
    """An object whose keys are names of the user's."""
    return {"type": "object", "additionalProperties": each}


def texts(words: str) -> dict[str, Shape]:
    """Keys with a string each."""
    return dict.fromkeys(words.split(), TEXT)


def of_job(field: Field) -> Shape:
    """The value of a field of a job."""
    kinds = {COUNT: INTEGER, FLAG: YES, SECONDS: NUMBER, TEXTS: many(TEXT), MOMENT: TEXT}
    shape = kinds.get(field.kind, TEXT)
    return shape if field.is_required or field.default == [] else maybe(shape)


def job() -> Shape:
    """A job, as everywhere."""
    keys: dict[str, Shape] = {}
    groups: dict[str, dict[str, Shape]] = {}
    for field in JOB_FIELDS:
        group, dot, name = field.shown.partition(".")
        if dot:
            groups.setdefault(group, {})[name] = of_job(field)
            keys[group] = maybe(record(groups[group]))
        elif group:
            keys[group] = of_job(field)
    return record({**keys, "values": by_name(TEXT), "log": TEXT})


def document(keys: dict[str, Shape], *optional: str) -> Shape:
    """A whole document."""
    return record({"schema": {"const": SCHEMA}, **keys, "errors": many(named("error"))}, optional)


def on_servers(keys: dict[str, Shape], *, name: str = "server") -> Shape:
    """A document with an entry for each server."""
    return document({"servers": many(record({name: TEXT, **keys}))})


def with_jobs(more: dict[str, Shape] | None = None, of_each: dict[str, Shape] | None = None) -> Shape:
    """A document with jobs."""
    each = named("job") if of_each is None else record({**job()["properties"], **of_each})
    return document({"jobs": many(each), **(more or {})})


def started(more: dict[str, Shape] | None = None) -> Shape:
    """A document of a command that starts jobs, with its plan in place of them for ``--dry-run``."""
    return document(
        {"jobs": many(named("job")), "warnings": many(record(texts("server message"))), **(more or {})}, "warnings"
    )


PLAN = record(
    {
        "schema": {"const": SCHEMA},
        "launch_id": TEXT,
        "world_size": maybe(INTEGER),
        "master_addr": TEXT,
        "master_port": INTEGER,
        "nodes": many(
            record(
                {
                    "server": TEXT,
                    "node_rank": INTEGER,
                    "processes": maybe(INTEGER),
                    "interface": TEXT,
                    "command": TEXT,
                }
            )
        ),
    }
)
FAN_OUT_PLAN = record(
    {
        "schema": {"const": SCHEMA},
        "slots": many(record({"server": TEXT, "slot": INTEGER, "environment": by_name(TEXT)})),
        "shards": many(
            record(
                {
                    "shard": INTEGER,
                    "server": maybe(TEXT),
                    "slot": maybe(INTEGER),
                    "command": TEXT,
                    "environment": by_name(TEXT),
                }
            )
        ),
    }
)
SWEEP_PLAN = record(
    {
        "schema": {"const": SCHEMA},
        "combinations": many(
            record({"number": INTEGER, "parameters": by_name(TEXT), "gpus": INTEGER, **texts("server command")})
        ),
    }
)
GPU_PROCESS = record({"pid": INTEGER, "memory": maybe(INTEGER), **texts("user job")})
LEASE = record({**texts("user job name"), "since": maybe(TEXT)})
GPU_NUMBERS = {"memory_used": maybe(INTEGER), "memory_total": maybe(INTEGER), "load": maybe(NUMBER)}
GPU_USERS = {"processes": many(GPU_PROCESS), "lease": maybe(LEASE)}
LAUNCHED = {"anyOf": [named("started"), named("plan")]}


def shapes() -> dict[str, Shape]:
    """Return the shape of each document, by the name of its command, and of what several have."""
    several = {
        "error": record(texts("server message hint")),
        "failed": document({}),
        "job": job(),
        "plan": PLAN,
        "started": started(),
    }
    return {**several, **of_servers(), **of_starts(), **of_jobs()}


def of_servers() -> dict[str, Shape]:
    """Return the shapes of what the commands about servers and files print."""
    connections = document(
        {
            "connections": many(
                record({**texts("server address username since"), "sessions": INTEGER, "pid": maybe(INTEGER)})
            )
        }
    )
    measured = record(
        {
            "ranks": INTEGER,
            "all_reduce_bits_per_second": maybe(NUMBER),
            "devices": many(
                record(
                    {
                        "server": TEXT,
                        "device": maybe(INTEGER),
                        "name": TEXT,
                        "flops": NUMBER,
                        "type": TEXT,
                        "median": maybe(NUMBER),
                    }
                )
            ),
            "health": many(
                record(
                    {
                        "server": TEXT,
                        "device": INTEGER,
                        "temperature": maybe(INTEGER),
                        "throttled": many(TEXT),
                        "uncorrected": maybe(INTEGER),
                        "corrected": INTEGER,
                    }
                )
            ),
        }
    )
    check = on_servers({"checks": many(record(texts("name status value hint")))}, name="name")
    check["properties"]["exercise"] = measured
    return {
        "keys": on_servers({**texts("state key line file"), "changed": YES}),
        "check": check,
        "prepare": on_servers(
            {
                "steps": many(record({**texts("step outcome detail"), "seconds": NUMBER})),
                "changed": YES,
                "seconds": NUMBER,
                "warnings": many(TEXT),
                **texts("python follows"),
            }
        ),
        "rsync": on_servers(
            {
                "snapshot": TEXT,
                "sent": many(TEXT),
                "removed": many(TEXT),
                "bytes": INTEGER,
                "skipped": many(many(TEXT)),
                "warnings": many(TEXT),
                "relayed": INTEGER,
                "relayed_by": TEXT,
                "changed": YES,
            }
        ),
        "data-sync": record(
            {
                "schema": {"const": SCHEMA},
                "data": many(
                    record(
                        {
                            "name": TEXT,
                            "servers": many(
                                record({"server": TEXT, "changed": YES, "sent": many(TEXT), "bytes": INTEGER})
                            ),
                            "errors": many(named("error")),
                        }
                    )
                ),
            }
        ),
        "bandwidth": document(
            {
                "links": many(
                    record(
                        {
                            **texts("from to"),
                            "gbit_per_second": maybe(NUMBER),
                            "round_trip_ms": maybe(NUMBER),
                            **dict.fromkeys(["interface", "to_interface", "address", "method", "error"], maybe(TEXT)),
                        }
                    )
                )
            }
        ),
        "gpus": on_servers(
            {
                "gpus": many(
                    record({"index": INTEGER, **texts("uuid name state"), **GPU_NUMBERS, **GPU_USERS, "is_ours": YES})
                ),
                "queue": many(record({**texts("job user"), "gpus": INTEGER})),
                "problem": TEXT,
                "notes": many(TEXT),
                "partitions": many(TEXT),
            }
        ),
        "connections": connections,
        "disconnect": connections,
        "run": on_servers({"exit_code": INTEGER, **texts("stdout stderr")}),
        "forward": document(
            {"forwards": many(record({**texts("server listen target"), "reverse": YES, "port": maybe(INTEGER)}))}
        ),
    }


def of_starts() -> dict[str, Shape]:
    """Return the shapes of what the commands that start jobs print."""
    return {
        "job-run": named("started"),
        **dict.fromkeys(("helper-torch-launch", "helper-launch", "helper-mpi-launch", "helper-ray-launch"), LAUNCHED),
        "helper-fan-out": {
            "anyOf": [
                started(
                    {
                        "fan_out": record(
                            {
                                **texts("launch_id name"),
                                "shards": INTEGER,
                                "done": many(INTEGER),
                                "failed": many(INTEGER),
                                "gathered": many(TEXT),
                            }
                        )
                    }
                ),
                FAN_OUT_PLAN,
            ]
        },
        "helper-sweep": {
            "anyOf": [
                started(
                    {
                        "sweep": record(
                            {
                                **texts("launch_id name"),
                                "combinations": INTEGER,
                                "done": many(INTEGER),
                                "waiting": many(INTEGER),
                                "missing": INTEGER,
                            }
                        )
                    }
                ),
                SWEEP_PLAN,
            ]
        },
        "job-rerun": named("started"),
        "job-requeue": named("started"),
    }


def of_jobs() -> dict[str, Shape]:
    """Return the shapes of what the commands about jobs print."""
    return {
        "job-list": with_jobs(),
        "job-show": with_jobs(
            of_each={
                "folder": TEXT,
                "runs_in": TEXT,
                "copy_is_kept": maybe(YES),
                "changes": maybe(TEXT),
                "related": many(record({**texts("id server state"), "key": INTEGER})),
                "error": maybe(record({**texts("server message output"), "rank": maybe(INTEGER)})),
                "output": by_name(INTEGER),
                "artifacts_folder": TEXT,
                "artifacts": many(record({"name": TEXT, "size": INTEGER, "is_here": YES})),
                "unknown": by_name(TEXT),
                "next": many(TEXT),
            }
        ),
        "sweep-show": document(
            {
                "sweep": record(
                    {
                        **texts("launch_id name command"),
                        "metric": maybe(TEXT),
                        "mode": maybe(TEXT),
                        "combinations": many(
                            record(
                                {
                                    "number": INTEGER,
                                    "parameters": by_name(TEXT),
                                    "state": TEXT,
                                    "duration": maybe(NUMBER),
                                    "values": by_name(TEXT),
                                    "best": maybe(NUMBER),
                                    "job": maybe(named("job")),
                                }
                            )
                        ),
                    }
                )
            }
        ),
        "top": document(
            {
                "servers": many(
                    record(
                        {
                            "server": TEXT,
                            "cpu": maybe(NUMBER),
                            "cores": maybe(INTEGER),
                            "load": maybe(NUMBER),
                            **dict.fromkeys(
                                ("memory_total", "memory_available", "disk_total", "disk_free"), maybe(INTEGER)
                            ),
                            "gpus": many(
                                record(
                                    {
                                        "index": INTEGER,
                                        "name": TEXT,
                                        **GPU_NUMBERS,
                                        **GPU_USERS,
                                        **dict.fromkeys(("temperature", "power", "power_limit"), maybe(NUMBER)),
                                    }
                                )
                            ),
                            **texts("gpu_problem disk_problem disk_kind"),
                            "ranks": many(
                                record({**texts("job problem"), "alive": many(INTEGER), "ended": many(INTEGER)})
                            ),
                        }
                    )
                ),
                "jobs": many(named("job")),
            }
        ),
        "job-stacks": document(
            {
                "groups": many(
                    record(
                        {
                            **texts("label where"),
                            "processes": many(
                                record(
                                    {
                                        "job": INTEGER,
                                        "server": TEXT,
                                        "pid": INTEGER,
                                        "rank": maybe(INTEGER),
                                        "is_child": YES,
                                        **texts("command why"),
                                        "threads": many(many(record({**texts("file function"), "line": INTEGER}))),
                                    }
                                )
                            ),
                        }
                    )
                ),
                "kept": many(record({"job": INTEGER, **texts("server text")})),
            }
        ),
        "job-kill": {"anyOf": [named("job-list"), named("orphans")]},
        "orphans": document(
            {
                "strays": many(
                    record(
                        {
                            **texts("server job state command"),
                            "pid": INTEGER,
                            "key": maybe(INTEGER),
                            "age_seconds": NUMBER,
                            "memory_bytes": maybe(INTEGER),
                            "gpu_memory_bytes": maybe(INTEGER),
                            "ended": YES,
                        }
                    )
                )
            }
        ),
        "job-wait": named("job-list"),
        "job-diff": with_jobs(
            {
                "differences": many(record({"field": TEXT, "values": many({})})),
                "code": record({**texts("source diff"), "notes": many(TEXT)}),
            }
        ),
        "job-note": named("job-list"),
        "job-pull": with_jobs(
            of_each={
                "files": many(record({**texts("name path"), "size": INTEGER, "new": YES})),
                "left_out": many(record(texts("name reason"))),
            }
        ),
        "clean": document(
            {
                "items": many(
                    record(
                        {
                            "server": maybe(TEXT),
                            "what": TEXT,
                            "count": INTEGER,
                            "bytes": INTEGER,
                            "goes": INTEGER,
                            "frees": INTEGER,
                            "reason": TEXT,
                        }
                    )
                ),
                "kept": many(record(texts("job reason"))),
                "forgotten": many(record(texts("job reason"))),
                "removed": YES,
            }
        ),
    }


def schema() -> str:
    """Return the file."""
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The documents of remote-tool --json",
        "description": "$defs has the document of each command by its name; that of one that failed is in failed.",
        "$defs": shapes(),
    }
    return json.dumps(about, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
