"""Read and validate a client's request, and send its answers."""

from __future__ import annotations

import json
import os
import select

from remote_tool.protocol import framing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

_LINE_LIMIT = 64 * 1024 * 1024
_SILENCE_SECONDS = 60.0
# poll() takes any descriptor, but its timeout is in whole milliseconds.
_SELECTABLE = 1024


class Folders(NamedTuple):
    """The absolute folders of a project on this server."""

    project: str
    jobs: str
    scripts: str

    def check_workdir(self, value: object) -> str:
        """Return a working folder relative to the project; RequestError when it is missing or outside the project."""
        if value == "":
            folder = self.project
        elif isinstance(value, str) and _is_relative(value):
            folder = f"{self.project}/{value}"
        else:
            raise RequestError(f"The request's workdir cannot be {value!r:.60}")
        if os.path.isdir(folder):
            return value
        if value and os.path.isdir(self.project):
            raise RequestError(
                f"{folder} does not exist", hint="remote-tool rsync, or choose another folder with --workdir"
            )
        raise RequestError(f"{self.project} does not exist", hint="remote-tool rsync")

    def refuse_half_a_project(self) -> None:
        """Raise RequestError after an incomplete sync."""
        try:
            with open(self.sync_state, "rb") as file:
                whole = not file.read(64).startswith(b"incomplete")
        except OSError:
            return  # never synced by us: the user's own copy
        if not whole:
            raise RequestError(
                f"{self.project} is incomplete: its last sync did not finish or is still running",
                hint="remote-tool rsync",
            )

    @property
    def activation(self) -> str:
        return os.path.join(self.scripts, "activation.json")

    @property
    def sent_files(self) -> str:
        return os.path.join(self.scripts, "sent")

    @property
    def copies(self) -> str:
        return os.path.join(self.scripts, "copies")

    @property
    def sync_state(self) -> str:
        return os.path.join(self.scripts, "sync")


class Request:
    """A request, and the connection to its client.

    Attributes:
        nonce: Marks the answers.
        op: Name of the operation.
        fields_of_errors: More fields for an answer that reports an error.
    """

    def __init__(self, fields: Dict[str, Any]) -> None:
        self._fields = fields
        self.nonce = str(fields["nonce"])
        self.op = str(fields.get("op"))
        self.fields_of_errors: Dict[str, Any] = {}

    def answer(self, header: Dict[str, Any], body: bytes = b"") -> None:
        """Send one frame; BrokenPipeError when the client has disconnected."""
        data = memoryview(framing.encode(self.nonce, header, body))
        while data:
            data = data[os.write(1, data) :]

    def get(self, name: str, check: Callable[[Any], bool], default: Any = None) -> Any:  # noqa: ANN401 - of any type, checked here
        """Return a field that passes the check, or the default if missing; RequestError otherwise."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not check(value):
            raise RequestError(f"The request's {name} cannot be {value!r:.60}")
        return value

    def folders(self) -> Folders:
        """Return the folders in the request; RequestError when one is outside the home folder.

        The project itself may be elsewhere, by an absolute path; our folders are in it then.
        """
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            raise RequestError(f"HOME is {home!r} on this server, which is not an absolute path")
        project = self.get("project", lambda value: _is_relative(_without_root(value)))

        def is_ours(value: object) -> bool:
            is_inside = isinstance(value, str) and value.startswith(f"{project}/")
            return _is_relative(_without_root(value) if is_inside else value)

        names = [project, *(self.get(name, is_ours) for name in ("jobs_folder", "scripts_folder"))]
        return Folders(*(os.path.join(home, name) for name in names))

    def synced(self) -> Tuple[str, str]:
        """Return the target of a sync, the project or a data set, and the folder for its partial files."""
        folders, data = self.folders(), self.get("folder", is_text, "")
        if not data:
            return folders.project, os.path.join(folders.scripts, "partial")
        path = os.path.expanduser(data)
        parent, name = os.path.split(path)
        return path, os.path.join(parent, f".{name}.remote-tool", "partial")


def read_request() -> Optional[Request]:
    """Read the request line from stdin; None when there is no valid one."""
    parts: List[bytes] = []
    size = 0
    while not (parts and parts[-1].endswith(b"\n")):
        # A long request takes time over a slow connection; only silence times out.
        if size > _LINE_LIMIT or not select.select([0], [], [], _SILENCE_SECONDS)[0]:
            return None
        data = os.read(0, 65536)
        if not data:
            return None
        parts.append(data)
        size += len(data)
    try:
        fields = json.loads(b"".join(parts).decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not framing.is_nonce(fields.get("nonce")):
        return None
    return Request(fields)


def client_is_gone(seconds: float, *wakers: int) -> bool:
    """Wait until stdin ends, a descriptor is readable or time is up; return whether stdin ended."""
    watched = [0, *wakers]
    if max(watched) < _SELECTABLE:
        ready = select.select(watched, [], [], seconds)[0]
    else:
        poll = select.poll()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
    return 0 in ready and not os.read(0, 65536)


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def is_list(value: object) -> bool:
    return isinstance(value, list)


def is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _without_root(value: object) -> object:
    return value.lstrip("/") if isinstance(value, str) else value


def _is_relative(value: object) -> bool:
    if not isinstance(value, str) or not is_text(value):
        return False
    return value != "" and not value.startswith("/") and ".." not in value.split("/")
