"""Data sets beside the project: where they come from, where they go on each server, and how jobs hear of that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.protocol.marks import DATA_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.document import ConfigNode

KEYS = ("from", "to")


@dataclass(frozen=True)
class DataSet:
    """A folder that is the same here and on the servers.

    Attributes:
        name: As the configuration calls it.
        source: Here, absolute.
        target: On each server, absolute or beginning with ``~/``.
    """

    name: str
    source: Path
    target: str

    @property
    def variable(self) -> str:
        """The variable of every command that has its path."""
        return DATA_PREFIX + re.sub(r"[^A-Z0-9]", "_", self.name.upper())


def read_data_sets(place: ConfigNode, root: Path, project: str) -> dict[str, DataSet]:
    """Read ``data:``; what is wrong is told to the place."""
    data_sets: dict[str, DataSet] = {}
    variables: dict[str, str] = {}
    targets: dict[str, str] = {}
    for name, found in place.pairs():
        data_set = _data_set(name, found, root, project)
        if data_set is None:
            continue
        other = variables.setdefault(data_set.variable, name)
        if other != name:
            found.refuse(f"sets the same variable as {other}, {data_set.variable}; choose another name")
        # What a sync remembers of a set lies beside its folder, so two sets in one would be taken for each other.
        other = targets.setdefault(data_set.target, name)
        if other != name:
            found.refuse(f"uses the same folder as {other}, {data_set.target}; give each data set its own")
        data_sets[name] = data_set
    return data_sets


def _data_set(name: str, place: ConfigNode, root: Path, project: str) -> DataSet | None:
    if not forms.SERVER_NAME.accepts(name):
        place.refuse(f"the name must be {forms.SERVER_NAME.wanted}")
        return None
    if not place.is_mapping:
        place.must_be("a mapping, such as {from: ~/data/imagenet, to: /scratch/imagenet}")
        return None
    values = place.entries(KEYS)
    texts = {key: values[key].text(form) for key, form in _FORMS.items() if key in values}
    for key in KEYS:
        if key not in values:
            place.refuse(f"{key} is required, such as {{from: ~/data/imagenet, to: /scratch/imagenet}}")
    source, target = texts.get("from"), texts.get("to")
    if source is None or target is None:
        return None
    target = _plain(target)
    if problem := _problem(target, project):
        values["to"].refuse(problem)
    path = root.home() / source[2:] if source.startswith("~/") else root / source
    return DataSet(name, path, target)


_FORMS = {"from": forms.LOCAL_PATH, "to": forms.PREFIX}


def _plain(target: str) -> str:
    """Return a path without doubled slashes and points; the home folder is ``~``, the top is empty."""
    return "/".join(part for number, part in enumerate(target.split("/")) if not number or part not in {"", "."})


def _problem(target: str, project: str) -> str:
    """Return why nothing is placed there; empty when it can be. Links are looked at on the server."""
    if target in {"", "~"}:
        return "must be a folder of its own, not / or the home folder"
    folder, home = PurePosixPath(target), PurePosixPath("~", project)
    if folder.is_relative_to(home):
        return f"must be outside the project folder, ~/{project}"
    return f"must not contain the project folder, ~/{project}" if home.is_relative_to(folder) else ""
