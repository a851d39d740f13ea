"""What a sync leaves alone on a server, and says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.forwarding import agents_in
from tests.project import make_project
from tests.promises.conftest import Desk, until, without
from tests.small_disks import small_disk
from tests.sshd import TestServer
from tests.terminal import Terminal

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.row(146)
@pytest.mark.parametrize("comes_back", ["as new", "as it was"])
def test_what_a_job_made_of_a_file_outlives_its_removal_and_its_return_here(desk: Desk, comes_back: str) -> None:
    here, there, aside = desk.root / "notes.csv", desk.there() / "notes.csv", desk.root.parent / "aside"
    here.write_text("step,loss\n1,0.50\n")
    desk.does("rsync")
    desk.does("run", "--cmd", "printf 'step\\n1\\n' > notes.csv")
    shutil.move(here, aside)
    desk.does("rsync")
    assert there.read_text() == "step\n1\n"
    if comes_back == "as new":
        here.write_text("step,loss\n1,0.50\n")
        os.utime(here, (time.time() + 60, time.time() + 60))
        said = desk.refuses("rsync", status=1)
        assert "notes.csv" in said
        assert "--overwrite" in said
    else:
        shutil.move(aside, here)
        assert "notes.csv" in desk.tries("rsync").stderr
    assert there.read_text() == "step\n1\n"
    desk.does("rsync", "--overwrite")
    assert there.read_text() == here.read_text()


@pytest.mark.row(146)
def test_what_no_sync_has_sent_is_kept_and_named_whatever_the_clocks_say(desk: Desk) -> None:
    there = desk.there() / "result.txt"
    there.write_text("a result of a slow clock")
    os.utime(there, (time.time() - 3600, time.time() - 3600))
    (desk.root / "result.txt").write_text("an older result, of a clock that is right")
    ran = desk.tries("rsync")
    assert ran.returncode == 0
    assert "result.txt" in ran.stderr
    assert "--overwrite" in ran.stderr
    assert there.read_text() == "a result of a slow clock"


def _other_project(desk: Desk, folder: Path, *files: str) -> Desk:
    """Return a project of the same name that knows nothing of the first."""
    root = make_project(folder / desk.root.name, desk.servers.values(), name=desk.settings()["name"])
    (root / ".remote" / "logs" / "workspace").unlink()
    for name in files:
        (root / name).write_text(f"{name} of the other project")
    return Desk(root, desk.servers)


@pytest.mark.parametrize(
    "command",
    [
        ["rsync"],
        ["rsync", "--dry-run"],
        ["prepare"],
        ["setup"],
        ["update-packages"],
        ["clean", "--yes"],
        ["job-run", "--cmd", "true"],
        ["helper-launch", "--cmd", "true"],
        ["clean", "--all", "--server", "first", "--yes"],
    ],
    ids="_".join,
)
def test_a_project_of_the_same_name_is_refused_with_both_named_and_the_way_out(
    desk: Desk, tmp_path: Path, command: list[str]
) -> None:
    other = _other_project(desk, tmp_path / "elsewhere", "hello.py", "other.py")
    before = {path.name: path.read_bytes() for path in desk.there().iterdir() if path.is_file()}
    for _ in range(2):
        said = other.refuses(*command)
        assert str(desk.root) in said
        assert str(other.root) in said
        assert "remote-tool rsync --adopt --server first" in said
        assert "name:" in said
    assert {path.name: path.read_bytes() for path in desk.there().iterdir() if path.is_file()} == before
    assert "nothing to send" in desk.tries("rsync").stderr


@pytest.mark.parametrize("way", ["rsync --adopt", "yes to rsync", "yes to prepare"])
def test_a_folder_that_is_taken_over_keeps_what_only_the_other_has(desk: Desk, tmp_path: Path, way: str) -> None:
    (desk.root / "theirs.py").write_text("only there")
    desk.does("rsync")
    other = _other_project(desk, tmp_path / "elsewhere", "hello.py", "other.py")
    if way == "rsync --adopt":
        other.does("rsync", "--adopt")
    else:
        command = way.rsplit(maxsplit=1)[-1]
        with Terminal(command, cwd=other.root) as terminal:
            terminal.until("[y/N]: ")
            terminal.type("y\n")
            assert terminal.end() == 0
    there = {path.name: path.read_text() for path in desk.there().iterdir() if path.is_file()}
    assert there["theirs.py"] == "only there"
    assert there["hello.py"] == "hello.py of the other project"
    assert there["other.py"] == "other.py of the other project"
    (other.root / "other.py").unlink()
    other.does("rsync")
    assert (desk.there() / "theirs.py").exists()
    assert not (desk.there() / "other.py").exists()
    # From here on the two are one: the last sync wins, but for what jobs wrote.
    (other.root / "more.py").write_text("sent")
    other.does("rsync")
    (desk.there() / "made.txt").write_text("made by a job")
    (desk.root / "new.py").write_text("")
    desk.does("rsync")
    assert (desk.there() / "new.py").exists()
    assert not (desk.there() / "more.py").exists()
    assert (desk.there() / "made.txt").exists()


def test_who_says_no_or_nothing_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    other = _other_project(desk, tmp_path / "elsewhere", "hello.py")
    with Terminal("rsync", "--accept-new-keys", cwd=other.root) as terminal:
        terminal.until("[y/N]: ")
        terminal.type("\n")
        assert terminal.end() == 1
    assert (desk.there() / "hello.py").read_text() == (desk.root / "hello.py").read_text()
    assert "--adopt" in other.refuses("rsync", "--accept-new-keys")


def test_a_copy_of_a_project_with_its_settings_is_a_second_laptop_of_it(desk: Desk, tmp_path: Path) -> None:
    copied = Desk(shutil.copytree(desk.root, tmp_path / "copied"), desk.servers)
    (copied.root / "hello.py").write_text("of the copy")
    copied.does("rsync")
    assert (desk.there() / "hello.py").read_text() == "of the copy"
    (desk.root / "hello.py").write_text("of the first")
    desk.does("rsync")
    assert (desk.there() / "hello.py").read_text() == "of the first"


@pytest.mark.parametrize("last", ["sent", "cut off"])
def test_a_server_of_before_knows_who_has_sent_there_by_what_is_here(desk: Desk, tmp_path: Path, last: str) -> None:
    other = _other_project(desk, tmp_path / "elsewhere", "hello.py")
    ours = desk.there() / ".remote-scripts"
    (ours / "workspaces").unlink()
    if last == "cut off":
        (ours / "sync").write_text(f"incomplete {'0' * 32} {'1' * 32}\n")
    (ours / "sync-owner").write_text("1700000000 somebody@before\n")
    for _ in range(2):
        assert "was sent from somebody@before;" in other.refuses("rsync")
        assert "was sent from somebody@before;" in other.refuses("prepare")
    (desk.root / "hello.py").write_text("edited")
    desk.does("rsync")
    assert (desk.there() / "hello.py").read_text() == "edited"
    assert str(desk.root) in other.refuses("rsync")


def test_a_workspace_that_lost_its_records_shares_its_folder_again_though_nothing_differs(desk: Desk) -> None:
    shutil.rmtree(desk.root / ".remote" / "logs")
    assert "--adopt" in desk.refuses("rsync")
    desk.does("rsync", "--adopt")
    desk.does("rsync")


def test_after_a_new_name_the_old_folder_is_named_with_the_command_that_moves_it(desk: Desk) -> None:
    desk.does("job-run", "--follow", "--cmd", "echo made > made.txt")
    old = desk.root.name
    desk.configure(name=f"{old}-2")
    said = desk.tries("rsync").stderr
    assert f"this workspace has sent ~/{old} before" in said
    command = shlex.split(said.partition("remote-tool run ")[2].partition("\n")[0])
    desk.does("run", *command)
    assert (desk.there() / "made.txt").read_text() == "made\n"
    desk.does("prepare")
    assert "this workspace has sent" not in desk.tries("rsync").stderr
    desk.does("job-run", "--follow", "--cmd", "cat made.txt")
    assert [job["state"] for job in desk.jobs()] == ["succeeded", "succeeded"]


@pytest.mark.row(65, 66)
def test_an_edit_is_sent_whatever_its_time_and_with_checksum_also_one_that_kept_size_and_time(desk: Desk) -> None:
    here, there = desk.root / "train.py", desk.there() / "train.py"
    here.write_text("rate = 0.1\n")
    desk.does("rsync")
    for moment, text in ((0, "rate = 0.2\n"), (time.time() + 86400, "rate = 0.3\n")):
        here.write_text(text)
        os.utime(here, (moment, moment))
        desk.does("rsync")
        assert there.read_text() == text
    here.write_text("rate = 0.4\n")
    os.utime(here, (moment, moment))
    desk.does("rsync")
    assert there.read_text() == "rate = 0.3\n"
    desk.does("rsync", "--checksum")
    assert there.read_text() == "rate = 0.4\n"
    # Here, rsync compares by itself, and the server's file is newer.
    here.write_text("rate = 0.5\n")
    os.utime(here, (0, 0))
    desk.does("rsync", "--checksum")
    assert there.read_text() == "rate = 0.5\n"


@pytest.mark.row(65)
def test_what_was_removed_on_the_server_is_sent_again(desk: Desk) -> None:
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    for edits in ({}, {"train.py": "rate = 0.25\n"}):
        for name, text in edits.items():
            (desk.root / name).write_text(text)
        (desk.there() / "hello.py").unlink()
        desk.does("rsync")
        assert (desk.there() / "hello.py").read_text() == (desk.root / "hello.py").read_text()


@pytest.mark.row(67)
def test_a_sync_removes_nothing_outside_of_the_project_nor_behind_a_link(desk: Desk, tmp_path: Path) -> None:
    (desk.root / "data").mkdir()
    (desk.root / "data" / "set.txt").write_text("large")
    desk.does("rsync")
    # Somebody moves the data to a larger disk.
    elsewhere = tmp_path / "elsewhere"
    shutil.move(desk.there() / "data", elsewhere)
    (desk.there() / "data").symlink_to(elsewhere)
    # And somebody writes into the list of what was sent.
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    record = f"{outside.stat().st_size} {int(outside.stat().st_mtime)} {os.path.relpath(outside, desk.there())}\0"
    with (desk.there() / ".remote-scripts" / "sent").open("a") as sent:
        sent.write(record)
    shutil.rmtree(desk.root / "data")
    desk.does("rsync")
    assert (elsewhere / "set.txt").exists()
    assert outside.exists()


@pytest.mark.row(68)
def test_a_sync_of_an_emptied_folder_removes_nothing(desk: Desk) -> None:
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    for path in desk.root.glob("*.py"):
        path.unlink()
    said = " ".join(desk.refuses("rsync", status=1).split())
    assert f"The project folder {desk.root} has no files, so 2 would be removed from first" in said
    assert {path.name for path in desk.there().glob("*.py")} == {"hello.py", "train.py"}


@pytest.mark.row(72)
def test_a_link_that_leads_out_of_the_project_is_named_and_not_sent(desk: Desk) -> None:
    (desk.root / "outside").symlink_to("/etc/passwd")
    (desk.root / "inside").symlink_to("hello.py")
    assert "not sent: outside is a link that points outside the project" in desk.tries("rsync").stderr
    assert not os.path.lexists(desk.there() / "outside")
    assert (desk.there() / "inside").readlink().name == "hello.py"
    # Now rsync looks at everything by itself.
    desk.does("rsync", "--checksum")
    assert not os.path.lexists(desk.there() / "outside")
    assert (desk.there() / "inside").is_symlink()


@pytest.mark.row(71)
def test_a_sync_during_a_job_replaces_whole_files_and_warns(desk: Desk) -> None:
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("job-run", "--cmd", "exec 3< train.py; touch open; until [ -e go ]; do sleep 0.05; done; cat <&3")
    until((desk.there() / "open").exists, "the job has opened its file")
    (desk.root / "train.py").write_text("rate = 0.2\n")
    said = desk.tries("rsync").stderr
    assert "a job is running in the folder that was updated" in said
    assert "(job 1)" in said
    (desk.root / "more.py").write_text("")
    (warning,) = json.loads(desk.does("job-run", "--json", "--cmd", "true"))["warnings"]
    assert "(job 1)" in warning["message"]
    (desk.there() / "go").touch()
    desk.waits_for(1, "succeeded")
    assert desk.does("job-tail", "1") == "rate = 0.1\n"
    assert (desk.there() / "train.py").read_text() == "rate = 0.2\n"


@pytest.fixture
def rsync_there(desk: Desk) -> Iterator[Path]:
    """Where a program takes the place of the server's rsync."""
    program = desk.servers["first"].programs / "rsync"
    yield program
    # The server is shared.
    program.unlink(missing_ok=True)


def _put(program: Path, before: str, after: str) -> None:
    """Have more done before and after the program of this name runs."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\n{before}\n{shutil.which(program.name)} "$@"\n{after}\n')
    program.chmod(0o755)


def _at_second(file: Path, second: int, nanoseconds: int) -> None:
    os.utime(file, ns=(0, second * 10**9 + nanoseconds))


@pytest.mark.row(201, 293)
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_after_a_sync_that_broke_off_no_code_is_kept_and_an_edit_that_looks_like_what_arrived_is_sent(
    desk: Desk, rsync_there: Path, more: tuple[str, ...]
) -> None:
    file, there, second = desk.root / "code.sh", desk.there() / "code.sh", int(time.time()) + 3600
    file.write_text("echo one\n")
    _at_second(file, second, 1)
    # All has arrived when it breaks off.
    _put(rsync_there, "", "exit 11")
    desk.refuses("rsync")
    assert there.read_text() == "echo one\n"
    frozen = ("job-run", "--no-sync", "--frozen", "--follow", "--cmd", "sh code.sh")
    assert "is incomplete: its last sync did not finish" in " ".join(desk.refuses(*frozen).split())
    rsync_there.unlink()
    file.write_text("echo two\n")
    _at_second(file, second, 2)
    desk.does("rsync", *more)
    assert there.read_text() == "echo two\n"
    assert desk.does(*frozen) == "two\n"


@pytest.mark.row(293)
def test_code_is_kept_as_it_is_after_a_sync_that_runs(desk: Desk, rsync_there: Path) -> None:
    file, came, go = desk.root / "code.sh", desk.root.parent / "came", desk.root.parent / "go"
    file.write_text("echo old\n")
    desk.does("rsync")
    file.write_text("echo new\n")
    _put(rsync_there, f"touch {came}; until [ -e {go} ]; do sleep 0.05; done", "")
    words = ("job-run", "--no-sync", "--frozen", "--follow", "--cmd", "sh code.sh")
    with desk.runs_meanwhile("rsync") as sync:
        until(came.exists, "the sync runs")
        before = {*agents_in(desk.servers["first"])}
        with desk.runs_meanwhile(*words) as start:
            until(lambda: {*agents_in(desk.servers["first"])} - before, "the server is asked")
            time.sleep(1)  # a start that does not wait would be over
            assert start.poll() is None
            go.touch()
            said = start.communicate()[0]
        assert sync.wait() == 0
    assert "new\n" in said
    assert "old\n" not in said


@pytest.mark.row(69)
def test_a_server_without_rsync_says_how_to_get_it(tmp_path: Path, ssh_key: Path) -> None:
    hidden = without("/usr/bin/rsync /usr/local/bin/rsync")
    with TestServer("first", tmp_path / "first", ssh_key, before=hidden) as server:
        desk = Desk(make_project(tmp_path / "project", [server]), {"first": server})
        said = " ".join(desk.refuses("rsync", status=1).split())
    assert "rsync is not installed on the server" in said
    assert "On first: sudo apt-get install rsync (or: conda install -c conda-forge rsync)" in said
    assert not desk.there().exists()


@pytest.mark.row(69)
def test_a_full_disk_of_a_server_is_named_with_the_command_that_shows_it(tmp_path: Path, ssh_key: Path) -> None:
    with (
        small_disk(tmp_path / "first" / "home", "size=1m"),
        TestServer("first", tmp_path / "first", ssh_key) as server,
    ):
        desk = Desk(make_project(tmp_path / "project", [server]), {"first": server})
        (desk.root / "large.bin").write_bytes(bytes(3 << 20))
        said = " ".join(desk.refuses("rsync", status=1).split())
    assert "a file could not be written: is the server's disk full?" in said
    assert "No space left on device" in said
    assert "remote-tool run --server first --cmd 'df -h .'" in said


@pytest.mark.row(69)
@pytest.mark.parametrize(
    ("end", "cause", "tries"),
    [
        ("exit 1", "rsync did not understand its options", 1),
        ("exit 77", "rsync ended with status 77", 1),
        ("kill -KILL $$", "the server's rsync was killed by SIGKILL", 1),
        ("exit 12", "the server's rsync exited too early", 2),
        ("exit 30", "no data arrived for too long", 2),
    ],
)
def test_how_the_rsync_of_a_server_ends_is_one_cause_and_only_a_lost_one_is_tried_once_more(
    desk: Desk, rsync_there: Path, tmp_path: Path, end: str, cause: str, tries: int
) -> None:
    (desk.root / "train.py").write_text("rate = 0.1\n")
    _put(rsync_there, f"echo once >> {tmp_path}/tries; echo the reason >&2; {end}", "")
    said = desk.refuses("rsync", status=1)
    causes = re.findall("the project was not sent: (.*)", said)
    assert {told.removesuffix("; trying again") for told in causes} == {cause}
    assert "the reason" in said
    assert (tmp_path / "tries").read_text().split() == ["once"] * tries
    assert not (desk.there() / "train.py").exists()


@pytest.mark.row(69)
def test_a_file_that_vanishes_while_others_are_sent_is_a_warning(desk: Desk, tmp_path: Path) -> None:
    (desk.root / "train.py").write_text("rate = 0.1\n")
    _put(tmp_path / "rsync", "", 'status=$?; case "$*" in *server:*) exit 24 ;; esac; exit $status')
    ran = desk.tries("rsync", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert ran.returncode == 0, ran.stderr
    assert "some local files disappeared before they were sent" in ran.stderr
    assert (desk.there() / "train.py").exists()


@pytest.mark.row(70)
def test_a_sync_that_another_one_overtakes_does_not_say_that_the_copy_is_whole(desk: Desk, rsync_there: Path) -> None:
    """As on a server without flock, where nobody waits."""
    state = desk.there() / ".remote-scripts" / "sync"
    (desk.root / "train.py").write_text("rate = 0.1\n")
    _put(rsync_there, "", f"echo 'incomplete other mark' > {state}")
    assert "has started another sync here" in " ".join(desk.refuses("rsync", status=1).split())
    start = ("job-run", "--no-sync", "--cmd", "true")
    assert "is incomplete: its last sync did not finish" in " ".join(desk.refuses(*start).split())
    rsync_there.unlink()
    desk.does("rsync")
    desk.does(*start)


@pytest.mark.row(69)
def test_a_sync_whose_connection_is_lost_is_tried_once_more(desk: Desk, rsync_there: Path, tmp_path: Path) -> None:
    came, go = tmp_path / "came", tmp_path / "go"
    (desk.root / "train.py").write_text("rate = 0.1\n")
    _put(rsync_there, f"! mkdir {came} 2>/dev/null || {{ until [ -e {go} ]; do sleep 0.05; done; exit 1; }}", "")
    with desk.runs_meanwhile("rsync") as sync:
        until(came.exists, "the sync runs")
        desk.servers["first"].drop_connections()
        go.touch()
        said = sync.communicate()[0]
    assert sync.returncode == 0, said
    assert said.count("trying again") == 1
    assert (desk.there() / "train.py").read_text() == "rate = 0.1\n"


@pytest.mark.row(40)
def test_a_sync_logs_in_once_on_the_way_and_at_its_end_and_starts_no_ssh(behind: Desk, tmp_path: Path) -> None:
    ssh = tmp_path / "programs" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexit 1\n")
    ssh.chmod(0o755)
    (behind.root / "train.py").write_text("rate = 0.1\n")
    before = [each.log().count("Accepted publickey") for each in behind.servers.values()]
    behind.does("rsync", "--server", "first", environment={"PATH": f"{ssh.parent}:{os.environ['PATH']}"})
    assert (behind.there() / "train.py").read_text() == "rate = 0.1\n"
    after = [each.log().count("Accepted publickey") for each in behind.servers.values()]
    assert after == [count + 1 for count in before]
    assert not (tmp_path / "asked").exists()


@pytest.mark.row(112)
def test_a_secret_that_appears_after_the_project_was_listed_is_not_sent(desk: Desk, tmp_path: Path) -> None:
    _put(tmp_path / "find", "", f"for name in .env id_rsa late.py; do echo x > {desk.root}/$name; done")
    # Here, rsync looks at everything by itself.
    desk.does("rsync", "--checksum", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (desk.there() / "late.py").exists()
    assert not (desk.there() / ".env").exists()
    assert not (desk.there() / "id_rsa").exists()


@contextmanager
def _sync_that_lists(desk: Desk, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A sync that lists its project until a file exists; the server has compared its copy."""
    compared, go, digest = folder / "compared", folder / "go", desk.servers["first"].programs / "sha256sum"
    _put(folder / "programs" / "find", f"until [ -e {go} ]; do sleep 0.05; done", "")
    _put(digest, "", f"touch {compared}")
    environment = {"PATH": f"{folder / 'programs'}:{os.environ['PATH']}"}
    try:
        with desk.runs_meanwhile("rsync", environment=environment) as sync:
            until(compared.exists, "the server compares its copy")
            yield sync, go
    finally:
        go.touch()
        # The server is shared.
        digest.unlink()


@pytest.mark.row(247, 248)
def test_a_sync_that_lists_its_project_holds_up_no_other_and_sees_what_that_one_sent(
    desk: Desk, tmp_path: Path
) -> None:
    there = desk.there() / "train.py"
    (desk.root / "train.py").write_text("of the first\n")
    desk.does("rsync")
    other = Desk(shutil.copytree(desk.root, tmp_path / "copied"), desk.servers)
    (other.root / "train.py").write_text("of the second laptop\n")
    before = {path: path.stat().st_mtime_ns for path in desk.there().rglob("*")}
    with _sync_that_lists(desk, tmp_path / "slow") as (sync, go):
        assert {path: path.stat().st_mtime_ns for path in desk.there().rglob("*")} == before
        with other.runs_meanwhile("rsync") as second:
            assert "waiting" not in second.communicate(timeout=60)[0]
        assert there.read_text() == "of the second laptop\n"
        assert sync.poll() is None
        go.touch()
        said = sync.communicate()[0]
    assert sync.returncode == 0, said
    assert there.read_text() == "of the first\n"


@pytest.mark.row(249)
@pytest.mark.slow
def test_an_edit_on_the_server_while_the_project_is_listed_for_long_is_not_overwritten(
    desk: Desk, tmp_path: Path
) -> None:
    there = desk.there() / "train.py"
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    (desk.root / "train.py").write_text("rate = 0.2  # edited here\n")
    with _sync_that_lists(desk, tmp_path / "slow") as (sync, go):
        there.write_text("rate = 0.3, edited there\n")
        # From five seconds on, listing took long.
        time.sleep(6)
        go.touch()
        said = sync.communicate()[0]
    assert sync.returncode == 1, said
    assert "train.py" in said
    assert "changed both here and on the server" in " ".join(said.split())
    assert there.read_text() == "rate = 0.3, edited there\n"


def _create(root: Path) -> None:
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "file.py").write_text("new\n")


def _change(root: Path) -> None:
    file = root / "train.py"
    before = file.stat()
    file.write_text(file.read_text().swapcase())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


def _move(root: Path) -> None:
    (root / "new").rename(root / "moved")


def _remove(root: Path) -> None:
    shutil.rmtree(root / "moved" / "deep")
    (root / "hello.py").unlink()


def _link(root: Path) -> None:
    (root / "link.py").symlink_to("train.py")


def _damage_what_is_known(root: Path) -> None:
    _create(root)
    listing = root / ".remote" / "logs" / "listing"
    assert listing.exists()
    listing.write_bytes(b"\xff" * 500)


@pytest.mark.row(185)
def test_each_sync_sends_what_has_changed_since_the_last_one(desk: Desk) -> None:
    def files(root: Path) -> dict[str, bytes]:
        found = [
            path for path in root.rglob("*") if path.is_file() and not path.relative_to(root).parts[0].startswith(".")
        ]
        return {f"{path.relative_to(root)} {path.is_symlink()}": path.read_bytes() for path in found}

    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    for edit in (_create, _change, _move, _remove, _link, _damage_what_is_known):
        edit(desk.root)
        desk.does("rsync")
        assert files(desk.there()) == files(desk.root), edit
