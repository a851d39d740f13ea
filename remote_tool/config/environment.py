"""Read ``environment:`` of configs.yaml: a kind, or a kind with its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.config import fields, forms
from remote_tool.config.model import CONDA_FORGE, Environment, EnvironmentKind, Installer

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.document import ConfigNode

KINDS = tuple(kind for kind in EnvironmentKind if kind is not EnvironmentKind.INSIDE)
CONDA_KEYS = ("channels", "installer")
INSTALLER_KEYS = ("url", "file", "sha256")


def read_environment(place: ConfigNode, root: Path) -> Environment:
    if not place.is_mapping:
        kinds = tuple(kind for kind in KINDS if kind is not EnvironmentKind.EXISTING)
        choice = forms.one_of(kinds)
        form = forms.Validator(f"{choice.wanted}, or {{existing: /path/to/prefix}}", choice.accepts)
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
    return _made_environment(EnvironmentKind(kind), found, root)


def _made_environment(kind: EnvironmentKind, place: ConfigNode, root: Path) -> Environment:
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


def _installer(place: ConfigNode, root: Path) -> Installer | None:
    values = place.entries(INSTALLER_KEYS)
    if ("url" in values) == ("file" in values) or "sha256" not in values:
        place.refuse("requires sha256, and either url or file")
    return Installer(
        (fields.text_of(values, "sha256", forms.SHA256) or "").lower(),
        url=fields.text_of(values, "url", forms.URL),
        file=fields.local_path(values, "file", root),
    )
