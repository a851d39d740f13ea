"""demo: run the real program against temporary servers, showing each command as a user would type it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from remote_tool.errors import UsageError
from remote_tool.workflows.demo.guard import guarded
from remote_tool.workflows.demo.processes import no_process_left
from remote_tool.workflows.demo.server import DemoServer, running_servers

# The sample in a checkout, and in an installed package.
CHECKOUT = Path(__file__).parents[3]
SAMPLES = (CHECKOUT / "sample", Path(__file__).parent / "sample")
MOST_LINES = 20
SHUTDOWN_SECONDS = 10.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Show = Callable[[str], None]


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo.

    Attributes:
        servers: The number of servers.
        keep: Keep servers and folder until Ctrl-C.
        verbose: 1: show every remote command; 2: the SSH library's log too.
    """

    servers: int = 2
    keep: bool = False
    verbose: int = 0


def run_demo(options: DemoOptions, show: Show) -> int:
    """Run the demo; return its exit status. No process and no file is left.

    Raises:
        UsageError: A required tool is missing here.
    """
    sample = _find_sample()
    with _signals_restored(), tempfile.TemporaryDirectory(prefix="remote-tool-demo-") as name:
        folder = Path(name)
        project = folder / "digits"
        shutil.copytree(sample, project, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", ".remote"))
        with (
            guarded(folder),
            no_process_left(),
            running_servers(folder, folder / "key", options.servers) as servers,
        ):
            try:
                return _Journey(project, options, show).run(servers, folder / "key")
            finally:
                _ignore_signals()


@contextmanager
def _signals_restored() -> Iterator[None]:
    """End the program when its terminal is closed, as with SIGTERM; restore the handlers of all signals afterwards."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, before[signal.SIGTERM])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """Ignore signals from now on: a second Ctrl-C must not interrupt the cleanup."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _find_sample() -> Path:
    """Return the sample project; require everything that the demo needs on this machine."""
    if platform.system() != "Linux":
        raise UsageError(
            f"The demo runs its servers on this machine, which must be Linux, not {platform.system()}",
            hint="remote-tool init --server NAME=USER@HOST, with a Linux server that you can reach over SSH",
        )
    if shutil.which("rsync") is None:
        raise UsageError("The demo needs rsync on this machine", hint="sudo apt-get install rsync")
    for sample in SAMPLES:
        if (sample / "train_digits.py").is_file():
            require_packages(sample / "requirements.txt")
            return sample
    raise UsageError(
        "The sample project is not part of this installation", hint="pipx install . in a checkout of remote-tool"
    )


def require_packages(requirements: Path) -> None:
    """Require the sample's packages, which ``prepare`` would otherwise install into this Python.

    Raises:
        UsageError: A package is missing or too old.
    """
    required = [line.partition(">=") for line in requirements.read_text().splitlines() if line]
    problems = [problem for name, _, least in required if (problem := _problem_with(name, least))]
    if problems:
        raise UsageError(
            f"The demo trains with {' and '.join(name for name, _, _ in required)}, and this Python has"
            f" {' and '.join(problems)}",
            hint=install_command([name + sign + least for name, sign, least in required if _problem_with(name, least)]),
        )


def install_command(packages: Sequence[str], prefix: Path = Path(sys.prefix)) -> str:
    """Return the command that installs packages into this program's environment, by the tool that created it."""
    words = shlex.join(packages)
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {prefix.name} {words}"
    python = shlex.quote(str(prefix / "bin" / "python"))
    if (prefix / "uv-receipt.toml").is_file():
        return f"uv pip install --python {python} {words}"
    if (CHECKOUT / "Makefile").is_file():
        return "make demo"
    return f"{python} -m pip install {words}"


def _problem_with(name: str, least: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"no {name}"
    return f"{name} {version}, which is older than {least}" if _numbers(version) < _numbers(least) else ""


def _numbers(version: str) -> list[int]:
    """Return major and minor version."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


class _StepFailedError(Exception):
    """A command of the demo failed, and has printed the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Journey:
    def __init__(self, project: Path, options: DemoOptions, show: Show) -> None:
        self._project = project
        self._options = options
        self._show = show
        # A demo must not use the user's own keys, agent and known hosts.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
        self._environment["HOME"] = self._environment["XDG_RUNTIME_DIR"] = str(project.parent)

    def run(self, servers: list[DemoServer], key: Path) -> int:
        """Run all steps; return the exit status."""
        try:
            self._initialize(servers, key)
            self._command("prepare")
            self._comment("The second time, there is nothing to do:")
            self._command("prepare")
            self._comment("Train on all servers, two processes on each:")
            self._command("helper-torch-launch", "--cmd", "train_digits.py", "--nproc-per-node", "2", "--follow")
            self._command("job-list", "--rsync", "--stopped")
            self._command("job-tail", "--no-follow", "--rank", "0", "--lines", "3")
            self._show_pulled_files()
        except _StepFailedError as error:
            return error.status
        if self._options.keep:
            self._wait(servers)
        return 0

    def _initialize(self, servers: list[DemoServer], key: Path) -> None:
        self._comment(
            f"{len(servers)} SSH servers on this machine, each with an empty home folder;"
            " the project is a copy of sample/."
        )
        user = os.environ.get("USER") or "demo"
        words = [f"{server.name}={user}@127.0.0.1:{server.port}" for server in servers]
        options = [word for each in words for word in ("--server", each)]
        self._command("init", "--name", "digits", *options, "--private-key", str(key))
        configuration = self._project / ".remote" / "configs.yaml"
        self._comment("To keep it short, the servers use this machine's Python (environment: existing).")
        with configuration.open("a") as file:
            file.write(f"environment: {{existing: {_quoted(sys.prefix)}}}\n")

    def _command(self, *words: str) -> None:
        self._show(f"\n$ remote-tool {shlex.join(words)}")
        status = self._program(*words)
        if status:
            self._comment(f"This command failed with status {status}; the demo stops here.")
            raise _StepFailedError(status)

    def _program(self, *words: str) -> int:
        verbose = ["-" + "v" * self._options.verbose] if self._options.verbose else []
        command = [sys.executable, "-m", "remote_tool", *words, *verbose]
        # Until our first line runs, Python would answer Ctrl-C with a traceback; that line unblocks it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            program = subprocess.Popen(command, cwd=self._project, env=self._environment, stdin=subprocess.DEVNULL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with program:
            try:
                return program.wait()
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    program.terminate()
                # Ctrl-C has reached it too, and it shuts down its connections.
                with suppress(subprocess.TimeoutExpired):
                    program.wait(SHUTDOWN_SECONDS)
                program.kill()
                raise

    def _show_pulled_files(self) -> None:
        self._comment("Files that were pulled:")
        jobs = self._project / ".remote" / "jobs"
        files = [path for path in sorted(jobs.rglob("*")) if path.is_file() and path.parent != jobs]
        for path in files[:MOST_LINES]:
            self._show(f"  {path.relative_to(self._project)}  {path.stat().st_size} bytes")
        if len(files) > MOST_LINES:
            self._show(f"  … and {len(files) - MOST_LINES} more")

    def _wait(self, servers: list[DemoServer]) -> None:
        names = ", ".join(server.name for server in servers)
        run = "keeps running" if len(servers) == 1 else "keep running"
        # Ctrl-C may come as soon as the text can be read.
        with suppress(KeyboardInterrupt):
            self._comment(f"The project is {self._project}; {names} {run} until Ctrl-C.")
            threading.Event().wait()

    def _comment(self, text: str) -> None:
        self._show(f"\n# {text}")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
