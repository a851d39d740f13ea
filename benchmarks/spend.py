"""Run a program for the benchmark, and write what it took into an open file.

The benchmark must not start the program itself: until a new process runs its program, it counts the memory of the one
that made it, and the benchmark holds the files of whole projects. This one is small and does nothing else.

Arguments: the file's descriptor, the program, its arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    """Write seconds on the clock, seconds of CPU, and the size of the largest process in bytes; exit as it did."""
    report, words = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(report, False)
    begin = time.perf_counter()
    pid = os.posix_spawnp(words[0], words, os.environ)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
    _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - begin
    # macOS counts bytes, everybody else kilobytes.
    largest = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    os.write(report, f"{seconds} {used.ru_utime + used.ru_stime} {largest}".encode())
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
