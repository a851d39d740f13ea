"""A cluster that Slurm manages, behind its login node, and the reader of ``slurm:`` of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config import forms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.keys import ProjectParts

# Options of sbatch that are set here, and what is there in their place.
_OURS = {
    **dict.fromkeys(("array", "dependency", "ntasks", "n", "ntasks-per-node", "job-name", "comment"), "remote-tool"),
    **dict.fromkeys(("output", "error", "input", "open-mode"), "the logs of jobs"),
    **dict.fromkeys(("chdir", "workdir", "export", "export-file", "get-user-env"), "workdir and env"),
    **dict.fromkeys(("clusters", "M"), "the login node"),
    **dict.fromkeys(("wrap", "wait", "parsable", "test-only", "quiet", "verbose"), "remote-tool"),
}
_ENDS_JOBS = re.compile(r"\b(SIG)?USR2\b|\b12@", re.IGNORECASE)
_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-task")
# A launch is one request; beyond these, it would be split.
MOST_NODES = 128


@dataclass(frozen=True)
class Slurm:
    """How jobs of a login node are submitted.

    Attributes:
        options: Options of sbatch by their long names; ``true`` and ``false`` for those without a value.
        nodes: The nodes of a launch without ``--nnodes``.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1

    @property
    def gpus(self) -> int:
        """The GPUs of each node, as far as its options say."""
        for name in ("gpus-per-node", "gpus-per-task"):
            if name in self.options:
                return _count(self.options[name])
        if "gpus" in self.options:
            return _count(self.options["gpus"]) // self.nodes
        found = [each for each in self.options.get("gres", "").split(",") if each.partition(":")[0] == "gpu"]
        return sum(_count(each.partition(":")[2]) for each in found)

    @property
    def cpus(self) -> int:
        """The CPUs of each node, as far as its options say."""
        text = self.options.get("cpus-per-task", "1")
        return int(text) if text.isdigit() else 1

    def words(self, *, nodes: int = 1, gpus: int = 0) -> list[str]:
        """Return the options of sbatch for a job on some nodes, with another number of GPUs on each if it has one."""
        options = dict(self.options)
        if gpus:
            gres = [each for each in options.get("gres", "").split(",") if each]
            own = next((each for each in gres if each.partition(":")[0] == "gpu"), "")
            if not own:
                others = (options[name] for name in _OF_GPUS if ":" in options.get(name, ""))
                own = next((f"gpu:{each}" for each in others), "gpu")
            # gpu:a100:4 has a type; gpu:4 and gpu do not.
            typed = own.split(":")[:2] if not own.split(":")[-1].isdigit() or own.count(":") > 1 else ["gpu"]
            options["gres"] = ",".join([*(each for each in gres if each is not own), ":".join([*typed, str(gpus)])])
            options = {name: value for name, value in options.items() if name not in _OF_GPUS}
        words = [word for name, value in options.items() for word in _words_of(name, value)]
        return [*words, f"--nodes={nodes}", "--ntasks-per-node=1"]


def _words_of(name: str, value: str) -> list[str]:
    if value == "false":
        return ["--no-requeue"] if name == "requeue" else []
    return [f"--{name}" if value == "true" else f"--{name}={value}"]


def _count(text: str) -> int:
    """Return the number in ``4``, ``a100:4`` or nothing, which is one."""
    last = text.rpartition(":")[2]
    return int(last) if last.isdigit() else 1


def read_slurm(place: ConfigNode, _project: ProjectParts) -> Slurm | None:
    """Read ``{partition: gpu, time: "8:00:00"}``."""
    if not place.is_mapping:
        place.must_be("a mapping of options of sbatch, such as {partition: gpu}")
        return None
    options, nodes = {}, 1
    for written, found in place.pairs():
        name = written.replace("_", "-")
        if name in _OURS:
            found.refuse(f"is set by {_OURS[name]}")
        elif not forms.SBATCH_OPTION.accepts(name):
            found.refuse(f"the name must be {forms.SBATCH_OPTION.expected}")
        elif name == "nodes":
            nodes = int(found.text(forms.NODES) or 1)
            if nodes > MOST_NODES:
                found.refuse(f"must be at most {MOST_NODES}, found {nodes}")
        elif text := found.text(forms.SBATCH_VALUE):
            _check_signal(name, text, found)
            options[name] = text
    return Slurm(options, nodes)


def _check_signal(name: str, text: str, found: ConfigNode) -> None:
    if name == "signal" and _ENDS_JOBS.search(text):
        found.refuse("must be another signal than USR2, at which the supervisor of a job ends it at once")
