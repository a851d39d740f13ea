"""Work that may hang in the kernel, where no signal ends it, such as reading from a network disk."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Optional


class Aside:
    """Does the work in a thread of its own, again each time that its result has been taken."""

    def __init__(self, work: Callable[[], Dict[str, Any]]) -> None:
        self._work = work
        self._result: Optional[Dict[str, Any]] = None
        self._is_asked = False
        self._asked, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

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
