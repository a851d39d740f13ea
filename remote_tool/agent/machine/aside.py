"""Work that may hang in the kernel, where no signal ends it, such as reading from a network disk."""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional


class Aside:
    """Does the work in a thread of its own, again each time that its result has been taken."""

    def __init__(self, work: Callable[[], Dict[str, Any]]) -> None:
        self._work = work
        self._result: Optional[Dict[str, Any]] = None
        self._is_asked = False
        self._asked, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._done.acquire()
        # The module threading takes as long to load as a short answer.
        _thread.start_new_thread(self._run, ())

    def take(self, seconds: float) -> Optional[Dict[str, Any]]:
        """Return the result; None if it is not ready within this time, or if the work failed."""
        if not self._is_asked:
            self._is_asked = True
            self._asked.release()
        if not self._done.acquire(timeout=seconds):
            return None
        self._is_asked = False
        return self._result

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._result = self._work()
            except OSError:
                self._result = None
            self._done.release()
