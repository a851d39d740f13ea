"""Takes answers out of the code, one at a time, and looks whether the tests that are for them go red.

``python -m tests.mutants.try_mutants [ROW…] [FILE…] [-j 2]``: all mutants, or those of some rows or files. Each is made
in a copy of the project. A test that is not red without the answer is no proof of it, and one that is red with it
neither, so all run with the answers first. Ends with 1 when a mutant was not noticed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from tests.mutants.entries import REPOSITORY, Mutant, all_mutants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PASSED, FAILED = 0, 1
# A test that hangs for this long has noticed too.
TEST_SECONDS = 180
ALL_SECONDS = 3600
_SET_CHILD_SUBREAPER = 36


class Verdict(NamedTuple):
    """What came of one mutant."""

    mutant: Mutant
    word: str
    seconds: float
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """Whether every test noticed."""
        return self.word == "red"


class Copy:
    """The project in a folder of one worker, where nobody else looks."""

    def __init__(self, folder: Path) -> None:
        """Copy what git knows, and what it does not ignore; what make test brings is shared."""
        self.project = folder / "project"
        self.temporary = folder / "t"
        self.temporary.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if os.path.lexists(REPOSITORY / name):
                (self.project / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.project / name, follow_symlinks=False)
        (self.project / ".cache").symlink_to(REPOSITORY / ".cache")

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the mutant's tests without the answer."""
        began = time.monotonic()
        word, detail = self._try(mutant)
        return Verdict(mutant, word, time.monotonic() - began, detail)

    def run_unchanged(self, tests: Iterable[str], workers: int) -> dict[str, str]:
        """Run tests with all answers in place; return for each ``green``, ``red`` or ``skipped``."""
        report = self.temporary / "report.xml"
        self._pytest([*tests, "-n", str(workers), f"--junit-xml={report}"], timeout=ALL_SECONDS)
        outcomes: dict[str, set[str]] = {}
        # It was written by the pytest that we started.
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{(case.get('name') or '').partition('[')[0]}"
            outcomes.setdefault(name, set()).update({child.tag for child in case} or {"passed"})
        return {test: _summary(outcomes.get(_dotted(test), set())) for test in tests}

    def _try(self, mutant: Mutant) -> tuple[str, str]:
        file = self.project / mutant.file
        text = file.read_text()
        try:
            file.write_text(mutant.apply_to(text))
            outcomes = {test: self._run(test) for test in mutant.tests}
        except ValueError as error:
            return "broken", str(error)
        finally:
            file.write_text(text)
        odd = {test: outcome for test, outcome in outcomes.items() if outcome[0] != "red"}
        for test, (word, detail) in odd.items():
            return word, f"{test}\n{detail}" if word != "green" else test
        return "red", ""

    def _run(self, test: str) -> tuple[str, str]:
        """Return what the test's exit status means, and the end of what it printed."""
        try:
            ran = self._pytest(["-x", test], timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return "red", "it hangs"
        finally:
            end_what_is_left()
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary.mkdir(exist_ok=True)
        output = ran.stdout.decode(errors="replace")
        return meaning_of(ran.returncode, output), output[-3000:]

    def _pytest(self, words: Iterable[str], *, timeout: float) -> subprocess.CompletedProcess[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.project),
            # What was compiled before the change might be taken for the change.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DEBUG_TEMPROOT": str(self.temporary),
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words],
            cwd=self.project,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )


def _dotted(test: str) -> str:
    """Name a test as a report does."""
    return test.partition("[")[0].replace(".py::", ".").replace("/", ".").replace("::", ".")


def _summary(outcomes: set[str]) -> str:
    if outcomes & {"failure", "error"} or not outcomes:
        return "red"
    return "green" if "passed" in outcomes else "skipped"


def meaning_of(status: int, output: str) -> str:
    """Name an exit status of pytest; an error that is none of the test's, as in an import, is no red."""
    last = output.rstrip().rpartition("\n")[2]
    if status == PASSED:
        return "green" if " passed" in last else "skipped"
    return "red" if status == FAILED else "broken"


def end_what_is_left() -> None:
    """End the processes that a test without an answer has left behind; they are ours, see :func:`begin`."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists() and (left := children.read_text().split()):
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)


copies: list[Copy] = []


def begin(folder: Path) -> None:
    """Prepare a worker: a copy of its own, and what its tests leave behind becomes its child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    copies.append(Copy(Path(tempfile.mkdtemp(prefix="w", dir=folder))))


def judge(mutant: Mutant) -> Verdict:
    """Judge a mutant in the worker's copy."""
    return copies[0].judge(mutant)


def chosen(words: Iterable[str]) -> list[Mutant]:
    """Return the mutants of some rows and files; of none, all."""
    wanted = [Path(word).stem for word in words]
    return [each for each in all_mutants() if not wanted or {str(each.row), each.listed_in} & set(wanted)]


def main() -> int:
    """Try the mutants that the arguments name, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wanted", nargs="*", metavar="ROW|FILE")
    parser.add_argument("-j", type=int, default=2, dest="workers")
    options = parser.parse_args()
    mutants = chosen(options.wanted)
    bad: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants", ignore_cleanup_errors=True) as folder:
        for verdict in verdicts(mutants, Path(folder), options.workers):
            say(f"{verdict.word:<10}  {verdict.seconds:5.1f} s  {verdict.mutant.name:<28}  {verdict.mutant.file}")
            bad += [] if verdict.is_good else [verdict]
    for verdict in bad:
        say(f"\n{verdict.word}: {verdict.mutant.name}: {verdict.detail}")
    say(f"\n{len(mutants) - len(bad)} of {len(mutants)} mutants are noticed")
    return 1 if bad or not mutants else 0


def verdicts(mutants: list[Mutant], folder: Path, workers: int) -> Iterator[Verdict]:
    """Run the tests of mutants as things are, then without each answer; those that are not green are no use."""
    tests = sorted({function for mutant in mutants for function in mutant.functions})
    before = in_copy(folder / "before", tests, workers)
    with ProcessPoolExecutor(workers, initializer=begin, initargs=(folder,)) as pool:
        tries = []
        for mutant in mutants:
            useless = [function for function in mutant.functions if before[function] != "green"]
            if useless:
                word = {"red": "red anyway"}.get(before[useless[0]], before[useless[0]])
                yield Verdict(mutant, word, 0.0, ", ".join(useless))
            else:
                tries.append(pool.submit(judge, mutant))
        for done in as_completed(tries):
            yield done.result()


def in_copy(folder: Path, tests: list[str], workers: int) -> dict[str, str]:
    """Run tests in a copy of their own."""
    folder.mkdir()
    return Copy(folder).run_unchanged(tests, workers) if tests else {}


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
