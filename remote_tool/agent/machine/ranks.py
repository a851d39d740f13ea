"""Find the living ranks of jobs, from their processes and from the folders that torchrun makes for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import Snapshot
from remote_tool.agent.proc.stacks import rank_of
from remote_tool.protocol import job_folder
from remote_tool.protocol.rank_errors import find_first_error
from remote_tool.protocol.streams import find_streams

if TYPE_CHECKING:
    from remote_tool.agent.proc.processes import Process

# A look at all processes costs more than a sample. The ranks of a new job appear within its first seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
_MOST_RANKS = 1024


class _Ranks:
    """The ranks of a job in one attempt of torchrun."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.alive: Dict[int, Dict[str, int]] = {}
        self.ended: Set[int] = set()
        self.offset: Optional[int] = None
        self.problem = ""

    def note_ended(self) -> bool:
        """Move the ranks whose processes have ended; return whether there are any."""
        gone = {rank for rank, process in self.alive.items() if processes.find_alive(process) is None}
        for rank in gone:
            del self.alive[rank]
        self.ended |= gone
        return bool(gone)


class RankWatch:
    """Notices ranks that begin and end; looks for new ones seldom, and more often after a change."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: Dict[str, _Ranks] = {}
        self._running: Set[str] = set()
        self._pause = self._due = 0.0

    def look(self, running: Mapping[str, Mapping[str, int]], now: float) -> List[Dict[str, Any]]:
        """Return the ranks of running jobs; each job comes with its supervisor."""
        if running.keys() != self._running:
            self._running = {*running}
            self._known = {name: ranks for name, ranks in self._known.items() if name in running}
            self._pause, self._due = _SHORTEST_PAUSE, now
        changed = [name for name, ranks in self._known.items() if ranks.note_ended()]
        if changed:
            self._pause, self._due = _SHORTEST_PAUSE, min(self._due, now + _SHORTEST_PAUSE)
        if running and now >= self._due:
            self._find(running)
            self._due, self._pause = now + self._pause, min(_LONGEST_PAUSE, self._pause * 2)
        return [
            {
                "job": name,
                "alive": sorted(ranks.alive)[:_MOST_RANKS],
                "ended": sorted(ranks.ended)[:_MOST_RANKS],
                "problem": ranks.problem,
            }
            for name, ranks in self._known.items()
            if ranks.alive or ranks.ended
        ]

    def _find(self, running: Mapping[str, Mapping[str, int]]) -> None:
        snapshot = Snapshot()
        for name, supervisor in running.items():
            try:
                folder = job_folder.open_folder(f"{self._path}/{name}")
            except OSError:
                continue
            try:
                members = snapshot.members(name, job_folder.path_of(folder), supervisor["pid"])
                self._known[name] = _found(folder, members, self._known.get(name))
            finally:
                os.close(folder)


def _found(folder: int, members: Iterable[Process], known: Optional[_Ranks]) -> _Ranks:
    attempt, started = _started_by_torchrun(folder)
    ranks = known if known is not None and known.attempt == attempt else _Ranks(attempt)
    # Children of a rank have its variables, too, and are younger.
    for process in sorted(members, key=lambda process: process.start_time):
        known_as = rank_of(process.pid)
        if known_as:
            ranks.alive.setdefault(known_as["rank"], process.as_record())
            if "local_rank" in known_as:
                ranks.offset = known_as["rank"] - known_as["local_rank"]
    if ranks.offset is not None:
        ranks.ended |= {ranks.offset + local for local in started}
    ranks.ended -= ranks.alive.keys()
    if ranks.ended and started:
        error = find_first_error(folder, ranks.offset, has_ended=False)
        ranks.problem = error.what if error else ""
    return ranks


def _started_by_torchrun(folder: int) -> Tuple[int, Set[int]]:
    """Return the number of the newest attempt, and its local ranks."""
    names = [stream.split("/") for stream in find_streams(folder) if stream.startswith(job_folder.RANKS)]
    newest = max((int(name[1]) for name in names), default=-1)
    return newest, {int(name[2]) for name in names if int(name[1]) == newest}
