"""Read configs.yaml: report all problems with line and key; nothing in the file is executed."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.artifacts import problem_with_folder
from remote_tool.config.document import LARGEST_FILE, ConfigNode, Problems, read_document
from remote_tool.config.keys import ProjectParts, keys_of, read_keys
from remote_tool.config.launch_command import wants_terminal
from remote_tool.config.model import Config
from remote_tool.config.servers import Server, read_servers
from remote_tool.errors import ConfigError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.readable import readable_size
from remote_tool.system.files import opened_plain

if TYPE_CHECKING:
    from collections.abc import Iterable


def load(root: Path) -> Config:
    """Read the configuration of the workspace in a folder.

    Raises:
        ConfigError: The file is missing, unreadable or invalid; every problem is listed.
    """
    file = LocalPaths(root).config_file
    try:
        with opened_plain(file) as stream:
            text = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError(f"{file}: does not exist", hint="remote-tool init") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint=f"ls -ld {file}") from error
    return parse(text, file, root)


def remarks(config: Config) -> list[str]:
    """Return warnings about settings that are accepted but should be changed."""
    return [text for text in (_readable_passwords(config),) if text]


def remark_on_terminals(config: Config, servers: Iterable[str]) -> str:
    """Return a warning about launch commands of servers that request a terminal, or an empty string."""
    names = [name for name in servers if wants_terminal(config.servers[name].launch or ())]
    if not names:
        return ""
    return f"{', '.join(names)}: ignoring -t in launch: jobs have no terminal; docker exec -i NAME is enough"


def _readable_passwords(config: Config) -> str:
    """Return a warning about passwords in configs.yaml that other local users can read, or an empty string."""
    file = config.local.config_file
    names = [name for name, server in config.servers.items() if server.password is not None]
    try:
        is_open = bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return ""
    if not names or not is_open:
        return ""
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    remedy = f"chmod 600 {shlex.quote(str(shown))}"
    return f"{shown} contains the password of {', '.join(names)} and is readable by other users: {remedy}"


def parse(text: bytes, file: Path, root: Path) -> Config:
    """Parse a configuration; ``file`` is its name in problems, ``root`` the project folder.

    Raises:
        ConfigError: It is invalid; every problem is listed.
    """
    problems = Problems(str(file.relative_to(root)) if file.is_relative_to(root) else str(file))
    config = None
    if len(text) > LARGEST_FILE:
        problems.add(f"larger than {readable_size(LARGEST_FILE)}")
    elif (top := read_document(text, problems)) is not None:
        config = _config(top, root.absolute())
    if problems or config is None:
        hint = f"Edit {problems.shown}; man remote-tool-configs or docs/configuration.md describes every key"
        raise ConfigError(problems.sentences(), hint=hint)
    return config


def _config(top: ConfigNode, root: Path) -> Config:
    keys = keys_of(Config)
    only_of_servers = [key for key in keys_of(Server) if key not in keys]
    values = top.entries(keys, inner=only_of_servers, owner="a server (servers: NAME: ...)")
    name = _name(top, values, root)
    servers = read_servers(values["servers"], ProjectParts(root)) if "servers" in values else {}
    found = read_keys(Config, values, ProjectParts(root, name, tuple(servers)))
    local = LocalPaths(root, **found.pop("local", {}))
    remote = RemotePaths(name, **found.pop("remote", {}))
    _check_folders(values, local, remote)
    return Config(name=name, servers=servers, local=local, remote=remote, **found)


def _name(top: ConfigNode, values: dict[str, ConfigNode], root: Path) -> str:
    if "name" not in values and not forms.PROJECT_NAME.accepts(root.name):
        top.problems.add(
            f"required, because the name of the project folder, {root.name!r}, is not a valid one;"
            f" it must be {forms.PROJECT_NAME.expected}",
            line=1,
            key="name",
        )
    written = values["name"].text(forms.NAME_AS_WRITTEN) if "name" in values else None
    if written is not None and written.startswith("/"):
        values["name"].refuse(
            "cannot be absolute: the project's folder is below the home folder of each server;"
            f" for another disk, make a link there: ln -s {shlex.quote(written)} ~/{shlex.quote(Path(written).name)}"
        )
    return (written or root.name).removeprefix("~/")


def _check_folders(values: dict[str, ConfigNode], local: LocalPaths, remote: RemotePaths) -> None:
    if local.artifacts_folder and (problem := problem_with_folder(local.artifacts_folder, local)):
        values["artifacts_folder"].refuse(problem)
    if remote.scripts_name == remote.jobs_name:
        key = "remote_jobs_folder_name" if "remote_jobs_folder_name" in values else "remote_scripts_folder_name"
        values[key].refuse(f"must differ from remote-tool's other folder on the server, also {remote.jobs_name}")
