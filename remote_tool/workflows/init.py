"""init: write a workspace's files from answers; overwrite nothing, and leave all of them or none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config.loading import HOSTNAME, LARGEST_PORT, NAME, USERNAME, parse
from remote_tool.errors import UsageError
from remote_tool.paths import LocalPaths

if TYPE_CHECKING:
    from pathlib import Path

_SERVER = re.compile(r"(?:(?P<name>[^=\s]+)=)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:\s]+)(?::(?P<port>\d+))?")
_PLAIN = re.compile(r"(?:[A-Za-z_]|\.?/)[A-Za-z0-9_./-]*|\d{1,3}(?:\.\d{1,3}){3}")
# YAML takes these words for something else than text.
_OTHER_TYPES = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}

EXCLUDES = """\
# rsync patterns of what is not sent. Never sent, whatever stands here:
# .remote, .git, .jobs, .env and private keys.
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
/jobs
/logs
/known_hosts
/private_key
"""


@dataclass(frozen=True)
class ServerAnswer:
    """One server as the user gave it."""

    name: str
    hostname: str
    username: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class InitAnswers:
    """What the files are made from; an empty name means the project folder's."""

    name: str
    servers: tuple[ServerAnswer, ...]
    private_key: str | None = None


def parse_server_option(text: str) -> ServerAnswer:
    """Read ``[NAME=][USER@]HOST[:PORT]``; an IPv6 address stands in brackets.

    Raises:
        UsageError: It is not of this form.
    """
    found = _SERVER.fullmatch(text.strip())
    hint = "--server NAME=USER@HOST:PORT, such as gpu1=ubuntu@10.0.0.5"
    if found is None:
        raise UsageError(f"{text!r} is not a server", hint=hint)
    host = found["host"].strip("[]")
    name = found["name"] or re.sub(r"[^A-Za-z0-9._-]", "-", host)
    port = int(found["port"]) if found["port"] else None
    for value, form, what in ((name, NAME, "name"), (host, HOSTNAME, "host"), (found["user"] or "x", USERNAME, "user")):
        if not form.fullmatch(value):
            raise UsageError(f"{text!r}: {value!r} cannot be the {what} of a server", hint=hint)
    if port is not None and not 1 <= port <= LARGEST_PORT:
        raise UsageError(f"{text!r}: a port is a number from 1 to {LARGEST_PORT}", hint=hint)
    return ServerAnswer(name, host, found["user"], port)


def write_workspace(root: Path, answers: InitAnswers) -> list[Path]:
    """Write ``configs.yaml`` and ``exclude.txt``.

    Raises:
        UsageError: One of them is there already, or a server is named twice.
        ConfigError: The answers do not make a configuration.
    """
    text = check_answers(root, answers)
    refuse_existing(root)
    paths = LocalPaths(root)
    files = {
        paths.config_file: text,
        paths.exclude_file: EXCLUDES.encode(),
    }
    _write_all(files | {paths.remote_folder / ".gitignore": IGNORED.encode()})
    return list(files)


def check_answers(root: Path, answers: InitAnswers) -> bytes:
    """Return ``configs.yaml`` as it would be written.

    Raises:
        UsageError: A server is named twice.
        ConfigError: The answers do not make a configuration.
    """
    names = [server.name for server in answers.servers]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"Two servers are called {twice[0]}", hint="--server OTHER_NAME=HOST")
    text = format_configuration(answers).encode()
    parse(text, LocalPaths(root).config_file, root)
    return text


def refuse_existing(root: Path) -> None:
    """Refuse to overwrite a file.

    Raises:
        UsageError: One is there already.
    """
    paths = LocalPaths(root)
    for path in (paths.config_file, paths.exclude_file):
        if path.exists():
            raise UsageError(f"{path.relative_to(root)} is there already; nothing was written", hint="Edit it instead")


def format_configuration(answers: InitAnswers) -> str:
    """Return ``configs.yaml``."""
    lines = ["# Every key is explained in docs/configuration.md."]
    if answers.name:
        lines.append(f"name: {_quoted(answers.name)}   # the project's folder under each server's home")
    lines.append('# python: "3.11"           # default: the version that runs remote-tool')
    lines.append("# environment: miniconda   # or miniforge, uv, venv, {existing: /path/to/prefix}")
    lines.append("servers:" if answers.servers else "servers: {}")
    for server in answers.servers:
        lines.append(f"  {_quoted(server.name)}:")
        values = {
            "hostname": server.hostname,
            "username": server.username,
            "port": server.port,
            "private_key": answers.private_key,
        }
        lines += [f"    {key}: {_quoted(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _quoted(value: str | int) -> str:
    """JSON strings are YAML strings; what needs no quotes has none."""
    if isinstance(value, int):
        return str(value)
    plain = _PLAIN.fullmatch(value) and value.lower() not in {
        "yes",
        "no",
        "on",
        "off",
        "true",
        "false",
        "null",
        "y",
        "n",
    }
    return value if plain else json.dumps(value)


def _write_all(files: dict[Path, bytes]) -> None:
    """Write beside first, so that a full disk leaves none of them."""
    written = []
    try:
        for path, data in files.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            written.append(beside)
            beside.write_bytes(data)
    except OSError as error:
        for beside in written:
            beside.unlink(missing_ok=True)
        raise UsageError(f"Cannot write to {next(iter(files)).parent}: {error.strerror}", hint="df -h .") from error
    for path in files:
        path.with_name(f".{path.name}.new").replace(path)
