"""Check a request's limits before a job is recorded or sent: the same limits that servers enforce."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.ends import OnEnd
from remote_tool.errors import UsageError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.protocol.limits import (
    HIGHEST_NICE,
    LONGEST_DURATION,
    LONGEST_LOST_AFTER,
    LONGEST_NAME,
    LONGEST_NOTE,
    LONGEST_PATH,
    LONGEST_VARIABLE,
    MOST_RETRIES,
    MOST_RETRY_ON,
    MOST_TAGS,
    SHORTEST_LOST_AFTER,
    LimitError,
    check_command,
    check_environment,
    check_tags,
    is_lost_after,
)
from remote_tool.protocol.marks import RESERVED_NAMES
from remote_tool.protocol.records import is_variable_name
from remote_tool.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.model import Config

_OPTIONS = {"command": "--cmd", "tags": "--tag", "environment": "--env"}
_HINTS = {
    "command": "Put it in a file in the project, and run that",
    "tags": "",
    "environment": "Put it in a file that the command reads",
}


def names_of(servers: object) -> tuple[str, ...]:
    """Return names of servers as a tuple.

    Raises:
        UsageError: They are one text, or not texts.
    """
    names = list(servers) if isinstance(servers, Iterable) and not isinstance(servers, str) else [None]
    found = tuple(name for name in names if isinstance(name, str))
    if len(found) != len(names):
        raise UsageError(f"servers must be a list of names, such as ['gpu1'], found {servers!r:.100}")
    return found


def check_texts(command: object, environment: object) -> None:
    """Refuse a command or variables that are not text; values of variables are never shown.

    Raises:
        UsageError: One is not text.
    """
    if not isinstance(command, str):
        kind = type(command).__name__
        raise UsageError(f"command must be text, found a {kind}", hint="shlex.join(words) makes text from a list")
    if not isinstance(environment, Mapping):
        raise UsageError(f"env must be a mapping, such as {{'SEED': '1'}}, found a {type(environment).__name__}")
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"env[{name!r:.100}] must be text, found a {type(value).__name__}", hint="{'SEED': '1'}")


def check_request(command: str, tags: Sequence[str], environment: Mapping[str, str], *, tags_besides: int = 0) -> None:
    """Refuse a job that exceeds a limit; values of variables are never shown.

    Args:
        command: The shell command.
        tags: The user's tags.
        environment: All variables.
        tags_besides: Number of tags added by remote-tool.

    Raises:
        UsageError: A limit is exceeded; the message names the option.
    """
    for name in environment:
        if not is_variable_name(name):
            raise UsageError(f"--env {name!r:.100} is not a valid variable name", hint="--env NAME VALUE")
        if name in RESERVED_NAMES:
            raise UsageError(f"--env {name} is set by remote-tool", hint="Choose another name")
    try:
        check_command(command)
        check_tags(tags, MOST_TAGS - tags_besides)
        check_environment(environment)
    except LimitError as error:
        raise UsageError(f"{_OPTIONS[error.field]} {error.problem}", hint=_HINTS[error.field]) from None


def check_workdir(workdir: str | None) -> None:
    """Refuse a working folder outside the project; None and an empty one are allowed.

    Raises:
        UsageError: It is outside.
    """
    if workdir and (
        workdir.startswith(("/", "~/")) or ".." in workdir.split("/") or "\0" in workdir or len(workdir) > LONGEST_PATH
    ):
        raise UsageError(
            f"--workdir must be a folder in the project, found {workdir!r:.100}", hint="--workdir src/train"
        )


def check_whole_number(option: str, value: object, most: int) -> None:
    """Refuse anything but a whole number from 0 to a limit.

    Raises:
        UsageError: It is something else.
    """
    if not (type(value) is int and 0 <= value <= most):
        raise UsageError(f"{option} must be a whole number from 0 to {most}, found {value!r:.40}")


def check_nice(nice: int | None) -> None:
    """Refuse an invalid niceness; None leaves it unchanged.

    Raises:
        UsageError: It is not a whole number from 0 to 19.
    """
    if nice is not None:
        check_whole_number("--nice", nice, HIGHEST_NICE)


def read_duration(option: str, value: object) -> float | None:
    """Return a duration in seconds, 0 for none; None leaves it as configured.

    Raises:
        UsageError: It is neither a number of seconds nor a text such as 12h.
    """
    if value is None:
        return None
    seconds = forms.read_duration(value) if isinstance(value, str) else value
    if not is_seconds(seconds, LONGEST_DURATION):
        raise UsageError(f"{option} must be {forms.DURATION.expected}, found {value!r:.40}", hint=f"{option} 12h")
    return float(seconds)  # type: ignore[arg-type]


def check_retries(retries: int | None, retry_on: Sequence[str] | None) -> None:
    """Refuse an invalid number of retries, and anything that is neither an exit code nor a signal.

    Raises:
        UsageError: One is invalid.
    """
    if retries is not None:
        check_whole_number("--retries", retries, MOST_RETRIES)
    for each in retry_on or ():
        if not forms.RETRY_ON.accepts(each):
            raise UsageError(
                f"--retry-on takes {forms.RETRY_ON.expected}, found {each!r:.40}", hint="--retry-on 75,SIGKILL"
            )
    if len(retry_on or ()) > MOST_RETRY_ON:
        raise UsageError(f"--retry-on takes at most {MOST_RETRY_ON} exit codes and signals")


def check_name(name: object) -> None:
    """Refuse an invalid name of a job; an empty one is none.

    Raises:
        UsageError: It is too long, or not printable text.
    """
    if not (isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable()):
        raise UsageError(f"--name must be one line of at most {LONGEST_NAME} characters, found {name!r:.100}")


def check_note(text: str) -> None:
    """Refuse an invalid note about a job; an empty one is none.

    Raises:
        UsageError: It is too long, or not printable text.
    """
    if len(text) > LONGEST_NOTE or not text.isprintable():
        raise UsageError(f"A note must be one line of at most {LONGEST_NOTE} characters, found {text!r:.100}")


def on_empty_of(config: Config, server: str) -> tuple[str, dict[str, str], float] | None:
    """Return the command for when no job is left, its secrets, and how long it waits; secrets are redacted from now on.

    None on this machine: the command stops a rented one.

    Raises:
        UsageError: A secret is not set here.
    """
    configured = config.on_empty
    if configured is None or not configured.run.strip() or config.servers[server].localhost:
        return None
    return configured.run, _values_of(configured.secrets, "on_empty in configs.yaml"), configured.after


def on_end_of(config: Config, asked_for: str | None) -> tuple[str, dict[str, str]] | None:
    """Return the command for the end of a job, and its secrets; from now on they are redacted in every text.

    A command that replaces the configured one gets only the secrets that its text names.

    Raises:
        UsageError: A secret is not set here.
    """
    configured = config.on_end or OnEnd("")
    command = configured.run if asked_for is None else asked_for
    if not command.strip():
        return None
    names = configured.secrets if asked_for is None else [name for name in configured.secrets if _names(command, name)]
    source = "on_end in configs.yaml" if asked_for is None else "The on_end command"
    return command, _values_of(names, source, ", or --on-end '' to start without it")


def _values_of(names: Sequence[str], source: str, otherwise: str = "") -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(
            f"{source} needs {' and '.join(missing)}, which is not set here",
            hint=f"export {missing[0]}=…{otherwise}",
        )
    secrets = {name: os.environ[name] for name in names}
    hide(secrets.values())
    return secrets


def _names(command: str, variable: str) -> bool:
    return re.search(rf"\b{variable}\b", command, re.ASCII) is not None


def check_items(items: Iterable[str], variable: str) -> None:
    """Refuse items too long for the variable that passes a job its own.

    Raises:
        UsageError: An item is too long.
    """
    for number, item in enumerate(items, 1):
        try:
            check_environment({variable: item})
        except LimitError:
            most = LONGEST_VARIABLE - len(variable) - 1
            raise UsageError(
                f"--items: line {number} contains a NUL character, or more than {most:,} bytes",
                hint="Put it in a file, and pass the name of the file",
            ) from None


def check_lost_after(seconds: float | None) -> None:
    """Refuse an invalid timeout for a silent server; None is allowed.

    Raises:
        UsageError: It is too short or too long.
    """
    if seconds is not None and not is_lost_after(seconds):
        found = str(seconds).removesuffix(".0")
        raise UsageError(
            f"--lost-after must be from {SHORTEST_LOST_AFTER} to {LONGEST_LOST_AFTER} seconds, found {found}"
        )
