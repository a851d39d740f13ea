"""What a launch must know of the Python behind a launch command or in a container."""

from __future__ import annotations

import json
import os

from . import activation, entering, inside
from .activation import Origin
from .requests import Folders, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

# A container has to start first.
_SECONDS = 50.0
_MOST_SAID = 500
_PROGRAM = """
import json, os, platform, re
try:
    from importlib.metadata import distributions
except ImportError:
    distributions = lambda: ()
found = {}
for each in distributions():
    name = (each.metadata["Name"] or "").lower().replace("-", "_")
    found.setdefault("nccl" if name.startswith("nvidia_nccl_cu") else name, each.version)
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
devices = [name for name in os.listdir("/dev") if re.match("nvidia[0-9]+$", name)]
gpus = [str(number) for number in range(len(devices))]
if visible is not None:
    names = [name.strip() for name in visible.split(",")]
    gpus = [name for name in names[: names.index("-1") if "-1" in names else None] if name]
facts = {"torch": found.get("torch"), "nccl": found.get("nccl"), "gpus": len(gpus), "devices": len(devices)}
facts["gpu_names"] = gpus
print(json.dumps(dict(facts, python=platform.python_version())))
"""


def ask_inside(entry: Any, folders: Folders) -> Dict[str, Any]:  # noqa: ANN401 - from a request, checked where it is read
    """Return the versions of Python, torch and NCCL, and the GPUs, that a job sees.

    Raises:
        RequestError: There is no Python inside, or it does not answer.
    """
    name = f"remote-tool-facts-{os.urandom(8).hex()}"
    door = entering.read_door(entry, name, folders)
    assert door is not None
    entering.make_home(door)
    environment = entering.outside_environment(os.environb)
    active = activation.load_activation(folders.activation)
    settings = entering.settings_for(door, active, {}, Origin(folders.project, name, ""))
    question = f"python - <<'END_OF_PROGRAM' || exit\n{_PROGRAM}END_OF_PROGRAM"
    script = entering.inner_script(settings, [question, inside.SAY_END])
    try:
        output, errors = inside.ask(door.words, script, environment, _SECONDS)
    finally:
        inside.Inside(name, door.ask, door.end, environment).remove()
    lines = output.splitlines()
    try:
        # What an entry point or a profile prints stands before it.
        facts = json.loads(lines[-2].decode("utf-8"))
        known = ("python", "torch", "nccl", "gpus", "gpu_names", "devices")
        return {**{key: facts[key] for key in known}, "uuids": []}
    except (IndexError, ValueError, KeyError, TypeError):
        said = errors.decode("utf-8", "replace").strip()[-_MOST_SAID:] or "it said nothing"
        what = "in the container" if door.end else f"behind {door.words[0]}"
        raise RequestError(f"python does not answer {what}: {said}", hint="remote-tool run --cmd 'python -V'") from None
