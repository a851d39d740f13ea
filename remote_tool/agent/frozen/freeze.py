"""Make the copy of the project before a job waits that will run in it."""

from __future__ import annotations

from remote_tool.agent.frozen import copies, home
from remote_tool.agent.requests import Request, is_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.requests import Folders


def freeze(request: Request) -> None:
    """Answer op ``freeze``: copy the files of a sync (``snapshot``), and keep the copy for a later start.

    With ``state``, the name of a copy on any server, only look for a copy of the same files.
    """
    folders = request.folders()
    state = request.get("state", is_text, default="")
    home.bring_pending(folders)
    kept = copies.Copies(folders)
    copy = _find_same(folders, state) if state else kept.take(request.get("snapshot", is_text, default=""))
    answer: Dict[str, Any] = {"copy": ""}
    if copy is not None:
        copies.want(copy)
        answer["copy"] = copy.name
    request.answer(answer)


def _find_same(folders: Folders, name: str) -> Optional[Copy]:
    """Return a whole copy of the files that the copy with a name has on another server; None if there is none."""
    state = name.partition("-")[0]
    same = (copy for copy in copies.copies_in(folders) if copy.name.partition("-")[0] == state)
    return next((copy for copy in same if not copies.first_change(copy, copies.FILES)), None)
