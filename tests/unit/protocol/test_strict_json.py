from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.protocol import strict_json

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values)
def test_a_document_says_what_it_says(value: object) -> None:
    assert strict_json.parse(json.dumps(value).encode()) == value
    assert strict_json.parse(strict_json.encode(value)) == value


@pytest.mark.row(106)
@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 2}',
        b'[{"a": {"b": 1, "b": 1}}]',
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"[" * 100_000,
        b"\xff",
        b"",
        b"9" * 5000,
    ],
)
def test_ambiguous_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        strict_json.parse(text)


def test_a_value_that_json_lacks_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        strict_json.encode(float("nan"))
    with pytest.raises(TypeError):
        strict_json.encode({1, 2})
