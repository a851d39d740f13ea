"""Report changes of the jobs of a project and of their ranks, for ``top``; ``top.py`` samples the machine."""

from __future__ import annotations

import os

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.agent.proc.stacks import rank_of
from remote_tool.protocol import job_folder
from remote_tool.protocol.rank_errors import find_first_error
from remote_tool.protocol.records import ENDED, STARTED, RecordError, is_job_id
from remote_tool.protocol.streams import find_streams, last_output, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

    from remote_tool.agent.proc.processes import Process

_MOST_TAILS = 64
# A look at all processes costs more than a sample. The ranks of a new job appear within its first seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
_MOST_RANKS = 1024


class JobWatch:
    """Notices changes of the jobs in a folder, from a few files of each job that has not ended."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place = processes.place()
        self._ended: set[str] = set()
        self._supervisors: Dict[str, Dict[str, int]] = {}
        self._reported: Optional[Dict[str, str]] = None
        self._sizes: Dict[str, Dict[str, int]] = {}

    def look(self) -> Dict[str, Any]:
        """Return ``jobs``, the states of unfinished jobs, if they have changed since the last call."""
        try:
            jobs = job_folder.open_jobs_folder(self._path)
        except (OSError, job_folder.FolderError):
            return {}
        states = {}
        if jobs is not None:
            try:
                names = [name for name in os.listdir(jobs) if is_job_id(name)]
                self._ended.intersection_update(names)
                states = {name: self._state(jobs, name) for name in names if name not in self._ended}
            finally:
                os.close(jobs)
        states = {name: state for name, state in states.items() if state}
        if states == self._reported:
            return {}
        self._reported = states
        return {"jobs": states}

    @property
    def running(self) -> Dict[str, Dict[str, int]]:
        """The supervisors of the jobs that were running at the last look."""
        return {name: self._supervisors[name] for name, state in (self._reported or {}).items() if state == "running"}

    def tails(self) -> List[Tuple[str, List[str]]]:
        """Return the end of the output of each running job that has written since the last call."""
        tails = []
        for name in [*self.running][:_MOST_TAILS]:
            try:
                folder = job_folder.open_folder(f"{self._path}/{name}")
            except OSError:
                continue
            try:
                sizes = stream_sizes(folder)
                if any(sizes.values()) and sizes != self._sizes.get(name):
                    tails.append((name, last_output(folder)))
                self._sizes[name] = sizes
            finally:
                os.close(folder)
        self._sizes = {name: sizes for name, sizes in self._sizes.items() if name not in self._ended}
        return tails

    def _state(self, jobs: int, name: str) -> str:
        """Return ``starting``, ``queued``, ``running``, ``gone`` or ``unknown``; empty for a job that has ended."""
        try:
            folder = job_folder.open_job(jobs, name)
        except OSError:
            return "unknown"
        if folder is None:
            return ""
        try:
            if job_folder.exists(folder, ENDED):
                self._ended.add(name)
                self._supervisors.pop(name, None)
                return ""
            return self._unended_state(folder, name)
        except (OSError, RecordError):
            return "unknown"
        finally:
            os.close(folder)

    def _unended_state(self, folder: int, name: str) -> str:
        if name not in self._supervisors:
            started = job_folder.read_record(folder, STARTED, name)
            if started is None:
                return "queued" if job_folder.exists(folder, job_folder.QUEUED) else "starting"
            where = started["place"]
            if any(where[key] != self._place[key] for key in ("boot_id", "pid_namespace")):
                # Of another machine that shares this folder, or of one before a reboot.
                return "elsewhere"
            self._supervisors[name] = started["supervisor"]
        return "running" if processes.find_alive(self._supervisors[name]) else "gone"


class _Ranks:
    """The ranks of a job in one attempt of torchrun."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.alive: Dict[int, Dict[str, int]] = {}
        self.ended: Set[int] = set()
        self.offset: Optional[int] = None
        self.problem = ""

    def note_ended(self) -> bool:
        """Move the ranks without a living process to the ended ones; return whether there are any."""
        ended = {rank for rank, process in self.alive.items() if processes.find_alive(process) is None}
        for rank in ended:
            del self.alive[rank]
        self.ended |= ended
        return bool(ended)


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
        snapshot = ProcessSnapshot()
        for name, supervisor in running.items():
            try:
                folder = job_folder.open_folder(f"{self._path}/{name}")
            except OSError:
                continue
            try:
                members = snapshot.members(name, job_folder.path_of(folder), supervisor["pid"])
                self._known[name] = _ranks_of(folder, members, self._known.get(name))
            finally:
                os.close(folder)


def _ranks_of(folder: int, members: Iterable[Process], known: Optional[_Ranks]) -> _Ranks:
    attempt, started = _started_by_torchrun(folder)
    ranks = known if known is not None and known.attempt == attempt else _Ranks(attempt)
    # Children of a rank have its variables, too, and are younger.
    for process in sorted(members, key=lambda process: process.start_time):
        variables = rank_of(process.pid)
        if variables:
            ranks.alive.setdefault(variables["rank"], process.as_record())
            if "local_rank" in variables:
                ranks.offset = variables["rank"] - variables["local_rank"]
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
