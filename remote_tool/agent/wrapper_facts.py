"""Facts about the Python behind a launch command or in a container that a launch needs."""

from __future__ import annotations

import json
import os

from remote_tool.agent import activation
from remote_tool.agent.activation import Origin
from remote_tool.agent.requests import is_flag, is_text
from remote_tool.agent.wrapper import container, wrapper
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.setup_script import put_before_attached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from remote_tool.agent.requests import Request

# A container may have to start first.
_SECONDS = 50.0
_MOST_OUTPUT = 500
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
facts = {name: found.get(name) for name in ("torch", "nccl", "ray")}
facts.update(gpus=len(gpus), devices=len(devices), gpu_names=gpus)
print(json.dumps(dict(facts, python=platform.python_version())))
"""


def ask_inside(entry: Any, request: Request) -> Dict[str, Any]:  # noqa: ANN401 - from a request, checked where it is read
    """Return the versions of Python, torch and NCCL, and the GPUs, as a job sees them.

    If Python is optional and does not answer, nothing is returned.

    Raises:
        RequestError: Python is missing inside, or does not answer.
    """
    folders = request.folders()
    name = f"remote-tool-facts-{os.urandom(8).hex()}"
    command_wrapper = wrapper.read_wrapper(entry, name, folders)
    assert command_wrapper is not None
    wrapper.make_home(command_wrapper)
    environment = wrapper.outside_environment(os.environb)
    active = activation.load_activation(folders.activation)
    user = request.get("environment", lambda value: isinstance(value, dict), default={})
    settings = wrapper.settings_for(command_wrapper, active, user, Origin(folders.project, name, ""))
    script = wrapper.inner_script(settings, [_question(request, name), container.SAY_END])
    try:
        output, errors = container.ask(command_wrapper.words, script, environment, _SECONDS)
    finally:
        container.WrappedProcesses(name, command_wrapper.ask, command_wrapper.end, environment).remove()
    lines = output.splitlines()
    try:
        # Output of an entry point or a profile precedes it.
        facts = json.loads(lines[-2].decode("utf-8"))
        known = ("python", "torch", "nccl", "ray", "gpus", "gpu_names", "devices")
        return {**{key: facts[key] for key in known}, "uuids": []}
    except (IndexError, ValueError, KeyError, TypeError):
        if not request.get("needs_python", is_flag, default=True):
            return {"python": "", "torch": None, "nccl": None, "gpus": 0, "gpu_names": [], "devices": 0, "uuids": []}
        last_words = errors.decode("utf-8", "replace").strip()[-_MOST_OUTPUT:] or "it said nothing"
        what = "in the container" if command_wrapper.end else f"behind {command_wrapper.words[0]}"
        raise RequestError(
            f"python does not answer {what}: {last_words}", hint="remote-tool run --cmd 'python -V'"
        ) from None


def _question(request: Request, mark: str) -> str:
    """Return the script that runs the query in Python, after the jobs' setup script."""
    ask = f"python - <<'END_OF_PROGRAM'\n{_PROGRAM}END_OF_PROGRAM"
    setup = request.get("setup", is_text, default="")
    script = put_before_attached(ask, setup) if setup else ask
    return f"$shell /dev/fd/9 9<<'{mark}' || exit\nexec 9<&-\n{script}\n{mark}"
