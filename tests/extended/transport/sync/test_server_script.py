"""The shell scripts of a sync run in every shell that a server may have as its sh."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.paths import RemotePaths
from remote_tool.transport.sync import server_script, server_state
from remote_tool.transport.sync.last_sync import Columns, KnownCopy
from remote_tool.transport.sync.server_script import (
    finish_script,
    receive_script,
    receive_words,
    remove_script,
    snapshot_words,
)
from remote_tool.transport.sync.server_state import Attempt
from tests.extended.environments.test_facts import SHELLS

if TYPE_CHECKING:
    from pathlib import Path

WORST_NAME = 'a project\'s "name"; $(touch here) and `more`'
NAMES = ("a.py", "it's\na $(name)", "-", "sub/deep.py")
TIME = 1_700_000_000
ATTEMPT = Attempt("a" * 32, "b" * 32, "me and $(you)@here")
# The project is still being listed.
NOT_LISTED = replace(ATTEMPT, snapshot_id="")


class Server:
    """A home folder with a project of which a sync sent all files."""

    def __init__(self, home: Path, shell: list[str]) -> None:
        self._home = home
        self._shell = shell
        self.remote = RemotePaths(WORST_NAME)
        self.project = home / WORST_NAME
        self.scripts = home / self.remote.scripts
        for name in NAMES:
            file = self.project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
            os.utime(file, (TIME, TIME))
        self.scripts.mkdir()
        (self.scripts / "sent").write_bytes(self.sent)

    @property
    def sent(self) -> bytes:
        return b"".join(b"%d %d %b\0" % (len(name), TIME, name.encode()) for name in NAMES)

    def run(self, script: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        # As the wrapper of every script does, which leaves stdin to it.
        command = [*self._shell, "-c", 'eval "$SCRIPT"']
        environment = {"HOME": str(self._home), "PATH": os.environ["PATH"], "SCRIPT": script}
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, check=False, timeout=300)

    def known(self) -> KnownCopy:
        """Return the state of the copy, which the server has recorded as complete."""
        (self.scripts / "sync").write_text(f"complete {ATTEMPT.snapshot_id}\n")
        modes = ((self.project / name).stat().st_mode for name in NAMES)
        look = (
            b"%x %d %d ./%b\0" % (mode, len(name), TIME, name.encode()) for name, mode in zip(NAMES, modes, strict=True)
        )
        return KnownCopy.of(Columns(self.sent, b"".join(look), b""), ATTEMPT.snapshot_id)

    def answers(
        self, *words: bytes, dry_run: bool = False, known: tuple[KnownCopy, ...] = (), attempt: Attempt = ATTEMPT
    ) -> list[bytes]:
        """Run the script of a sync; return the state, its answer to each request, and what it prints at the end."""
        script = receive_script(self.remote, attempt, known, dry_run=dry_run)
        done = self.run(script, b"".join(words))
        assert done.stderr == b""
        assert done.returncode == 0
        state, *answers = done.stdout.split(server_state.end_of_state(ATTEMPT.mark))
        return [state, *(each.partition(b"\n")[2] for each in answers)]


@pytest.fixture(params=SHELLS, ids=" ".join)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(tmp_path, request.param)


def question(kind: str) -> bytes:
    names = [name.encode() for name in NAMES]
    records = b"".join(b"0 0 %b\0" % name if kind != server_script.HASH else name + b"\0" for name in names)
    return server_script.question(kind, records)


def test_files_are_looked_up_with_and_without_the_tools_of_gnu(server: Server) -> None:
    kinds = (server_script.LOOK, server_script.LOOK_SLOWLY)
    for answer in server.answers(*map(question, kinds), receive_words([]), dry_run=True)[1:3]:
        found = server_script.parse_found(answer)
        assert found is not None
        assert {name: (each.size, each.modified) for name, each in found.items()} == {
            name.encode(): (len(name), TIME) for name in NAMES
        }


def test_contents_are_hashed(server: Server) -> None:
    answer = server.answers(question(server_script.HASH), receive_words([]), dry_run=True)[1]
    hashes = {name.encode(): hashlib.sha256(name.encode()).hexdigest() for name in NAMES}
    assert server_script.parse_hashes(answer) == hashes


def test_data_is_appended_to_files_that_exist(server: Server) -> None:
    words = (server_script.append_words(name, b"more\n") for name in (b"-", b"sub/deep.py", b"not there"))
    server.answers(*words, receive_words([]), dry_run=True)
    assert [(server.project / name).read_text() for name in ("-", "sub/deep.py")] == ["-more\n", "sub/deep.pymore\n"]
    assert not (server.project / "not there").exists()


def test_a_sync_that_sends_nothing_is_recorded(server: Server) -> None:
    sent = b"4 %d a.py\0" % TIME
    commit = server_script.commit_words(ATTEMPT, len(sent), 0, all_sent=True)
    *_, end = server.answers(receive_words([]), commit + sent)
    assert server_script.parse_room(end) is not None
    assert (server.scripts / "sent").read_bytes() == sent
    assert (server.scripts / "sync").read_text() == f"complete {ATTEMPT.snapshot_id}\n"
    assert ATTEMPT.owner in (server.scripts / "sync-owner").read_text()
    assert {path.name for path in server.scripts.iterdir()} == {"sent", "sync", "sync-lock", "sync-owner"}


def test_a_copy_that_is_as_it_was_sent_is_recognized(server: Server) -> None:
    state, rest = server.answers(known=(server.known(),))
    assert server_state.parse_state(state).same
    assert rest == b""


@pytest.mark.row(246)
@pytest.mark.parametrize("at", ["first", "with the snapshot"])
def test_a_copy_is_recognized_before_and_after_the_snapshot_is_known(server: Server, at: str) -> None:
    known = server.known()
    words = snapshot_words(known, compare=at != "first")
    state, rest = server.answers(words, known=(known,) if at == "first" else (), attempt=NOT_LISTED)
    assert server_state.parse_state(state).same
    assert rest == b""


@pytest.mark.row(246)
def test_a_changed_copy_is_not_taken_for_the_one_of_the_snapshot(server: Server) -> None:
    known = server.known()
    (server.project / "a.py").write_text("other")
    state, *_ = server.answers(snapshot_words(known, compare=True), receive_words([]), attempt=NOT_LISTED, dry_run=True)
    assert not server_state.parse_state(state).same


@pytest.mark.row(247)
def test_nothing_is_locked_or_written_before_the_snapshot_is_known(server: Server) -> None:
    known = server.known()
    before = {path.name: path.read_bytes() for path in server.scripts.iterdir()}
    done = server.run(receive_script(server.remote, NOT_LISTED, [known], dry_run=False), b"")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert {path.name: path.read_bytes() for path in server.scripts.iterdir()} == before


def test_stale_files_go_unless_they_have_changed(server: Server) -> None:
    (server.scripts / "sync").write_text(f"incomplete {ATTEMPT.snapshot_id} {ATTEMPT.mark}\n")
    (server.project / "a.py").write_text("changed")
    commit = server_script.commit_words(ATTEMPT, 0, len(server.sent), all_sent=True)
    done = server.run(finish_script(server.remote, ATTEMPT), commit + server.sent)
    assert (done.returncode, done.stderr) == (0, b"")
    removed, _ = server_script.parse_finish(done.stdout)
    assert sorted(removed) == sorted(set(NAMES) - {"a.py"})
    assert (server.scripts / "sync").read_text() == f"complete {ATTEMPT.snapshot_id}\n"
    again = server.run(remove_script(server.remote), server.sent)
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"")
