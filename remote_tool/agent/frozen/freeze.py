"""Make the copy of the project before a job waits that will run in it."""

from __future__ import annotations

from remote_tool.agent.frozen import copies, home
from remote_tool.agent.requests import Request, is_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


def freeze(request: Request) -> None:
    """Answer op ``freeze``: copy the files of a sync (``snapshot``), and keep the copy for a later start."""
    folders = request.folders()
    home.bring_pending(folders)
    copy = copies.Copies(folders).take(request.get("snapshot", is_text, default=""))
    answer: Dict[str, Any] = {"copy": ""}
    if copy is not None:
        copies.want(copy)
        answer["copy"] = copy.name
    request.answer(answer)
