"""What can be learned without a server: help, completion, the reference, wrong words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remote_tool import __version__
from remote_tool.cli.options import read_command, read_environment
from remote_tool.cli.program import COMMANDS, load_command
from remote_tool.cli.reference import reference
from remote_tool.cli.schema import schema
from remote_tool.cli.skill import skill
from remote_tool.errors import UsageError
from remote_tool.workspace.reference import reference as api
from tests.program import remote_tool
from tests.sshd import free_port

REPOSITORY = Path(__file__).parents[3]
INTERFACE = [
    *("init", "keys", "check", "prepare", "setup", "rsync", "data-sync", "update-packages", "bandwidth"),
    *("gpus", "ssh-config", "connections", "disconnect"),
    *("run", "shell", "forward", "jupyter", "job-run"),
    *("helper-torch-launch", "helper-launch", "helper-mpi-launch", "helper-ray-launch"),
    *("helper-fan-out", "helper-sweep"),
    *("job-list", "job-show", "sweep-show", "top", "job-tail", "job-stacks", "job-attach", "job-kill", "job-wait"),
    *("job-rerun", "job-requeue", "job-diff", "job-note", "job-rsync"),
    *("job-pull", "tensorboard", "clean", "demo"),
]
WITH_JSON = [
    "bandwidth",
    "check",
    "clean",
    "connections",
    "data-sync",
    "disconnect",
    "forward",
    "gpus",
    "helper-fan-out",
    "helper-launch",
    "helper-mpi-launch",
    "helper-ray-launch",
    "helper-sweep",
    "helper-torch-launch",
    "job-diff",
    "job-kill",
    "job-list",
    "job-note",
    "job-pull",
    "job-requeue",
    "job-rerun",
    "job-run",
    "job-show",
    "job-stacks",
    "job-wait",
    "keys",
    "prepare",
    "rsync",
    "run",
    "sweep-show",
    "top",
]
HEAVY = ("pydantic", "asyncssh", "yaml", "rich", "remote_tool.workflows", "remote_tool.workspace", "remote_tool.config")


def modules_of(*arguments: str, cwd: Path, ends: int = 0, environment: dict[str, str] | None = None) -> list[str]:
    """Run the program; return the modules that it imported. It ends with a status."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "remote_tool", *arguments],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **(environment or {})},
    )
    assert ran.returncode == ends, ran.stderr
    return [line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")]


def complete(words: str, cwd: Path) -> list[str]:
    """Return what bash would be offered after these words."""
    environment = {
        "_REMOTE_TOOL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return remote_tool(cwd=cwd, environment=environment).stdout.split()


def test_help_and_the_names_of_commands_load_nothing_heavy(tmp_path: Path) -> None:
    completing = {"_REMOTE_TOOL_COMPLETE": "complete_bash", "COMP_WORDS": "remote-tool job-", "COMP_CWORD": "1"}
    for modules in (
        modules_of("--help", cwd=tmp_path),
        modules_of("--version", cwd=tmp_path),
        modules_of(cwd=tmp_path, environment=completing),
    ):
        assert "remote_tool.cli.app" in modules
        assert [module for module in modules if module.startswith(HEAVY)] == []


@pytest.mark.parametrize("module", sorted({module for module, _, _ in COMMANDS.values()}))
def test_help_of_a_command_does_not_load_the_ssh_library(tmp_path: Path, module: str) -> None:
    command = next(name for name, (its_module, _, _) in COMMANDS.items() if its_module == module)
    modules = modules_of(command, "--help", cwd=tmp_path)
    assert "remote_tool.cli.options" in modules
    assert [module for module in modules if module.startswith(("asyncssh", "remote_tool.workspace"))] == []


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("run", "--cmd", "true"), {"jobs.run", "jobs.bare_run"}),
        (
            ("job-list",),
            {"jobs.listing", "jobs.log_streams", "home_groups", "slurm.scheduler"}
            | {"status.query", "status.refresh", "status.link_news", "status.clock_skew", "status.pending_stops"},
        ),
        (
            ("prepare",),
            {"step_logs", "home_groups"}
            | {"prepare.prepare", "prepare.server", "prepare.steps", "prepare.shared_home", "transfer_pace"}
            | {"sync.sync", "sync.options", "sync.project", "sync.first_sync", "sync.adoption"},
        ),
    ],
)
def test_a_command_in_a_pipe_loads_only_what_it_needs(tmp_path: Path, words: tuple[str, ...], needed: set[str]) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text(
        f"name: p\nservers: {{a: {{hostname: 127.0.0.1, port: {free_port()}}}}}"
    )
    modules = modules_of(*words, cwd=tmp_path, ends=4, environment={"HOME": str(tmp_path)})
    assert "asyncssh" in modules
    names = {module.partition("remote_tool.workflows.")[2] for module in modules} - {""}
    loaded = {name for name in names if not (REPOSITORY / "remote_tool" / "workflows" / name).is_dir()}
    assert loaded == needed | {"agent_client", "agent_program", "context", "events", "selection"}
    assert [module for module in modules if module.startswith(("rich", "http", "pydantic"))] == []


@pytest.mark.parametrize("command", ["job-run --gpus 2", "helper-launch", "helper-torch-launch --max-restarts 1"])
def test_a_start_reads_its_numbers_without_pydantic(tmp_path: Path, command: str) -> None:
    words = (*command.split(), "--cmd", "train.py")
    modules = modules_of(*words, cwd=tmp_path, ends=2, environment={"HOME": str(tmp_path)})
    assert "remote_tool.config.loading" in modules
    assert [module for module in modules if module.startswith("pydantic")] == []


def test_no_garbage_is_looked_for_when_the_program_ends(tmp_path: Path) -> None:
    """What is registered first is called last."""
    code = """if True:
        import atexit, gc, runpy, sys
        atexit.register(lambda: print(gc.get_freeze_count() > 1000, gc.get_count()[0] < 1000))
        sys.argv = ["remote-tool", "--version"]
        runpy.run_module("remote_tool", run_name="__main__")
    """
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "True True"


def test_help_lists_the_commands_of_the_interface(tmp_path: Path) -> None:
    shown = remote_tool("--help", cwd=tmp_path).stdout
    listed = re.findall(r"(?m)^  ([a-z-]+)  +[A-Z]", shown.partition("Set up:")[2])
    assert listed == INTERFACE


@pytest.mark.parametrize(
    ("words", "message", "help_of"),
    [
        (("nope",), "No such command 'nope'", ""),
        (("run", "--josn"), "No such option: --josn (Possible options: --hosts, --json)", " run"),
        (("-v", "run", "--server", "gpu1", "--cmd"), "Option '--cmd' requires an argument", " run"),
        (("job-kill", "--grace", "long"), "--grace must be a number from 0 to 604800, found 'long'", " job-kill"),
        (("demo", "--servers", "99"), "--servers must be a whole number from 1 to 8, found '99'", " demo"),
    ],
)
def test_wrong_words_are_an_error_like_any_other(
    words: tuple[str, ...], message: str, help_of: str, tmp_path: Path
) -> None:
    ran = remote_tool(*words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    error, hint = ran.stderr.splitlines()
    assert error.startswith(f"error: {message}")
    assert hint == f"hint: remote-tool{help_of} --help"


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("rsync", "--json", "--bad"), ["No such option: --bad"]),
        (("run", "--json"), ["No command to run"]),
        (("job-list", "--json"), ["No workspace: "]),
    ],
)
def test_refusals_are_json_too(words: tuple[str, ...], messages: list[str], tmp_path: Path) -> None:
    ran = remote_tool(*words, cwd=tmp_path)
    document = json.loads(ran.stdout)
    assert (ran.returncode, list(document)) == (2, ["schema", "errors"])
    assert [error["server"] for error in document["errors"]] == [""]
    assert all(error["message"].startswith(text) for error, text in zip(document["errors"], messages, strict=True))
    assert ran.stderr.startswith(f"error: {messages[0]}")


def test_every_problem_of_the_configuration_is_an_error_of_the_document(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text("nmae: x\nservers: {a: {hostnam: 127.0.0.1}}\n")
    ran = remote_tool("prepare", "--json", cwd=tmp_path)
    problems = [error["message"] for error in json.loads(ran.stdout)["errors"]]
    assert len(problems) >= 2
    assert [line for line in ran.stderr.splitlines() if line.startswith("error")] == [f"error: {p}" for p in problems]


def test_json_among_the_words_of_a_command_is_not_ours(tmp_path: Path) -> None:
    assert remote_tool("run", "--", "tool", "--json", cwd=tmp_path).stdout == ""


@pytest.mark.parametrize(
    "words", [("df", "-h"), ("grep", "-v", "--help"), ("tool", "--", "--server"), ("--", "tool", "--name", "--json")]
)
def test_the_options_after_a_program_are_the_programs(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = remote_tool("job-run", "--name", "x", *words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: No workspace")


@pytest.mark.parametrize("option", ["--server", "--server=gpu1", "--verbose"])
def test_an_option_of_ours_after_a_program_is_refused(option: str, tmp_path: Path) -> None:
    ran = remote_tool("run", "tool", "-x", option, cwd=tmp_path)
    assert ran.returncode == 2
    name = option.partition("=")[0]
    assert ran.stderr.splitlines() == [
        f"error: {name} after 'tool' may be meant for that program or for remote-tool run",
        f"hint: Put it before the program, or, if it is the program's: remote-tool run -- PROGRAM {name} ...",
    ]


@pytest.mark.parametrize(
    ("typed", "meant"), [("ps", "job-list"), ("logs", "job-tail"), ("ssh", "shell"), ("job-stop", "job-kill")]
)
def test_a_command_of_another_tool_is_pointed_to_ours(typed: str, meant: str, tmp_path: Path) -> None:
    ran = remote_tool(typed, "--help", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in ran.stderr


def test_h_is_help_and_every_example_names_its_command(tmp_path: Path) -> None:
    assert remote_tool("job-kill", "-h", cwd=tmp_path).stdout == remote_tool("job-kill", "--help", cwd=tmp_path).stdout
    for name, (_, _, example) in COMMANDS.items():
        assert load_command(name).epilog == (f"Example: remote-tool {name} {example}" if example else None)


@pytest.mark.parametrize(
    ("cmd", "words", "command"),
    [
        ("echo $HOME | wc", None, "echo $HOME | wc"),
        (None, ["df", "-h"], "df -h"),
        (None, ["echo", "$HOME", "two words", "a'b"], """echo '$HOME' 'two words' 'a'"'"'b'"""),
    ],
)
def test_words_are_quoted_and_text_is_left_to_the_shell(cmd: str | None, words: list[str] | None, command: str) -> None:
    assert read_command(cmd, words) == command


def test_a_command_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"Both --cmd and .* give a command to run"):
        read_command("true", ["true"])
    with pytest.raises(UsageError, match="No command to run"):
        read_command(None, None)


@pytest.mark.parametrize(
    ("cmd", "words", "command"),
    [
        ("train.py --lr 1", None, "python train.py --lr 1"),
        (None, ["src/train.py", "a b"], "python src/train.py 'a b'"),
        (None, ["my train.py"], "my train.py"),
        (None, ["-m", "package.train"], "python -m package.train"),
        ("  'my train.py' x", None, "python 'my train.py' x"),
        ("python train.py", None, "python train.py"),
        ("cat train.py", None, "cat train.py"),
        ("\nset -e\ntrue\n", None, "\nset -e\ntrue\n"),
        ("", None, ""),
    ],
)
def test_a_script_runs_with_python(
    cmd: str | None, words: list[str] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").touch()
    assert read_command(cmd, words) == (f"python '{command}'" if command == "my train.py" else command)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ("job-run", "python train.py"),
            "'python train.py' is in quotes, so it would be the name of one program",
            "Remove the quotes, or: --cmd 'python train.py'",
        ),
        (
            ("job-run", "--cmd", "python", "train.py", "--lr", "0.1"),
            "Both --cmd and 'train.py' give a command to run",
            "Keep one of them, or put the whole command in quotes: --cmd 'python train.py --lr 0.1'",
        ),
        (
            ("helper-torch-launch", "--cmd", "python", "train.py", "--dry-run"),
            "Got unexpected extra argument(s) (train.py)",
            "If that belongs to the command, put all of it in quotes: --cmd 'python train.py'",
        ),
        (
            ("helper-sweep", "--cmd", "train.py", "--lr", "{lr}", "--grid", "lr=1,2"),
            "No such option: --lr (Possible options: --file, --grid, --help)",
            "If that belongs to the command, put all of it in quotes: --cmd 'train.py --lr {lr}'",
        ),
        (
            ("helper-torch-launch", "--cmd", "train.py --lr 1", "--jsno"),
            "No such option: --jsno (Possible options: --json)",
            "remote-tool helper-torch-launch --help",
        ),
    ],
)
def test_missing_and_superfluous_quotes_are_named(
    words: tuple[str, ...], message: str, hint: str, tmp_path: Path
) -> None:
    ran = remote_tool(*words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines() == [f"error: {message}", f"hint: {hint}"]


def test_every_command_has_verbose_and_those_of_the_interface_have_json() -> None:
    options = {name: {word for each in load_command(name).params for word in each.opts} for name in COMMANDS}
    assert [name for name, words in options.items() if not {"-v", "--verbose"} <= words] == []
    assert sorted(name for name, words in options.items() if "--json" in words) == WITH_JSON


def test_a_hint_names_options_that_its_command_shows() -> None:
    shown = {
        name: {word for each in load_command(name).params if not getattr(each, "hidden", False) for word in each.opts}
        for name in COMMANDS
    }
    wrong, count = [], 0
    for path in (REPOSITORY / "remote_tool").rglob("*.py"):
        # A hint may quote a command to run on the servers, whose options are not ours.
        for name, words in re.findall(
            r"remote-tool ([a-z][a-z-]+)((?: (?!remote-tool )[^\s\"';`]+)*)", path.read_text()
        ):
            count += 1
            options = re.findall(r" (--[a-z-]+)", words.partition(" -- ")[0])
            wrong += [f"{path.name}: {name} {each}" for each in options if name in shown and each not in shown[name]]
    assert wrong == []
    assert count > 50, "hints were found"


def test_the_skill_is_up_to_date() -> None:
    assert (REPOSITORY / "docs" / "skill.md").read_text() == skill(), "run: python -m remote_tool.cli.skill"


def test_the_schema_is_up_to_date_and_has_every_command_with_json() -> None:
    assert (REPOSITORY / "docs" / "schema.json").read_text() == schema(), "run: python -m remote_tool.cli.schema"
    assert set(WITH_JSON) <= json.loads(schema())["$defs"].keys()


def test_the_page_of_the_python_api_is_what_docstrings_say() -> None:
    assert (REPOSITORY / "docs" / "api.md").read_text() == api(), "run: python -m remote_tool.workspace.reference"


def test_the_reference_is_what_help_says(tmp_path: Path) -> None:
    written = (REPOSITORY / "docs" / "reference.md").read_text()
    assert written == reference(), "run: python -m remote_tool.cli.reference"
    for arguments in ((), ("job-kill",)):
        shown = remote_tool(*arguments, "--help", cwd=tmp_path, environment={"COLUMNS": "80"}).stdout
        assert shown.strip() in written


def test_the_version_is_shown_without_a_command(tmp_path: Path) -> None:
    shown = remote_tool("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"remote-tool {__version__}\n", "")


def test_a_misspelt_command_or_option_is_refused_with_the_likely_one(tmp_path: Path) -> None:
    command = remote_tool("job-lst", cwd=tmp_path)
    assert command.returncode == 2
    assert "job-list" in command.stderr
    option = remote_tool("job-list", "--stoped", cwd=tmp_path)
    assert option.returncode == 2
    assert "--stopped" in option.stderr


@pytest.mark.parametrize("words", ["job-list", "prepare --json", "helper-torch-launch --cmd train.py"])
def test_outside_of_a_workspace_a_command_says_so(words: str, tmp_path: Path) -> None:
    refused = remote_tool(*words.split(), cwd=tmp_path)
    assert (refused.returncode, bool(refused.stdout)) == (2, "--json" in words)
    where = f"neither {tmp_path.resolve()} nor any folder above it contains a .remote folder"
    assert refused.stderr == f"error: No workspace: {where}\nhint: remote-tool init\n"


def test_the_shell_is_offered_commands_options_and_values(project: Path) -> None:
    assert complete("remote-tool job-k", project) == ["job-kill"]
    assert complete("remote-tool prepare --fo", project) == ["--force"]
    assert complete("remote-tool prepare --server ", project) == ["first", "second"]
    assert complete("remote-tool job-tail --server sec", project) == ["second"]


def test_completion_is_silent_outside_of_a_workspace(tmp_path: Path) -> None:
    assert complete("remote-tool prepare --server ", tmp_path) == []
    assert complete("remote-tool job-kill --job ", tmp_path) == []


@pytest.mark.row(111)
def test_a_variable_is_two_words() -> None:
    words = ["--cmd", "--env", "--env", "A", "1 2", "--env", "B=b=c", "--env", "EMPTY", "", "--", "--env", "C", "3"]
    command = load_command("run")
    context = command.make_context("run", words)
    assert (context.params["cmd"], context.params["words"]) == ("--env", ["--env", "C", "3"])
    assert context.params["env"] == ["A=1 2", "B=b=c", "EMPTY="]
    assert read_environment(context.params["env"]) == {"A": "1 2", "B": "b=c", "EMPTY": ""}


@pytest.mark.parametrize("pair", ["1A=x", "A-B=x", "=x", "Ä=x", "A B=x", "A\n=x"])
def test_an_invalid_variable_name_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a variable"):
        read_environment([pair])


def test_a_value_that_no_process_can_have_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match=r"^--env A: a value cannot hold a NUL$"):
        read_environment(["A=secret\0"])
    with pytest.raises(UsageError, match=r"^--env takes two words, a name and a value$"):
        read_environment(["secret"])


def test_without_arguments_the_first_commands_fit_a_small_terminal() -> None:
    shown = remote_tool(cwd=Path.cwd())
    assert shown.returncode == 2
    lines = shown.stderr.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert [len([line for line in lines if line.startswith(f"  {name} ")]) for name in COMMANDS].count(1) == 12
    assert lines[-1].startswith("remote-tool --help shows all")
