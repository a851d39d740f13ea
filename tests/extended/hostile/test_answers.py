"""A server that answers what it likes: every command ends in time, says so once, and nothing of it gets out of place.

The other server of the project is honest, and is shown whatever the hostile one does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.job import JobState
from remote_tool.transport.ssh import login_shell
from remote_tool.transport.sync import bridge
from remote_tool.workflows import agent_client, tunnel
from remote_tool.workflows.jobs import run, stacks
from remote_tool.workflows.launch import rendezvous
from remote_tool.workflows.prepare import server as prepare_server
from remote_tool.workflows.status import pending_stops
from tests.extended.hostile.conftest import SILENCE
from tests.figures import record_figure

if TYPE_CHECKING:
    from remote_tool.jobs.job import Job
    from tests.extended.hostile.conftest import Desk, Ended

ESCAPES = "\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\x90q\u202e\u2066\x7f\r\nerror: forged"
# Beginnings of answer.py: both marks are the shell's, then the answer begins.
BEGIN = "write(1, mark)\n"

# What is wrong whatever was asked for.
ANYTHING = {
    "no word": "",
    "an exit status": "sys_exit = os._exit(3)",
    "an error full of escapes": f"write(1, mark); write(2, {ESCAPES!r}.encode()); os._exit(9)",
    "text that is no frame": BEGIN + "write(1, b'{\"jobs\": []}\\n' * 1000)",
    "a frame with another nonce": BEGIN + "write(1, frame({**request, 'nonce': '0' * 32}, {'jobs': []}))",
    "endless text before the frame": BEGIN + "while True: write(1, b'y' * 65536)",
    "endless text before the shell": "while True: write(1, b'y' * 65536)",
    "a megabyte of zero bytes": BEGIN + "write(1, bytes(1 << 20))",
    "a frame that never ends": BEGIN + "write(1, frame(request, {}, lengths='8000000 0')); time.sleep(600)",
    "a frame larger than any": BEGIN + "write(1, frame(request, {}, lengths='99999999 0'))",
    "a length of a hundred digits": BEGIN + "write(1, frame(request, {}, lengths='9' * 100 + ' 0'))",
    "a length below zero": BEGIN + "write(1, frame(request, {}, lengths='-2 0'))",
    "a list": BEGIN + "write(1, frame(request, []))",
    "a word": BEGIN + "write(1, frame(request, 'jobs'))",
    "deep nesting": BEGIN + "write(1, frame(request, b'{\"jobs\":' + b'[' * 200000 + b']' * 200000 + b'}'))",
    "no number": BEGIN + "write(1, frame(request, b'{\"jobs\": NaN}'))",
    "infinity": BEGIN + "write(1, frame(request, b'{\"jobs\": 1e999}'))",
    "a number of 5000 digits": BEGIN + "write(1, frame(request, b'{\"now\": ' + b'9' * 5000 + b'}'))",
    "a time of 400 digits": BEGIN + "write(1, frame(request, b'{\"now\": ' + b'9' * 400 + b'}'))",
    "a key twice": BEGIN + 'write(1, frame(request, b\'{"jobs": [], "jobs": [1]}\'))',
    "bytes that are no text": BEGIN + 'write(1, frame(request, b\'{"jobs": "\\xff\\xfe"}\'))',
    "an error of escapes": BEGIN + f"write(1, frame(request, {{'error': {ESCAPES!r}, 'hint': {ESCAPES!r}}}))",
    "an error that is a tree": BEGIN + "write(1, frame(request, {'error': {'a': [1]}, 'hint': None}))",
    "the end at once": BEGIN + "write(1, frame(request, {'done': True}))",
    "jobs that are none": BEGIN + "write(1, frame(request, {'jobs': [None, 5, 'x', [], {}, True]}))",
    "a tree for jobs": BEGIN + "write(1, frame(request, {'jobs': {'a': 1}, 'now': 'x', 'results': 7, 'done': False}))",
    "silence": "time.sleep(600)",
    "silence after the shell": BEGIN + "time.sleep(600)",
    "the link goes": "os.kill(os.getppid(), 9)",
}
COMMANDS = {
    "job-list": ("job-list",),
    "job-rsync": ("job-rsync",),
    "job-tail": ("job-tail", "--job", "{job}"),
    "job-tail --no-follow": ("job-tail", "--job", "{job}", "--no-follow"),
    "job-wait": ("job-wait", "--job", "{job}", "--timeout", "2"),
    "job-kill": ("job-kill", "--job", "{job}", "--grace", "1", "--yes"),
    "job-run": ("job-run", "--cmd", "echo an honest word", "--no-sync"),
    "run": ("run", "--cmd", "echo an honest word"),
    "helper-torch-launch": ("helper-torch-launch", "--cmd", "train.py", "--no-sync"),
    "prepare": ("prepare",),
    "rsync": ("rsync",),
    "job-stacks": ("job-stacks", "{job}"),
    "forward": ("forward", "0:6006", "--server", "bad"),
    "forward --reverse": ("forward", "--reverse", "6006", "--server", "bad"),
    "forward --job": ("forward", "--job", "{job}"),
}
# A server that knows of no job has lost it, and that is no error of these commands.
MAY_KNOW_IT_LOST = {"job-rsync", "job-wait", "job-kill", "job-tail", "job-tail --no-follow"}
# Everything is tried with the list; the others share the code that reads, so they get what differs most.
SHORT = (
    "an error full of escapes",
    "endless text before the frame",
    "a list",
    "deep nesting",
    "an error of escapes",
    "jobs that are none",
    "a tree for jobs",
    "silence after the shell",
)


@pytest.mark.slow
@pytest.mark.row(106, 110, 120)
@pytest.mark.parametrize("name", ANYTHING)
def test_a_list_shows_the_other_servers_whatever_one_answers(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in ANYTHING[name]:
        lose_patience(monkeypatch)
    desk.answer(ANYTHING[name])
    known = desk.job()
    ended = desk.program("job-list", "--stopped")
    desk.check(ended)
    assert re.search(r"(?m)^ *\d+ +honest +succeeded +0 ", ended.out)
    assert len(_errors(ended)) <= 1
    assert _errors(ended) or "bad" in ended.err or _state(desk, known) is JobState.LOST
    assert ended.status == (3 if _errors(ended) else 0)
    record_figure("answers of a hostile server tried", 1)


@pytest.mark.row(106)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (ANYTHING["endless text before the frame"], "bad sent more than 4.0 MiB that are no answer"),
        (BEGIN, "bad did not answer completely"),
    ],
)
def test_a_check_says_what_came_instead_of_an_answer(desk: Desk, source: str, said: str) -> None:
    desk.answer(source)
    ended = desk.program("check", "--server", "bad")
    desk.check(ended)
    assert said in " ".join(ended.shown.split())


@pytest.mark.slow
@pytest.mark.row(106, 110, 120)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "job-list"])
def test_every_command_ends_with_one_error_whatever_a_server_answers(
    desk: Desk, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "LONGEST_ANSWER", 1 << 24)
    for name in SHORT:
        desk.answer(ANYTHING[name])
        job = desk.job()
        with pytest.MonkeyPatch.context() as patch:
            if "sleep" in ANYTHING[name]:
                lose_patience(patch)
            ended = desk.program(*(word.format(job=job.id) for word in COMMANDS[command]))
        desk.check(ended)
        assert len(_errors(ended)) <= 1, (name, ended)
        assert ended.status != 0 or command in {
            "job-rsync",
            "job-wait",
            "job-kill",
            "job-tail",
            "job-tail --no-follow",
            "job-stacks",
        }, name
        if command in {"run", "job-run", "prepare", "rsync"}:
            assert re.search("(?m)^(?!.*new host key).*honest", ended.shown), (name, ended)
        record_figure("answers of a hostile server tried", 1)


def lose_patience(patch: pytest.MonkeyPatch) -> None:
    """Give up sooner than in life, but not sooner than an honest server on a busy machine answers."""
    patch.setattr(login_shell, "LONGEST_START", SILENCE)
    patch.setattr(agent_client, "LONGEST_SILENCE", SILENCE)
    patch.setattr(run, "BEGIN_SECONDS", SILENCE)
    patch.setattr(tunnel, "FIRST_ANSWER_SECONDS", SILENCE)
    patch.setattr(stacks, "SILENCE", SILENCE)
    patch.setattr(prepare_server, "FACTS_TIMEOUT", SILENCE)
    patch.setattr(rendezvous, "CONNECT_SECONDS", SILENCE / 4)
    patch.setattr(pending_stops, "STOP_MARGIN", SILENCE)
    patch.setattr(bridge, "LONGEST_SILENCE", SILENCE)


def _errors(ended: Ended) -> list[str]:
    return re.findall(r"(?m)^error: .*$", ended.err)


def _state(desk: Desk, job: Job) -> JobState:
    return next(each.state for each in desk.jobs() if each.id == job.id)
