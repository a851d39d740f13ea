"""The parts of standard modules that the control program does without: what stands for them answers as they do."""

from __future__ import annotations

import json
import signal

import pytest

from remote_tool.protocol.lean import json as quick_json
from remote_tool.protocol.lean import signal as signals
from remote_tool.protocol.lean.suppress import suppress

VALUES = [
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    1e300,
    "",
    'a "quoted" \\ line\n',
    "é\u2028\ud800",
    [],
    {},
    [1, [2, {"a": None}]],
    {"schema": 1, "tags": ["x"], "nested": {"b": [0.1]}},
]
NONSENSE = ["", " ", "[", '{"a"', "nul", "1 2", "[1,]", "\ufeff1", '"\x01"', "01", "}", "[" * 10 + "x"]


@pytest.fixture(params=["C functions", "package"])
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Also as on a Python that lacks the C functions."""
    if request.param == "package":
        monkeypatch.setattr(quick_json, "_c_functions", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_written_and_read_as_the_package_does(value: object) -> None:
    text = json.dumps(value, separators=(",", ":"))
    assert quick_json.dumps(value) == text
    assert quick_json.loads(text) == value
    assert quick_json.loads(f" \t\r\n{text}\n ") == value


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("text", NONSENSE, ids=repr)
def test_invalid_json_is_refused_with_the_reason_of_the_json_package(text: str) -> None:
    with pytest.raises(ValueError) as ours:
        quick_json.loads(text)
    with pytest.raises(ValueError) as theirs:
        json.loads(text)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.usefixtures("functions")
def test_values_unknown_to_json_are_not_written() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="JSON compliant"):
        quick_json.dumps(float("nan"))
    with pytest.raises(ValueError, match="Circular"):
        quick_json.dumps(circle)
    with pytest.raises(TypeError):
        quick_json.dumps({1, 2})


def test_signals_have_the_names_of_the_standard_module() -> None:
    for each in signal.Signals:
        assert signals.number_of(each.name) == each
        assert signals.name_of(each) == each.name
    assert signals.name_of(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
    for name in ("SIG_BLOCK", "SIG_DFL", "SIGNONE", "TERM", "signal", ""):
        assert signals.number_of(name) is None


def test_a_block_is_left_at_the_errors_that_are_named_and_at_no_others() -> None:
    with suppress(FileNotFoundError, ValueError):
        raise FileNotFoundError
    with pytest.raises(KeyError), suppress(FileNotFoundError, ValueError):
        raise KeyError
