from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.protocol.records import (
    ENDED,
    SPEC,
    STARTED,
    STOP,
    RecordError,
    check_record,
    encode_record,
    is_job_id,
    is_signal,
    is_variable_name,
    parse_record,
    signal_name,
    state_of_ended,
)

JOB = "20261121-053000-0123456789abcdef0123456789abcdef"
PLACE = {"hostname": "h", "machine_id": "", "boot_id": "b", "pid_namespace": "pid:[1]"}
RECORDS: dict[str, dict[str, Any]] = {
    SPEC: {
        "id": JOB,
        "server": "first",
        "command": "python train.py",
        "command_length": 15,
        "environment_names": ["LR"],
        "tags": ["sweep"],
        "launch_id": "",
        "node_rank": None,
        "rank_offset": 0,
        "grace": 45.0,
        "snapshot": "",
        "created_at": 1.5,
        "received_at": 2,
        "place": PLACE,
        "artifacts": [["checkpoints/*.pt", 2], ["out/", None]],
        "started_by": "ann@laptop",
    },
    STARTED: {
        "id": JOB,
        "pid": 12,
        "command": {"pid": 12, "start_time": 99},
        "supervisor": {"pid": 11, "start_time": 98},
        "place": PLACE,
        "started_at": 3.0,
        "monotonic": 4.0,
        "subreaper": True,
        "locked": True,
    },
    STOP: {"id": JOB, "signal": "SIGTERM", "grace": 0, "requested_at": 5.0},
    ENDED: {
        "id": JOB,
        "exit_code": None,
        "signal": "SIGSEGV",
        "core_dumped": True,
        "killed": False,
        "reason": "",
        "ended_at": 6.0,
        "duration": 1.0,
        "leftovers": 0,
        "unkillable": [],
        "resources": {"user_seconds": 0.1, "system_seconds": 0, "max_rss_bytes": 1},
    },
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_survives_its_file(name: str) -> None:
    assert parse_record(name, encode_record(RECORDS[name]), JOB) == {"schema": 1, **RECORDS[name]}


@pytest.mark.row(11, 12)
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_cut_at_any_byte_is_refused(name: str) -> None:
    """A torn file is never taken for a record."""
    text = encode_record(RECORDS[name])
    for end in range(len(text) - 2):
        with pytest.raises(RecordError):
            parse_record(name, text[:end], JOB)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_needs_every_field(name: str) -> None:
    for field in RECORDS[name]:
        record = {"schema": 1, **RECORDS[name]}
        record[field] = {"an": "object of nothing known"}
        with pytest.raises(RecordError, match=field):
            check_record(name, record, JOB)


@pytest.mark.row(106)
@given(st.sampled_from(list(RECORDS)), st.data(), json_values)
def test_any_value_in_any_field_is_accepted_or_refused_by_name(name: str, data: st.DataObject, value: object) -> None:
    """Types, depth and not-a-number."""
    field = data.draw(st.sampled_from(["schema", *RECORDS[name]]))
    named = ""
    try:
        json.dumps(check_record(name, {"schema": 1, **RECORDS[name], field: value}, JOB), allow_nan=False)
    except RecordError as error:
        named = str(error)
    assert not named or field in named


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema must be 1, found 2"),
        ({"schema": True}, "schema must be 1"),
        ({"exit_code": 256}, "exit_code cannot be 256"),
        ({"exit_code": True}, "exit_code cannot be True"),
        ({"exit_code": -1}, "exit_code cannot be -1"),
        ({"signal": "KILL; rm -rf /"}, "signal cannot be"),
        ({"ended_at": float("nan")}, "ended_at cannot be nan"),
        ({"id": "20261121-053000-other"}, "is of job 20261121-053000-other"),
        ({"reason": ["x" * 1000]}, r"reason cannot be .{60}\.\.\.$"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        check_record(ENDED, {"schema": 1, **RECORDS[ENDED], **changes}, JOB)


def test_a_spec_of_an_older_supervisor_has_no_artifacts() -> None:
    record = {name: value for name, value in RECORDS[SPEC].items() if name not in {"artifacts", "started_by"}}
    assert "artifacts" not in check_record(SPEC, {"schema": 1, **record}, JOB)


@pytest.mark.parametrize(
    "artifacts",
    [
        [["../x", None]],
        [["/etc/*", None]],
        [["a\nb", None]],
        [["a", 0]],
        [["a", True]],
        [["a"]],
        "a",
        [["a", None]] * 101,
    ],
)
def test_an_artifact_pattern_that_could_leave_the_project_is_refused(artifacts: object) -> None:
    with pytest.raises(RecordError, match="artifacts cannot be"):
        check_record(SPEC, {"schema": 1, **RECORDS[SPEC], "artifacts": artifacts}, JOB)


@pytest.mark.parametrize(
    "text", [b"[]", b"null", b'{"schema": 1, "schema": 1}', b'{"schema": NaN}', b"\xff", b"[" * 100000, b"", b"\0"]
)
def test_an_invalid_record_is_refused(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"ended\.json"):
        parse_record(ENDED, text, JOB)


@pytest.mark.row(109)
@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/a", "-rf", ".hidden", "a\n", "a\0", "é", "a" * 129, 7]
)
def test_a_job_id_that_could_leave_the_folder_is_refused(name: object) -> None:
    assert not is_job_id(name)
    assert is_job_id(JOB)


@pytest.mark.row(107)
@pytest.mark.parametrize("name", ["", "1A", "A-B", "A=B", "A\n", "Ä", None])
def test_variable_names_are_of_letters_digits_and_underscores(name: object) -> None:
    assert not is_variable_name(name)
    assert is_variable_name("_LR2")


def test_the_state_of_an_ended_job_comes_from_who_ended_it() -> None:
    ended = RECORDS[ENDED]
    assert state_of_ended({**ended, "signal": None, "exit_code": 0}) == "succeeded"
    assert state_of_ended({**ended, "signal": None, "exit_code": 3}) == "failed"
    assert state_of_ended(ended) == "failed"
    assert state_of_ended({**ended, "exit_code": 0, "killed": True}) == "killed"


def test_signals_have_the_names_of_the_standard_module() -> None:
    for each in signal.Signals:
        assert is_signal(each.name)
        assert signal_name(each) == each.name
    assert signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
    others: list[object] = ["SIG_BLOCK", "SIG_DFL", "SIGNONE", "TERM", "signal", "", None, []]
    assert not any(is_signal(each) for each in others)
