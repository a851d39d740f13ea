"""Where contests are held: real sshd servers, a project for each contender, and their programs."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import yaml

from benchmarks.delay import LongWire
from tests import network_hosts
from tests.network_hosts import HOME, Network, NetworkHost
from tests.project import write_configuration
from tests.sshd import TestServer, make_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Server = NetworkHost | TestServer

LONGEST = 600.0
TREE = Path(__file__).parent.parent
_SPENDER = Path(__file__).with_name("spend.py")
# The conda of labml_remote's servers: it costs nothing, where a real one would add its own time to every command.
_FREE_CONDA = f"conda() {{ PATH={sys.prefix}/bin:$PATH; }}\n"


@dataclass(frozen=True)
class Spent:
    """What a program took: seconds on the clock, seconds of CPU with its children, and its largest size in bytes."""

    seconds: float
    cpu: float
    largest: int
    output: bytes


class Field:
    """Servers and projects; entering starts them, leaving removes everything.

    Attributes:
        folder: For files of this run.
        servers: In namespaces of their own where we may make them, else on loopback.
        network: What the former are plugged into.
        ours, hand, labml: The same project, once for each contender.
        wires: What the servers are reached through, if they are far.
        tree: The checkout whose program is ours.
    """

    def __init__(
        self, folder: Path, count: int, *, far: bool = False, labml: Path | None = None, tree: Path = TREE
    ) -> None:
        self.folder = folder
        self.tree = tree
        self.servers: list[NetworkHost] | list[TestServer] = []
        self.network: Network | None = None
        self.wires: list[LongWire] = []
        self.ours, self.hand, self.labml = (folder / name for name in ("ours", "hand", "labml"))
        self.home = folder / "user"
        self._count = count
        self._far = far
        self._namespaces = not far and network_hosts.missing() is None
        self._labml_python = labml
        self._stack = ExitStack()
        self._key = folder / "key"
        self._rsa_key = folder / "rsa"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def has_labml(self) -> bool:
        """Whether labml_remote can log in: it knows no ports, so it needs servers with addresses of their own."""
        return self._labml_python is not None and self._namespaces

    @property
    def keeps_logins(self) -> bool:
        """Whether our program can keep logins for later commands."""
        return any(b"keep_connections" in file.read_bytes() for file in (self.tree / "remote_tool/config").glob("*.py"))

    def configure(self, *, keep: bool) -> None:
        """Write our configuration: whether a command may use the login of an earlier one, as ``ssh`` alone does not."""
        kept = {"keep_connections": "10m" if keep else "0"} if self.keeps_logins else {}
        write_configuration(self.ours, self.servers, name="ours", host_keys="accept-new", **kept)

    def log_out(self) -> None:
        """End the logins that our program keeps."""
        if self.keeps_logins:
            self.tool("disconnect", check=False)

    def fill(self, files: Mapping[str, bytes]) -> None:
        """Give every contender's project these files."""
        for root in (self.ours, self.hand, self.labml):
            for name, content in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def clear(self) -> None:
        """Empty the projects, here and on the servers; the environments stay."""
        for root in (self.ours, self.hand, self.labml):
            for entry in root.iterdir():
                if entry.name != ".remote":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for name in ("ours", "hand", "labml"):
            self.forget(name)

    def forget(self, name: str) -> None:
        """Take a contender's project away from the servers.

        It is removed with the field only: ext4 gives away no inode that was freed in the last seconds, and where there
        are tens of thousands of those, to look for others takes several times as long as all that is measured.
        """
        trash = self.folder / "trash"
        trash.mkdir(exist_ok=True)
        for server in self.servers:
            with suppress(FileNotFoundError):
                (server.home / name).rename(trash / f"{server.name}-{name}-{time.time_ns()}")

    @property
    def program(self) -> list[str]:
        """The command that starts our program."""
        return [sys.executable, "-m", "remote_tool"]

    def tool(self, *words: str, check: bool = True) -> Spent:
        """Run our program in our project."""
        return self.spend([*self.program, *words], self.ours, check=check)

    def script(self, text: str, *words: str) -> Spent:
        """Run a Python program that uses our API in our project."""
        return self.spend([sys.executable, "-c", text, *words], self.ours)

    def shell(self, text: str) -> Spent:
        """Run what a person types, in the project that is sent by hand."""
        return self.spend(["bash", "-c", text], self.hand)

    def everywhere(self, command: str, *, keep: bool = False, count: int | None = None) -> Spent:
        """Run a shell command on all servers at once, as a person does it: one ``ssh`` each.

        Args:
            command: What each server's shell runs.
            keep: Whether the login is kept for the next command (ControlPersist).
            count: On so many of the servers; None: on all.
        """
        logins = [self.ssh(server, keep=keep) for server in self.servers[:count]]
        return self.shell(self.in_parallel(*(f"{login} {shlex.quote(command)}" for login in logins)))

    def labml_tool(self, *words: str) -> Spent:
        """Run labml_remote in its project."""
        assert self._labml_python is not None
        return self.spend([*self._own_ssh(), str(self._labml_python.parent / "labml_remote"), *words], self.labml)

    def labml_script(self, text: str, *words: str) -> Spent:
        """Run a Python program that uses labml_remote's API in its project."""
        return self.spend([*self._own_ssh(), str(self._labml_python), "-c", text, *words], self.labml)

    def _own_ssh(self) -> list[str]:
        return ["env", f"PATH={self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"]

    @staticmethod
    def in_parallel(*commands: str) -> str:
        """Return a line of shell that runs all of them at once and fails when one fails."""
        started = "\n".join(f"{command} & pids+=($!)" for command in commands)
        return f"pids=()\n{started}\nfor pid in ${{pids[@]}}; do wait $pid || exit; done"

    def ssh(self, server: Server, *, keep: bool = False) -> str:
        """Return the command with which a person logs in to a server."""
        return f"{self.ssh_program(server, keep=keep)} {server.username}@{server.address}"

    def ssh_program(self, server: Server, *, keep: bool = False) -> str:
        """Return the same without the server's name, as ``rsync -e`` wants it."""
        options = f"-F none -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={self._known}"
        if keep:
            options += f" -o ControlMaster=auto -o ControlPath={self._kept(server)} -o ControlPersist=10m"
        return f"ssh -q {options} -i {self._key} -p {server.port}"

    @property
    def _known(self) -> Path:
        return self.home / "by_hand"

    def _kept(self, server: Server) -> Path:
        return self.folder / f"kept-{server.name}"

    def there(self, server: Server, name: str) -> str:
        """Return what a server itself calls a contender's project folder."""
        return f"{HOME if self._namespaces else server.home}/{name}"

    def spend(self, words: Sequence[str], folder: Path, *, check: bool = True) -> Spent:
        """Run a program and say what it took.

        Raises:
            RuntimeError: It failed.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as report:
            number = report.fileno()
            spender = [sys.executable, "-I", "-S", str(_SPENDER), str(number), *words]
            with subprocess.Popen(
                spender,
                cwd=folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=[number],
            ) as process:
                try:
                    status = process.wait(LONGEST)
                except BaseException:
                    process.terminate()
                    raise
            output = _content(out)
            if check and status != 0:
                said = (_content(err) or output).decode(errors="replace")[-600:]
                raise RuntimeError(f"{' '.join(words)[:100]} ended with {status}: {said}")
            seconds, cpu, largest = _content(report).split()
        return Spent(float(seconds), float(cpu), int(largest), output)

    def begin(self, words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program, the first of a process group, whose output is read while it runs."""
        return subprocess.Popen(
            words,
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def _environment(self) -> dict[str, str]:
        others = ("SSH_", "REMOTE_TOOL_", "PYTHON")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(self.tree), "PYTHONUNBUFFERED": "1"}

    def _make(self) -> None:
        for path in (self.ours, self.hand, self.labml, self.home):
            path.mkdir(parents=True)
        make_key(self._key)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "rsa", "-b", "3072", "-m", "PEM", "-N", "", "-f", str(self._rsa_key)], check=True
        )
        names = [f"s{number:02}" for number in range(1, self._count + 1)]
        if self._namespaces:
            self.network = self._stack.enter_context(Network(self.folder / "servers", self._key))
            self.servers = self.network.hosts(*names)
        else:
            near = [
                self._stack.enter_context(TestServer(name, self.folder / "servers" / name, self._key)) for name in names
            ]
            self.servers = [self._at_a_distance(server) for server in near] if self._far else near
        self.configure(keep=False)
        self._make_labml()
        self._stack.callback(self._end_logins)

    def _at_a_distance(self, server: TestServer) -> TestServer:
        wire = self._stack.enter_context(LongWire(server.port))
        self.wires.append(wire)
        return replace(server, port=wire.port)

    def _end_logins(self) -> None:
        self.log_out()
        for server in self.servers:
            if self._kept(server).exists():
                self.shell(f"{self.ssh(server, keep=True)} -O exit || true")

    def _make_labml(self) -> None:
        """Write what labml_remote needs: an RSA key, a conda, and an ssh with known hosts of its own."""
        public = self._rsa_key.with_suffix(".pub").read_text()
        for server in self.servers:
            with (server.folder / "authorized_keys").open("a") as file:
                file.write(public)
            profile = server.home / "miniconda" / "etc" / "profile.d"
            profile.mkdir(parents=True)
            (profile / "conda.sh").write_text(_FREE_CONDA)
        (self.labml / ".remote").mkdir()
        servers = {
            server.name: {
                "hostname": server.address,
                "username": server.username,
                "private_key": str(self._rsa_key),
            }
            for server in self.servers
        }
        (self.labml / ".remote" / "configs.yaml").write_text(yaml.safe_dump({"name": "labml", "servers": servers}))
        (self.labml / ".remote" / "exclude.txt").write_text(".remote\n.jobs\n")
        program = self.folder / "bin" / "ssh"
        program.parent.mkdir()
        real = shutil.which("ssh")
        program.write_text(f'#!/bin/sh\nexec {real} -o UserKnownHostsFile={self.home}/labml_known "$@"\n')
        program.chmod(0o755)


def small_files(count: int, *, size: int = 1500) -> dict[str, bytes]:
    """Return the files of a project: so many small ones in folders of a hundred."""
    chance = random.Random(count)
    return {f"folder{number // 100:03}/file{number:05}.py": chance.randbytes(size) for number in range(count)}


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
