"""What no text of ours shows, in whatever form a server sends it back, and what is left alone."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import redaction
from remote_tool.config.servers import Server
from remote_tool.errors import ConfigError, RemoteCommandError, RemoteToolError
from remote_tool.jobs.job import Job, JobSpec, JobState, LaunchWatch
from remote_tool.launchers.request import LaunchRequest
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.workflows.events import Notice, Outcome, StepEnded
from remote_tool.workflows.jobs.run import RunRequest
from remote_tool.workflows.start.start import StartRequest
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CORE = "hf_kLmNoPqRsTuVwX"
AWKWARD = f"{CORE} '\"\\ \u00e9\tend"
SHORT_WORDS = "a\"b\\c d'e\t\u00e9 f"
LONG = "".join(f"{number:04d}" for number in range(1000))
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value,
    "JSON": json.dumps,
    "JSON with letters": lambda value: json.dumps(value, ensure_ascii=False),
    "shell": shlex.quote,
    "Python": repr,
    "harmless": printable,
}


@pytest.mark.row(111)
@pytest.mark.parametrize("value", [CORE, AWKWARD, SHORT_WORDS, f"{CORE}\n{SHORT_WORDS}\n"])
@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_redacted_in_whatever_form_it_comes(form: str, value: str) -> None:
    redaction.hide([value])
    text = redaction.redact(f"sh: {FORMS[form](value)}: not found")
    assert re.fullmatch(r"""sh: ['"]?\*\*\*['"]?: not found""", text)


@pytest.mark.row(111)
def test_lines_and_words_of_a_value_are_redacted_by_themselves() -> None:
    redaction.hide([f"first line\nexport KEY='{CORE}'"])
    assert redaction.redact(f"sh: first line: no\n{CORE}: no\nexport: yes") == "sh: ***: no\n***: no\nexport: yes"


@pytest.mark.row(111)
@pytest.mark.parametrize("piece", [LONG[-500:], LONG[:500], LONG[300:340]], ids=["end", "beginning", "middle"])
def test_a_piece_of_a_long_value_is_redacted(piece: str) -> None:
    redaction.hide([LONG])
    assert redaction.redact(f"a{piece}: not found") == "a***: not found"


def test_what_is_short_or_names_a_server_stays() -> None:
    redaction.hide(["8 chars", "", "gpu-server-1", "12345678"])
    redaction.never_redact(["gpu-server-1"])
    assert redaction.redact("gpu-server-1: 8 chars: 12345678 1234567") == "gpu-server-1: 8 chars: *** 1234567"


@pytest.mark.row(111)
def test_no_error_notice_or_record_of_ours_shows_a_value() -> None:
    """In none of their fields, nor as an exception of Python's."""
    RunRequest("true", env={"TOKEN": AWKWARD})
    StartRequest("true", environment={"TOKEN": LONG})
    said = f"{{'TOKEN': {json.dumps(AWKWARD)}}} {LONG}"
    shown = [
        error
        for made in (
            RemoteToolError(said, hint=said),
            ConfigError([said], hint=said),
            RemoteCommandError(said, server="s", command=said, exit_status=1, stderr_tail=said, hint=said),
        )
        for error in (str(made), repr(made), str(vars(made)))
    ]
    shown += [str(Notice("s", said)), str(StepEnded("s", "step", Outcome.FAILED, said))]
    shown.append(str(Job(1, "id", "s", "true", JobState.FAILED, reason=said)))
    assert [text for text in shown if CORE in text or LONG[:40] in text or LONG[-40:] in text] == []
    assert all(redaction.REDACTED in text for text in shown)


@pytest.mark.row(111)
@pytest.mark.parametrize("shown", [repr, str])
def test_no_value_shows_itself_in_a_traceback_or_a_debugger(shown: Callable[[object], str]) -> None:
    variables = {"TOKEN": CORE}
    watch = LaunchWatch(("a", "b"), "10.0.0.1", 1, CORE)
    values = [
        JobSpec(id="1", server="first", command="true", environment=variables, watch=watch),
        StartRequest("true", environment=variables),
        LaunchRequest("a.py", environment=variables),
        Server("first", "10.0.0.1", password=CORE),
        watch,
    ]
    assert [value for value in values if CORE in shown(value)] == []


@pytest.mark.row(111)
def test_the_variables_of_the_configuration_are_redacted_as_those_of_the_command_are(tmp_path: Path) -> None:
    server = Server("s", "10.0.0.1", env={"TOKEN": CORE})
    config = replace(make_configuration([], tmp_path), servers={"s": server})
    config.variables_of("s")
    assert redaction.redact(f"{CORE} not found") == "*** not found"
