"""Read configs.yaml: report all problems with line and key; nothing in the file is executed."""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import data_sets, ends, fields, forms, servers
from remote_tool.config.artifacts import artifact_limit, artifact_patterns, problem_with_folder
from remote_tool.config.document import LARGEST_FILE, ConfigNode, Problems, read_document
from remote_tool.config.environment import read_environment
from remote_tool.config.launch_command import wants_terminal
from remote_tool.config.model import (
    DEFAULT_KEPT_SECONDS,
    ArtifactLimit,
    Config,
    Environment,
    HostKeyPolicy,
    KeptJobs,
    MinFree,
    Snapshots,
)
from remote_tool.errors import ConfigError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.protocol.limits import DEFAULT_IDLE_AFTER, DEFAULT_LOG_LIMIT, DEFAULT_LOST_AFTER
from remote_tool.readable import readable_size
from remote_tool.system.files import opened_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

TOP_KEYS = (
    "name",
    "python",
    "environment",
    "servers",
    "host_keys",
    "log_limit",
    "lost_after",
    "idle_after",
    "shared",
    "scripts_folder",
    "logs_folder",
    "jobs_folder",
    "exclude_file",
    "send_anyway",
    "remote_scripts_folder_name",
    "remote_jobs_folder_name",
    "artifacts",
    "artifacts_folder",
    "artifact_limit",
    "packages",
    "keep_jobs",
    "keep_connections",
    "min_free",
    "setup",
    "env",
    "status",
    "workdir",
    "data",
    "on_end",
    "snapshots",
    "on_empty",
    "default_server",
    "max_duration",
    "stop_if_idle",
    "retries",
    "retry_on",
)


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
        hint = f"Edit {problems.shown}; docs/configuration.md describes every key"
        raise ConfigError(problems.sentences(), hint=hint)
    return config


def _config(top: ConfigNode, root: Path) -> Config:
    only_of_servers = [key for key in servers.KEYS if key not in TOP_KEYS]
    values = top.entries(TOP_KEYS, inner=only_of_servers, owner="a server (servers: NAME: ...)")
    name = _name(top, values, root)
    every = servers.read_servers(values["servers"], root) if "servers" in values else {}
    return Config(
        name=name,
        servers=every,
        local=_local(values, root),
        remote=_remote(values, name),
        python=fields.text_of(values, "python", forms.PYTHON),
        environment=read_environment(values["environment"], root) if "environment" in values else Environment(),
        packages=_packages(values["packages"]) if "packages" in values else None,
        host_keys=HostKeyPolicy(
            fields.text_of(values, "host_keys", forms.one_of(tuple(HostKeyPolicy))) or HostKeyPolicy.ACCEPT_NEW
        ),
        log_limit=forms.read_size(fields.text_of(values, "log_limit", forms.LOG_LIMIT) or "") or DEFAULT_LOG_LIMIT,
        lost_after=float(fields.text_of(values, "lost_after", forms.LOST_AFTER) or DEFAULT_LOST_AFTER),
        idle_after=float(fields.text_of(values, "idle_after", forms.IDLE_AFTER) or DEFAULT_IDLE_AFTER),
        setup=fields.text_of(values, "setup", forms.SCRIPT),
        env=fields.variables(values),
        artifacts=artifact_patterns(values["artifacts"]) if "artifacts" in values else (),
        artifact_limit=artifact_limit(values["artifact_limit"]) if "artifact_limit" in values else ArtifactLimit(),
        send_anyway=_send_anyway(values["send_anyway"]) if "send_anyway" in values else (),
        keep_jobs=_keep_jobs(values),
        keep_connections=_keep_connections(values),
        min_free=_min_free(values),
        shared=fields.yes_or_no(values, "shared"),
        status=_status(values["status"]) if "status" in values else {},
        workdir=fields.workdir(values),
        data=data_sets.read_data_sets(values["data"], root, name) if "data" in values else {},
        snapshots=Snapshots(fields.text_of(values, "snapshots", forms.one_of(tuple(Snapshots))) or Snapshots.QUEUED),
        on_end=ends.read_on_end(values["on_end"]) if "on_end" in values else None,
        on_empty=ends.read_on_empty(values["on_empty"]) if "on_empty" in values else None,
        default_server=servers.read_default(values["default_server"], every) if "default_server" in values else None,
        max_duration=ends.read_duration(values, "max_duration") or None,
        stop_if_idle=ends.read_duration(values, "stop_if_idle") or None,
        retries=int(fields.text_of(values, "retries", forms.RETRIES) or 0),
        retry_on=ends.read_retry_on(values["retry_on"]) if "retry_on" in values else (),
    )


def _status(place: ConfigNode) -> dict[str, str]:
    patterns = {}
    for name, found in place.pairs():
        if not forms.STATUS_NAME.accepts(name):
            found.refuse(f"the name must be {forms.STATUS_NAME.wanted}")
            continue
        text = found.text(forms.PATTERN)
        if text is not None and (problem := _pattern_problem(text)):
            found.refuse(f"must be a regular expression with one group, such as 'accuracy ([0-9.]+)'; {problem}")
        elif text is not None:
            patterns[name] = text
    return patterns


def _pattern_problem(text: str) -> str:
    """Return what is wrong with a regular expression; empty if valid."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return "" if groups == 1 else f"this one has {groups} groups"


def _name(top: ConfigNode, values: dict[str, ConfigNode], root: Path) -> str:
    if "name" not in values and not forms.PROJECT_NAME.accepts(root.name):
        top.problems.add(
            f"required, because the name of the project folder, {root.name!r}, is not a valid one;"
            f" it must be {forms.PROJECT_NAME.wanted}",
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


def _local(values: dict[str, ConfigNode], root: Path) -> LocalPaths:
    default = LocalPaths(root)
    # labml_remote's folder of local scripts, which we do not need.
    fields.inside_project(values, "scripts_folder")
    local = LocalPaths(
        root,
        jobs_folder=fields.inside_project(values, "jobs_folder") or default.jobs_folder,
        logs_folder=fields.inside_project(values, "logs_folder") or default.logs_folder,
        exclude=fields.inside_project(values, "exclude_file") or default.exclude,
        artifacts_folder=fields.local_path(values, "artifacts_folder", root, forms.LOCAL_FOLDER),
    )
    if local.artifacts_folder and (problem := problem_with_folder(local.artifacts_folder, local)):
        values["artifacts_folder"].refuse(problem)
    return local


def _remote(values: dict[str, ConfigNode], name: str) -> RemotePaths:
    default = RemotePaths(name)
    scripts = fields.text_of(values, "remote_scripts_folder_name", forms.FOLDER_NAME) or default.scripts_name
    jobs = fields.text_of(values, "remote_jobs_folder_name", forms.FOLDER_NAME) or default.jobs_name
    if scripts == jobs:
        key = "remote_jobs_folder_name" if "remote_jobs_folder_name" in values else "remote_scripts_folder_name"
        values[key].refuse(f"must differ from remote-tool's other folder on the server, also {jobs}")
    return RemotePaths(name, scripts_name=scripts, jobs_name=jobs)


def _packages(place: ConfigNode) -> tuple[str, ...]:
    """Read a file or folder, or a list of them."""
    items = place.items("a list of files and folders, such as [requirements/gpu.txt]") if place.is_list else [place]
    return tuple(text for each in items if (text := each.text(forms.PACKAGES)) is not None)


def _keep_jobs(values: dict[str, ConfigNode]) -> KeptJobs | None:
    text = fields.text_of(values, "keep_jobs", forms.KEPT_JOBS)
    if not text:
        return None
    return KeptJobs(count=int(text)) if text.isdigit() else KeptJobs(seconds=forms.read_age(text))


def _keep_connections(values: dict[str, ConfigNode]) -> int:
    text = fields.text_of(values, "keep_connections", forms.KEPT_LOGINS)
    return int(forms.read_age(text) or 0) if text else DEFAULT_KEPT_SECONDS


def _min_free(values: dict[str, ConfigNode]) -> MinFree:
    """Read bytes or a share; a single given one applies alone."""
    text = fields.text_of(values, "min_free", forms.MIN_FREE)
    if not text:
        return MinFree()
    hundredths = forms.read_hundredths(text)
    size = forms.read_size(text) if hundredths is None else None
    return MinFree(2**62 if size is None else size, 100.0 if hundredths is None else hundredths)


def _send_anyway(place: ConfigNode) -> tuple[str, ...]:
    items = place.items("a list of files, such as [config/example.env, tests/keys/*.pem]")
    return tuple(text for each in items if (text := each.text(forms.SENT_ANYWAY)) is not None)
