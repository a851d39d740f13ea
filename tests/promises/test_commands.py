"""Each command of README's table: its plain use, and the documented keys of its JSON."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.processes import environments
from tests.promises.conftest import Desk, folder_of_sockets, until
from tests.terminal import Terminal

README = Path(__file__).parents[2] / "README.md"
REFERENCE = README.parent / "docs" / "reference.md"
FIRST = ("--server", "first")
# A job has failed with this number, another one runs, and a third one waits for it; see the fixture.
DONE, RUNS, WAITS = "1", "2", "3"


# What is typed, a part of what is printed, and the part of the document of --json that cannot be empty.
COMMANDS: dict[str, tuple[str, str, str | None]] = {
    "keys": ("--dry-run", "first: key-based login already works", "servers"),
    "check": ("--server first", r"first +login +ok", "servers"),
    "prepare": ("", r"first +ready +Python 3", "servers"),
    "setup": ("", "first: environment: unchanged, Python 3", None),
    "rsync": ("", r"already up to date|sent \d+ files?", "servers"),
    "data-sync": ("--server first", "data digits: 1 of 1 server", "data"),
    "update-packages": ("", "first: packages: unchanged", None),
    "bandwidth": ("--seconds 0.3", r"Gbit/s +first +second", "links"),
    "gpus": ("", "first: no GPUs", "servers"),
    "ssh-config": ("", "(?s)Host first\n.*HostName", None),
    "run": ("--server first --cmd hello.py", "^hello$", "servers"),
    "shell": ("--server first -- python hello.py", "^hello$", None),
    "job-run": ("--server first --cmd true", r"^job \d+ on first: ", "jobs"),
    "helper-torch-launch": (
        "--nproc-per-node 1 --cmd hello.py",
        r"(?s)^job \d+ on first: .*^job \d+ on second: ",
        "jobs",
    ),
    "helper-launch": ("--cmd true", r"(?s)^job \d+ on first: .*^job \d+ on second: ", "jobs"),
    "helper-mpi-launch": ("--ppn 1 --cmd hello.py", r"(?s)^job \d+ on first: .*^job \d+ on second: ", "jobs"),
    "helper-fan-out": ("--total 2 --cmd hello.py+{count} --follow", "2 of 2 shards done", "jobs"),
    "helper-sweep": ("--per-server 1 --grid lr=1,2 --cmd hello.py+{lr}", "2 jobs", "jobs"),
    "job-list": ("", r"^KEY +SERVER +STATE(?s:.*)^2 +first +running", "jobs"),
    "job-show": (DONE, r"^job +1$", "jobs"),
    "sweep-show": ("--metric loss", r"^NUMBER +lr +STATE", "sweep"),
    "top": ("--once", r"(?s)^SERVER +GPUS.*^first .*^2 +first +running", "servers"),
    "job-tail": (f"{DONE} --no-follow", "^loss 0.25$", None),
    "job-stacks": (RUNS, r"train\.py:\d", "groups"),
    "job-rerun": (DONE, r"^job \d+ on first: ", "jobs"),
    "job-diff": (f"{DONE} {RUNS}", r"^FIELD +JOB 1 +JOB 2", "differences"),
    "job-note": (f"{DONE} good", "job 1: note saved", "jobs"),
    "job-rsync": ("", r"fetched logs of \d+ job", None),
    "job-pull": (DONE, "job 1 on first: ", "jobs"),
    "clean": ("--dry-run", r"^WHERE +WHAT +REMOVE +KEEP", "items"),
}
ON_THEIR_OWN = {"init", "connections", "disconnect", "forward", "jupyter", "job-attach", "job-kill", "job-wait"}
ON_THEIR_OWN |= {"job-requeue", "tensorboard", "demo", "helper-ray-launch"}


@pytest.fixture
def desk(desk_of_all: Desk) -> Desk:
    """A project with a sweep, a data set, and three jobs on its first server."""
    desk = desk_of_all
    if (desk.root / "train.py").exists():
        return desk
    (desk.root / "train.py").write_text("import time\nprint('loss 0.5', flush=True)\ntime.sleep(10000)\n")
    (desk.root.parent / "set").mkdir()
    (desk.root.parent / "set" / "digits").write_text("7\n")
    desk.configure(data={"digits": {"from": "../set", "to": str(desk.servers["first"].home / "set")}})
    desk.tries("job-run", *FIRST, "--artifact", "*.pt", "--follow", "--cmd", "echo loss 0.25; touch m.pt; exit 5")
    desk.does("job-run", *FIRST, "--cmd", "train.py")
    desk.does("job-run", *FIRST, "--after", RUNS, "--cmd", "true")
    desk.does("helper-sweep", *FIRST, "--per-server", "1", "--grid", "lr=1,2", "--cmd", "echo loss: {lr}")
    until(lambda: desk.job(RUNS)["values"], "the job has printed a value")
    return desk


SHAPES = json.loads((README.parent / "docs" / "schema.json").read_text())


def problems(document: Any, command: str) -> list[str]:
    """Return where a document is not as its schema says, which other versions may add keys to, but not this one."""
    schema = {**_strict(SHAPES), "$ref": f"#/$defs/{command}"}
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{each.json_path}: {each.message:.300}" for each in found]


def _strict(shape: Any) -> Any:
    if isinstance(shape, list):
        return [_strict(each) for each in shape]
    if not isinstance(shape, dict):
        return shape
    closed = {"additionalProperties": False} if shape.get("properties") else {}
    return {key: _strict(each) for key, each in shape.items()} | closed


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_what_it_says_and_has_its_documented_keys(desk: Desk, command: str) -> None:
    if command == "helper-mpi-launch" and shutil.which("mpiexec.hydra") is None:
        pytest.skip("there is no mpiexec")
    typed, printed, part = COMMANDS[command]
    words = [word.replace("+", " ") for word in typed.split()]
    ran = desk.tries(command, *words)
    assert ran.returncode in {0, *{"check": [1]}.get(command, [])}, ran.stderr
    assert re.search(printed, ran.stdout + ran.stderr, re.MULTILINE), f"{ran.stdout}\n{ran.stderr}"
    if part is not None:
        plain = [word for word in words if word not in {"--once", "--follow"}]
        answer = json.loads(desk.tries(command, "--json", *plain).stdout)
        assert problems(answer, command) == []
        assert answer[part]


def test_every_command_of_the_readme_is_shown_here() -> None:
    named = set(re.findall(r"^\| `remote-tool ([a-z-]+)` \|", README.read_text(), re.MULTILINE))
    assert named == {*COMMANDS, *ON_THEIR_OWN}
    sections = re.split(r"(?m)^## remote-tool ", REFERENCE.read_text())[1:]
    with_json = {section.split("\n")[0] for section in sections if re.search(r"(?m)^  --json ", section)}
    assert {command for command in with_json - ON_THEIR_OWN if COMMANDS[command][2] is None} == set()


def test_init_writes_what_a_project_needs_and_overwrites_nothing(desk: Desk, tmp_path: Path) -> None:
    there = type(desk)(tmp_path, {})
    there.does("init", "--name", "digits", "--server", "gpu1=ubuntu@10.0.0.5")
    assert there.settings()["servers"] == {"gpu1": {"hostname": "10.0.0.5", "username": "ubuntu"}}
    assert (tmp_path / ".remote" / "exclude.txt").exists()
    before = (tmp_path / ".remote" / "configs.yaml").read_text()
    there.tries("init", "--name", "letters", "--server", "gpu2=10.0.0.6")
    assert (tmp_path / ".remote" / "configs.yaml").read_text() == before


def test_jobs_are_stopped_waited_for_and_put_back_into_the_queue(desk: Desk) -> None:
    (job,) = json.loads(desk.does("job-run", *FIRST, "--json", "--after", RUNS, "--cmd", "true"))["jobs"]
    key = str(job["key"])
    stopped = json.loads(desk.does("job-kill", key, "--json"))
    assert (problems(stopped, "job-kill"), stopped["jobs"][0]["state"]) == ([], "killed")
    back = json.loads(desk.does("job-requeue", key, "--json"))
    assert (problems(back, "job-requeue"), back["jobs"][0]["command"]) == ([], "true")
    again = str(back["jobs"][0]["key"])
    desk.waits_for(again, "queued")
    assert re.search(rf"(?m)^{again} +first +killed ", desk.does("job-kill", again))
    waited = desk.tries("job-wait", DONE, "--json")
    assert (problems(json.loads(waited.stdout), "job-wait"), waited.returncode) == ([], 5)
    strays = json.loads(desk.does("job-kill", *FIRST, "--orphans", "--json"))
    assert problems(strays, "orphans") == []


def test_a_job_is_attached_to_and_detached_from(desk: Desk) -> None:
    (job,) = json.loads(desk.does("job-run", *FIRST, "--tty", "--json", "--cmd", "read line; echo got $line; cat"))[
        "jobs"
    ]
    with Terminal("job-attach", str(job["key"]), cwd=desk.root) as terminal:
        until(lambda: terminal.is_raw, "the terminal is that of the job")
        terminal.type("words\n")
        terminal.until("got words")
        terminal.type("\x1d")
        assert terminal.end() == 0
    assert desk.job(job["key"])["state"] == "running"
    desk.does("job-kill", str(job["key"]), "--grace", "0")


def test_a_port_of_a_server_is_reached_here(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        with desk.runs_meanwhile("forward", "--json", f"0:localhost:{port}", *FIRST) as program:
            assert program.stdout is not None
            text = ""
            while not is_whole(text):
                text += program.stdout.readline()
            (forward,) = json.loads(text)["forwards"]
            assert problems(json.loads(text), "forward") == []
            with socket.create_connection(("127.0.0.1", forward["port"]), 60) as here:
                accepted, _ = there.accept()
                with accepted:
                    here.sendall(b"hello")
                    assert accepted.recv(5) == b"hello"
            program.terminate()


def is_whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_logins_that_are_kept_are_listed_and_closed(desk: Desk) -> None:
    with folder_of_sockets() as environment:
        desk.does("run", *FIRST, "--cmd", "true", environment=environment)

        def kept() -> dict[str, Any]:
            return dict(json.loads(desk.does("connections", "--json", environment=environment)))

        until(lambda: kept()["connections"], "the login is kept")
        assert desk.does("connections", environment=environment).startswith("first: ")
        assert problems(kept(), "connections") == []
        closed = json.loads(desk.does("disconnect", "--json", environment=environment))
        assert problems(closed, "disconnect") == []
        assert kept()["connections"] == []
        assert "no login was kept" in desk.tries("disconnect", environment=environment).stderr


def test_programs_for_the_browser_are_asked_for_where_they_are_missing(desk: Desk) -> None:
    assert "pip install jupyterlab" in desk.refuses("jupyter", "--no-browser", *FIRST, status=1)
    if shutil.which("tensorboard") is None:
        assert "pipx install tensorboard" in desk.refuses("tensorboard", "--no-browser", status=2)


@pytest.mark.slow
def test_the_demo_trains_on_servers_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    ran = Desk(tmp_path, {}).tries("demo", environment={"TMPDIR": str(tmp_path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    output = ran.stdout + ran.stderr
    (trained,) = re.findall(r"server1:0 +\| accuracy (\d+\.\d)", output)
    (tailed,) = re.findall(r"^accuracy (\d+\.\d)", output, re.MULTILINE)
    assert float(trained) > 95
    assert tailed == trained
    commands = re.findall(r"^\$ remote-tool (\S+)", output, re.MULTILINE)
    assert commands == ["init", "prepare", "prepare", "helper-torch-launch", "job-list", "job-tail"]
    assert "2 servers already up to date" in output
    assert "ranks/0/0/out" in output
    # Each process of it has the folder in its environment.
    assert [pid for pid, environment in environments() if bytes(tmp_path) in environment] == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        (("helper-torch-launch", "--dry-run", "--cmd", "hello.py"), "helper-torch-launch"),
        (("helper-fan-out", "--dry-run", "--total", "2", "--cmd", "hello.py {shard}"), "helper-fan-out"),
        (
            ("helper-sweep", "--dry-run", "--per-server", "1", "--grid", "lr=1,2", "--cmd", "hello.py {lr}"),
            "helper-sweep",
        ),
        (("job-show", "1234"), "failed"),
        (("job-list", "--no-such-option"), "failed"),
    ],
)
def test_a_plan_and_a_failure_have_their_shape(desk: Desk, words: tuple[str, ...], shape: str) -> None:
    document = json.loads(desk.tries(*words, "--json").stdout)
    assert problems(document, shape) == []
