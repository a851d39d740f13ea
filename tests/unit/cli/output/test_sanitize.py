"""Text of servers on a terminal."""

from __future__ import annotations

import pytest

from remote_tool.cli.output.sanitize import paragraph


@pytest.mark.row(110)
def test_no_later_line_of_a_text_looks_like_one_of_ours() -> None:
    assert paragraph("it failed\nerror: forged\n  indented\n\x1b[2J") == (
        "it failed\n  error: forged\n  indented\n  \\x1b[2J"
    )
