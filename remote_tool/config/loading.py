"""Reads configs.yaml: every problem at once, each with its line and key; nothing in the file can run anything."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.devices import problem_with
from remote_tool.config.document import LARGEST_FILE, Place, Problems, read_document
from remote_tool.config.hosts import canonical_host
from remote_tool.config.model import (
    CONDA_FORGE,
    ArtifactLimit,
    Config,
    Environment,
    EnvironmentKind,
    HostKeyPolicy,
    Installer,
    Server,
)
from remote_tool.config.status_patterns import problem_of
from remote_tool.errors import ConfigError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.supervisor.activation import RESERVED
from remote_tool.supervisor.artifact_patterns import MOST_PATTERNS, ArtifactPattern, plain_glob
from remote_tool.supervisor.log_limit import DEFAULT_LIMIT

if TYPE_CHECKING:
    from remote_tool.config.forms import Form

TOP_KEYS = (
    "name",
    "python",
    "environment",
    "servers",
    "host_keys",
    "log_limit",
    "shared",
    "scripts_folder",
    "logs_folder",
    "jobs_folder",
    "exclude_file",
    "remote_scripts_folder_name",
    "remote_jobs_folder_name",
    "artifacts",
    "artifact_limit",
    "setup",
    "env",
    "status",
)
SERVER_KEYS = (
    "hostname",
    "username",
    "port",
    "private_key",
    "password",
    "password_env",
    "address",
    "devices",
    "launch",
    "container",
    "environment",
    "setup",
    "env",
)
KINDS = tuple(kind for kind in EnvironmentKind if kind is not EnvironmentKind.INSIDE)
CONDA_KEYS = ("channels", "installer")
INSTALLER_KEYS = ("url", "file", "sha256")
ARTIFACT_KEYS = ("glob", "newest")
LIMIT_KEYS = ("file", "job")
USUAL_PORT = 22


def load(root: Path) -> Config:
    """Read the configuration of the workspace in a folder.

    Raises:
        ConfigError: It is missing, cannot be read or is wrong; every problem is named.
    """
    file = LocalPaths(root).config_file
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError(f"{file}: does not exist", hint="remote-tool init") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint=f"ls -ld {file}") from error
    return parse(text, file, root)


def parse(text: bytes, file: Path, root: Path) -> Config:
    """Read a configuration from its text; file is what problems name, root is the project folder.

    Raises:
        ConfigError: It is wrong; every problem is named.
    """
    problems = Problems(str(file.relative_to(root)) if file.is_relative_to(root) else str(file))
    config = None
    if len(text) > LARGEST_FILE:
        problems.add(f"larger than {LARGEST_FILE // 1024} KiB")
    elif (top := read_document(text, problems)) is not None:
        config = _config(top, root.absolute())
    if problems or config is None:
        hint = f"Edit {problems.shown}; docs/configuration.md explains every key"
        raise ConfigError(problems.sentences(), hint=hint)
    return config


def _config(top: Place, root: Path) -> Config:
    only_of_servers = [key for key in SERVER_KEYS if key not in TOP_KEYS]
    values = top.entries(TOP_KEYS, inner=only_of_servers, owner="a server (servers: NAME: ...)")
    name = _name(top, values, root)
    return Config(
        name=name,
        servers=_servers(values["servers"], root) if "servers" in values else {},
        local=_local(values, root),
        remote=_remote(values, name),
        python=_text(values, "python", forms.PYTHON),
        environment=_environment(values["environment"], root) if "environment" in values else Environment(),
        host_keys=HostKeyPolicy(
            _text(values, "host_keys", forms.one_of(tuple(HostKeyPolicy))) or HostKeyPolicy.ACCEPT_NEW
        ),
        log_limit=forms.read_size(_text(values, "log_limit", forms.LOG_LIMIT) or "") or DEFAULT_LIMIT,
        setup=_text(values, "setup", forms.SCRIPT),
        env=_variables(values),
        artifacts=_artifacts(values["artifacts"]) if "artifacts" in values else (),
        artifact_limit=_artifact_limit(values["artifact_limit"]) if "artifact_limit" in values else ArtifactLimit(),
        shared=_yes_or_no(values, "shared"),
        status=_status(values["status"]) if "status" in values else {},
    )


def _status(place: Place) -> dict[str, str]:
    patterns = {}
    for name, found in place.pairs():
        if not forms.STATUS_NAME.accepts(name):
            found.refuse(f"the name of a value must be {forms.STATUS_NAME.wanted}")
            continue
        text = found.text(forms.PATTERN)
        if text is not None and (problem := problem_of(text)):
            found.refuse(f"must be {problem}")
        elif text is not None:
            patterns[name] = text
    return patterns


def _text(values: dict[str, Place], key: str, form: Form) -> str | None:
    return values[key].text(form) if key in values else None


def _yes_or_no(values: dict[str, Place], key: str) -> bool | None:
    text = _text(values, key, forms.one_of(("true", "false")))
    return text == "true" if text else None


def _name(top: Place, values: dict[str, Place], root: Path) -> str:
    if "name" not in values and not forms.PROJECT_NAME.accepts(root.name):
        top.problems.add(
            f"is missing, and the project folder {root.name!r} cannot stand for it;"
            f" it must be {forms.PROJECT_NAME.wanted}",
            line=1,
            key="name",
        )
    return _text(values, "name", forms.PROJECT_NAME) or root.name


def _servers(place: Place, root: Path) -> dict[str, Server]:
    servers: dict[str, Server] = {}
    machines: dict[tuple[str, int, str | None], str] = {}
    for name, found in place.pairs():
        if not forms.SERVER_NAME.accepts(name):
            found.refuse(f"the name of a server must be {forms.SERVER_NAME.wanted}")
        server = _server(name, found, root)
        if server is None:
            continue
        servers[name] = server
        machine = (canonical_host(server.hostname), server.port or USUAL_PORT, server.username)
        if machines.setdefault(machine, name) != name:
            found.refuse(f"is the same machine as {machines[machine]} (same hostname, port and username)")
    return servers


def _server(name: str, place: Place, root: Path) -> Server | None:
    if not place.is_mapping and not place.is_blank:
        place.must_be("a mapping, such as {hostname: 10.0.0.5}")
        return None
    values = place.entries(SERVER_KEYS)
    if "hostname" not in values:
        place.refuse(f"hostname is missing; it must be {forms.HOSTNAME.wanted}")
    if "password" in values and "password_env" in values:
        values["password_env"].refuse("stands beside password; keep one of them")
    if "launch" in values and "container" in values:
        values["container"].refuse("stands beside launch; keep one of them")
    hostname = _text(values, "hostname", forms.HOSTNAME)
    server = Server(
        name=name,
        hostname=forms.plain_host(hostname or ""),
        username=_text(values, "username", forms.USERNAME),
        port=_port(values),
        private_key=_local_path(values, "private_key", root),
        password=_text(values, "password", forms.SECRET),
        password_env=_text(values, "password_env", forms.VARIABLE),
        address=_address(values),
        launch=_words(values, "launch", forms.LAUNCH),
        container=_words(values, "container", forms.CONTAINER),
        environment=_environment(values["environment"], root) if "environment" in values else None,
        devices=_devices(values["devices"]) if "devices" in values else (),
        setup=_text(values, "setup", forms.SCRIPT),
        env=_variables(values),
    )
    return server if hostname else None


def _words(values: dict[str, Place], key: str, form: Form) -> tuple[str, ...] | None:
    text = _text(values, key, form)
    return tuple(shlex.split(text)) if text else None


def _port(values: dict[str, Place]) -> int | None:
    text = _text(values, "port", forms.PORT)
    return int(text) if text else None


def _address(values: dict[str, Place]) -> str | None:
    text = _text(values, "address", forms.ADDRESS)
    return forms.plain_host(text) if text else None


def _devices(place: Place) -> tuple[str, ...]:
    found = [each.text(forms.DEVICE) for each in place.items("a list of GPUs, such as [0, 3]")]
    devices = tuple(each for each in found if each)
    if problem := problem_with(devices):
        place.refuse(problem)
    return devices


def _variables(values: dict[str, Place]) -> dict[str, str]:
    """Return the variables of ``env``; one with an empty value counts, and one without a value does not."""
    variables = {}
    for name, place in values["env"].pairs() if "env" in values else ():
        if not forms.VARIABLE.accepts(name):
            place.refuse(f"must be {forms.VARIABLE.wanted}")
        elif name in RESERVED:
            place.refuse("is set by remote-tool; choose another name")
        elif not place.is_null:
            variables[name] = place.text(forms.VALUE) or ""
    return variables


def _local_path(values: dict[str, Place], key: str, root: Path) -> Path | None:
    text = _text(values, key, forms.LOCAL_PATH)
    if text is None:
        return None
    return Path.home() / text[2:] if text.startswith("~/") else root / text


def _local(values: dict[str, Place], root: Path) -> LocalPaths:
    default = LocalPaths(root)
    # labml_remote's folder of local scripts: we keep none.
    _inside(values, "scripts_folder")
    return LocalPaths(
        root,
        jobs_folder=_inside(values, "jobs_folder") or default.jobs_folder,
        logs_folder=_inside(values, "logs_folder") or default.logs_folder,
        exclude=_inside(values, "exclude_file") or default.exclude,
    )


def _inside(values: dict[str, Place], key: str) -> str:
    return forms.within(_text(values, key, forms.INSIDE) or "")


def _remote(values: dict[str, Place], name: str) -> RemotePaths:
    default = RemotePaths(name)
    scripts = _text(values, "remote_scripts_folder_name", forms.FOLDER_NAME) or default.scripts_name
    jobs = _text(values, "remote_jobs_folder_name", forms.FOLDER_NAME) or default.jobs_name
    if scripts == jobs:
        key = "remote_jobs_folder_name" if "remote_jobs_folder_name" in values else "remote_scripts_folder_name"
        values[key].refuse(f"{jobs} is the name of our other folder on the server; they must differ")
    return RemotePaths(name, scripts_name=scripts, jobs_name=jobs)


def _environment(place: Place, root: Path) -> Environment:
    if not place.is_mapping:
        kinds = tuple(kind for kind in KINDS if kind is not EnvironmentKind.EXISTING)
        choice = forms.one_of(kinds)
        form = forms.Form(f"{choice.wanted}, or {{existing: /path/to/prefix}}", choice.accepts)
        return Environment(EnvironmentKind(place.text(form) or EnvironmentKind.MINICONDA))
    given = list(place.pairs())
    if len(given) != 1:
        place.refuse(f"must have one of {', '.join(KINDS)}, such as {{existing: /path/to/prefix}}")
        return Environment()
    ((kind, found),) = given
    if kind not in KINDS:
        place.entries(KINDS)
        return Environment()
    if kind == EnvironmentKind.EXISTING:
        return Environment(EnvironmentKind.EXISTING, prefix=found.text(forms.PREFIX))
    return _made_environment(EnvironmentKind(kind), found, root)


def _made_environment(kind: EnvironmentKind, place: Place, root: Path) -> Environment:
    values = place.entries(CONDA_KEYS if kind.is_conda else ())
    channels = (
        [each.text(forms.CHANNEL) for each in values["channels"].items("a list of channels")]
        if ("channels" in values)
        else CONDA_FORGE
    )
    return Environment(
        kind,
        channels=tuple(each for each in channels if each),
        installer=_installer(values["installer"], root) if "installer" in values else None,
    )


def _installer(place: Place, root: Path) -> Installer | None:
    values = place.entries(INSTALLER_KEYS)
    if ("url" in values) == ("file" in values) or "sha256" not in values:
        place.refuse("needs url or file, and sha256")
    return Installer(
        (_text(values, "sha256", forms.SHA256) or "").lower(),
        url=_text(values, "url", forms.URL),
        file=_local_path(values, "file", root),
    )


def _artifacts(place: Place) -> tuple[ArtifactPattern, ...]:
    items = place.items("a list of globs, such as [checkpoints/*.pt]")
    if len(items) > MOST_PATTERNS:
        place.refuse(f"has more than {MOST_PATTERNS} globs")
    return tuple(pattern for each in items if (pattern := _artifact(each)) is not None)


def _artifact(place: Place) -> ArtifactPattern | None:
    values = place.entries(ARTIFACT_KEYS) if place.is_mapping else {"glob": place}
    if "glob" not in values:
        place.refuse("needs a glob, such as {glob: checkpoints/*.pt, newest: 2}")
    glob, newest = _text(values, "glob", forms.ARTIFACT), _text(values, "newest", forms.NEWEST)
    return ArtifactPattern(plain_glob(glob), int(newest) if newest else None) if glob else None


def _artifact_limit(place: Place) -> ArtifactLimit:
    """Read the limit of each file, or those of each and of all together; the latter is never the smaller one."""
    values = place.entries(LIMIT_KEYS) if place.is_mapping else {"file": place}
    usual = ArtifactLimit()
    file, job = (forms.read_size(_text(values, key, forms.SIZE) or "") for key in LIMIT_KEYS)
    each = usual.file if file is None else file
    return ArtifactLimit(each, max(usual.job, each) if job is None else job)
