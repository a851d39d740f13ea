"""The Python environment of a server, and the readers of ``environment:`` of configs.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.keys import key, keys_of, read_keys
from remote_tool.config.readers import text_of, texts

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.keys import ProjectParts

CONDA_FORGE = ("conda-forge",)
INSTALLER_KEYS = ("url", "file", "sha256")


class EnvironmentKind(StrEnum):
    """How Python gets onto a server: each kind is a line here and a module in ``environments/kinds``.

    ``inside`` is for jobs that start behind a launch command or in a container, which bring a Python of their own.
    """

    MINICONDA = "miniconda"
    MINIFORGE = "miniforge"
    UV = "uv"
    VENV = "venv"
    EXISTING = "existing"
    INSIDE = "inside"

    @property
    def is_conda(self) -> bool:
        return self in {EnvironmentKind.MINICONDA, EnvironmentKind.MINIFORGE}

    @property
    def module(self) -> str:
        """The module of ``environments/kinds`` that plans it."""
        return "conda" if self.is_conda else self.value


@dataclass(frozen=True)
class Installer:
    """A conda installer other than the pinned ones: a URL or a local file, with its SHA-256 (64 hex digits)."""

    sha256: str
    url: str | None = None
    file: Path | None = None


def read_installer(place: ConfigNode, project: ProjectParts) -> Installer:
    values = place.entries(INSTALLER_KEYS)
    if ("url" in values) == ("file" in values) or "sha256" not in values:
        place.refuse("requires sha256, and either url or file")
    sha256, url = text_of(values, "sha256", forms.SHA256), text_of(values, "url", forms.URL)
    file = text_of(values, "file", forms.LOCAL_PATH)
    return Installer((sha256 or "").lower(), url, project.local_path(file) if file else None)


@dataclass(frozen=True)
class Environment:
    """The Python environment of a server.

    Attributes:
        kind: The tool that creates it.
        prefix: Of an existing environment, on the server; ``~`` is allowed.
        channels: Where conda takes Python from.
        installer: Replaces the pinned conda installer.
    """

    kind: EnvironmentKind = EnvironmentKind.MINICONDA
    prefix: str | None = None
    channels: tuple[str, ...] = field(
        default=CONDA_FORGE,
        metadata=key(
            texts(forms.CHANNEL, "a list of channels"),
            "`[conda-forge]`",
            "The channels from which conda installs Python, in order of preference. Anaconda's own channels have "
            "terms that you must accept yourself.",
        ),
    )
    installer: Installer | None = field(
        default=None,
        metadata=key(
            read_installer,
            "a pinned one",
            "Another installer: `url` (an http or https address) or `file` (a local file), and `sha256`, its SHA-256 "
            "as 64 hexadecimal digits. It is verified before it runs. A file in the project is not sent with the "
            "project.",
        ),
    )


KINDS = tuple(kind for kind in EnvironmentKind if kind is not EnvironmentKind.INSIDE)


def read_environment(place: ConfigNode, project: ProjectParts) -> Environment:
    """Read a kind, or a kind with its settings."""
    if not place.is_mapping:
        kinds = tuple(kind for kind in KINDS if kind is not EnvironmentKind.EXISTING)
        choice = forms.one_of(kinds)
        form = forms.Validator(f"{choice.expected}, or {{existing: /path/to/prefix}}", choice.accepts)
        return Environment(EnvironmentKind(place.text(form) or EnvironmentKind.MINICONDA))
    given = list(place.pairs())
    if len(given) != 1:
        place.refuse(f"must contain exactly one of {', '.join(KINDS)}, such as {{existing: /path/to/prefix}}")
        return Environment()
    ((kind, found),) = given
    if kind not in KINDS:
        place.entries(KINDS)
        return Environment()
    if kind == EnvironmentKind.EXISTING:
        return Environment(EnvironmentKind.EXISTING, prefix=found.text(forms.PREFIX))
    chosen = EnvironmentKind(kind)
    values = found.entries(keys_of(Environment) if chosen.is_conda else ())
    return Environment(chosen, **read_keys(Environment, values, project))
