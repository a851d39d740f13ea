"""Every key of configs.yaml has the effect that docs/configuration.md describes, and a bad value is named."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.promises.conftest import Desk

CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"
FIRST = ("--server", "first")
# What other promises show.
ELSEWHERE = {
    "host_keys": "test_logins",
    "password": "test_logins",
    "password_env": "test_logins",
    "lost_after": "test_launches_end_as_one",
    "idle_after": "test_gpus",
    "keep_jobs": "test_clean",
    "default_server": "test_where",
    "internet": "test_servers_without_internet",
    "internet_hosts": "test_servers_without_internet",
    "channels": "test_from_labml_remote",
    "installer": "test_installers",
    "scripts_folder": "test_from_labml_remote",
    "servers": "every test",
    "hostname": "every test",
    "localhost": "test_this_machine",
    "slurm": "tests/extended/slurm",
}
EFFECTS: dict[str, Callable[[Desk], None]] = {}


def effect(*keys: str) -> Callable[[Callable[[Desk], None]], Callable[[Desk], None]]:
    """Mark what shows the effect of keys."""

    def mark(shows: Callable[[Desk], None]) -> Callable[[Desk], None]:
        EFFECTS.update(dict.fromkeys(keys, shows))
        return shows

    return mark


@pytest.fixture
def desk(desk_of_all: Desk) -> Iterator[Desk]:
    """A project whose configuration is as before after the test."""
    file = desk_of_all.root / ".remote" / "configs.yaml"
    before = file.read_text()
    yield desk_of_all
    file.write_text(before)


def configure_server(desk: Desk, name: str = "first", **settings: object) -> None:
    servers = desk.settings()["servers"]
    servers[name] |= settings
    desk.configure(servers=servers)


def ended(desk: Desk, command: str, *words: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Start a job on the first server, and return it when it has ended."""
    shown = desk.does("job-run", *FIRST, "--json", *words, "--cmd", command, environment=environment)
    (job,) = json.loads(shown)["jobs"]
    waited = desk.tries("job-wait", str(job["key"]), "--json")
    return dict(json.loads(waited.stdout)["jobs"][0])


@effect("name", "remote_scripts_folder_name", "remote_jobs_folder_name", "jobs_folder", "logs_folder", "exclude_file")
def _folders(desk: Desk) -> None:
    name = f"dev/{desk.settings()['name']}"
    desk.configure(
        name=f"~/{name}",
        remote_scripts_folder_name=".scripts",
        remote_jobs_folder_name=".runs",
        jobs_folder="kept/jobs",
        logs_folder="kept/logs",
        exclude_file="patterns.txt",
    )
    (desk.root / "patterns.txt").write_text("big.bin\n")
    (desk.root / "big.bin").write_text("too big\n")
    desk.does("prepare", *FIRST)
    job = ended(desk, "true")
    there = desk.servers["first"].home / name
    assert {"hello.py", "patterns.txt", ".scripts", ".runs"} <= {path.name for path in there.iterdir()}
    assert not {"big.bin", ".remote-scripts", ".jobs"} & {path.name for path in there.iterdir()}
    assert not [path for path in there.glob("kept/**/*") if path.is_file()]
    assert (there / ".runs" / job["id"]).exists()
    assert (desk.root / "kept" / "jobs" / job["id"]).exists()
    assert [*(desk.root / "kept" / "logs").glob("*-first-rsync.log")]


@effect("python")
def _python(desk: Desk) -> None:
    desk.configure(environment="venv", python="3.99")
    assert "3.99" in desk.refuses("setup", *FIRST, status=1)


@effect("packages")
def _packages(desk: Desk) -> None:
    desk.configure(packages=["requirements/nowhere.txt"])
    assert "requirements/nowhere.txt" in desk.refuses("update-packages", *FIRST)


@effect("environment")
def _environment(desk: Desk) -> None:
    configure_server(desk, environment={"existing": "/nowhere"})
    ran = desk.tries("setup")
    assert (ran.returncode, "/nowhere" in ran.stderr) == (3, True)
    configure_server(desk, environment=desk.settings()["environment"])
    desk.configure(environment={"existing": "/nowhere"})
    assert desk.tries("setup", *FIRST).returncode == 0


@effect("log_limit")
def _log_limit(desk: Desk) -> None:
    desk.configure(log_limit="1MB")
    job = ended(desk, "seq 1 1200000; sleep 1; echo the end")
    assert "dropped" in job["reason"]
    log = desk.there() / ".jobs" / job["id"] / "job.out"
    assert log.stat().st_blocks * 512 < 4_000_000
    assert desk.does("job-tail", str(job["key"]), "--lines", "1") == "the end\n"
    told = desk.tries("job-tail", str(job["key"])).stderr
    assert "bytes of older output (out) were dropped by log_limit" in told


@effect("artifacts", "artifacts_folder", "artifact_limit")
def _artifacts(desk: Desk) -> None:
    desk.configure(artifacts=["out/*.pt", {"glob": "step-*", "newest": 1}], artifacts_folder="results")
    desk.configure(artifact_limit={"file": "1MB"})
    command = "mkdir -p out; echo small > out/small.pt; seq 1 400000 > out/large.pt; touch step-1 step-2"
    job = ended(desk, command)
    desk.does("job-pull", str(job["key"]))
    folder = desk.root / "results" / job["id"]
    assert (folder / "out" / "small.pt").read_text() == "small\n"
    assert not (folder / "out" / "large.pt").exists()
    assert len([*folder.glob("step-*")]) == 1
    (shown,) = json.loads(desk.does("job-pull", str(job["key"]), "--json"))["jobs"]
    assert [left["name"] for left in shown["left_out"]] == ["out/large.pt"]


@effect("keep_connections")
def _keep_connections(desk: Desk) -> None:
    desk.configure(keep_connections=0)
    before = desk.servers["first"].log().count("Accepted publickey")
    for _ in range(2):
        desk.does("run", *FIRST, "--cmd", "true")
    assert desk.servers["first"].log().count("Accepted publickey") == before + 2


@effect("min_free")
def _min_free(desk: Desk) -> None:
    (desk.root / "new.txt").write_text("to be sent\n")
    desk.configure(min_free="9000000GB")
    assert "free on the disk of first" in desk.tries("rsync", *FIRST).stderr
    (desk.root / "new.txt").write_text("to be sent again\n")
    desk.configure(min_free="0MB")
    assert "free on the disk" not in desk.tries("rsync", *FIRST).stderr


@effect("data")
def _data(desk: Desk) -> None:
    (desk.root.parent / "wiki").mkdir()
    (desk.root.parent / "wiki" / "page").write_text("text\n")
    desk.configure(data={"wiki-en": {"from": "../wiki", "to": "~/data/wiki"}})
    desk.does("data-sync", *FIRST)
    assert desk.does("run", *FIRST, "--cmd", "cat $REMOTE_TOOL_DATA_WIKI_EN/page") == "text\n"


@effect("shared")
def _shared(desk: Desk) -> None:
    # Here they have homes of their own, so whoever says otherwise is told.
    desk.configure(shared=True)
    assert "shares the project's folder with" in desk.refuses("prepare", status=3)
    desk.configure(shared=False)
    servers = json.loads(desk.does("prepare", "--json"))["servers"]
    assert {server["follows"] for server in servers} == {""}


@effect("status")
def _status(desk: Desk) -> None:
    desk.configure(status={"acc": "accuracy[: =]+([0-9.]+)"})
    assert ended(desk, "echo accuracy: 0.75")["id"]
    desk.does("job-rsync")
    assert desk.jobs("--stopped", *FIRST)[-1]["values"] == {"acc": "0.75"}


@effect("on_end")
def _on_end(desk: Desk) -> None:
    file = desk.there() / "ended.txt"
    run = f'echo "$REMOTE_TOOL_JOB_STATE $REMOTE_TOOL_JOB_EXIT_CODE $DOOR" > {file}.new; mv {file}.new {file}'
    desk.configure(on_end={"run": run, "secrets": ["DOOR"]})
    job = ended(desk, "echo [$DOOR]; exit 3", environment={"DOOR": "open sesame"})
    until(file.exists, "the command has run")
    assert file.read_text() == "failed 3 open sesame\n"
    assert desk.does("job-tail", str(job["key"])) == "[]\n"
    assert "needs DOOR" in desk.refuses("job-run", *FIRST, "--cmd", "true", status=2)


@effect("on_empty")
def _on_empty(desk: Desk) -> None:
    file = desk.there() / "empty.txt"
    desk.configure(on_empty={"run": f"touch {file}", "after": "1s"})
    log = desk.there() / ".jobs" / ended(desk, "true")["id"] / "on-empty.log"
    until(lambda: file.exists() or (log.exists() and "not run" in log.read_text()), "the command has run")
    assert file.exists(), log.read_text()


@effect("snapshots")
def _snapshots(desk: Desk) -> None:
    desk.configure(snapshots="always")
    assert ended(desk, "true")["copy"]
    desk.configure(snapshots="never")
    assert ended(desk, "true", "--after-any", "1")["copy"] is None


@effect("max_duration", "stop_if_idle")
def _limits(desk: Desk) -> None:
    desk.configure(max_duration="1s", stop_if_idle="30m")
    job = ended(desk, "sleep 1000")
    assert (job["state"], job["max_duration"], job["stop_if_idle"]) == ("killed", 1, 1800)
    assert "1s" in job["reason"]


@effect("stop_signal")
def _stop_signal(desk: Desk) -> None:
    desk.configure(stop_signal="SIGINT", max_duration="1s")
    assert ended(desk, "trap 'exit 3' INT; while :; do sleep 0.1; done")["exit_code"] == 3


@effect("retries", "retry_on")
def _retries(desk: Desk) -> None:
    desk.configure(retries=2, retry_on=[75, "SIGKILL"])
    job = ended(desk, "echo $REMOTE_TOOL_ATTEMPT; test $REMOTE_TOOL_ATTEMPT = 2 && exit 4; exit 75")
    assert (job["failed_attempts"], job["exit_code"]) == (["exit code 75"], 4)


@effect("setup", "env")
def _setup(desk: Desk) -> None:
    desk.configure(setup="export TOOL=ready", env={"RATE": "0.1", "LEVEL": "all"})
    configure_server(desk, "second", setup="export TOOL=other", env={"LEVEL": "own"})
    shown = desk.does("run", "--env", "RATE", "0.2", "--cmd", "echo $TOOL $RATE $LEVEL")
    assert sorted(shown.splitlines()) == ["first  | ready 0.2 all", "second | other 0.2 own"]
    desk.configure(setup="exit 3")
    assert desk.tries("run", *FIRST, "--cmd", "echo hello").stdout == ""


@effect("workdir")
def _workdir(desk: Desk) -> None:
    (desk.root / "src").mkdir()
    (desk.root / "src" / "tool.py").write_text("print('a tool')\n")
    desk.configure(workdir="src")
    desk.does("rsync", *FIRST)
    assert desk.does("run", *FIRST, "--cmd", "tool.py") == "a tool\n"
    assert desk.does("run", *FIRST, "--workdir", ".", "--cmd", "hello.py") == "hello\n"


@effect("username", "port", "private_key")
def _login(desk: Desk) -> None:
    server = desk.servers["first"]
    # A port and a user of ~/.ssh/config count where the file has none.
    (Path.home() / ".ssh").mkdir(exist_ok=True)
    config = f"Host lab\n  HostName {server.address}\n  Port {server.port}\n  User {server.username}\n"
    (Path.home() / ".ssh" / "config").write_text(config)
    desk.configure(servers={"first": {"hostname": "lab", "private_key": str(server.key)}})
    assert desk.does("run", "--cmd", "hello.py") == "hello\n"
    configure_server(desk, port=1)
    assert ":1 refused" in desk.refuses("run", "--cmd", "true", status=4)
    configure_server(desk, port=server.port, username="nobody-of-this-name")
    assert "nobody-of-this-name" in desk.refuses("run", "--cmd", "true", status=4)
    configure_server(desk, username=server.username, private_key="no-such-key")
    assert "no-such-key" in desk.refuses("run", "--cmd", "true")


@effect("launch", "container")
def _launch(desk: Desk) -> None:
    configure_server(desk, launch="env VIA=launch FOLDER={project}")
    assert desk.does("run", *FIRST, "--cmd", "echo $VIA $FOLDER") == f"launch {desk.there()}\n"
    configure_server(desk, container="an-image")
    assert "container" in desk.refuses("run", *FIRST, "--cmd", "true", status=2)


@effect("address")
def _address(desk: Desk) -> None:
    configure_server(desk, address="127.0.0.2")
    assert "rendezvous 127.0.0.2:" in desk.does("helper-launch", "--dry-run", "--cmd", "true")


@effect("devices")
def _devices(desk: Desk) -> None:
    configure_server(desk, devices=[0, 3])
    assert desk.does("run", *FIRST, "--cmd", "echo $CUDA_VISIBLE_DEVICES") == "0,3\n"
    assert desk.does("run", *FIRST, "--devices", "1", "--cmd", "echo $CUDA_VISIBLE_DEVICES") == "1\n"


@effect("send_anyway")
def _send_anyway(desk: Desk) -> None:
    for name in (".npmrc", ".netrc"):
        (desk.root / name).write_text("token\n")
    desk.configure(send_anyway=[".npmrc"])
    assert ".netrc" in desk.tries("rsync", *FIRST).stderr
    assert ((desk.there() / ".npmrc").exists(), (desk.there() / ".netrc").exists()) == (True, False)


@effect("respect_gitignore")
def _respect_gitignore(desk: Desk) -> None:
    subprocess.run(["git", "init", "-q", str(desk.root)], check=True)
    (desk.root / ".gitignore").write_text("*.log\n")
    for name in ("train.py", "train.log"):
        (desk.root / name).write_text("")
    for respects, sent in (("true", ["train.py"]), ("false", ["train.log", "train.py"])):
        desk.configure(respect_gitignore=respects)
        desk.does("rsync", *FIRST)
        assert sorted(path.name for path in desk.there().glob("train.*")) == sent


@pytest.mark.parametrize("key", sorted({shows.__name__.strip("_") for shows in EFFECTS.values()}))
def test_a_key_has_its_effect(desk: Desk, key: str) -> None:
    (shows,) = {shows for shows in EFFECTS.values() if shows.__name__ == f"_{key}"}
    shows(desk)


def test_every_key_that_is_documented_is_shown() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", CONFIGURATION.read_text(), re.MULTILINE))
    documented -= {"miniconda", "miniforge", "uv", "venv"}
    assert documented == {*EFFECTS, *ELSEWHERE}


BAD = """\
name: ../evil
python: two
environment: conda
packages: {a: b}
host_keys: never
log_limit: 10
lost_after: soon
idle_after: -1
artifacts: {glob: x, oldest: 2}
artifact_limit: {file: much}
keep_jobs: some
keep_connections: 5 parsecs
min_free: 200%
data: {set: /tmp}
shared: maybe
status: {acc: "no group"}
on_end: [echo]
snapshots: sometimes
on_empty: {after: 1m}
default_server: third
max_duration: long
stop_if_idle: long
stop_signal: TERM
retries: -1
retry_on: [999]
setup: [echo]
workdir: /absolute
env: {"not a name": 1}
jobs_folder: /absolute
exclude_file: [x]
send_anyway: {a: b}
pyhton: "3.11"
servers:
  first:
    hostname: -oProxyCommand=x
    port: abc
    username: [me]
    private_key: [a]
    password: a
    password_env: B
    launch: [a]
    container: [a]
    address: a b
    devices: all of them
    usrname: me
  "a b": {hostname: h}
"""


def test_every_bad_value_is_named_with_file_line_and_key(desk: Desk) -> None:
    file = desk.root / ".remote" / "configs.yaml"
    file.write_text(BAD)
    said = desk.refuses("rsync", status=2)
    named = re.findall(r"configs\.yaml:(\d+): ([^:]+):", said)
    lines = BAD.splitlines()
    for number, text in enumerate(lines, 1):
        key = text.strip().partition(":")[0]
        if text in {"servers:", "  first:", "    password: a"}:
            continue
        assert str(number) in [line for line, _ in named], f"{text!r} is not named in\n{said}"
        assert any(key.strip('"') in name for line, name in named if line == str(number)), f"{key} in\n{said}"


def _with(setting: str) -> str:
    return f"servers:\n  a:\n    hostname: h\n    {setting}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nname: b\n", ":2: name: duplicate key"),
        ("name: !!python/object:os.system x\n", ":1: "),
        ("servers: [a]\n", ":1: servers: must be a mapping"),
        ("servers:\n  a: {hostname: h}\n  b: {hostname: h}\n", ":3: "),
        ("name: [\n", ":"),
        ("name: digits\nservers:\n  a:\n    port: 22\n", ":3: servers.a"),
        (_with("launch: env DATA=$DATA"), ":4: servers.a.launch: $DATA is not replaced; write its value"),
        (
            _with("container: -v ${HOME}/d:/d image"),
            ":4: servers.a.container: ${HOME} is not replaced; write its value",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(desk: Desk, text: str, said: str) -> None:
    (desk.root / ".remote" / "configs.yaml").write_text(text)
    assert f".remote/configs.yaml{said}" in desk.refuses("rsync", status=2)


@pytest.mark.row(282)
def test_a_signal_that_does_not_exist_is_refused_in_retry_on(desk: Desk) -> None:
    said = "an exit code such as 75, or a signal such as SIGKILL, found 'SIGNOTHING'"
    refused = desk.refuses("job-run", "--retries", "1", "--retry-on", "75,SIGNOTHING", "--cmd", "true", status=2)
    assert f"--retry-on takes {said}" in " ".join(refused.split())
    desk.configure(retries=1, retry_on=["SIGSEGV", "SIGRTMIN+3", "SIGNOTHING"])
    refused = desk.refuses("job-run", "--cmd", "true", status=2)
    assert f"retry_on[2]: must be {said}" in " ".join(refused.split())


def test_names_are_read_literally_and_empty_keys_are_ignored(desk: Desk) -> None:
    servers = desk.settings()["servers"]
    text = yaml.safe_dump({"x": servers["first"]}).replace("x:\n", "  no:\n").replace("\n  ", "\n    ")
    rest = f"name: {desk.settings()['name']}\nenvironment: {json.dumps(desk.settings()['environment'])}\n"
    (desk.root / ".remote" / "configs.yaml").write_text(f"{rest}python:\nservers:\n{text}")
    assert json.loads(desk.does("run", "--json", "--cmd", "true"))["servers"][0]["server"] == "no"
