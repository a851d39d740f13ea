"""One question to nvidia-smi for all jobs of a user that wait for GPUs of this machine.

A process takes an answer that is a moment old, or waits for the one that another process is about to get, or asks and
keeps the answer for the others. It is in this user's own folder of leases, where nobody else can write. A
process that dies while it asks lets go of its pipe, and the others ask themselves.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress

from remote_tool.agent.leases import fifo
from remote_tool.agent.leases.folders import LeaseError
from remote_tool.agent.leases.foreign import GpuQuestion, NvidiaSmiAnswer, NvidiaSmiOutput
from remote_tool.agent.leases.listing import NANOSECONDS, boot_id, now_stamp
from remote_tool.protocol import job_folder, strict_json
from remote_tool.protocol.job_fields import is_count, is_text, is_texts
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.nvidia_smi import SILENCE
from remote_tool.protocol.records import SCHEMA, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, List, Optional

ANSWER, ASKED = "nvidia-smi.answer", "nvidia-smi.asked"
# The age of an answer that is good enough to keep waiting. Nobody gets GPUs by it.
KEPT_NANOSECONDS = 2 * NANOSECONDS
_COUNTS, _TEXTS = ("asked", "answered"), ("place", "group", "failure", "problem")
_LISTS = ("gpus", "processes", "leased")


class Here(NamedTuple):
    """The facts that decide which nvidia-smi a process starts, and which GPUs it sees.

    Attributes:
        place: The boot, the files, and the processes that are visible.
        group: The control group, which may have some of the GPUs only.
    """

    place: str
    group: str


class KeptAnswer(NamedTuple):
    """An answer that a process has kept: when, with which GPUs leased, and where it was asked."""

    asked: int
    answered: int
    leased: FrozenSet[str]
    here: Here
    output: NvidiaSmiOutput


class SharedQuestion:
    """Asks nvidia-smi, or lets another process of this user ask, without waiting for the answer."""

    def __init__(self) -> None:
        self._own = GpuQuestion()
        self._here: Optional[Here] = None
        self._folder = -1
        # While this process asks for all, and while it watches another one that does.
        self._pipe = self._watched = -1
        self._deadline = 0.0
        self._leased: FrozenSet[str] = frozenset()
        self._asked_for = self._asked = self._last = 0
        self._anew = False
        self._kept: Optional[NvidiaSmiAnswer] = None
        self._uuids: Optional[List[str]] = None

    @property
    def is_open(self) -> bool:
        """Return whether an answer was asked for and not taken."""
        return self._own.is_open or self._watched >= 0 or self._kept is not None

    @property
    def descriptors(self) -> List[int]:
        """Return the descriptors to wait for."""
        return [self._watched] if self._watched >= 0 else self._own.descriptors

    @property
    def seconds(self) -> float:
        """Return for how long to wait for an answer."""
        if self._kept is not None:
            return 0.0
        return max(0.0, self._deadline - time.monotonic()) if self._watched >= 0 else self._own.seconds

    def ask(self, folder: int, leased: FrozenSet[str], *, anew: bool = False) -> str:
        """Ask; return why no answer can come, or an empty string.

        Args:
            folder: Descriptor of this user's folder of leases.
            leased: The GPUs that are leased now.
            anew: Whether an answer that is there already does not count.

        Raises:
            LeaseError: There is no nvidia-smi.
        """
        self._here = self._here or find_here()
        self._folder, self._leased, self._anew, self._asked_for = folder, leased, anew, now_stamp()
        kept = self._find_answer(self._here)
        # Who had a GPU that was given back since may have been on it still.
        self._kept = kept if kept is not None and kept.leased <= leased else None
        if self._kept is None:
            self._watch_or_hold()
        return "" if self._kept is not None or self._watched >= 0 else self._ask_self()

    def take(self) -> Optional[NvidiaSmiAnswer]:
        """Return the answer once it is there; None before."""
        if self._watched >= 0:
            return self._take_from_other()
        answer, self._kept = self._kept, None
        if answer is not None:
            return self._note(answer)
        output = self._own.take_lines()
        if output is None:
            return None
        self._publish(output)
        self._let_go()
        return self._note(output.parse()._replace(leased=self._leased, asked=self._asked))

    def close(self) -> None:
        """End the programs that were started."""
        self._own.close()
        self._let_go()
        self._stop_watching()
        self._kept = None

    def _watch_or_hold(self) -> None:
        """Watch the process that asks for all, or be that process; where neither is possible, each asks for itself."""
        with suppress(OSError):
            try:
                self._pipe = fifo.hold(self._folder, ASKED, replaces=False)
            except FileExistsError:
                watched = fifo.watch(self._folder, ASKED, os.geteuid())
                if watched is not None:
                    self._watched, self._deadline = watched, time.monotonic() + SILENCE
                    return
                # It has its answer now, or was killed.
                assert self._here is not None
                self._kept = self._find_answer(self._here)
                if self._kept is None:
                    job_folder.remove(self._folder, ASKED)
                    self._pipe = fifo.hold(self._folder, ASKED, replaces=False)

    def _ask_self(self) -> str:
        self._asked = now_stamp()
        try:
            problem = self._own.ask()
        except LeaseError:
            self._let_go()
            raise
        if problem:
            self._publish(NvidiaSmiOutput([], [], problem=problem))
            self._let_go()
        return problem

    def _take_from_other(self) -> Optional[NvidiaSmiAnswer]:
        if self.seconds > 0 and not _has_ended(self._watched):
            return None
        self._stop_watching()
        assert self._here is not None
        answer = self._find_answer(self._here)
        if answer is not None:
            return self._note(answer)
        problem = self._ask_self()
        return NvidiaSmiAnswer([], [], problem) if problem else None

    def _find_answer(self, here: Here) -> Optional[NvidiaSmiAnswer]:
        """Return the answer that is kept, if it is recent enough for this process."""
        kept = _read_kept(self._folder)
        if kept is None or not self._last < kept.asked <= kept.answered <= now_stamp() or kept.here.place != here.place:
            return None
        is_recent = kept.asked >= self._asked_for - KEPT_NANOSECONDS
        is_later = kept.answered >= self._asked_for
        is_new = is_recent and is_later
        if not is_new and (self._anew or not (is_recent or is_later)):
            return None
        answer = kept.output.parse()._replace(leased=kept.leased, asked=kept.asked, is_kept=not is_new)
        # Another group of processes may have other GPUs.
        is_same = kept.here == here or bool(answer.problem) or _uuids(answer) == self._uuids
        return answer if is_same else None

    def _note(self, answer: NvidiaSmiAnswer) -> NvidiaSmiAnswer:
        self._last = answer.asked
        if not answer.problem:
            self._uuids = _uuids(answer)
        return answer

    def _publish(self, output: NvidiaSmiOutput) -> None:
        if self._pipe < 0 or self._here is None:
            return
        moments = {"asked": self._asked, "answered": now_stamp()}
        record = {"schema": SCHEMA, **moments, "leased": sorted(self._leased)}
        record.update({**self._here._asdict(), **output._asdict()})
        temporary = f"{fifo.TEMPORARY}{os.urandom(8).hex()}"
        with suppress(OSError):
            try:
                file = job_folder.create_file(self._folder, temporary)
                try:
                    job_folder.write_all(file, strict_json.encode(record))
                finally:
                    os.close(file)
                os.rename(temporary, ANSWER, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except OSError:
                job_folder.remove(self._folder, temporary)

    def _let_go(self) -> None:
        if self._pipe >= 0:
            with suppress(OSError):
                job_folder.remove(self._folder, ASKED)
            fifo.let_go(self._pipe)
            self._pipe = -1

    def _stop_watching(self) -> None:
        if self._watched >= 0:
            os.close(self._watched)
            self._watched = -1


def find_here() -> Here:
    """Return the facts that two processes share if an answer for one counts for the other."""
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid")]
    place = " ".join([boot_id(), *namespaces, os.environ.get("PATH", "")])
    return Here(place, _read("/proc/self/cgroup"))


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()
    return ""


def _has_ended(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _uuids(answer: NvidiaSmiAnswer) -> List[str]:
    return [gpu["uuid"] for gpu in answer.gpus]


def _read_kept(folder: int) -> Optional[KeptAnswer]:
    """Return the answer that a process has kept; None without one that can be read."""
    try:
        text = job_folder.read_bytes(folder, ANSWER)
        found = None if text is None else json.loads(text.decode("utf-8"))
    except (OSError, RecordError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    kinds = {is_count: _COUNTS, is_text: _TEXTS, is_texts: _LISTS}
    if not all(is_right(found.get(name)) for is_right, names in kinds.items() for name in names):
        return None
    output = NvidiaSmiOutput(found["gpus"], found["processes"], found["failure"], found["problem"])
    here = Here(found["place"], found["group"])
    return KeptAnswer(found["asked"], found["answered"], frozenset(found["leased"]), here, output)
