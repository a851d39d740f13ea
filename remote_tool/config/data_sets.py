"""Data sets beside the project: their source, their target on each server, and the variable with the path."""

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
    from remote_tool.config.keys import ProjectParts

KEYS = ("from", "to")


@dataclass(frozen=True)
class DataSet:
    """A folder that is kept equal here and on the servers.

    Attributes:
        name: Its name in the configuration.
        source: The local path, absolute.
        target: The path on each server, absolute or beginning with ``~/``.
    """

    name: str
    source: Path
    target: str

    @property
    def variable(self) -> str:
        """The environment variable with its path."""
        return DATA_PREFIX + re.sub(r"[^A-Z0-9]", "_", self.name.upper())


def read_data_sets(place: ConfigNode, project: ProjectParts) -> dict[str, DataSet]:
    """Read ``data:``; problems are added to the node."""
    data_sets: dict[str, DataSet] = {}
    variables: dict[str, str] = {}
    targets: dict[str, str] = {}
    for name, found in place.pairs():
        data_set = _data_set(name, found, project)
        if data_set is None:
            continue
        other = variables.setdefault(data_set.variable, name)
        if other != name:
            found.refuse(f"sets the same variable as {other}, {data_set.variable}; choose another name")
        # A sync keeps its state beside a set's folder, so two sets in one folder would be confused.
        other = targets.setdefault(data_set.target, name)
        if other != name:
            found.refuse(f"uses the same folder as {other}, {data_set.target}; give each data set its own")
        data_sets[name] = data_set
    return data_sets


def _data_set(name: str, place: ConfigNode, project: ProjectParts) -> DataSet | None:
    if not forms.SERVER_NAME.accepts(name):
        place.refuse(f"the name must be {forms.SERVER_NAME.expected}")
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
    if problem := _problem(target, project.name):
        values["to"].refuse(problem)
    return DataSet(name, project.local_path(source), target)


_FORMS = {"from": forms.LOCAL_PATH, "to": forms.PREFIX}


def _plain(target: str) -> str:
    """Return a path without redundant slashes and dots; the home folder is ``~``, the root is empty."""
    return "/".join(part for number, part in enumerate(target.split("/")) if not number or part not in {"", "."})


def _problem(target: str, project: str) -> str:
    """Return why the target is refused; empty if valid. Links are checked on the server."""
    if target in {"", "~"}:
        return "must be a folder of its own, not / or the home folder"
    folder, home = PurePosixPath(target), PurePosixPath("~", project)
    if folder.is_relative_to(home):
        return f"must be outside the project folder, ~/{project}"
    return f"must not contain the project folder, ~/{project}" if home.is_relative_to(folder) else ""
