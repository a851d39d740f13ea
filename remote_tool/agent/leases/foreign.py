"""Find GPUs that processes without a lease use, visible here or not, from nvidia-smi's answers over time."""

from __future__ import annotations

import os
import time

from remote_tool.agent.leases.folders import LeaseError
from remote_tool.agent.leases.listing import NANOSECONDS
from remote_tool.agent.machine.gpu_use import Program, parse_process
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.nvidia_smi import ASK_GPUS, ASK_PROCESSES, FORMAT, SILENCE, parse_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set

    from remote_tool.agent.machine.gpu_use import ProcessOnGpu

# Memory in MiB that an idle GPU may have in use, and use in percent.
_IDLE_MEMORY = 512
_IDLE_LOAD = 5
# The load is an average of the last second: that of a process which has ended just now is still in it.
LOAD_SECONDS = 1.5
_SHOWN_PROCESSES = 3
NO_ANSWER = "nvidia-smi does not answer"


class NvidiaSmiAnswer(NamedTuple):
    """One answer of nvidia-smi.

    Attributes:
        gpus: As of :func:`parse_gpu`, by index.
        processes: Those on all GPUs.
        problem: Why there is no answer; empty with one.
        leased: The GPUs that were leased when it was asked.
        asked: When that was, in nanoseconds since the boot; 0: now.
        is_kept: Whether it was there before this process wanted to know.
    """

    gpus: List[Dict[str, Any]]
    processes: List[ProcessOnGpu]
    problem: str = ""
    leased: FrozenSet[str] = frozenset()
    asked: int = 0
    is_kept: bool = False


class NvidiaSmiOutput(NamedTuple):
    """Output of nvidia-smi.

    Attributes:
        gpus: Lines about GPUs.
        processes: Lines about processes.
        failure: How one of the two programs failed; empty if none did.
        problem: Why they printed nothing that counts; empty if they did.
    """

    gpus: List[str]
    processes: List[str]
    failure: str = ""
    problem: str = ""

    def parse(self) -> NvidiaSmiAnswer:
        """Return the answer, with the users and jobs of processes as they are known now."""
        if self.problem:
            return NvidiaSmiAnswer([], [], self.problem)
        known = {line: parse_gpu(line) for line in self.gpus}
        users = {line: parse_process(line) for line in self.processes}
        # The empty answer of a program that failed does not mean that there are none.
        strange = [line for found in (known, users) for line, each in found.items() if each is None]
        problem = strange[0] if strange else self.failure or ("" if known else "no answer")
        if problem:
            return NvidiaSmiAnswer([], [], f"nvidia-smi: {problem}")
        of_gpus = sorted((gpu for gpu in known.values() if gpu is not None), key=_index)
        return NvidiaSmiAnswer(of_gpus, [each for each in users.values() if each is not None])


class GpuQuestion:
    """Asks nvidia-smi without waiting for it: it may hang in the kernel."""

    def __init__(self) -> None:
        self._programs: List[Program] = []
        self._lines: List[List[str]] = []
        self._asked_at = 0.0
        self._stuck: List[int] = []

    @property
    def is_open(self) -> bool:
        """Return whether there is no answer yet."""
        return bool(self._programs)

    @property
    def descriptors(self) -> List[int]:
        """Return the descriptors to wait for."""
        return [program.output for program in self._programs if not program.has_ended]

    @property
    def seconds(self) -> float:
        """Return for how long to wait for an answer."""
        return max(0.0, self._asked_at + SILENCE - time.monotonic())

    def ask(self) -> str:
        """Ask; return why none can come, or an empty string.

        Raises:
            LeaseError: There is no nvidia-smi.
        """
        self._stuck = [pid for pid in self._stuck if not _has_ended(pid)]
        if self._stuck:
            return NO_ANSWER
        try:
            for query in (ASK_GPUS, ASK_PROCESSES):
                self._programs.append(Program(query, FORMAT))
                self._lines.append([])
        except FileNotFoundError:
            self.close()
            raise LeaseError(
                "this server has no nvidia-smi, without which GPUs cannot be leased; those of AMD are not supported"
            ) from None
        except OSError as error:
            self.close()
            return f"nvidia-smi: {error.strerror}"
        self._asked_at = time.monotonic()
        return ""

    def take(self) -> Optional[NvidiaSmiAnswer]:
        """Return the answer once it is complete; None before."""
        output = self.take_lines()
        return None if output is None else output.parse()

    def take_lines(self) -> Optional[NvidiaSmiOutput]:
        """Return the output once it is complete; None before."""
        for program, lines in zip(self._programs, self._lines):  # noqa: B905 - newer than Python 3.8
            if not program.has_ended:
                lines.extend(program.read())
        is_silent = self.seconds <= 0
        if not is_silent and not all(program.has_ended for program in self._programs):
            return None
        programs, of_programs = self._programs, self._lines
        self.close()
        if is_silent:
            return NvidiaSmiOutput([], [], problem=NO_ANSWER)
        gpus, processes = of_programs
        return NvidiaSmiOutput(gpus, processes, next((program.failure for program in programs if program.failure), ""))

    def close(self) -> None:
        """End the programs that were started."""
        for program in self._programs:
            program.end()
            if not program.has_ended and not _has_ended(program.pid):
                self._stuck.append(program.pid)
        self._programs, self._lines = [], []


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def is_one_of(gpu: Dict[str, Any], devices: Sequence[str]) -> bool:
    """Return whether a GPU is among devices, each a number or the beginning of a UUID; without any, all are."""
    numbers = {str(gpu["index"])} & {*devices}
    return not devices or bool(numbers) or any(gpu["uuid"].startswith(each) for each in devices if not each.isdigit())


def is_idle(gpu: Dict[str, Any]) -> bool:
    """Return whether a GPU without visible processes is not used by others, as far as it tells anything."""
    is_known = gpu["load"] is not None or gpu["used"] is not None
    return is_known and (gpu["load"] or 0) <= _IDLE_LOAD and (gpu["used"] or 0) <= _IDLE_MEMORY


class ForeignUse:
    """GPUs that somebody uses without a lease, or may still use, from one answer to the next."""

    def __init__(self, idle_after: float) -> None:
        """Initialize.

        Args:
            idle_after: For how many seconds a GPU that was used must be idle until it is free.
        """
        self._idle_after = idle_after
        # Of those that were used: when they became idle; None while they are used.
        self._idle_since: Dict[str, Optional[float]] = {}
        self._loaded_since: Dict[str, float] = {}
        self._why: Dict[str, str] = {}
        # Those that were leased a moment ago: no answer is needed to know who had them.
        self._were_leased: Set[str] = set()

    def forget(self, uuids: Iterable[str]) -> None:
        """Forget GPUs that are leased: their users may use them."""
        for uuid in uuids:
            self._were_leased.add(uuid)
            self._idle_since.pop(uuid, None)
            self._loaded_since.pop(uuid, None)
            self._why.pop(uuid, None)

    def update(self, answer: NvidiaSmiAnswer, judged: Iterable[str], suspects: Iterable[str]) -> None:
        """Take an answer.

        Args:
            answer: Of nvidia-smi.
            judged: The GPUs that nobody had leased when it was asked.
            suspects: Those whose last holder died without giving them back.
        """
        now = time.monotonic()
        to_judge = set(judged)
        doubtful = set(suspects)
        for gpu in answer.gpus:
            uuid = gpu["uuid"]
            if uuid not in to_judge:
                continue
            # Of two that differ, not of one that is taken twice.
            asked = answer.asked / NANOSECONDS if answer.asked else now
            self._why[uuid] = self._find_use(gpu, answer, asked)
            if self._why[uuid]:
                self._idle_since[uuid] = None
                self._were_leased.discard(uuid)
            elif uuid in self._loaded_since:
                continue
            elif (
                uuid in self._idle_since or uuid in doubtful or (_unknown_number(gpu) and uuid not in self._were_leased)
            ):
                since = self._idle_since.get(uuid)
                self._idle_since[uuid] = now if since is None else since

    def is_free(self, uuid: str) -> bool:
        """Return whether a GPU that is in the last answer may be leased."""
        if self._why.get(uuid, "") or uuid in self._loaded_since:
            return False
        return uuid not in self._idle_since or self._idle_for(uuid) >= self._idle_after

    @property
    def is_unsure(self) -> bool:
        """Return whether the next answer may soon tell more."""
        return any(not self._why.get(uuid) for uuid in self._loaded_since)

    def seconds_left(self) -> float:
        """Return after how many seconds the first GPU that is idle now is free."""
        waits = [
            self._idle_after - self._idle_for(uuid) for uuid, since in self._idle_since.items() if since is not None
        ]
        return min((wait for wait in waits if wait > 0), default=self._idle_after)

    def describe(self, gpus: List[Dict[str, Any]]) -> str:
        """Explain why GPUs are not free; empty if all are."""
        notes = []
        for gpu in gpus:
            uuid = gpu["uuid"]
            if self._why.get(uuid):
                notes.append(f"GPU {gpu['index']} {self._why[uuid]}")
            elif not self.is_free(uuid) and _unknown_number(gpu):
                why = f"nvidia-smi does not tell its {_unknown_number(gpu)}"
                notes.append(f"GPU {gpu['index']} must be idle for {self._idle_after:g} s: {why}")
            elif not self.is_free(uuid):
                notes.append(f"GPU {gpu['index']} was in use, and must be idle for {self._idle_after:g} s")
        return "; ".join(notes)

    def _idle_for(self, uuid: str) -> float:
        since = self._idle_since.get(uuid)
        return 0.0 if since is None else time.monotonic() - since

    def _find_use(self, gpu: Dict[str, Any], answer: NvidiaSmiAnswer, now: float) -> str:
        uuid = gpu["uuid"]
        users = [each for each in answer.processes if each.uuid == uuid]
        load, used = gpu["load"] or 0, gpu["used"] or 0
        if load <= _IDLE_LOAD or users or used > _IDLE_MEMORY:
            self._loaded_since.pop(uuid, None)
        if users:
            shown = [f"{each.user or 'a process outside'} (pid {each.pid})" for each in users[:_SHOWN_PROCESSES]]
            return "is used by " + ", ".join([*shown, *(["others"] if len(users) > _SHOWN_PROCESSES else [])])
        if used > _IDLE_MEMORY:
            return f"is used by a process that is not visible here ({used:,.0f} MiB)"
        if load > _IDLE_LOAD and now - self._loaded_since.setdefault(uuid, now) >= LOAD_SECONDS:
            return f"is used by a process that is not visible here ({load:.0f} % load)"
        if gpu["load"] is None and gpu["used"] is None:
            return "may be in use: nvidia-smi tells neither its load nor its memory"
        return ""


def _unknown_number(gpu: Dict[str, Any]) -> str:
    """Return the number, load or memory, that a GPU does not report; the other one has to show its use."""
    return "load" if gpu["load"] is None else "memory" if gpu["used"] is None else ""


def _index(gpu: Dict[str, Any]) -> int:
    index: int = gpu["index"]
    return index
