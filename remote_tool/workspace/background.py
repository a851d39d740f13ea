"""Run coroutines on an event loop in a background thread: the caller may run a loop itself, as in a notebook."""

from __future__ import annotations

import asyncio
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from remote_tool.transport.daemon_threads import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from remote_tool.workflows.jobs.follow import Chunk

T = TypeVar("T")
# Seconds to wait for canceled work to close its connections.
CLOSE_SECONDS = 2.0
# A chunk has at most 256 KiB.
MOST_CHUNKS = 32


def run_in_background(work: Coroutine[Any, Any, T], close_seconds: float = CLOSE_SECONDS) -> T:
    """Run work on the background loop and wait for its result; after Ctrl-C, wait for its end for some seconds."""
    background_work = BackgroundWork(work)
    try:
        return background_work.result()
    except BaseException:
        # Ctrl-C comes to this thread.
        background_work.stop(close_seconds)
        raise


class _Background:
    """The event loop of this process, on a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._abandoned: list[Loop] = []

    @property
    def loop(self) -> Loop:
        """The running loop; started when first used."""
        with self._lock:
            if self._loop is None:
                loops: SimpleQueue[Loop] = SimpleQueue()
                threading.Thread(target=_run_loop, args=(loops,), name="remote-tool", daemon=True).start()
                self._loop = loops.get()
            return self._loop

    def reset_in_child(self) -> None:
        """Forget the loop in a forked child: its thread does not exist here, and its connections are the parent's."""
        self._lock = threading.Lock()
        if self._loop is not None:
            self._loop.abandon()
            # Kept to prevent its finalization while this process runs.
            self._abandoned.append(self._loop)
            self._loop = None


def _run_loop(loops: SimpleQueue[Loop]) -> None:
    # On this thread: Ctrl-C, which comes to the main thread, could leave half a loop, which warns when it is finalized.
    loop = Loop()
    loops.put(loop)
    loop.run_forever()


_background = _Background()
os.register_at_fork(after_in_child=_background.reset_in_child)


class BackgroundWork(Generic[T]):
    """Work that runs on the background loop.

    Raises:
        RuntimeError: The caller runs on that loop, as a callback does.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.loop = _background.loop
        if self._is_own_loop:
            work.close()
            raise RuntimeError(
                "A callback, such as on_chunk, runs on the thread that does the work: this call would wait for itself."
                " Call it in a thread of its own: threading.Thread(target=job.kill).start()"
            )
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._future = asyncio.run_coroutine_threadsafe(self._note_end(work), self.loop)

    def result(self) -> T:
        """Wait for the result."""
        return self._future.result()

    def when_done(self, call: Callable[[object], None]) -> None:
        """Call a function when the work has ended, also after an error or a cancellation."""
        self._future.add_done_callback(call)

    def stop(self, close_seconds: float = CLOSE_SECONDS) -> None:
        """Cancel the work if it is still running; its connections end before this returns, or soon after."""
        if self._pid == os.getpid() and self._future.cancel() and not self._is_own_loop:
            self._ended.wait(close_seconds)

    @property
    def _is_own_loop(self) -> bool:
        # A generator may be finalized on any thread.
        return asyncio._get_running_loop() is self.loop  # noqa: SLF001 - documented, for threads that may run no loop

    async def _note_end(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            self._ended.set()


class ChunkQueue:
    """Passes chunks from the background loop to the thread that reads them; the loop waits while the queue is full."""

    def __init__(self) -> None:
        self._loop = _background.loop
        self._pid = os.getpid()
        self._free_places = asyncio.Semaphore(MOST_CHUNKS)
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()

    async def put(self, chunk: Chunk) -> None:
        """Add a chunk."""
        await self._free_places.acquire()
        self._chunks.put(chunk)

    def end(self, _: object) -> None:
        """End the iteration after the last chunk."""
        self._chunks.put(None)

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            if os.getpid() != self._pid:
                raise RuntimeError("The parent of this process reads these lines; call tail() again to read them here")
            chunk = self._chunks.get()
            if chunk is None:
                return
            self._loop.call_soon_threadsafe(self._free_places.release)
            yield chunk
