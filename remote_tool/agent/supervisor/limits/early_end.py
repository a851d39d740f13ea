"""Stop a job before its command ends: after its max_duration, or when its GPUs have been idle for long."""

from __future__ import annotations

import time
from contextlib import suppress

from remote_tool.agent.machine.gpu_use import Program
from remote_tool.protocol import job_folder
from remote_tool.protocol.nvidia_smi import FORMAT, SILENCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.agent.supervisor.records import RecordWriter

_QUERY = "--query-gpu=index,uuid,utilization.gpu"
_QUERY_FIELDS = 3
# In percent of a GPU's time; displays and monitoring use less.
_IDLE_BELOW = 5.0
# Seconds between two answers of a running nvidia-smi; each is about that second or a part of it.
_INTERVAL = 1
# Seconds between two questions, and from the notice to the stop: at most these, and these parts of the time.
_LOOK_SECONDS, _LOOK_PART = 30.0, 10
_NOTICE_SECONDS, _NOTICE_PART = 300.0, 2
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


class EarlyEnd:
    """Decides whether a running job is to be stopped by its own limits."""

    def __init__(self, plan: Plan, records: RecordWriter) -> None:
        self._plan = plan
        self._records = records
        self._idle = IdleGpus(plan, plan.spec["stop_if_idle"]) if plan.spec["stop_if_idle"] else None

    def request(self) -> Optional[Dict[str, Any]]:
        """Return a stop request, if it is to be stopped now."""
        why = ""
        limit = self._plan.spec["max_duration"]
        if limit is not None and time.monotonic() - self._records.started >= limit:
            why = f"ran for {spell(limit)}, its max_duration"
        elif self._idle is not None:
            why = self._idle.look(time.monotonic())
        return {"signal": "SIGTERM", "grace": self._plan.spec["grace"], "why": why} if why else None

    def pause(self) -> None:
        """End nvidia-smi: no command is running."""
        if self._idle is not None:
            self._idle.pause()


class IdleGpus:
    """Watches a job's GPUs without a gap; one without an answer counts as used."""

    def __init__(self, plan: Plan, limit: float) -> None:
        self._plan = plan
        self._limit = limit
        self._notice = min(_NOTICE_SECONDS, limit / _NOTICE_PART)
        self._program: Optional[Program] = None
        # One that keeps its answers until it ends is asked now and then.
        self._is_running = True
        self._asked_at = float("-inf")
        self._answered_at: Optional[float] = None
        self._seen: Dict[Tuple[str, ...], float] = {}
        self._idle_since: Optional[float] = None
        self._answers: Dict[Tuple[str, ...], int] = {}
        self._warned_at: Optional[float] = None
        self._is_missing = False

    @property
    def answers(self) -> int:
        """Return how many times every GPU of the job was measured since it is idle."""
        return min(self._answers.values(), default=0)

    def look(self, now: float) -> str:
        """Take the answers of nvidia-smi, ask when due, and return why the job is stopped; never waits."""
        if self._program is None and now - self._asked_at >= min(_LOOK_SECONDS, self._limit / _LOOK_PART):
            self._ask(now)
        if self._program is not None:
            self._read(now)
        if not self._is_known(now):
            self._idle_since = None
        idle = 0.0 if self._idle_since is None else now - self._idle_since
        self._warn(now, is_near=idle >= self._limit - self._notice)
        if self._warned_at is None or now - self._warned_at < self._notice:
            return ""
        how = f"{self.answers:,} measurements by nvidia-smi"
        return f"used its GPUs for less than {_IDLE_BELOW:.0f} % in the last {spell(self._limit)}: stop_if_idle, {how}"

    def pause(self) -> None:
        """End nvidia-smi, and forget its answers."""
        self._end()
        self._asked_at, self._warned_at = float("-inf"), None
        self._seen, self._idle_since = {}, None
        self._note("")

    def _end(self) -> None:
        if self._program is not None:
            self._program.end()
        self._program = None

    def _ask(self, now: float) -> None:
        self._asked_at, self._answered_at = now, None
        if self._is_running:
            self._seen = {}
        loop = ["-l", str(_INTERVAL)] if self._is_running else []
        try:
            self._program = Program(_QUERY, FORMAT, *loop)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self._is_missing:
                self._is_missing = True
                self._say(f"stop_if_idle has no effect: nvidia-smi: {error.strerror}")

    def _read(self, now: float) -> None:
        assert self._program is not None
        for line in self._program.read():
            self._take(line, now)
        if self._program.has_ended:
            # One that takes no -l answers once.
            self._is_running = self._is_running and not (self._seen and now - self._asked_at < SILENCE)
            self._end()
        elif now - (self._asked_at if self._answered_at is None else self._answered_at) > SILENCE:
            self._is_running = self._is_running and self._answered_at is not None
            self._end()

    def _take(self, line: str, now: float) -> None:
        """Take the answer about one GPU; an error, or a GPU without a number, counts as used."""
        self._answered_at = now
        *gpu, load = (field.strip() for field in line.split(","))
        if len(gpu) != _QUERY_FIELDS - 1:
            self._idle_since = None
            return
        visible, name = self._visible_gpus(), tuple(gpu)
        if visible and not any(_is_called(name, each) for each in visible):
            return
        self._seen[name] = now
        if not load.isdigit() or float(load) >= _IDLE_BELOW:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since, self._answers = now, {name: 1}
        else:
            self._answers[name] = self._answers.get(name, 0) + 1

    def _is_known(self, now: float) -> bool:
        """Return whether every GPU of the job has answered lately, and none has become silent."""
        latest = now - SILENCE - (_INTERVAL if self._is_running else _LOOK_SECONDS)
        names = self._visible_gpus()
        found = all(any(_is_called(gpu, name) for gpu in self._seen) for name in names) and bool(self._seen)
        return found and all(seen >= latest for seen in self._seen.values())

    def _visible_gpus(self) -> List[str]:
        return [name.strip() for name in gpus_of(self._plan).split(",") if name.strip()]

    def _warn(self, now: float, *, is_near: bool) -> None:
        """Write to the job's output, and show in its status, that it is about to be stopped."""
        if is_near == (self._warned_at is not None):
            return
        self._warned_at = now if is_near else None
        note = f"its GPUs are idle; stop_if_idle stops it in {spell(self._notice)} if they stay so"
        self._say(note if is_near else "its GPUs are used again, so it is not stopped")
        self._note(note if is_near else "")

    def _say(self, text: str) -> None:
        with suppress(OSError):
            job_folder.add_lines(self._plan.folder, [text])

    def _note(self, text: str) -> None:
        with suppress(OSError):
            job_folder.remove(self._plan.folder, job_folder.NOTICE)
            if text:
                job_folder.write_file(self._plan.folder, job_folder.NOTICE, text.encode())


def gpus_of(plan: Plan) -> str:
    """Return the GPUs of a job as ``CUDA_VISIBLE_DEVICES`` names them; empty for all."""
    # A job from the queue has some of those that it may use.
    given = "" if plan.request.queue is not None else ",".join(plan.spec["gpus"] or ())
    return given or plan.environment.get(b"CUDA_VISIBLE_DEVICES", b"").decode("utf-8", "replace")


def _is_called(gpu: Tuple[str, ...], name: str) -> bool:
    """Return whether this is the name of a GPU: its number, or the beginning of its UUID."""
    return gpu[0] == name or (not name.isdigit() and gpu[1].startswith(name))


def spell(seconds: float) -> str:
    """Return a duration as it is configured: 12h, 90m, 45s."""
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"
