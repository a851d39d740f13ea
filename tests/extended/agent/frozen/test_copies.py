"""Copies of the project: what a job runs from, when they are made, shared and removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.frozen import copies, copying
from remote_tool.protocol.limits import NEW_COPY
from tests.extended.agent.artifacts.test_artifacts import listing
from tests.extended.agent.cleaning.test_clean import clean, ended, items
from tests.extended.agent.conftest import PretendServer, changed_copy, wait_until
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from pathlib import Path

LARGE = "x" * 1_500_000


def send(server: PretendServer, files: dict[str, str], folders: tuple[str, ...] = ()) -> None:
    """Replace the sent files as a sync does: each by a rename, then the list of them."""
    records = []
    for name, text in files.items():
        path = server.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = server.scripts / "arriving"
        arriving.write_text(text)
        arriving.rename(path)
        status = path.lstat()
        records.append(f"{status.st_size} {int(status.st_mtime)} {name}\0")
    records += [f"0 0 {name}/\0" for name in folders]
    (server.scripts / "sent").write_text("".join(records))


def copies_of(server: PretendServer) -> list[Path]:
    folder = server.scripts / "copies"
    return sorted(folder.iterdir()) if folder.exists() else []


def copy_of(server: PretendServer, job_id: str) -> Path:
    return server.scripts / "copies" / str(server.record(job_id, "spec")["copy"]) / "code"


def run(server: PretendServer, command: str, **fields: Any) -> str:
    """Run a job in a copy to its end; return its output."""
    job_id = ended(server, command, copy=NEW_COPY, **fields)
    assert server.record(job_id, "ended")["exit_code"] == 0, server.output(job_id, "err")
    return server.output(job_id)


@pytest.fixture
def frozen(server: PretendServer) -> PretendServer:
    """A server with a project that was sent."""
    send(server, {"train.sh": "echo old", "src/part.txt": "old\n"})
    return server


@pytest.mark.row(291)
def test_a_job_runs_from_the_code_as_it_was_given(frozen: PretendServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.01; done; sh train.sh; cat src/part.txt"
    old, new = frozen.start(command, copy=NEW_COPY), {"train.sh": "echo new", "src/part.txt": "new\n"}
    in_project = frozen.start(command)
    send(frozen, new)
    later = frozen.start(command, copy=NEW_COPY)
    go.touch()
    frozen.wait(old, later, in_project)
    outputs = [frozen.output(job_id) for job_id in (old, later, in_project)]
    assert outputs == ["old\nold\n", "new\nnew\n", "new\nnew\n"]
    assert frozen.record(in_project, "spec")["copy"] == ""


@pytest.mark.row(291)
def test_everything_that_leads_to_the_project_leads_into_the_copy(frozen: PretendServer) -> None:
    own = 'cd "$REMOTE_TOOL_PROJECT" && pwd -P && cat ".jobs/$REMOTE_TOOL_JOB_ID/command"'
    show = f'pwd -P; echo "$PYTHONPATH"; {own}'
    job_id = ended(frozen, show, copy=NEW_COPY, workdir="src", setup="echo from setup in; pwd -P")
    code = copy_of(frozen, job_id)
    lines = frozen.output(job_id).splitlines()
    assert [*lines[:3], lines[4]] == ["from setup in", str(code), str(code / "src"), str(code)]
    assert lines[3].split(":")[1:3] == [str(code), str(code / "src")]
    assert show in lines[-1]
    assert frozen.record(job_id, "ended")["exit_code"] == 0


@pytest.mark.row(291)
def test_a_launch_command_gets_the_project_and_its_command_runs_in_the_copy(frozen: PretendServer) -> None:
    """The copy is inside the project, so what mounts that has both."""
    words = ["env", "OUTSIDE={project}", "sh", "-c", 'exec "$@"', "sh"]
    job_id = ended(
        frozen,
        'pwd -P; sh train.sh; echo "$OUTSIDE"',
        copy=NEW_COPY,
        entry={"launch": words, "activate": False},
    )
    assert frozen.output(job_id).splitlines() == [str(copy_of(frozen, job_id)), "old", str(frozen.project)]


@pytest.mark.row(291)
def test_the_oldest_python_makes_copies_too(oldest: PretendServer) -> None:
    send(oldest, {"train.sh": "echo old", "large.bin": LARGE})
    assert run(oldest, "sh train.sh; head -c 3 large.bin") == "old\nxxx"
    assert len(copies_of(oldest)) == 1
    assert run(oldest, "echo A >out.txt; cat out.txt", artifacts=[["out.txt", None]]) == "A\n"
    assert listing(oldest, oldest.ids[-1])[0] == ["out.txt"]
    clean(oldest, *oldest.ids)
    assert copies_of(oldest) == []


@pytest.mark.row(291)
def test_the_environment_is_recorded_by_its_hash(frozen: PretendServer) -> None:
    def hash_of(job_id: str) -> str:
        return str(frozen.record(job_id, "spec")["environment_hash"])

    first, second = (hash_of(ended(frozen, "true", copy=NEW_COPY)) for _ in range(2))
    (frozen.scripts / "packages").write_text("torch==2")
    changed = hash_of(ended(frozen, "true", copy=NEW_COPY))
    assert len(first) == 64
    assert (first == second, first == changed) == (True, False)
    assert hash_of(ended(frozen, "true")) == ""


@pytest.mark.row(291)
def test_modes_links_and_empty_folders_are_copied(frozen: PretendServer) -> None:
    (frozen.project / "empty").mkdir()
    (frozen.project / "link.sh").symlink_to("train.sh")
    (frozen.project / "to-src").symlink_to("src")
    send(frozen, {"train.sh": "echo linked", "src/part.txt": "a"}, folders=("empty",))
    (frozen.project / "train.sh").chmod(0o755)
    with (frozen.scripts / "sent").open("a") as sent:
        sent.write("8 1 link.sh\0003 1 to-src\000")
    output = run(frozen, "ls -d empty; ./link.sh; cat to-src/part.txt; [ ! -L train.sh ] && [ -L to-src ]")
    assert output == "empty\nlinked\na"


@pytest.mark.row(291)
def test_a_project_that_was_never_sent_is_not_copied(server: PretendServer) -> None:
    """It is the user's own folder: remote-tool does not know which files are code."""
    job_id = ended(server, "pwd -P", copy=NEW_COPY)
    assert server.output(job_id).strip() == str(server.project)
    assert server.record(job_id, "spec")["copy"] == ""


@pytest.mark.row(291)
def test_jobs_of_one_state_share_a_copy(frozen: PretendServer) -> None:
    send(frozen, {f"src/{number}.py": "x" for number in range(50)})
    jobs = [frozen.new_job("true", copy=NEW_COPY) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda each: frozen.call("start", jobs=each), (jobs[:3], jobs[3:6], jobs[6:9], jobs[9:]))
        )
    assert [each.get("error") for answer in answers for each in answer["jobs"]] == [None] * 12
    assert len({each["spec"]["copy"] for answer in answers for each in answer["jobs"]}) == 1
    assert len(copies_of(frozen)) == 1
    frozen.wait(*(str(job["id"]) for job in jobs))


@pytest.mark.row(292)
@pytest.mark.parametrize(
    "place",
    [
        "            linked = copying.copy_all(",
        "            self._link_others(code, found)\n            for",
        "            return self._promote(",
    ],
)
def test_a_start_killed_while_it_copies_leaves_nothing_that_is_taken_for_a_copy(
    frozen: PretendServer, installed: Path, tmp_path: Path, place: str
) -> None:
    begun = tmp_path / "begun"
    held = f"            open({str(begun)!r}, 'w').close(); time.sleep(600)\n"
    halting = changed_copy(installed, tmp_path / "halting", {"agent/frozen/copies.py": {place: held + place}})
    whole, frozen.entry = frozen.entry, halting / "run_control.py"
    job = frozen.new_job("sh train.sh", copy=NEW_COPY)
    with frozen.open("start", jobs=[job]) as call:
        wait_until(begun.exists, "the copying")
        call.process.kill()
        call.process.wait()
    assert [path.name[:5] for path in copies_of(frozen)] == [".new-"]
    assert not (frozen.jobs / str(job["id"])).exists()
    frozen.entry = whole
    assert run(frozen, "sh train.sh") == "old\n"
    assert [path.name.startswith(".new-") for path in copies_of(frozen)] == [False]


@pytest.mark.row(292)
def test_a_full_disk_refuses_the_start_and_leaves_no_part_of_a_copy(tmp_path: Path, installed: Path) -> None:
    with small_disk(tmp_path / "home", "size=4m"):
        server = PretendServer(tmp_path / "home", installed)
        send(server, {f"{number}.bin": "x" * 900_000 for number in range(3)})
        answer = server.call("start", jobs=[server.new_job("true", copy=NEW_COPY)])
        assert "No space left on device" in answer["error"]
        assert answer["begun"] is False
        assert copies_of(server) == []
        server.clean()


@pytest.mark.row(293)
def test_a_copy_is_of_the_state_after_a_running_sync(frozen: PretendServer) -> None:
    with (frozen.scripts / "sync-lock").open("a") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        starting = pool.submit(run, frozen, "sh train.sh; cat src/part.txt")
        wait_until((frozen.scripts / "copies").exists, "the start")
        send(frozen, {"train.sh": "echo new", "src/part.txt": "new\n"})
        time.sleep(0.2)  # a start that does not wait would be over
        assert copies_of(frozen) == []
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert starting.result(60) == "new\nnew\n"


@pytest.mark.row(293)
def test_a_sync_that_takes_long_refuses_the_start(tmp_path: Path, installed: Path) -> None:
    changes = {"agent/frozen/copies.py": {"_PATIENCE = 15.0": "_PATIENCE = 0.1"}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "impatient", changes))
    send(server, {"train.sh": "echo old"})
    with (server.scripts / "sync-lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = server.call("start", jobs=[server.new_job("true", copy=NEW_COPY)])
    assert answer["error"] == f"A sync to {server.project} is running, so its code cannot be copied now"
    assert answer["begun"] is False


@pytest.mark.row(293)
def test_half_a_project_is_not_copied(frozen: PretendServer) -> None:
    (frozen.scripts / "sync").write_text("incomplete abc def\n")
    answer = frozen.call("start", jobs=[frozen.new_job("true", copy=NEW_COPY)])
    assert "is incomplete: its last sync did not finish" in answer["error"]
    assert (answer["begun"], copies_of(frozen)) == (False, [])


@pytest.fixture
def with_large(frozen: PretendServer) -> PretendServer:
    """A project with a file that a copy shares with it, unless the file system has reflinks."""
    send(frozen, {"train.sh": "echo old", "large.bin": LARGE})
    probe = ended(frozen, "true", copy=NEW_COPY)
    if (copy_of(frozen, probe) / "large.bin").stat().st_nlink == 1:
        pytest.skip("this file system has reflinks")
    return frozen


@pytest.mark.row(294)
def test_a_large_file_is_shared_until_a_sync_replaces_it(with_large: PretendServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = with_large.start(f"while [ ! -e {go} ]; do sleep 0.01; done; head -c 3 large.bin", copy=NEW_COPY)
    send(with_large, {"train.sh": "echo old", "large.bin": "new" + LARGE})
    go.touch()
    with_large.wait(job_id)
    assert with_large.output(job_id) == "xxx"


@pytest.mark.row(294)
def test_a_shared_file_that_was_changed_in_place_is_noticed(
    with_large: PretendServer, installed: Path, tmp_path: Path
) -> None:
    """Between the request and the start of the command, as while a job waits."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    place = "        if is_first and self._plan.request.copy is not None and self._has_changed"
    wait = f"while not os.path.exists({str(go)!r}): __import__('time').sleep(0.01)"
    held = f"        open({str(begun)!r}, 'w').close()\n        {wait}\n"
    waiting = changed_copy(installed, tmp_path / "waiting", {"agent/supervisor/supervise.py": {place: held + place}})
    with_large.entry = waiting / "run_control.py"
    job = with_large.new_job("cat train.sh", copy=NEW_COPY)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(with_large.call, "start", jobs=[job])
        wait_until(begun.exists, "the supervisor")
        with (with_large.project / "large.bin").open("r+") as file:
            file.write("y")
        go.touch()
        starting.result(60)
    assert with_large.wait(str(job["id"]))[str(job["id"])]["reason"] == (
        "the command could not be started: large.bin changed since the job was given; the job's copy of the project "
        "shares it with the project"
    )
    assert run(with_large, "head -c 2 large.bin") == "yx"


@pytest.mark.row(294)
def test_another_mode_or_name_of_a_shared_file_changes_nothing(with_large: PretendServer) -> None:
    before = copies_of(with_large)
    code = before[0] / "code"
    (with_large.project / "large.bin").chmod(0o700)
    assert copies.changed_link(copies.Copy(before[0].name, str(before[0]))) == ""
    assert (code / "large.bin").stat().st_mode & 0o777 == 0o700


@pytest.mark.row(295)
def test_a_copy_goes_with_the_last_job_that_needs_it(frozen: PretendServer) -> None:
    first = ended(frozen, "true", copy=NEW_COPY)
    running = frozen.start("exec sleep 60", copy=NEW_COPY)
    assert items(clean(frozen, first))["copies of the project"] == (1, 0)
    frozen.stop(running, grace=0.0)
    frozen.wait(running)
    wait_until(lambda: frozen.status(running)["state"] == "killed" and not frozen.members(running), "its end")
    planned = clean(frozen, running, dry_run=True)
    assert (items(planned)["copies of the project"], len(copies_of(frozen))) == ((1, 1), 1)
    wait_until(lambda: clean(frozen, running)["removed"] == [running], "the removal")
    assert copies_of(frozen) == []


@pytest.mark.row(295)
def test_a_copy_stays_while_a_start_may_need_it_or_a_record_cannot_be_read(frozen: PretendServer) -> None:
    job_id = ended(frozen, "true", copy=NEW_COPY)
    folder = frozen.scripts / "copies"
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    answer = clean(frozen, job_id)
    os.close(descriptor)
    assert [each["why"] for each in answer["items"] if each["what"] == "copies of the project"] == ["a job is starting"]
    assert len(copies_of(frozen)) == 1
    other = ended(frozen, "true")
    (frozen.jobs / other / "spec.json").write_text("{")
    answer = clean(frozen)
    whys = [each["why"] for each in answer["items"] if each["what"] == "copies of the project"]
    assert whys == ["a job's record cannot be read"]
    assert len(copies_of(frozen)) == 1
    shutil.rmtree(frozen.jobs / other)
    clean(frozen)
    assert copies_of(frozen) == []


@pytest.mark.row(295)
def test_a_start_that_removes_old_jobs_removes_their_copy(frozen: PretendServer) -> None:
    old = ended(frozen, "true", copy=NEW_COPY)
    before = copies_of(frozen)
    send(frozen, {"train.sh": "echo new"})
    job = frozen.new_job("true", copy=NEW_COPY)
    answer = frozen.call("start", jobs=[job], clean=[old])
    assert answer["cleaned"]["removed"] == [old]
    assert len(copies_of(frozen)) == 1
    assert copies_of(frozen) != before
    frozen.wait(str(job["id"]))


@pytest.mark.row(295)
def test_the_copy_of_a_job_that_is_being_started_stays_though_the_answer_has_no_room_for_the_job(
    frozen: PretendServer, installed: Path, tmp_path: Path
) -> None:
    old = ended(frozen, "true", copy=NEW_COPY)
    slow, go = "        plan = _plan(call, job)\n", tmp_path / "go"
    held = f"        while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    changes = {"_START_SECONDS = 10.0": "_START_SECONDS = 0.0", slow: held + slow}
    changes["_ANSWER_LIMIT = HEADER_LIMIT // 2"] = "_ANSWER_LIMIT = 0"
    frozen.entry = changed_copy(installed, tmp_path / "slow", {"agent/jobs/start.py": changes}) / "run_control.py"
    job = frozen.new_job("sh train.sh", copy=NEW_COPY)
    answer = frozen.call("start", jobs=[job], clean=[old])
    assert (answer["jobs"], answer["cleaned"]["removed"]) == ([], [old])
    go.touch()
    assert frozen.wait(str(job["id"]))[str(job["id"])]["exit_code"] == 0
    assert frozen.output(str(job["id"])) == "old\n"


@pytest.mark.row(296)
def test_what_a_job_writes_comes_home_and_is_listed_and_sent_through_its_copy(frozen: PretendServer) -> None:
    (frozen.project / "data").mkdir()
    (frozen.project / "data" / "in.txt").write_text("in")
    sleep = "sleep 0.05; "  # the clock of the file system is coarse
    command = f"{sleep}cat data/in.txt; mkdir -p out; echo A >out/model.pt; echo B >data/new.pt; echo C >>src/part.txt"
    patterns = [["out/*", None], ["data/*", None], ["**/*.txt", None], ["*.sh", None]]
    job_id = ended(frozen, command, copy=NEW_COPY, artifacts=patterns)
    assert frozen.output(job_id) == "in"
    assert listing(frozen, job_id)[0] == ["data/new.pt", "out/model.pt", "src/part.txt"]
    assert (frozen.project / "out" / "model.pt").read_text() == "A\n"
    assert (copy_of(frozen, job_id) / "out").readlink() == frozen.project / "out"
    assert (frozen.project / "src" / "part.txt").read_text() == "old\n"
    assert (frozen.project / "src" / f"part.txt.{job_id}").read_text() == "old\nC\n"
    assert (frozen.project / "data" / "new.pt").read_text() == "B\n"
    wanted = [{"path": path, "job": job_id} for path in ("out/model.pt", "data/new.pt", "src/part.txt", "missing")]
    with frozen.open("send", files=wanted) as call:
        frames = call.rest()
    assert b"".join(frame.body for frame in frames) == b"A\nB\nold\nC\n"
    assert [frame.header["end"] for frame in frames if "end" in frame.header] == [
        *["whole"] * 3,
        "No such file or directory",
    ]


@pytest.mark.row(296)
def test_jobs_in_different_copies_write_different_files_of_one_name(frozen: PretendServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"sleep 0.05; echo $REMOTE_TOOL_JOB_ID >out.txt; while [ ! -e {go} ]; do sleep 0.01; done"

    def has_written(job_id: str) -> bool:
        file = copy_of(frozen, job_id) / "out.txt"
        return file.exists() and file.read_text() == f"{job_id}\n"

    first = frozen.start(command, copy=NEW_COPY, artifacts=[["out.txt", None]])
    send(frozen, {"train.sh": "echo new"})
    second = frozen.start(command, copy=NEW_COPY, artifacts=[["out.txt", None]])
    wait_until(lambda: has_written(first) and has_written(second), "their files")
    together = frozen.start(command, copy=NEW_COPY, artifacts=[["out.txt", None]])
    wait_until(lambda: has_written(together), "the file that it shares with the second")
    go.touch()
    frozen.wait(first, second, together)
    names, told = listing(frozen, first)
    assert (names, told["shared"]) == (["out.txt"], 0)
    assert listing(frozen, second)[1]["shared"] == 1


@pytest.mark.row(296)
def test_the_files_of_a_job_whose_copy_is_gone_are_in_the_project(frozen: PretendServer) -> None:
    job_id = ended(frozen, "sleep 0.05; echo A >out.txt", copy=NEW_COPY, artifacts=[["out.txt", None]])
    shutil.rmtree(frozen.scripts / "copies")
    assert listing(frozen, job_id)[0] == ["out.txt"]
    with frozen.open("send", files=[{"path": "out.txt", "job": job_id}]) as call:
        assert b"".join(frame.body for frame in call.rest()) == b"A\n"


@pytest.mark.row(297)
def test_a_job_that_changed_its_code_leaves_the_next_one_a_copy_as_given(frozen: PretendServer) -> None:
    first = ended(frozen, "echo 'echo hacked' >train.sh; rm src/part.txt", copy=NEW_COPY)
    second = ended(frozen, "sh train.sh; cat src/part.txt", copy=NEW_COPY)
    assert frozen.output(second) == "old\nold\n"
    third = ended(frozen, "sh train.sh", copy=NEW_COPY)
    names = [frozen.record(job_id, "spec")["copy"] for job_id in (first, second, third)]
    assert names == [names[0], f"{names[0]}-2", f"{names[0]}-2"]


@pytest.mark.row(297)
def test_unsent_names_follow_the_project(frozen: PretendServer) -> None:
    """Data that arrives later is there for the next job, and what is removed does not stand in its way."""
    (frozen.project / "data").mkdir()
    (frozen.project / "data" / "a").write_text("a")
    assert run(frozen, "cat data/a") == "a"
    shutil.rmtree(frozen.project / "data")
    (frozen.project / "more").write_text("more")
    assert run(frozen, "cat more; mkdir data; echo own >data/a") == "more"
    assert (frozen.project / "data" / "a").read_text() == "own\n"
    assert run(frozen, "cat data/a") == "own\n"


@pytest.mark.row(297)
def test_what_appears_while_a_job_waits_is_there_when_it_begins_but_no_new_code(
    frozen: PretendServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = frozen.start(f"while [ ! -e {go} ]; do sleep 0.01; done; echo 0.5 >features")
    job = frozen.new_job("cat features; ls", copy=NEW_COPY, after=[first])
    second = str(job["id"])
    assert "error" not in frozen.call("start", jobs=[job])["jobs"][0]
    send(frozen, {"train.sh": "echo old", "src/part.txt": "old\n", "later.sh": "echo later"})
    go.touch()
    frozen.wait(first, second)
    output = frozen.output(second)
    assert output.startswith("0.5\n"), frozen.output(second, "err")
    assert "later.sh" not in output


@pytest.mark.row(298)
def test_orphans_of_a_job_in_a_copy_are_of_the_project(frozen: PretendServer, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    job_id = frozen.start(f"setsid sleep 60 & echo $! >{note}; wait", copy=NEW_COPY)
    wait_until(lambda: note.exists() and note.read_text().strip(), "the process")
    os.kill(frozen.supervisor(job_id), 9)
    wait_until(lambda: frozen.status(job_id)["state"] == "lost", "the loss")
    shutil.rmtree(frozen.jobs / job_id)
    found = frozen.call("strays")["strays"]
    assert {each["job"] for each in found if each["job"] == job_id} == {job_id}
    groups = {"id": job_id, "processes": [[each["pid"], each["start_time"]] for each in found if each["job"] == job_id]}
    frozen.call("end_strays", jobs=[groups], identity=frozen.call("strays")["identity"], grace=1.0)
    wait_until(lambda: not frozen.members(job_id), "their end")


@pytest.mark.row(299)
def test_a_named_copy_is_used_as_long_as_it_is_whole(frozen: PretendServer) -> None:
    first = ended(frozen, "true", copy=NEW_COPY)
    name = frozen.record(first, "spec")["copy"]
    send(frozen, {"train.sh": "echo new", "src/part.txt": "new\n"})
    again = ended(frozen, "sh train.sh", copy=name)
    assert frozen.output(again) == "old\n"
    (copy_of(frozen, first) / "train.sh").write_text("echo hacked")
    job = frozen.new_job("true", copy=name)
    answer = frozen.call("start", jobs=[job])
    assert answer["error"] == f"train.sh in the copy {name} of the project has changed since it was made"
    shutil.rmtree(frozen.scripts / "copies" / name)
    answer = frozen.call("start", jobs=[job])
    assert answer["error"] == f"The copy {name} of the project is not on this server any longer"
    assert not (frozen.jobs / str(job["id"])).exists()


@pytest.mark.row(299)
@pytest.mark.parametrize("name", ["../..", "..", "/etc", "0123456789abcdef/..", "0123456789abcdef-", "x" * 16, 7, True])
def test_a_copy_has_a_name_of_ours(frozen: PretendServer, name: object) -> None:
    answer = frozen.call("start", jobs=[frozen.new_job("true", copy=name)])
    assert "of the project is not on this server any longer" in answer["error"]


@pytest.mark.row(292)
def test_a_start_that_is_asked_for_again_makes_no_other_copy(frozen: PretendServer) -> None:
    job = frozen.new_job("true", copy=NEW_COPY)
    first = frozen.call("start", jobs=[job])
    send(frozen, {"train.sh": "echo new"})
    again = frozen.call("start", jobs=[job], again=True)
    assert again["jobs"][0]["spec"] == first["jobs"][0]["spec"]
    assert len(copies_of(frozen)) == 1
    frozen.wait(str(job["id"]))


def test_a_file_system_with_reflinks_shares_the_bytes_of_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ioctl is stood in for, as the disk of the tests may not have it."""
    project, code = tmp_path / "project", tmp_path / "code"
    project.mkdir()
    code.mkdir()
    (project / "large").write_text(LARGE)
    (project / "small").write_text("small")
    cloned = []

    def clone(new: int, request: int, old: int) -> int:
        cloned.append(request)
        os.write(new, os.read(old, 2 * len(LARGE)))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    found = copying.look(str(project), [b"large", b"small"])
    assert copying.copy_all(found, str(project), str(code), may_link=True) == []
    assert cloned == [0x40049409] * 3
    assert [(code / name).stat().st_nlink for name in ("large", "small")] == [1, 1]
    assert ((code / "large").read_text(), (code / "small").read_text()) == (LARGE, "small")
    assert [(code / name).stat().st_mtime_ns for name in ("large", "small")] == [each.modified for each in found]
    assert sorted(path.name for path in code.iterdir()) == ["large", "small"]
