"""The environment variables of a job or an attached command."""

from __future__ import annotations

import json
import os

from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.marks import DATA_PREFIX, JOB_MARKER, PROJECT_MARKER, RESERVED_NAMES, SERVER_VARIABLE
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import is_variable_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping

# Variables of another launch or of a batch system, which torchrun would take for its own.
STRAY_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "NODE_RANK",
    "RUN_UUID",
)
STRAY_BEGINNINGS = ("MASTER_", "PET_", "TORCHELASTIC_", "SLURM_", "REMOTE_TOOL_")
_LIMIT = 1024 * 1024
_DEFAULTS: Dict[str, Any] = {"prefix": "", "python": "", "version": "", "variables": {}, "unset": [], "path": []}


class ActivationError(RequestError):
    """The environment cannot be built; the message says why."""


class Activation(NamedTuple):
    """The changes that activating the environment makes, as captured during setup.

    Attributes:
        prefix: The environment's folder.
        python: The environment's interpreter.
        version: The interpreter's version, like ``3.11.7``.
        variables: Set for every command.
        unset: Removed for every command.
        path: Folders that come first on PATH.
    """

    prefix: str
    python: str
    version: str
    variables: Dict[str, str]
    unset: list[str]
    path: list[str]


class Origin(NamedTuple):
    """The project and server to which an environment belongs.

    Attributes:
        project: The project's folder, absolute.
        job_id: The marker of every process of the job.
        server: The server's name in the user's configuration.
        workdir: The working folder, relative to the project; empty for the project's own.
    """

    project: str
    job_id: str
    server: str
    workdir: str = ""

    @property
    def folder(self) -> str:
        """The absolute working folder."""
        return f"{self.project}/{self.workdir}" if self.workdir else self.project


def load_activation(path: str) -> Activation:
    """Read the captured activation; ActivationError when it is missing or malformed."""
    try:
        with open(path, "rb") as stream:
            data = json.loads(stream.read(_LIMIT).decode("utf-8"))
    except FileNotFoundError as error:
        raise ActivationError("The environment is not set up on this server") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ActivationError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != 1:
        raise ActivationError(f"{path} is not of schema 1")
    fields = {**_DEFAULTS, **data}
    _check(fields, path)
    return Activation(*(fields[name] for name in Activation._fields))


def _check(fields: Mapping[str, Any], path: str) -> None:
    for name, default in _DEFAULTS.items():
        if type(fields[name]) is not type(default):
            raise ActivationError(f"{path}: {name} cannot be {type(fields[name]).__name__}")
    variables = fields["variables"]
    texts = [fields["prefix"], fields["python"], fields["version"]]
    texts += [*variables.values(), *fields["unset"], *fields["path"]]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ActivationError(f"{path}: must contain only text")
    if not all(is_variable_name(name) for name in variables):
        raise ActivationError(f"{path}: contains an invalid variable name")


def build_environment(
    login: Mapping[bytes, bytes], activation: Activation, user: Mapping[str, str], origin: Origin
) -> Dict[bytes, bytes]:
    """Return a command's environment: the cleaned login's, activation, our variables, then the user's."""
    check_user(user)
    unset = set(activation.unset)
    # The markers come first, where a scan of a large environment finds them soonest.
    built = {_bytes(JOB_MARKER): _bytes(origin.job_id), _bytes(PROJECT_MARKER): _bytes(origin.project)}
    for name, value in login.items():
        text = name.decode("utf-8", "surrogateescape")
        if text not in unset and not _is_foreign(text):
            built[name] = value
    for text in activation.variables.keys() - RESERVED_NAMES:
        content = activation.variables[text]
        built[_bytes(text)] = _bytes(content)
    built[b"PATH"] = _joined(activation.path, built.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin"))
    built[b"PYTHONPATH"] = _joined([origin.project, f"{origin.project}/src"], built.get(b"PYTHONPATH", b""))
    built[b"PYTHONUNBUFFERED"] = b"1"
    built[b"PWD"] = _bytes(origin.folder)
    built[_bytes(SERVER_VARIABLE)] = _bytes(origin.server)
    for text, content in user.items():
        built[_bytes(text)] = _bytes(content)
    return built


def without_foreign_variables(login: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """Return the login's environment without variables of another launch or of an enclosing job."""
    return {name: value for name, value in login.items() if not _is_foreign(name.decode("utf-8", "surrogateescape"))}


def with_home(user: object) -> Any:  # noqa: ANN401 - whatever the client sent, checked later
    """Expand a leading ``~/`` in the variables that hold paths of data sets."""
    if not isinstance(user, dict):
        return user
    home = os.environ.get("HOME", "")
    return {name: home + value[1:] if _is_in_home(name, value) else value for name, value in user.items()}


def _is_in_home(name: object, value: object) -> bool:
    return str(name).startswith(DATA_PREFIX) and isinstance(value, str) and value.startswith("~/")


def check_user(user: object) -> None:
    """Refuse reserved variables and invalid names: ActivationError."""
    if not isinstance(user, dict):
        raise ActivationError("environment must be an object of names and values")
    for name, value in user.items():
        if not is_variable_name(name):
            raise ActivationError(f"{name!r} is not a valid environment variable name")
        if not isinstance(value, str) or "\0" in value:
            raise ActivationError(f"The value of the environment variable {name} is not text")
        if name in RESERVED_NAMES:
            raise ActivationError(f"The environment variable {name} is reserved by remote-tool; choose another name")


def _is_foreign(name: str) -> bool:
    return name in STRAY_NAMES or name.startswith(STRAY_BEGINNINGS) or name in {"OLDPWD", "_"}


def _joined(first: list[str], rest: bytes) -> bytes:
    parts = [_bytes(item) for item in first]
    return b":".join([*parts, rest] if rest else parts)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
