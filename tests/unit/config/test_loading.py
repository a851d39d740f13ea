"""configs.yaml is read whole or refused with every problem named, whatever is in it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_tool import Hooks, Workspace
from remote_tool.config import document
from remote_tool.config.artifacts import ArtifactLimit
from remote_tool.config.document import LARGEST_FILE, MOST_NODES, MOST_PROBLEMS
from remote_tool.config.ends import OnEmpty, OnEnd
from remote_tool.config.environment import Environment, EnvironmentKind, Installer
from remote_tool.config.loading import load, parse, remark_on_terminals
from remote_tool.config.model import Config, HostKeyPolicy, Snapshots
from remote_tool.config.servers import Server
from remote_tool.errors import ConfigError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.workflows.events import Event, Notice

ROOT = Path("/home/me/my_project")
FILE = ROOT / ".remote" / "configs.yaml"
DIGEST = "ecb43ee4ae30a7a5af87737e9548ceb21f0a10ec55b8dc40d247aa925b80bfec"


def read(text: str | bytes) -> Config:
    return parse(text if isinstance(text, bytes) else text.encode(), FILE, ROOT)


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.hint
    assert all(each.startswith(".remote/configs.yaml:") for each in caught.value.problems)
    return [each.removeprefix(".remote/configs.yaml:") for each in caught.value.problems]


def server(**values: str) -> str:
    keys = {"hostname": "a"} | values
    return "servers:\n  first:\n" + "".join(f"    {key}: {value}\n" for key, value in keys.items())


def test_every_key_of_ours_is_read() -> None:
    config = read(f"""
name: digits
python: "3.11.7"
environment:
  miniforge:
    channels: [conda-forge, https://conda.example.org/lab]
    installer: {{file: ./Miniforge3.sh, sha256: {DIGEST.upper()}}}
host_keys: strict
keep_connections: 2h
on_end: {{run: ./tell.sh, secrets: [TOKEN]}}
snapshots: always
on_empty: {{run: ./stop.sh, after: 90s}}
max_duration: 2d
stop_if_idle: 0
retries: 2
retry_on: [75, SIGKILL]
servers:
  gpu-1.lab_a:
    hostname: fd00::5
    username: me
    port: 2222
    private_key: keys/lab
    password_env: LAB_PASSWORD
    address: "[fd00::6]"
    devices: [0, 3]
""")
    assert config == Config(
        name="digits",
        servers={
            "gpu-1.lab_a": Server(
                name="gpu-1.lab_a",
                hostname="fd00::5",
                username="me",
                port=2222,
                private_key=ROOT / "keys/lab",
                password_env="LAB_PASSWORD",
                address="fd00::6",
                devices=("0", "3"),
            )
        },
        local=LocalPaths(ROOT),
        remote=RemotePaths("digits"),
        python="3.11.7",
        environment=Environment(
            EnvironmentKind.MINIFORGE,
            channels=("conda-forge", "https://conda.example.org/lab"),
            installer=Installer(DIGEST, file=ROOT / "Miniforge3.sh"),
        ),
        host_keys=HostKeyPolicy.STRICT,
        keep_connections=7200,
        on_end=OnEnd("./tell.sh", ("TOKEN",)),
        snapshots=Snapshots.ALWAYS,
        on_empty=OnEmpty("./stop.sh", (), 90.0),
        max_duration=172_800.0,
        retries=2,
        retry_on=("75", "SIGKILL"),
    )


def test_a_hostname_is_enough_and_the_rest_has_defaults() -> None:
    config = read("servers: {first: {hostname: gpu-lab}}")
    assert config.servers == {"first": Server("first", "gpu-lab")}
    assert (config.name, config.python, config.environment) == ("my_project", None, Environment())
    assert config.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert config.host_keys is HostKeyPolicy.ACCEPT_NEW


def test_a_configuration_of_labml_remote_works_unchanged(own_home: Path) -> None:
    """All of its keys, and what its users were told to leave blank."""
    config = read("""
name: mnist_runs
scripts_folder: .remote/scripts
logs_folder: .remote/my_logs
jobs_folder: ./.remote/my_jobs/
exclude_file: .remote/leave_out.txt
remote_scripts_folder_name: .scripts
remote_jobs_folder_name: .my-jobs
servers:
  primary:
    hostname: 3.19.32.53
    private_key: ./.remote/private_key
    username: ubuntu
    password:
  secondary:
    hostname: ec2-3-20-234-50.us-east-2.compute.amazonaws.com
    private_key: ''
    password: 0123
  third:
    hostname: 3.19.32.55
    private_key: ~/.ssh/lab key
""")
    first, second, third = config.servers.values()
    assert first == Server("primary", "3.19.32.53", "ubuntu", private_key=ROOT / ".remote/private_key")
    assert (second.private_key, second.password) == (None, "0123")
    assert third.private_key == own_home / ".ssh/lab key"
    assert config.local == LocalPaths(ROOT, ".remote/my_jobs", ".remote/my_logs", ".remote/leave_out.txt")
    assert config.remote == RemotePaths("mnist_runs", ".scripts", ".my-jobs")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "servers:\n", "servers: {}\n", "name: x\n", "\ufeffname: x\n"])
def test_a_file_without_servers_is_read(text: str) -> None:
    assert read(text).servers == {}


@pytest.mark.row(114)
@pytest.mark.parametrize("name", ["no", "1e3", "y", "null", "12", "3.10", "2020-01-01", "0x1f", "on", "1_000"])
def test_a_name_is_what_stands_in_the_file(name: str) -> None:
    """YAML's own types would make False, 1000.0, None of them."""
    config = read(f"name: {name if name != 'null' else 'x'}\nservers: {{{name}: {{hostname: {name}x}}}}")
    assert list(config.servers) == [name]
    assert config.servers[name].hostname == f"{name}x"


@pytest.mark.parametrize("written", ["3.10", "'3.10'", '"3.10"'])
def test_python_3_10_is_not_3_1(written: str) -> None:
    assert read(f"python: {written}").python == "3.10"


@pytest.mark.parametrize("written", ["miniconda", "{miniconda: }", "{miniconda: {channels: [conda-forge]}}"])
def test_a_kind_of_environment_is_a_word_or_has_settings(written: str) -> None:
    assert read(f"environment: {written}").environment == Environment(EnvironmentKind.MINICONDA)


def test_an_existing_environment_has_a_prefix() -> None:
    environment = read("environment: {existing: ~/envs/my train}").environment
    assert environment == Environment(EnvironmentKind.EXISTING, prefix="~/envs/my train")


def test_artifacts_are_globs_with_or_without_a_number() -> None:
    config = read("artifacts: [./out//*.onnx, '**/x', runs/a-*/, {glob: ck/*.pt, newest: 2}]")
    assert config.artifacts == (
        ArtifactPattern("out/*.onnx"),
        ArtifactPattern("**/x"),
        ArtifactPattern("runs/a-*/"),
        ArtifactPattern("ck/*.pt", 2),
    )
    assert read("").artifacts == ()


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        ("1G", ArtifactLimit(1 << 30, 50 << 30)),
        ("200GB", ArtifactLimit(200 << 30, 200 << 30)),
        ("{file: 2MB, job: 3MB}", ArtifactLimit(2 << 20, 3 << 20)),
        ("{job: 5GB}", ArtifactLimit(10 << 30, 5 << 30)),
    ],
)
def test_the_limit_of_artifacts_is_of_each_or_of_all(written: str, limit: ArtifactLimit) -> None:
    assert read(f"artifact_limit: {written}").artifact_limit == limit


def test_merge_keys_share_settings_and_the_servers_own_win() -> None:
    config = read("""
servers:
  a: &lab {hostname: a, username: me, port: 2222}
  b: {<<: *lab, hostname: b}
  c: {hostname: c, <<: [{username: you}, *lab]}
  d: {<<: {hostname: d}, <<: *lab}
""")
    assert config.servers["b"] == Server("b", "b", "me", 2222)
    assert config.servers["c"] == Server("c", "c", "you", 2222)
    assert config.servers["d"] == Server("d", "d", "me", 2222)


def test_variables_and_setup_are_of_all_servers_or_of_one() -> None:
    config = read("""
setup: source /opt/setvars.sh
env: {A: 1e3, B: no, EMPTY: "", NOTHING: , PLUS: "a\\nb"}
servers:
  a: {hostname: a, setup: "true", env: {A: own, C: c}}
  b: {hostname: b, setup: }
""")
    assert config.variables_of("a") == {"A": "own", "B": "no", "EMPTY": "", "PLUS": "a\nb", "C": "c"}
    assert config.variables_of("b") == {"A": "1e3", "B": "no", "EMPTY": "", "PLUS": "a\nb"}
    assert (config.setup_of("a"), config.setup_of("b")) == ("true", "source /opt/setvars.sh")
    assert "own" not in repr(config)
    plain = read("servers: {a: {hostname: a}}")
    assert (plain.setup_of("a"), plain.variables_of("a")) == ("", {})


WRONG = [
    ("env: {a-b: 1}", "1: env.a-b: must be the name of an environment variable"),
    ("env: {REMOTE_TOOL_JOB_ID: 1}", "1: env.REMOTE_TOOL_JOB_ID: is set by remote-tool; choose another name"),
    ("env: {TOKEN: [secret]}", "1: env.TOKEN: must be text without NUL characters"),
    ("env: TOKEN=secret", "1: env: must be a mapping (key: value)"),
    ("setup: [source x]", "1: setup: must be a shell script without NUL characters"),
    ("name: a\nname: b", "2: name: duplicate key, first set on line 1"),
    ("pyhton: 3.11", "1: pyhton: unknown key; did you mean python?"),
    (
        "x: 1",
        "1: x: unknown key; expected one of name, python, environment, servers, host_keys, log_limit, lost_after",
    ),
    ("hostname: a", "1: hostname: belongs under a server"),
    (
        "servers:\n  a:\n    hostname: h\n    user_name: u",
        "4: servers.a.user_name: unknown key; did you mean username?",
    ),
    ("servers:\n  a:\n    hostname: h\n    hostname: i", "4: servers.a.hostname: duplicate key, first set on line 3"),
    ("servers: [a]", "1: servers: must be a mapping (key: value), found a list"),
    ("servers: {a: 10.0.0.5}", "1: servers.a: must be a mapping, such as {hostname: 10.0.0.5}, found '10.0.0.5'"),
    ("servers: {a: }", "1: servers.a: hostname is missing"),
    ("servers: {a: {port: 22}}", "1: servers.a: hostname is missing"),
    ("servers: {? [a] : {hostname: a}}", "1: servers: keys must be plain text"),
    ("- a", "1: must be a mapping (key: value), found a list"),
    ("a", "1: must be a mapping (key: value), found 'a'"),
    ("name: 'a\n\n  b'", "1: name: must be a folder name"),
    ("name: [a]", "1: name: must be a folder name of letters, digits, . _ -"),
    ("log_limit: 10", "1: log_limit: must be a size of 1MB or more, such as 500MB or 4GB, found '10'"),
    ("log_limit: lots", "1: log_limit: must be a size of 1MB or more, such as 500MB or 4GB, found 'lots'"),
    ("lost_after: 4", "1: lost_after: must be a whole number of seconds from 5 to 86400, found '4'"),
    ("lost_after: 60s", "1: lost_after: must be a whole number of seconds from 5 to 86400, found '60s'"),
    ("idle_after: 90000", "1: idle_after: must be a whole number of seconds from 0 to 86400, found '90000'"),
    ("snapshots: sometimes", "1: snapshots: must be one of queued, always, never, found 'sometimes'"),
    ("on_end: {secrets: [TOKEN]}", "1: on_end: requires run: the command"),
    (
        "on_end: {run: a, secrets: [a-b]}",
        "1: on_end.secrets[0]: must be the name of an environment variable",
    ),
    (
        "on_end: {run: a, secrets: TOKEN}",
        "1: on_end.secrets: must be a list of variables, such as [NTFY_TOKEN]",
    ),
    ("on_empty: {after: 5m}", "1: on_empty: requires run: the command"),
    (
        "on_empty: {run: a, after: soon}",
        "1: on_empty.after: must be a duration such as 45s, 90m, 12h or 2d, or 0, found 'soon'",
    ),
    ("max_duration: 12", "1: max_duration: must be a duration such as 45s, 90m, 12h or 2d, or 0, found '12'"),
    ("stop_if_idle: 400d", "1: stop_if_idle: must be a duration such as 45s, 90m, 12h or 2d, or 0, found '400d'"),
    ("retries: -1", "1: retries: must be a whole number from 0 to 100, found '-1'"),
    ("retry_on: 75", "1: retry_on: must be a list of exit codes and signals, such as [75, SIGKILL], found '75'"),
    ("retry_on: [0]", "1: retry_on[0]: must be an exit code such as 75, or a signal such as SIGKILL, found '0'"),
    ("keep_connections: 30s", "1: keep_connections: must be 0, or a time such as 10m or 2h, found '30s'"),
    ("keep_connections: true", "1: keep_connections: must be 0, or a time such as 10m or 2h, found 'true'"),
    ("artifacts: '*.pt'", "1: artifacts: must be a list of globs, such as [checkpoints/*.pt], found '*.pt'"),
    ("artifacts: []", "1: artifacts: must be a list of globs"),
    ("artifacts: [../*.pt]", "1: artifacts[0]: must be a glob inside the project, such as checkpoints/*.pt"),
    ("artifacts: [/etc/passwd]", "1: artifacts[0]: must be a glob inside the project"),
    ("artifacts: [~/*.pt]", "1: artifacts[0]: must be a glob inside the project"),
    ("artifacts: [./]", "1: artifacts[0]: must be a glob inside the project"),
    ("artifacts: [{newest: 2}]", "1: artifacts[0]: requires glob, such as {glob: checkpoints/*.pt, newest: 2}"),
    ("artifacts: [{glob: a, newest: 0}]", "1: artifacts[0].newest: must be a whole number from 1 to 1000, found '0'"),
    ("artifacts: [{glob: a, newst: 1}]", "1: artifacts[0].newst: unknown key; did you mean newest?"),
    (f"artifacts: [{'a, ' * 101}]", "1: artifacts: too many globs: at most 100 are allowed"),
    ("artifact_limit: much", "1: artifact_limit: must be a size such as 500MB or 10GB, found 'much'"),
    ("artifact_limit: {all: 1GB}", "1: artifact_limit.all: unknown key"),
    ("data: {a: /data}", "1: data.a: must be a mapping, such as {from: ~/data/imagenet, to: /scratch/imagenet}"),
    ("data: {a: {from: /a}}", "1: data.a: to is required, such as {from: ~/data/imagenet, to: /scratch/imagenet}"),
    ("data: {a: {from: /a, to: b}}", "1: data.a.to: must be a path on the server, absolute or starting with ~/"),
    ("data: {a: {from: /a, to: /b/../..}}", "1: data.a.to: must be a path on the server"),
    ("data: {a: {from: /a, to: //}}", "1: data.a.to: must be a folder of its own, not / or the home folder"),
    ("data: {a: {from: /a, to: ~/.}}", "1: data.a.to: must be a folder of its own"),
    ("{name: x, data: {a: {from: /a, to: ~/x}}}", "1: data.a.to: must be outside the project folder, ~/x"),
    ("{name: x, data: {a: {from: /a, to: ~//x/./d/}}}", "1: data.a.to: must be outside the project folder, ~/x"),
    ("data: {a b: {from: /a, to: /b}}", "1: data.'a b': the name must be"),
    (
        "data: {a-b: {from: /a, to: /b}, A.b: {from: /a, to: /c}}",
        "1: data.A.b: sets the same variable as a-b, REMOTE_TOOL_DATA_A_B; choose another name",
    ),
    (
        "data: {a: {from: /a, to: ~/s}, b: {from: /b, to: ~//s/}}",
        "1: data.b: uses the same folder as a, ~/s; give each data set its own",
    ),
    ("host_keys: no", "1: host_keys: must be one of accept-new, strict, found 'no'"),
    ("environment: conda", "1: environment: must be one of miniconda, miniforge, uv, venv, or {existing: /path/to/pre"),
    ("environment: existing", "1: environment: must be one of"),
    ("environment: {existing: }", "1: environment.existing: must be a path on the server"),
    ("environment: {existing: envs/a}", "1: environment.existing: must be a path on the server, absolute or starting"),
    ("environment: {existing: ~/../other}", "1: environment.existing: must be a path on the server"),
    ("environment: {uv: , venv: }", "1: environment: must contain exactly one of miniconda,"),
    ("environment: {minconda: }", "1: environment.minconda: unknown key; did you mean miniconda?"),
    ("environment: {uv: {channels: [a]}}", "1: environment.uv.channels: unknown key"),
    ("environment: {miniconda: {channels: a}}", "1: environment.miniconda.channels: must be a list of channels"),
    ("environment: {miniconda: {channels: [-c]}}", "1: environment.miniconda.channels[0]: must be the name or URL"),
    (
        "environment: {miniconda: {installer: {url: https://a/b}}}",
        "1: environment.miniconda.installer: requires sha256",
    ),
    (
        f"environment: {{miniconda: {{installer: {{url: 'ftp://a', file: b, sha256: {DIGEST}}}}}}}",
        "1: environment.miniconda.installer: requires sha256, and either url or file",
    ),
    (
        f"environment: {{miniconda: {{installer: {{url: 'ftp://a', sha256: {DIGEST}}}}}}}",
        "1: environment.miniconda.installer.url: must be a URL that starts with https:// or http://",
    ),
    (
        "environment: {miniconda: {installer: {url: 'https://a', sha256: abc}}}",
        "1: environment.miniconda.installer.sha256: must be 64 hexadecimal digits, found 'abc'",
    ),
    ("servers:\n\tfirst: {hostname: a}", "2: tabs are not allowed here; indent with spaces"),
    ("name: *nothing", "1: undefined alias (*...)"),
    ("name: [", "2: not valid YAML: "),
    ("name: a: b", "1: not valid YAML: mapping values are not allowed"),
    ("name: a\n--- \nname: b", "2: not valid YAML: "),
    ("name: a\x00", "1: the character U+0000 is not allowed in YAML"),
    ("name: a\n# \x1b[2J", "2: the character U+001B is not allowed in YAML"),
    ("name: a\n\ufeffpython: '3.11'", "2: the character U+FEFF is not allowed in YAML"),
    (b"name: a\n# caf\xe9\n", "2: not valid UTF-8 (byte 0xe9)"),
    ("name: a".encode("utf-16"), "1: not valid UTF-8 (byte 0xff)"),
    (
        "remote_jobs_folder_name: .remote-scripts",
        "1: remote_jobs_folder_name: must differ from",
    ),
    ("servers: {a: {hostname: b, devices: 0}}", "1: servers.a.devices: must be a list of GPUs, such as [0, 3], found"),
    ("servers: {a: {hostname: b, devices: [a]}}", "1: servers.a.devices[0]: must be the number of a GPU, or its UUID"),
    ("servers: {a: {hostname: b, devices: [0, 0]}}", "1: servers.a.devices: 0 is given twice"),
    ("servers: {a: {hostname: b, devices: [0, GPU-1f]}}", "1: servers.a.devices: numbers, GPU-… and MIG-… cannot"),
    (
        "servers: {a: {hostname: b, password: x, password_env: Y}}",
        "1: servers.a.password_env: cannot be combined",
    ),
]


@pytest.mark.row(114)
@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_a_problem_is_named_with_line_and_key(text: str | bytes, problem: str) -> None:
    assert any(each.startswith(problem) for each in problems(text)), problems(text)


def test_all_problems_are_named_at_once_in_the_order_of_the_lines() -> None:
    found = problems("""name: ../evil
servers:
  first:
    hostname: -oProxyCommand=x
    prot: 22
  second:
    hostname: b
    port: abc
pyton: 3.11
""")
    assert [each.split(" ")[0:2] for each in found] == [
        ["1:", "name:"],
        ["4:", "servers.first.hostname:"],
        ["5:", "servers.first.prot:"],
        ["8:", "servers.second.port:"],
        ["9:", "pyton:"],
    ]
    assert found[3] == "8: servers.second.port: must be a whole number from 1 to 65535, found 'abc'"


def test_very_many_problems_are_counted_not_listed() -> None:
    found = problems("".join(f"key{number}: x\n" for number in range(1000)))
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1] == f" and {1000 - MOST_PROBLEMS} more problems"


def test_a_missing_file_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.remote/configs\.yaml: does not exist") as caught:
        load(tmp_path)
    assert caught.value.hint == "remote-tool init"


def test_a_file_that_is_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / ".remote" / "configs.yaml").mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)


def test_load_reads_the_file_of_the_project(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    (root / ".remote").mkdir(parents=True)
    (root / ".remote" / "configs.yaml").write_bytes(b"\xef\xbb\xbfservers:\r\n  a:\r\n    hostname: b\r\n")
    config = load(root)
    assert (config.name, config.local.root, config.servers["a"].hostname) == ("digits", root, "b")


def test_the_name_must_be_written_where_the_folders_name_cannot_be_it() -> None:
    with pytest.raises(
        ConfigError, match=r"configs.yaml:1: name: required, because the name of the project folder, 'My Project'"
    ):
        parse(b"", Path("/x/My Project/.remote/configs.yaml"), Path("/x/My Project"))
    assert parse(b"name: mine", Path("/x"), Path("/x/My Project")).name == "mine"


BAD_HOSTS = [
    "-oProxyCommand=evil",
    "-l",
    "a b",
    "a;b",
    "a%h",
    "a$(b)",
    "a`b`",
    "a'b",
    'a"b',
    "a\\nb",
    "a|b",
    "a&b",
    "a>b",
    "a*",
    "a?",
    "!a",
    "a,b",
    "a/b",
    "a@b@c/",
    "-l@b",
    "@b",
    "me@b:22",
    "a:22",
    "a:b:c",
    "10.0.0.5:22",
    "[10.0.0.5]",
    "[::1",
    "::1]",
    "[::1]:22",
    "fe80::1%eth0",
    "a\u0007b",
    "a\u202eb",
    "gpü",
    ".a",
    "",
    " ",
    "a" * 300,
]


def yaml_text(text: str) -> str:
    escaped = (each if each.isascii() and each.isalnum() else f"\\U{ord(each):08x}" for each in text)
    return f'"{"".join(escaped)}"'


@pytest.mark.row(108)
@pytest.mark.parametrize("host", [*BAD_HOSTS, "a\nb", "a\n", "a\rb", "a\tb", "a\x7fb", "a\x9bb", "a\u2028b", "\x00"])
def test_a_host_that_ssh_could_misunderstand_is_refused(host: str) -> None:
    assert any("servers.first" in each for each in problems(server(hostname=yaml_text(host))))
    if host:
        assert any("servers.first.address" in each for each in problems(server(address=yaml_text(host))))


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("gpu-1.example.org", "gpu-1.example.org"),
        ("my_alias", "my_alias"),
        ("::1", "::1"),
        ("'[2001:db8::1]'", "2001:db8::1"),
        ("::ffff:10.0.0.5", "::ffff:10.0.0.5"),
        ("10.0.0.5", "10.0.0.5"),
        ("1e3", "1e3"),
    ],
)
def test_addresses_names_and_aliases_are_hosts(written: str, host: str) -> None:
    assert read(server(hostname=written)).servers["first"].hostname == host


@pytest.mark.parametrize(
    ("given", "user", "host"),
    [
        ({"hostname": "me@10.0.0.5"}, "me", "10.0.0.5"),
        ({"hostname": "me@corp@gpu-lab"}, "me@corp", "gpu-lab"),
        ({"hostname": "'me@[fd00::5]'"}, "me", "fd00::5"),
        ({"hostname": "me@gpu-lab", "username": "me"}, "me", "gpu-lab"),
    ],
)
def test_the_user_may_stand_before_the_host(given: dict[str, str], user: str, host: str) -> None:
    found = read(server(**given)).servers["first"]
    assert (found.username, found.hostname) == (user, host)


def test_two_users_of_one_server_are_refused() -> None:
    (problem,) = problems(server(hostname="me@a", username="you"))
    assert problem.endswith("servers.first.username: is you, but hostname says me@; keep one of them")


@pytest.mark.row(108)
@pytest.mark.parametrize("user", ["-l", "a;b", "a b", "a%r", "a$b", "a\nb", "a'b", "a\\", "a\x1b", "a/b", "a:b", "é"])
def test_a_user_that_ssh_could_misunderstand_is_refused(user: str) -> None:
    assert any("servers.first.username" in each for each in problems(server(username=yaml_text(user))))


@pytest.mark.parametrize("user", ["me", "_svc", "me@example.org", "a.b-c_d", "1001"])
def test_users_of_directories_are_users(user: str) -> None:
    assert read(server(username=user)).servers["first"].username == user


@pytest.mark.parametrize("port", ["0", "65536", "-1", "22.0", "0x16", "1e3", "abc", "٢٢", "²", "9" * 5000, "[22]"])
def test_a_port_is_a_whole_number_up_to_65535(port: str) -> None:
    assert any("port: must be a whole number from 1 to 65535" in each for each in problems(server(port=port)))


@pytest.mark.parametrize(
    "version",
    ["3", "3.7", "2.7", "4.0", "3.x", "3.11rc1", ">=3.9", "3.11; rm", "latest", "3.9.1.2", "3.9999", "3." + "9" * 5000],
)
def test_a_version_is_like_3_11_and_3_8_or_newer(version: str) -> None:
    assert any("python: must be a Python version, 3.8 or newer" in each for each in problems(f"python: '{version}'"))


NAMES = [
    "..",
    ".",
    "-rf",
    ".ssh",
    "a//b",
    "a/../b",
    "../a",
    "a/",
    "~/a",
    "a/.ssh",
    "a/-b",
    "/".join("a" * 9),
    "/etc",
    "a b",
    "~",
    "a;b",
    "$HOME",
    "a'b",
    "é",
    "a\nb",
    "a\0",
    "a" * 200,
]


@pytest.mark.row(107, 109)
@pytest.mark.parametrize("name", NAMES)
def test_names_come_from_an_allow_list(name: str) -> None:
    said = "name: cannot be absolute" if name.startswith("/") else "name: must be"
    assert name == "~/a" or any(said in each for each in problems(f"name: {yaml_text(name)}"))
    found = problems(f"servers:\n  {yaml_text(name)}: {{hostname: a}}")
    assert any("the name must be made of letters" in each for each in found)


@pytest.mark.parametrize(
    ("written", "path"),
    [("results", ROOT / "results"), ("~/models", Path("~/models")), ("/data/models", Path("/data/models"))],
)
def test_artifacts_may_go_to_a_folder_of_the_users_choice(written: str, path: Path) -> None:
    local = read(f"artifacts_folder: {written}").local
    assert local.artifacts("job") == path.expanduser() / "job"
    assert local.artifacts_in_project == (("results", "results") if written == "results" else ())


@pytest.mark.row(167)
@pytest.mark.parametrize(
    "written",
    [
        *(".", "..", "/", "~/", "results/..", ".remote", ".remote/jobs", ".remote/jobs/a", ".remote/logs", ".git/x"),
        *("~/.ssh/x", "~other/x", '"a\\x1bb"'),
    ],
)
def test_artifacts_go_to_no_place_where_they_would_do_harm(written: str) -> None:
    assert any("artifacts_folder: " in each for each in problems(f"artifacts_folder: {written}"))


@pytest.mark.parametrize("name", ["digits", "dev/digits", "a/b/c", "me_2/x.y-z"])
@pytest.mark.parametrize("home", ["", "~/"])
def test_a_name_may_be_a_path_below_the_home(name: str, home: str) -> None:
    config = read(f"name: {home}{name}")
    assert (config.name, config.remote.project, config.remote.jobs) == (name, name, f"{name}/.jobs")


@pytest.mark.parametrize("name", ["/data/digits", "/"])
def test_an_absolute_name_is_refused_with_the_reason(name: str) -> None:
    (problem,) = problems(f"name: {name}")
    assert "name: cannot be absolute: the project's folder is below the home folder" in problem


@pytest.mark.row(109)
@pytest.mark.parametrize("key", ["jobs_folder", "logs_folder", "scripts_folder", "exclude_file"])
@pytest.mark.parametrize("path", ["..", "a/../../b", "/etc", "~/x", ".", "./", "a\0b", "a\x1bb"])
def test_folders_here_stay_in_the_project(key: str, path: str) -> None:
    assert any(f"{key}: must be a path inside the project" in each for each in problems(f"{key}: {yaml_text(path)}"))


@pytest.mark.row(109)
@pytest.mark.parametrize("key", ["remote_jobs_folder_name", "remote_scripts_folder_name"])
@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "-rf", "a b", "~"])
def test_folders_on_the_server_stay_in_the_project(key: str, name: str) -> None:
    assert any(f"{key}: must be the name of a folder" in each for each in problems(f"{key}: {yaml_text(name)}"))


@pytest.mark.parametrize("path", ["~someone/key", "a\0b", "a\nb", "a\x1b[2Jb"])
def test_a_key_file_has_a_plain_path(path: str) -> None:
    assert any(
        "private_key: must be the path of a local file" in each
        for each in problems(server(private_key=yaml_text(path)))
    )


@pytest.mark.row(98)
@pytest.mark.parametrize(
    "second",
    [
        "{hostname: GPU.lab}",
        "{hostname: gpu.lab, port: 22}",
        "{<<: *one}",
    ],
)
def test_one_machine_under_two_names_is_refused(second: str) -> None:
    found = problems(f"servers:\n  a: &one {{hostname: gpu.lab}}\n  b: {second}")
    assert found == ["3: servers.b: is the same machine as a (same hostname, port and username)"]


@pytest.mark.row(98)
def test_one_address_in_two_spellings_is_one_machine() -> None:
    found = problems("servers:\n  a: {hostname: '::1'}\n  b: {hostname: '0:0:0:0:0:0:0:1'}")
    assert found == ["3: servers.b: is the same machine as a (same hostname, port and username)"]


@pytest.mark.parametrize("second", ["{hostname: a, port: 2222}", "{hostname: a, username: other}", "{hostname: b}"])
def test_other_ports_and_users_are_other_servers(second: str) -> None:
    assert len(read(f"servers: {{a: {{hostname: a}}, b: {second}}}").servers) == 2


SECRET = "hunter2canary"


@pytest.mark.row(111)
@pytest.mark.parametrize(
    "line",
    [
        f"password: [{SECRET}]",
        f"password: {{{SECRET}: {SECRET}}}",
        f"password: *{SECRET}",
        f"password: !{SECRET}",
        f"password: !{SECRET} x",
        f"password: !{SECRET}!a x",
        f"password: '{SECRET}",
        f"password: {SECRET}: b",
        f"password: @{SECRET}",
        f"password: '{SECRET}\n\n      {SECRET}'",
        f"password {SECRET}",
        f"password={SECRET}",
        f"password={SECRET}: x",
        f"pasword: {SECRET}",
        f"password: {SECRET}\n    password: {SECRET}",
        f"password: {SECRET}\n    password_env: 1A",
        f"hostname: a\n      password {SECRET}",
        f"port: password {SECRET}",
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, document._LOADER], ids=["python", "libyaml"])
def test_a_password_is_in_no_message(line: str, loader: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LOADER", loader)
    text = f"servers:\n  first:\n    {line}\n    port: abc\n"
    assert problems(text)
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value!r}"


@pytest.mark.row(111)
def test_a_password_is_not_in_the_text_of_a_configuration() -> None:
    config = read(server(password=SECRET))
    assert config.servers["first"].password == SECRET
    assert SECRET not in f"{config} {config!r}"


TAGS = [
    "!!python/object/apply:os.system ['touch {canary}']",
    "!!python/object/new:os.system ['touch {canary}']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/tuple [a]",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {canary}']",
    "!own a",
    "!!binary aGk=",
    "!!set {{a}}",
]


@pytest.mark.row(114, 115)
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("place", ["{}", "name: {}", "servers: {}", "servers: {{a: {}}}", "? {}\n: a", "x: [{} ]"])
def test_tags_are_refused_and_nothing_runs(tag: str, place: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    if place.startswith("servers: {{"):
        text = "servers:\n  a: " + tag.format(canary=canary)
    else:
        text = place.format(tag.format(canary=canary))
    assert any("tags (!...) are not allowed" in each for each in problems(text))
    assert not canary.exists()


@pytest.mark.row(115)
@pytest.mark.parametrize("key", ["proxy_command", "ProxyCommand", "proxyjump", "local_command", "command", "on_start"])
def test_no_key_runs_a_command(key: str) -> None:
    assert any("unknown key" in each for each in problems(f"{key}: touch x"))
    assert any("unknown key" in each for each in problems(server(**{key: "touch x"})))


def bomb() -> str:
    """Nine levels of nine aliases: 387 million values in 400 bytes."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


MERGE_BOMB = "a: &a {hostname: x}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "aliases": (bomb(), "aliases expand to more than"),
    "merge keys": (MERGE_BOMB, "aliases expand to more than"),
    "a list of itself": ("&a [" + "*a," * 9000 + "]", "aliases expand to more than"),
    "a mapping of itself": ("&a {<<: *a}", "aliases expand to more than"),
    "a key of itself": ("&a {? *a : b}", "aliases expand to more than"),
    "open brackets": ("[" * 500_000, "nested deeper"),
    "brackets": ("[" * 5000 + "]" * 5000, "nested deeper"),
    "mappings": ("{a: " * 5000 + "}" * 5000, "nested deeper"),
    "dashes": ("- " * 400_000, "nested deeper"),
    "question marks": ("? " * 400_000, "nested deeper"),
    "many values": ("- a\n" * 200_000, f"more than {MOST_NODES}"),
    "many keys": ("".join(f"k{number}: v\n" for number in range(80_000)), f"more than {MOST_NODES}"),
    "many unknown keys": ("".join(f"name{number}: v\n" for number in range(MOST_NODES // 2 - 1)), "unknown key"),
    "many documents": ("---\n" * 200_000, f"more than {MOST_NODES}"),
    "large": ("#" * (LARGEST_FILE + 1), "larger than 1.0 MiB"),
}


@pytest.mark.row(114)
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, document._LOADER], ids=["python", "libyaml"])
def test_a_bomb_is_refused_in_a_moment(name: str, loader: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LOADER", loader)
    text, problem = BOMBS[name]
    began = time.process_time()
    assert problem in problems(text)[0]
    assert time.process_time() - began < 5


def test_endless_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="Not a plain file"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").touch(mode=0)
    with pytest.raises(ConfigError, match="Permission denied"):
        load(tmp_path)


def read_or_refuse(text: bytes) -> Config | None:
    try:
        return parse(text, FILE, ROOT)
    except ConfigError as error:
        refusal = error
    assert refusal.problems
    assert all(problem.isprintable() for problem in refusal.problems), refusal.problems
    return None


@pytest.mark.row(114)
@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf\xef\xbb\xbf")
@example(b"%YAML 9.9\n---\n")
@example(b"%TAG ! tag:a,2000:\n---\n!a b")
def test_any_bytes_are_a_configuration_or_refused(text: bytes) -> None:
    read_or_refuse(text)


WORDS = st.sampled_from(
    [
        *("name", "python", "environment", "servers", "hostname", "username", "port", "private_key", "password"),
        *("existing", "miniconda", "installer", "channels", "sha256", "url", "jobs_folder", "a", "no", "1e3", "3.10"),
        *("22", "~", "~x/y", "..", "*", "&", "!", "!!python/name:os.system", "-", "---", "...", "?", "|", ">", "%"),
        *("@", "`", "{", "}", "[", "]", ":", ",", "#", "'", '"', "<<", "<<:", "&a", "*a", "é", "\U0001f600"),
        *("\n", "\t", "\r", "\x85", "\u2028", "\ufeff", "\x00", "\x1b"),
    ]
)


@pytest.mark.row(114)
@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(WORDS, st.sampled_from(["", " ", ": ", "\n", "\n  ", "\n    ", "\n- "])), max_size=25))
def test_words_of_yaml_in_any_order_are_a_configuration_or_refused(words: list[tuple[str, str]]) -> None:
    read_or_refuse("".join(word + gap for word, gap in words).encode())


TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["a", "10.0.0.5", "-x", "~", "~root/x", "..", "3.11", "22", "9" * 5000, "\U0001f600", "a\nb", ""]),
)
TREES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
SERVERS = st.dictionaries(
    TEXTS,
    st.dictionaries(
        st.sampled_from(["hostname", "username", "port", "private_key", "password", "password_env", "address"]), TREES
    ),
    max_size=3,
)
TOPS = st.fixed_dictionaries(
    {},
    optional={
        "servers": SERVERS | TREES,
        "environment": TREES | st.dictionaries(st.sampled_from([*EnvironmentKind]), TREES, max_size=2),
        **dict.fromkeys(
            ["name", "python", "host_keys", "jobs_folder", "exclude_file", "remote_jobs_folder_name"], TREES
        ),
    },
)


@pytest.mark.row(107, 108, 109)
@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(TOPS)
@example({"name": "/\x1f"})
def test_any_values_are_a_configuration_or_refused(tree: object) -> None:
    """And what is accepted can harm neither ssh nor a path."""
    config = read_or_refuse(flow(tree).encode("utf-8", "replace"))
    if config is None:
        return
    for name, found in config.servers.items():
        words = [name, found.hostname, found.username or "x", found.address or "x"]
        assert all(word and not word.startswith("-") and word.isascii() and word.isprintable() for word in words)
        assert not set("".join(words)) & set(" ;%$`'\"\\|&<>*?!(){}#~/\n")
        assert found.port is None or 0 < found.port < 65536
    for path in (config.local.jobs, config.local.logs, config.local.exclude_file):
        assert ROOT in path.parents
        assert ".." not in path.parts


def flow(tree: object) -> str:
    """Write a tree as YAML with every text quoted."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{yaml_text(key)}: {flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(flow(each) for each in tree) + "]"
    return yaml_text(str(tree))


def test_a_server_says_where_its_commands_begin() -> None:
    config = read("""
environment: uv
servers:
  plain:
    hostname: a
  behind:
    hostname: b
    launch: docker exec -w {project} -i "my box"
  boxed:
    hostname: c
    container: --volume /data:/data nvcr.io/nvidia/pytorch:25.01-py3
  own:
    hostname: d
    launch: nice -n 10
    environment: venv
""")
    servers = config.servers
    assert servers["behind"].launch == ("docker", "exec", "-w", "{project}", "-i", "my box")
    assert servers["boxed"].container == ("--volume", "/data:/data", "nvcr.io/nvidia/pytorch:25.01-py3")
    kinds = {name: config.for_server(name).environment.kind for name in servers}
    assert kinds == {"plain": "uv", "behind": "inside", "boxed": "inside", "own": "venv"}


@pytest.mark.parametrize(
    ("launch", "started"),
    [
        ("docker exec -it box", "docker exec -i box"),
        ("podman exec -ti -w {project} box nice -t", "podman exec -i -w {project} box nice -t"),
        ("docker exec -i -t box", "docker exec -i box"),
        ("docker exec --interactive --tty --user t box", "docker exec --interactive --user t box"),
        ("docker exec -itu root -e -t --tty=true box", "docker exec -iu root -e -t box"),
        ("docker exec -iut box", "docker exec -iut box"),
        ("sudo -n docker container exec -it box", "sudo -n docker container exec -i box"),
        ("kubectl -n lab exec -it pod", "kubectl -n lab exec -i pod --"),
        ("kubectl exec pod -it=true -c t -- env -t", "kubectl exec pod -i=true -c t -- env -t"),
        ("docker exec -i box", "docker exec -i box"),
        ("nice -t", "nice -t"),
    ],
)
def test_a_launch_command_is_started_without_the_terminal_that_it_asks_for(
    launch: str, started: str, tmp_path: Path
) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text(f"servers: {{gpu1: {{hostname: a, launch: '{launch}'}}}}\n")
    events: list[Event] = []
    config = Workspace.find(tmp_path, Hooks(report=events.append)).config
    entry = config.entry_of("gpu1")
    assert entry == {"launch": started.split(), "activate": False}
    told = "gpu1: ignoring -t in launch: jobs have no terminal; docker exec -i NAME is enough"
    assert events == []
    assert remark_on_terminals(config, ["gpu1"]) == (told if started.removesuffix(" --") != launch else "")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("launch", "kubectl exec pod", "must be a command that passes stdin on"),
        ("launch", "docker exec box", "must be a command that passes stdin on"),
        ("launch", "podman run -i image", "for a new container per job, use container:"),
        ("launch", "nice 'open", "must be a command"),
        ("launch", "[a, b]", "must be a command"),
        ("container", "image --gpus", "must be an image"),
        ("environment", "inside", "must be one of miniconda"),
        ("environment", "{inside: 1}", "unknown key"),
    ],
)
def test_what_cannot_begin_a_command_is_refused(key: str, value: str, said: str) -> None:
    (problem,) = problems(server(**{key: value}))
    assert f"servers.first.{key}" in problem
    assert said in problem


def test_a_launch_command_and_a_container_do_not_go_together() -> None:
    (problem,) = problems(server(launch="nice", container="image"))
    assert problem == "5: servers.first.container: cannot be combined with launch; keep one of them"


def test_patterns_of_the_status_line_are_read() -> None:
    config = read(r"""
status:
  acc: 'accuracy: ([0-9.]+) ?%'
  bleu: '\bBLEU(?:-4)? = (\d+\.\d+)'
""")
    assert config.status == {"acc": "accuracy: ([0-9.]+) ?%", "bleu": r"\bBLEU(?:-4)? = (\d+\.\d+)"}


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("'loss ([0-9'", "; unterminated character set"),
        ("'loss [0-9]+'", "; this one has 0 groups"),
        ("'(loss) ([0-9]+)'", "; this one has 2 groups"),
        ("[a]", "must be a regular expression with one group"),
    ],
)
def test_a_pattern_that_is_invalid_or_has_not_one_group_is_refused(pattern: str, said: str) -> None:
    (problem,) = problems(f"status:\n  acc: {pattern}\n")
    assert problem.startswith("2: status.acc: must be ")
    assert said in problem


def test_the_name_of_a_value_is_a_word() -> None:
    (problem,) = problems("status:\n  'two words': 'a (b)'\n")
    assert "the name must be a word" in problem


@pytest.mark.row(143)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o644])
def test_a_password_that_others_can_read_is_named_with_the_chmod_once(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".remote").mkdir()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".remote" / "configs.yaml"
    file.write_text("servers:\n  gpu1: {hostname: a, password: open sesame}\n  gpu2: {hostname: b}\n")
    file.chmod(mode)
    events: list[Event] = []
    Workspace.find(hooks=Hooks(report=events.append))
    shown = ".remote/configs.yaml"
    text = f"{shown} contains the password of gpu1 and is readable by other users: chmod 600 {shown}"
    assert events == ([] if mode == 0o600 else [Notice("", text)])
    file.write_text("servers:\n  gpu1: {hostname: a, password_env: SESAME}\n")
    file.chmod(0o644)
    Workspace.find(hooks=Hooks(report=events.append))
    assert len(events) == (mode != 0o600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("packages: requirements/gpu.txt", ("requirements/gpu.txt",)),
        ("packages: [libs/mine, '.[train, eval]', .]", ("libs/mine", ".[train, eval]", ".")),
        ("servers: {}", None),
    ],
)
def test_packages_are_files_and_folders_of_the_project(text: str, expected: tuple[str, ...] | None) -> None:
    assert parse(text.encode(), ROOT / ".remote/configs.yaml", ROOT).packages == expected


@pytest.mark.parametrize("text", ["packages: ../lib", "packages: [/etc/x.txt]", "packages: ['~/x']", "packages: []"])
def test_packages_outside_of_the_project_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="packages"):
        parse(text.encode(), ROOT / ".remote/configs.yaml", ROOT)
