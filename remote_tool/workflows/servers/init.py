"""init: write the files of a workspace, all or none, and overwrite nothing."""

from __future__ import annotations

import getpass
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.hosts import name_for
from remote_tool.config.listed import servers_for
from remote_tool.config.loading import parse
from remote_tool.config.servers import HERE, refuse_other_systems
from remote_tool.errors import UsageError
from remote_tool.paths import LocalPaths
from remote_tool.system.files import sync_folder, write_all_atomically
from remote_tool.workflows.sync.first_sync import pattern_of, usual_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.forms import Validator
    from remote_tool.config.hosts import ListedHost
    from remote_tool.config.servers import Server

OPTION_HINT = "--server NAME=USER@HOST:PORT, such as gpu1=ubuntu@10.0.0.5 or gpu1=ubuntu@[fd00::5]:2222"
_PLAIN = re.compile(r"(?:[A-Za-z_]|\.?/)[A-Za-z0-9_./-]*|\d{1,3}(?:\.\d{1,3}){3}")
# YAML parses these words as other types than text.
_OTHER_TYPES = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}

EXCLUDES = """\
# Files that are not sent to the servers: one rsync pattern per line, such as /data or *.ckpt
# Never sent, even if not listed: .remote, .git, .jobs, .env and private keys.
__pycache__
*.pyc
.venv
venv
.mypy_cache
.pytest_cache
.ruff_cache
.ipynb_checkpoints
.DS_Store
"""
IGNORED = """\
# Files of one checkout only.
/jobs
/logs
/known_hosts
# Keys never go into a repository.
/private_key*
*.pem
"""


@dataclass(frozen=True)
class ServerAnswer:
    """A server that the user has named."""

    name: str
    hostname: str
    username: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class ThisMachine:
    """This machine as a server.

    Attributes:
        environment: The folder of the environment that is active here; empty without one.
    """

    environment: str = ""

    @classmethod
    def now(cls) -> ThisMachine:
        """Return this machine, with the environment of the shell in which this program runs.

        Raises:
            UsageError: It cannot be a server.
        """
        refuse_other_systems(HERE)
        return cls(os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or "")


@dataclass(frozen=True)
class InitAnswers:
    """The answers from which the files are written; an empty name means that of the project folder."""

    name: str
    servers: tuple[ServerAnswer, ...]
    private_key: str | None = None
    this_machine: ThisMachine | None = None


def parse_server_option(text: str) -> ServerAnswer:
    """Parse ``[NAME=][USER@]HOST[:PORT]``; an IPv6 address is in brackets.

    Raises:
        UsageError: It is malformed.
    """
    name, is_named, rest = text.strip().rpartition("=")
    user, has_user, place = rest.rpartition("@")
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([^:]*))?", place)
    if found is None:
        raise UsageError(f"{text!r} is not a server; put an IPv6 address in brackets", hint=OPTION_HINT)
    host, port = found[1], found[2]
    values = [("host", host, forms.HOSTNAME)]
    values += [("user", user, forms.USERNAME)] if has_user else []
    values += [("port", port, forms.PORT)] if port is not None else []
    values += [("name", name, forms.SERVER_NAME)] if is_named else []
    for part, value, form in values:
        if not form.accepts(value):
            raise UsageError(f"{text!r}: the {part} must be {form.expected}, found {value!r}", hint=OPTION_HINT)
    hostname = forms.plain_host(host)
    return ServerAnswer(name or name_for(hostname), hostname, user or None, int(port) if port else None)


def servers_of_list(hosts: Sequence[ListedHost]) -> tuple[ServerAnswer, ...]:
    """Return the hosts of a list as servers, with the same names and users as for ``--hosts``."""
    return tuple(ServerAnswer(each.name, each.hostname, _user_of(each)) for each, _ in servers_for(hosts, {}))


def _user_of(server: Server) -> str | None:
    """Return the user to write: the local one if none is given, as configs.yaml defaults to ubuntu."""
    from remote_tool.transport.ssh.ssh_config import resolve_endpoints  # noqa: PLC0415 - only lists of hosts need the SSH library

    own = getpass.getuser()
    return server.username or (own if resolve_endpoints(server)[-1].username == own else None)


def write_workspace(root: Path, answers: InitAnswers) -> list[Path]:
    """Write ``configs.yaml`` and ``exclude.txt``, and ``.gitignore`` if missing.

    Raises:
        UsageError: One of the two exists, an answer is invalid, or a file cannot be written.
        ConfigError: The answers do not form a valid configuration.
    """
    text = check_answers(root, answers)
    refuse_existing(root)
    paths = LocalPaths(root)
    files = {paths.config_file: text, paths.exclude_file: (EXCLUDES + proposals(root)).encode()}
    ignored = paths.remote_folder / ".gitignore"
    _write_all(files if ignored.exists() else files | {ignored: IGNORED.encode()}, root)
    return list(files)


def proposals(root: Path) -> str:
    """Return commented lines for exclude.txt, which name files in the project that are often not sent."""
    lines = [
        f"# {pattern_of(name)}\n" for name in usual_here(root) if name not in EXCLUDES.split() and name.isprintable()
    ]
    return "".join(["# Often not sent; remove the # to exclude:\n", *lines] if lines else [])


def check_answers(root: Path, answers: InitAnswers) -> bytes:
    """Return the ``configs.yaml`` to write.

    Raises:
        UsageError: An answer is invalid, or a server is named twice.
        ConfigError: The answers are inconsistent: two servers are the same machine.
    """
    _check_forms(root, answers)
    names = [server.name for server in answers.servers] + ([HERE] if answers.this_machine else [])
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"Two servers are called {twice[0]}", hint="--server OTHER_NAME=HOST")
    text = format_configuration(root, answers).encode()
    parse(text, LocalPaths(root).config_file, root)
    return text


def refuse_existing(root: Path) -> None:
    """Refuse to overwrite a file.

    Raises:
        UsageError: A file exists already.
    """
    paths = LocalPaths(root)
    for path in (paths.config_file, paths.exclude_file):
        if path.exists() or path.is_symlink():
            shown = path.relative_to(root)
            hint = f"Edit it, or move it away: mv {shown} {shown}.old"
            raise UsageError(f"{shown} already exists; nothing was written", hint=hint)


def format_configuration(root: Path, answers: InitAnswers) -> str:
    """Return ``configs.yaml``."""
    here, has_servers = answers.this_machine, bool(answers.servers or answers.this_machine)
    lines = [
        "# Servers and settings of this project; docs/configuration.md or man remote-tool-configs explains every key.",
        f"name: {_quoted(answers.name or root.name)}   # the project's folder in the home folder on each server",
        '# python: "3.11"           # default: the version that runs remote-tool',
        "# environment: miniconda   # or miniforge, uv, venv, {existing: /path/to/prefix}",
        *(["# respect_gitignore: true  # what git ignores is not sent"] if (root / ".gitignore").exists() else []),
        "servers:" if has_servers else "servers: {}   # gpu1: {hostname: 10.0.0.5, username: ubuntu}",
    ]
    if here is not None:
        lines += [f"  {HERE}:", "    localhost: true   # this machine: jobs run in this folder"]
        lines += [f"    environment: {{existing: {_quoted(here.environment)}}}"] if here.environment else []
    for server in answers.servers:
        lines.append(f"  {_quoted(server.name)}:")
        values = {
            "hostname": server.hostname,
            "username": server.username,
            "port": server.port,
            "private_key": answers.private_key or None,
        }
        lines += [f"    {key}: {_quoted(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _quoted(value: str | int) -> str:
    """Return a JSON string, which is valid YAML; without quotes if possible."""
    if isinstance(value, int):
        return str(value)
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _OTHER_TYPES
    # YAML reads JSON's surrogate pairs as two characters, so only necessary escapes are used.
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _check_forms(root: Path, answers: InitAnswers) -> None:
    """Check the answers one by one, so that an error names the answer and not a line of the file."""
    name = (answers.name or root.name).removeprefix("~/")
    _must_be(name, forms.PROJECT_NAME, "The project's name", "remote-tool init --name my_project")
    if answers.private_key:
        _must_be(answers.private_key, forms.LOCAL_PATH, "The private key", "--private-key ~/.ssh/id_ed25519")
    for server in answers.servers:
        _must_be(server.name, forms.SERVER_NAME, "The name of a server", OPTION_HINT)
        _must_be(server.hostname, forms.HOSTNAME, f"The host of {server.name}", OPTION_HINT)
        if server.username is not None:
            _must_be(server.username, forms.USERNAME, f"The user of {server.name}", OPTION_HINT)
        if server.port is not None:
            _must_be(str(server.port), forms.PORT, f"The port of {server.name}", OPTION_HINT)


def _must_be(value: str, form: Validator, subject: str, hint: str) -> None:
    if not form.accepts(value):
        raise UsageError(f"{subject} must be {form.expected}, found {value!r}", hint=hint)


def _write_all(files: Mapping[Path, bytes], root: Path) -> None:
    """Write all files or none, without overwriting."""
    folder = next(iter(files)).parent
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_all_atomically(files, overwrite=False)
        sync_folder(folder)
    except OSError as error:
        # A folder with other files in it is kept.
        with suppress(OSError):
            folder.rmdir()
        if isinstance(error, FileExistsError) and folder.is_dir():
            refuse_existing(root)
        raise UsageError(f"Cannot write to {folder}: {error.strerror}", hint=f"ls -ld {folder}; df -h .") from error
