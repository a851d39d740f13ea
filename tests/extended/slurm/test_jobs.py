"""Jobs that Slurm starts keep every promise: states, ends, output, code, secrets, and nothing twice."""

from __future__ import annotations

import asyncio
import inspect
import json
import shlex
import signal
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import Workspace
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.slurm import submit_program
from remote_tool.workflows.slurm.scheduler import ask_for_jobs
from tests.extended.slurm.conftest import prepared, put_slurm
from tests.promises.conftest import Desk, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slow
# In place of the Python of the project: the first request to the login node hangs there.
HOLD = """\
#!/bin/bash
here=${0%/*}
if [ "$(hostname)" = login ] && mkdir "$here/held" 2>/dev/null; then
    until read -t 0; do sleep 0.05; done
    touch "$here/arrived"
    while [ ! -e "$here/go" ]; do sleep 0.05; done
fi
exec "$here/python.answers" "$@"
"""
# Slurm's own delay is two minutes. Its nodes refuse an attempt that begins within the second in which the last ended.
SOON = "StartTime=now+3"
COUNT = "i=0; while [ $i -lt {} ]; do echo tick $i; i=$((i + 1)); sleep 1; done"
# The first attempt goes on until Slurm ends it, however late its follower begins.
FIRST_LASTS = 'last={}; [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ] || last=1000; ' + COUNT.format("$last")


def start(desk: Desk, command: str, *words: str) -> int:
    """Start a job, and return its key."""
    (job,) = json.loads(desk.does("job-run", "--cmd", command, "--json", *words))["jobs"]
    return int(job["key"])


def folder_of(desk: Desk, key: int) -> Path:
    return desk.there("login") / ".jobs" / str(desk.job(key)["id"])


def has_shown(desk: Desk, key: int, text: str) -> bool:
    """Return whether a follower has shown this of a job's output, of which it keeps a copy here."""
    copy = desk.root / ".remote" / "jobs" / str(desk.job(key)["id"]) / "job.out"
    return copy.exists() and text in copy.read_text()


def slurm_id(desk: Desk, key: int) -> str:
    """Return the id of the batch job of a job."""
    held = folder_of(desk, key) / "held.json"
    until(lambda: json.loads(held.read_text())["reference"], "the job is submitted")
    return str(json.loads(held.read_text())["reference"])


def running(cluster: SlurmCluster, words: str) -> list[str]:
    """Return the processes on the nodes whose command line has these words."""
    return [command for node in cluster.nodes for command in node.pids().values() if words in command]


def gives_back(cluster: SlurmCluster) -> None:
    """Wait until Slurm has nothing left, which may take some seconds after a job has ended."""
    until(lambda: not cluster.queue(), "Slurm has nothing left")


@pytest.mark.picked
@pytest.mark.row(322)
def test_a_job_is_followed_to_its_own_exit_code_and_its_output_is_here(cluster: SlurmCluster, desk: Desk) -> None:
    ran = desk.tries("job-run", "--follow", "--gpus", "2", "--cmd", "echo on $(hostname) in $SLURM_JOB_ID; exit 7")
    assert ran.returncode == 7, ran.stderr
    (job,) = desk.jobs()
    assert (job["state"], job["exit_code"]) == ("failed", 7)
    reference = slurm_id(desk, job["key"])
    assert ran.stdout == f"on n1 in {reference}\n"
    assert job["slurm"] == {"job": reference, "node": "n1"}
    assert f"{reference}, node n1" in desk.does("job-show", str(job["key"]))
    assert desk.does("job-tail", str(job["key"]), "--no-follow") == ran.stdout
    # The step ends some moments after its job.
    until(lambda: not running(cluster, "step.py"), "nothing of the step is left")


@pytest.mark.row(323)
def test_states_are_slurms_and_a_stop_ends_what_runs_and_what_waits(cluster: SlurmCluster, desk: Desk) -> None:
    blocks = [start(desk, "exec sleep 1000", "--gpus", "4") for _ in range(2)]
    waits = start(desk, "echo never", "--gpus", "1")
    for key in blocks:
        job = desk.waits_for(key, "running")
        assert f"Slurm job {slurm_id(desk, key)} on n" in job["reason"]
    until(lambda: "(Resources)" in (desk.waits_for(waits, "queued")["reason"] or ""), "Slurm says why it waits")
    assert "expected to start 20" in desk.job(waits)["reason"]
    desk.does("job-kill", *map(str, [*blocks, waits]))
    assert [desk.job(key)["state"] for key in (*blocks, waits)] == ["killed"] * 3
    assert [desk.job(key)["signal"] for key in blocks] == ["SIGTERM"] * 2
    assert not running(cluster, "sleep 1000")
    gives_back(cluster)
    assert not (folder_of(desk, waits) / "started.json").exists()


@pytest.mark.row(323)
def test_a_stop_at_once_and_a_signal_of_its_own(cluster: SlurmCluster, desk: Desk) -> None:
    polite = start(desk, "trap 'echo saved; exit 3' INT; " + COUNT.format(1000), "--stop-signal", "SIGINT")
    deaf = start(desk, "trap '' TERM; " + COUNT.format(1000))
    for key in (polite, deaf):
        desk.waits_for(key, "running")
    until(lambda: all((folder_of(desk, key) / "job.out").stat().st_size for key in (polite, deaf)), "both have begun")
    desk.does("job-kill", str(polite))
    assert "saved" in desk.does("job-tail", str(polite), "--no-follow")
    desk.does("job-kill", str(deaf), "--signal", "SIGKILL")
    assert desk.job(deaf)["signal"] == "SIGKILL"
    assert not running(cluster, "tick")


@pytest.mark.row(324)
def test_a_requeue_is_another_attempt_of_the_same_job(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, FIRST_LASTS.format(6) + "; exit 5")
    with desk.runs_meanwhile("job-tail", str(key)) as follower:
        until(lambda: has_shown(desk, key, "tick 1"), "it is followed")
        reference = slurm_id(desk, key)
        cluster.run("scontrol", "requeue", reference)
        until(lambda: f"{reference}|PENDING" in cluster.run("squeue", "-h", "-o", "%i|%T"), "Slurm waits with it")
        waiting = desk.job(key)
        assert (waiting["state"], waiting["failed_attempts"]) == ("queued", ["requeued by Slurm"])
        cluster.run("scontrol", "update", f"jobid={reference}", SOON)
        shown = follower.communicate()[0]
        assert "failed, exit code 5" in shown
    job = desk.job(key)
    assert (job["state"], job["exit_code"], job["failed_attempts"]) == ("failed", 5, ["requeued by Slurm"])
    assert "waits again" in shown
    assert shown.count("tick 1\n") == 2
    assert "1: requeued by Slurm" in desk.does("job-show", str(key))


@pytest.mark.row(324)
def test_who_slept_while_slurm_began_a_job_again_follows_the_new_attempt(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, FIRST_LASTS.format(8) + "; exit 5")
    output = folder_of(desk, key) / "job.out"
    with desk.runs_meanwhile("job-tail", str(key)) as follower:
        until(lambda: has_shown(desk, key, "tick 1"), "it is followed")
        follower.send_signal(signal.SIGSTOP)
        reference = slurm_id(desk, key)
        cluster.run("scontrol", "requeue", reference)
        until(lambda: f"{reference}|PENDING" in cluster.run("squeue", "-h", "-o", "%i|%T"), "Slurm waits with it")
        cluster.run("scontrol", "update", f"jobid={reference}", SOON)
        until(lambda: output.read_text().count("tick 1\n") == 2, "it has begun again")
        follower.send_signal(signal.SIGCONT)
        shown = follower.communicate()[0]
    assert "job 1 has begun again" in shown
    assert "failed, exit code 5" in shown
    assert shown.count("tick 7\n") == 1


@pytest.mark.row(325)
def test_what_slurm_ends_says_why(cluster: SlurmCluster, desk: Desk) -> None:
    canceled, limited = start(desk, COUNT.format(1000)), start(desk, COUNT.format(1000))
    for key in (canceled, limited):
        desk.waits_for(key, "running")
    cluster.run("scancel", slurm_id(desk, canceled))
    cluster.run("scontrol", "update", f"jobid={slurm_id(desk, limited)}", "TimeLimit=1")
    job = desk.waits_for(canceled, "killed")
    assert "Slurm canceled it" in job["reason"]
    job = desk.waits_for(limited, "killed")
    assert "Slurm ended it at its time limit" in job["reason"]
    assert not running(cluster, "tick")


@pytest.mark.row(325)
def test_a_job_whose_processes_slurm_killed_at_once_ends_for_those_who_follow(
    cluster: SlurmCluster, desk: Desk
) -> None:
    key = start(desk, COUNT.format(1000))
    desk.waits_for(key, "running")
    with desk.runs_meanwhile("job-tail", str(key)) as follower:
        until(lambda: has_shown(desk, key, "tick 1"), "it is followed")
        cluster.run("scancel", "--signal=KILL", slurm_id(desk, key))
        shown = follower.communicate()[0]
    job = desk.job(key)
    assert job["state"] in {"failed", "killed"}, shown
    # Slurm kills one process after another: the supervisor may be late enough to record by what its command ended.
    assert f"Slurm job {slurm_id(desk, key)}" in job["reason"] or job["reason"].startswith("ended by SIG")
    assert not running(cluster, "tick")


@pytest.mark.row(326)
def test_a_repeated_start_submits_nothing_twice(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, "sleep 5; echo once")
    reference = slurm_id(desk, key)
    spec = json.loads((folder_of(desk, key) / "spec.json").read_text())

    async def again() -> dict[str, Any]:
        workspace = Workspace.find(desk.root)
        async with HostPool(workspace.config) as pool:
            request = {"jobs": [{**spec, "environment": {}}], "again": True}
            return await ask_for_jobs(pool, workspace.config, "login", "start", request)

    (entry,) = asyncio.run(again())["jobs"]
    assert entry["already"] is True
    assert slurm_id(desk, key) == reference
    assert len(cluster.queue()) == 1
    desk.does("job-wait", str(key))
    assert desk.does("job-tail", str(key), "--no-follow") == "once\n"


@pytest.mark.row(326)
def test_an_array_whose_id_was_lost_is_found_and_not_submitted_again(cluster: SlurmCluster, desk: Desk) -> None:
    desk.does("helper-sweep", "--grid", "n=0..2", "--cmd", "sleep 1000; echo {n}")
    until(lambda: sum("RUNNING" in line for line in cluster.queue()) == 3, "all tasks run")
    scripts = desk.there("login") / ".remote-scripts"
    (folder,) = (scripts / "slurm").iterdir()
    reference = (folder / "id").read_text()
    (folder / "id").unlink()
    request = {
        "name": folder.name,
        "jobs_folder": f"{desk.settings()['name']}/.jobs",
        "jobs": [job["id"] for job in desk.jobs()],
        "array": "0-2",
    }
    (scripts / "request").write_text(json.dumps(request))
    program = shlex.quote(inspect.getsource(submit_program))
    ran = cluster.login.run(
        "sh", "-c", f"cd {desk.settings()['name']}/.remote-scripts && ./python -c {program} < request"
    )
    assert json.loads(ran.stdout.rpartition("\0")[2]) == {"reference": reference}, ran.stderr
    desk.does("job-kill", *(str(job["key"]) for job in desk.jobs()))
    gives_back(cluster)


@pytest.mark.row(324)
def test_a_look_that_lasts_from_before_the_start_to_after_the_end_takes_no_job_for_requeued(
    cluster: SlurmCluster, desk: Desk
) -> None:
    put_slurm(desk, partition="gpu", begin="now+5")
    key = start(desk, "echo once; exit 3")
    folder = folder_of(desk, key)
    scripts = desk.there("login") / ".remote-scripts"
    (scripts / "python").rename(scripts / "python.answers")
    (scripts / "python").write_text(HOLD)
    (scripts / "python").chmod(0o700)
    with desk.runs_meanwhile("job-list", "--stopped") as looking:
        until((scripts / "arrived").exists, "a request is held up", 60)
        until((folder / "ended.json").exists, "the end of the job", 60)
        (scripts / "go").touch()
        looking.communicate()
    job = desk.job(key)
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 3, None)
    gives_back(cluster)


@pytest.mark.row(327)
def test_an_array_of_twenty_runs_as_many_at_once_as_it_may(desk: Desk) -> None:
    command = "echo begins >> ~/array; sleep 0.5; echo ends >> ~/array; echo n={n} $SLURM_ARRAY_TASK_ID"
    desk.does("helper-sweep", "--grid", "n=0..19", "--cmd", command, "--per-server", "3")
    references = {slurm_id(desk, job["key"]).partition("_")[0] for job in desk.jobs()}
    assert len(references) == 1
    going = {"queued", "starting", "running"}
    until(lambda: not going & {job["state"] for job in desk.jobs()}, "all have ended", 200)
    lines = (desk.there("login").parent / "array").read_text().splitlines()
    steps = [1 if line == "begins" else -1 for line in lines]
    assert (len(steps), sum(steps)) == (40, 0)
    assert 1 <= max(accumulate(steps)) <= 3
    jobs = desk.jobs()
    assert [job["exit_code"] for job in jobs] == [0] * 20
    output = [desk.does("job-tail", str(job["key"]), "--no-follow") for job in jobs[:2]]
    assert output == ["login | n=0 0\n", "login | n=1 1\n"]


@pytest.mark.row(327)
def test_the_items_of_a_fan_out_are_one_array(cluster: SlurmCluster, desk: Desk) -> None:
    (desk.root / "items").write_text("a\nb c\nd\n")
    shown = desk.does("helper-fan-out", "--items", "items", "--follow", "--cmd", "echo item {item}")
    assert all(f"item {item}" in shown for item in ("a", "b c", "d"))
    assert len({slurm_id(desk, job["key"]).partition("_")[0] for job in desk.jobs()}) == 1
    assert "--per-server N" in desk.refuses("helper-fan-out", "--total", "9", "--cmd", "echo {start}", status=2)
    gives_back(cluster)


@pytest.mark.row(328)
def test_no_secret_is_where_slurm_stores_things_and_none_stays(cluster: SlurmCluster, desk: Desk) -> None:
    secret = b"hunter2-of-a-long-length"
    key = start(desk, 'test "$TOKEN" && sleep 4', "--env", "TOKEN", secret.decode())
    reference = slurm_id(desk, key)
    script = cluster.run("scontrol", "write", "batch_script", reference, "-")
    assert "srun" in script
    assert secret.decode() not in script + cluster.run("scontrol", "show", "job", "-o", reference)
    stored = [path for host in cluster.hosts for path in host.folder.rglob("*") if "home" not in path.parts]
    assert not [path for path in stored if path.is_file() and secret in path.read_bytes()]
    assert desk.waits_for(key, "succeeded")["exit_code"] == 0
    # The step removes what it was given a moment after the job has ended.
    gives_back(cluster)
    here = [path for path in desk.there("login").rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in here if secret in path.read_bytes()]


@pytest.mark.row(328)
def test_no_variable_stays_after_an_end_that_slurm_made(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, COUNT.format(1000), "--env", "TOKEN", "hunter2-of-a-long-length")
    until(lambda: "tick 1" in (folder_of(desk, key) / "job.out").read_text(), "it has begun")
    cluster.run("scancel", slurm_id(desk, key))
    desk.waits_for(key, "killed")
    gives_back(cluster)
    desk.jobs()
    here = [path for path in desk.there("login").rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in here if b"hunter2-of-a-long-length" in path.read_bytes()]


@pytest.mark.row(322)
def test_a_signal_of_slurm_is_the_jobs_and_its_files_are_as_those_of_a_login(cluster: SlurmCluster, desk: Desk) -> None:
    said = cluster.login.run("sh", "-c", "umask").stdout.strip()
    key = start(desk, "trap 'echo got it; umask; exit 5' USR1; " + COUNT.format(60))
    until(lambda: "tick 1" in (folder_of(desk, key) / "job.out").read_text(), "it has begun")
    cluster.run("scancel", "--signal=USR1", slurm_id(desk, key))
    assert desk.waits_for(key, "failed", "killed", "succeeded")["exit_code"] == 5
    printed = desk.does("job-tail", str(key), "--no-follow").splitlines()
    assert [line for line in printed if not line.startswith("tick")] == ["got it", said]
    assert said != "0077"


@pytest.mark.row(329)
def test_a_job_that_waits_runs_the_code_as_it_was_and_its_output_comes_home(cluster: SlurmCluster, desk: Desk) -> None:
    block = [start(desk, "sleep 1000", "--gpus", "4") for _ in range(2)]
    for key in block:
        desk.waits_for(key, "running")
    (desk.root / "code.py").write_text("print('first')\nopen('result', 'w').write('kept')\n")
    waits = start(desk, "python code.py", "--gpus", "1")
    desk.waits_for(waits, "queued")
    (desk.root / "code.py").write_text("print('second')\n")
    desk.does("rsync")
    desk.does("clean", "--yes")
    desk.does("job-kill", *map(str, block))
    desk.does("job-wait", str(waits))
    assert desk.does("job-tail", str(waits), "--no-follow") == "first\n"
    assert (desk.there("login") / "result").read_text() == "kept"
    desk.does("clean", "--yes")
    assert (desk.there("login") / "result").read_text() == "kept"
    gives_back(cluster)


@pytest.mark.row(323)
def test_a_job_waits_for_another_and_does_not_run_if_that_failed(cluster: SlurmCluster, desk: Desk) -> None:
    first = start(desk, "sleep 3; exit 1")
    second = start(desk, "echo second", "--after", str(first))
    third = start(desk, "echo third", "--after-any", str(first))
    assert "(Dependency)" in desk.waits_for(second, "queued")["reason"]
    desk.tries("job-wait", *map(str, (first, second, third)))
    assert desk.waits_for(first, "failed")["exit_code"] == 1
    assert "an earlier job has not succeeded" in desk.waits_for(second, "killed", "failed")["reason"]
    assert desk.waits_for(third, "succeeded")["exit_code"] == 0
    assert not running(cluster, "echo")


@pytest.mark.row(330)
def test_another_laptop_sees_the_jobs_and_can_stop_them(cluster: SlurmCluster, desk: Desk, tmp_path: Path) -> None:
    key = start(desk, COUNT.format(1000))
    desk.waits_for(key, "running")
    other = Desk(tmp_path / "other", desk.servers)
    (other.root / ".remote" / "logs").mkdir(parents=True)
    (other.root / ".remote" / "configs.yaml").write_text((desk.root / ".remote" / "configs.yaml").read_text())
    (found,) = other.jobs()
    assert (found["id"], found["state"]) == (desk.job(key)["id"], "running")
    other.does("job-kill", str(found["key"]))
    assert desk.job(key)["state"] == "killed"
    assert not running(cluster, "tick")


@pytest.mark.row(330)
def test_the_login_node_may_reboot_while_a_job_runs(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, COUNT.format(15))
    desk.waits_for(key, "running")
    cluster.reboot_login()
    assert desk.waits_for(key, "succeeded")["exit_code"] == 0
    assert desk.does("job-tail", str(key), "--no-follow").splitlines() == [f"tick {number}" for number in range(15)]


@pytest.mark.row(331)
def test_without_an_answer_of_slurm_the_state_is_unknown_and_nothing_is_lost(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, COUNT.format(20))
    desk.waits_for(key, "running")
    cluster.stop_controller()
    try:
        looked = desk.tries("job-list", "--stopped", "--json")
        (job,) = json.loads(looked.stdout)["jobs"]
        assert job["state"] == "unreachable"
        assert "Slurm does not answer: squeue" in job["reason"]
        assert "login: still waiting for Slurm" in looked.stderr
        said = desk.refuses("job-run", "--cmd", "echo never", status=1)
        assert "Unable to contact slurm controller" in said
        assert "Slurm does not answer" in desk.tries("check").stdout
    finally:
        cluster.start_controller()
    assert desk.waits_for(key, "succeeded")["exit_code"] == 0


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        ({"partition": "nowhere"}, (), "invalid partition specified: nowhere"),
        ({"gres": "gpu:9"}, (), "Requested node configuration is not available"),
        ({"no-such": "thing"}, (), "no-such"),
        ({}, ("--tty",), "--tty cannot be used on login"),
        ({}, ("--devices", "0"), "--devices cannot be used on login"),
        ({}, ("--gpus", "1", "--priority", "5"), "--priority cannot be used on login"),
        ({}, ("--gpus", "1", "--any-server"), "--any-server cannot be used on login"),
    ],
)
@pytest.mark.row(332)
def test_what_cannot_be_started_is_said_in_one_sentence(
    cluster: SlurmCluster, desk: Desk, options: dict[str, object], words: tuple[str, ...], expected: str
) -> None:
    put_slurm(desk, **options)
    said = desk.refuses("job-run", "--cmd", "echo never", *words)
    assert expected in said
    assert "hint: " in said
    gives_back(cluster)


@pytest.mark.row(332)
def test_a_job_that_can_never_start_says_so(cluster: SlurmCluster, desk: Desk) -> None:
    put_slurm(desk, partition="gpu", time="2-00:00:00")
    key = start(desk, "echo never")
    until(lambda: "never starts (PartitionTimeLimit)" in (desk.job(key)["reason"] or ""), "Slurm says why")
    checked = desk.tries("check")
    assert 'time: "1:00:00" in slurm:' in checked.stdout + checked.stderr
    desk.does("job-kill", str(key))
    gives_back(cluster)


@pytest.mark.row(333)
def test_check_and_gpus_show_partitions_and_stacks_come_from_the_nodes(cluster: SlurmCluster, desk: Desk) -> None:
    (desk.root / "sleeper.py").write_text("import time\ndef nap():\n    time.sleep(1000)\nnap()\n")
    key = start(desk, "python sleeper.py", "--gpus", "3")
    desk.waits_for(key, "running")
    checked = desk.does("check")
    assert "partition gpu: 5 of 8 GPUs free, 1 of 2 nodes idle, up to 1:00:00" in checked
    assert "the controller's agrees with this server's" in checked
    assert "partition gpu: 5 of 8 GPUs free" in desk.tries("gpus").stderr
    until(lambda: "nap" in desk.tries("job-stacks", str(key)).stdout, "the stack of the job is shown")
    desk.does("job-kill", str(key))
    gives_back(cluster)


@pytest.mark.row(325)
def test_a_node_that_dies_is_another_attempt(cluster: SlurmCluster, desk: Desk) -> None:
    put_slurm(desk, partition="gpu", nodelist="n2")
    key = start(desk, FIRST_LASTS.format(8))
    desk.waits_for(key, "running")
    with desk.runs_meanwhile("job-tail", str(key)) as follower:
        until(lambda: has_shown(desk, key, "tick 1"), "it is followed")
        cluster.kill_node(cluster.nodes[1])
        desk.waits_for(key, "queued")
        # Within Slurm's own delay of two minutes, its order to end the first attempt may still be on the way to n2.
        cluster.run("scontrol", "update", f"jobid={slurm_id(desk, key)}", "ReqNodeList=n1", SOON)
        assert follower.wait(timeout=200) == 0
    assert desk.job(key)["failed_attempts"] == ["requeued by Slurm"]


@pytest.mark.row(324)
def test_a_job_that_slurm_takes_back_while_it_still_dies_stays_in_sight(cluster: SlurmCluster, desk: Desk) -> None:
    put_slurm(desk, partition="gpu", nodelist="n1")
    key = start(desk, "trap '' TERM; " + COUNT.format(1000))
    until(lambda: "tick 1" in (folder_of(desk, key) / "job.out").read_text(), "it has begun")
    cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    try:
        desk.waits_for(key, "queued")
        until(lambda: not running(cluster, "tick"), "its processes have ended")
        assert desk.job(key)["state"] == "queued"
    finally:
        cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    # Slurm cannot begin it again where it still ends it ("launch failed requeued held").
    steps = f"slurmstepd: [{slurm_id(desk, key)}."
    until(lambda: not running(cluster, steps), "Slurm has ended it on its node")
    cluster.wait_until_idle()
    cluster.run("scontrol", "update", f"jobid={slurm_id(desk, key)}", SOON)
    desk.waits_for(key, "running")
    desk.does("job-kill", str(key))
    assert desk.job(key)["state"] == "killed"
    assert not running(cluster, "tick")
    gives_back(cluster)


@pytest.mark.row(325)
def test_jobs_that_slurm_has_forgotten_have_ended_and_say_so(cluster: SlurmCluster, desk: Desk) -> None:
    runs = start(desk, COUNT.format(1000), "--gpus", "4")
    waits = start(desk, "echo never", "--gpus", "4", "--after", str(runs))
    desk.waits_for(runs, "running")
    desk.waits_for(waits, "queued")
    ids = {key: slurm_id(desk, key) for key in (runs, waits)}
    cluster.stop_controller()
    cluster.start_controller("-c")
    until(lambda: not running(cluster, "tick"), "Slurm ends what it does not know")
    forgotten = "Slurm no longer knows its job {}, ".format
    # The supervisor may be quick enough to record by what its command ended.
    assert desk.waits_for(runs, "failed", "killed")["reason"].startswith((forgotten(ids[runs]), "ended by SIG"))
    assert desk.waits_for(waits, "killed")["reason"] == forgotten(ids[waits]) + "which never began"
    cluster.wait_until_idle()


@pytest.mark.row(323)
def test_a_suspended_job_says_so_and_a_stop_gives_its_nodes_back(cluster: SlurmCluster, desk: Desk) -> None:
    key = start(desk, COUNT.format(1000))
    desk.waits_for(key, "running")
    cluster.run("scontrol", "suspend", slurm_id(desk, key))
    until(lambda: "suspended" in (desk.job(key)["reason"] or ""), "it is shown as suspended")
    desk.does("job-kill", str(key))
    gives_back(cluster)
    assert not running(cluster, "tick")


@pytest.mark.row(328)
def test_nothing_of_a_job_that_was_stopped_while_it_waited_stays(cluster: SlurmCluster, desk: Desk) -> None:
    put_slurm(desk, partition="gpu", hold="true")
    key = start(desk, "true", "--env", "TOKEN", "hunter2-of-a-long-length")
    submissions = desk.there("login") / ".remote-scripts" / "slurm"
    assert [*submissions.glob("*/jobs.json")]
    desk.does("job-kill", str(key))
    assert not [*submissions.iterdir()]
    gives_back(cluster)


@pytest.mark.row(330)
def test_two_projects_share_a_cluster_and_each_has_its_own_jobs(
    cluster: SlurmCluster, desk: Desk, tmp_path: Path
) -> None:
    folder = tmp_path / "beside"
    folder.mkdir()
    other = prepared(cluster, folder / "project")
    first, second = start(desk, COUNT.format(1000)), start(other, COUNT.format(1000))
    desk.waits_for(first, "running")
    other.waits_for(second, "running")
    desk.does("job-kill", "--server", "login")
    assert (desk.job(first)["state"], other.job(second)["state"]) == ("killed", "running")
    other.does("job-kill", "--server", "login", "--signal", signal.SIGKILL.name)
    gives_back(cluster)
