"""Two users on one machine, one of them hostile: at worst the other waits, and is told for whom."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.leases import fifo, folders
from remote_tool.agent.leases.claim import Claim
from remote_tool.agent.leases.listing import (
    HELD,
    LEASE,
    Lease,
    LeaseListing,
    Ticket,
    boot_id,
    lease_as_json,
    name_ticket,
)
from remote_tool.agent.leases.standing import Standing

from .test_queue import Job, Machine, replace_surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")

STRANGER = 65533


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder like /var/tmp: pytest's own may not be entered by others."""
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-users-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def machine(base: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(1)
    replace_surroundings(monkeypatch, found, base)
    return found


class Stranger:
    """A process of another user, which holds what it made until it is killed."""

    def __init__(self, work: Callable[[Path], object]) -> None:
        ready, tell = os.pipe()
        # It may not read this Python's modules: what a lease needs is loaded before.
        boot_id()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgroups([])
                os.setgid(STRANGER)
                os.setuid(STRANGER)
                os.close(folders.open_own())
                work(Path(folders.path_of(STRANGER)))
                os.write(tell, b"y")
                time.sleep(600)
            except BaseException:  # noqa: BLE001 - it must not return into the test
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(tell)
        assert os.read(ready, 1) == b"y"
        os.close(ready)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@pytest.fixture
def strangers() -> Iterator[list[Stranger]]:
    found: list[Stranger] = []
    yield found
    for stranger in found:
        stranger.kill()


@pytest.fixture
def job(machine: Machine) -> Iterator[Job]:
    del machine
    found = Job(1)
    yield found
    found.close()


def publish_lease(folder: Path) -> None:
    """Lease the GPU as a job does."""
    Claim(os.open(folder, os.O_RDONLY), "theirs", "their job", ("GPU-0",))


def forge_oldest(folder: Path) -> None:
    """Take the place before everybody else."""
    name = name_ticket(Ticket("", STRANGER, 100, 0, 1, "forged"))
    fifo.hold(os.open(folder, os.O_RDONLY), name)


def forge_lease(folder: Path) -> None:
    """Lease the GPU, and say that this was before everybody else."""
    opened = os.open(folder, os.O_RDONLY)
    fifo.hold(opened, f"forged{HELD}")
    lease = Lease(STRANGER, "forged", "", ("GPU-0",), 0.0, 0, is_alive=True)
    (folder / f"forged{LEASE}").write_bytes(lease_as_json(lease))
    (folder / f"forged{LEASE}").chmod(0o644)


@pytest.mark.row(263)
def test_the_lease_of_another_user_is_respected_until_it_is_given_up(
    machine: Machine, job: Job, strangers: list[Stranger]
) -> None:
    strangers.append(Stranger(publish_lease))
    assert not job.settle()
    with LeaseListing() as listing:
        (lease,) = listing.live_leases()
    assert (lease.uid, lease.name, lease.gpus) == (STRANGER, "their job", ("GPU-0",))
    strangers[0].kill()
    # Whether its processes still use the GPU is not known.
    assert not job.settle()
    machine.now += 60
    assert job.settle()


@pytest.mark.row(266)
def test_a_forged_place_before_all_others_only_delays_until_its_process_ends(
    job: Job, strangers: list[Stranger], base: Path
) -> None:
    strangers.append(Stranger(forge_oldest))
    assert not job.settle()
    strangers[0].kill()
    assert job.settle()
    # It is not ours to remove.
    assert list((base / f"remote-tool-{STRANGER}").glob("*.ticket"))


@pytest.mark.row(266)
def test_a_lease_that_forges_an_older_time_is_waited_for(
    job: Job, strangers: list[Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Claim.__init__

    def publish_then_see_forgery(self: Claim, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        strangers.append(Stranger(forge_lease))

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "__init__", publish_then_see_forgery)
        assert not job.settle()
    strangers[0].kill()
    assert not job.settle()


@pytest.mark.picked
@pytest.mark.row(266)
def test_what_is_not_a_lease_or_a_pipe_is_ignored_and_named(
    job: Job, strangers: list[Stranger], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")

    def make_nonsense(folder: Path) -> None:
        opened = os.open(folder, os.O_RDONLY)
        (folder / name_ticket(Ticket("", STRANGER, 100, 1, 1, "plain"))).write_text("not a pipe")
        (folder / name_ticket(Ticket("", STRANGER, 100, 2, 1, "link"))).symlink_to(secret)
        (folder / name_ticket(Ticket("", STRANGER, 100, 3, 1, "folder"))).mkdir()
        os.mkfifo(folder / name_ticket(Ticket("", STRANGER, 100, 4, 1, "dead")))
        for name, text in (("huge", "[" * 10**6), ("deep", "[" * 10**5), ("text", '{"schema": 1}')):
            fifo.hold(opened, f"{name}{HELD}")
            (folder / f"{name}{LEASE}").write_text(text)
            (folder / f"{name}{LEASE}").chmod(0o644)
        fifo.hold(opened, f"linked{HELD}")
        (folder / f"linked{LEASE}").symlink_to(secret)
        fifo.hold(opened, f"hidden{HELD}")
        (folder / f"hidden{LEASE}").write_text("{}")
        (folder / f"hidden{LEASE}").chmod(0)

    strangers.append(Stranger(make_nonsense))
    assert job.settle()
    with LeaseListing() as listing:
        ignored = {each.name for each in listing.ignored if each.uid == STRANGER}
    # Root may read what is hidden from others.
    assert ignored == {f"{name}{LEASE}" for name in ("huge", "deep", "text", "linked", "hidden")}


@pytest.mark.row(266)
def test_a_process_that_never_publishes_its_lease_is_not_waited_for_long(
    job: Job, strangers: list[Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold_only(folder: Path) -> None:
        fifo.hold(os.open(folder, os.O_RDONLY), f"never{HELD}")

    strangers.append(Stranger(hold_only))
    assert not job.settle()
    monkeypatch.setattr("remote_tool.agent.leases.claim.UNDECIDED_NANOSECONDS", 0)
    assert job.settle()


@pytest.mark.row(266)
def test_a_flood_of_processes_that_never_publish_has_a_bound_and_names_their_user(
    job: Job, strangers: list[Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote_tool.agent.leases.claim.UNDECIDED_NANOSECONDS", 3 * 10**9)

    def flood(folder: Path) -> None:
        opened = os.open(folder, os.O_RDONLY)
        fifo.hold(opened, f"fresh-0{HELD}")

        def go_on() -> None:
            for number in range(1, 600):
                fifo.hold(opened, f"fresh-{number}{HELD}")
                time.sleep(0.5)

        threading.Thread(target=go_on, daemon=True).start()

    strangers.append(Stranger(flood))
    began = time.monotonic()
    said = set()
    standings = set()
    while not job.step():
        # Of a machine that has much else to do.
        assert time.monotonic() < began + 60
        said.add(job.why)
        standings.add(Standing()._explain_wait(job.id, ""))
        time.sleep(0.05)
    why = re.compile(f"waits for {STRANGER}, whose job fresh-[0-9]+ is about to lease GPUs")
    assert {""} < said
    assert all(why.fullmatch(text) for text in said - {""})
    assert standings == {"1st of 1 for 1 GPU"}


@pytest.mark.row(266)
def test_who_forges_an_older_lease_after_ours_was_listed_is_not_waited_for(job: Job, strangers: list[Stranger]) -> None:
    def hold_only(folder: Path) -> None:
        fifo.hold(os.open(folder, os.O_RDONLY), f"never{HELD}")

    strangers.append(Stranger(hold_only))
    assert not job.settle()
    strangers.append(Stranger(forge_lease))
    strangers[0].kill()
    assert job.settle()


@pytest.mark.row(266)
def test_a_folder_with_too_many_files_is_read_in_part_and_named(
    job: Job, strangers: list[Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOST_NAMES", 100)

    def fill(folder: Path) -> None:
        for number in range(200):
            (folder / f"file-{number}").touch()

    strangers.append(Stranger(fill))
    assert job.settle()
    with LeaseListing() as listing:
        assert [(each.uid, each.why) for each in listing.ignored] == [(STRANGER, "has more files than jobs can have")]


@pytest.mark.row(267)
def test_a_folder_in_the_name_of_another_user_is_ignored_by_others_and_named_to_its_user(
    job: Job, strangers: list[Stranger], base: Path
) -> None:
    def take_name(_folder: Path) -> None:
        forged = base / "remote-tool-0"
        forged.mkdir(mode=0o755)
        fifo.hold(os.open(forged, os.O_RDONLY), name_ticket(Ticket("", 0, 100, 0, 1, "forged")))

    strangers.append(Stranger(take_name))
    with LeaseListing() as listing:
        assert listing.tickets == []
    assert not job.settle()
    assert job.why == f"{base}/remote-tool-0 belongs to {STRANGER}, who or an administrator has to remove it"
    shutil.rmtree(base / "remote-tool-0")
    assert job.settle()


@pytest.mark.row(267)
@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_not_a_folder_but_has_its_name_is_waited_for(job: Job, base: Path, kind: str) -> None:
    path = base / "remote-tool-0"
    if kind == "link":
        (base / "elsewhere").mkdir()
        path.symlink_to("elsewhere")
    else:
        path.touch()
    assert not job.settle()
    assert job.why == f"{path} is not a folder: remove it"
    path.unlink()
    assert job.settle()


@pytest.mark.row(266)
def test_a_lease_of_the_kernel_on_the_file_of_another_user_is_no_error(job: Job, strangers: list[Stranger]) -> None:
    def lease_file(folder: Path) -> None:
        fifo.hold(os.open(folder, os.O_RDONLY), f"locked{HELD}")
        file = (folder / f"locked{LEASE}").open("w")
        file.write("{}")
        file.flush()
        Path(file.name).chmod(0o644)
        # Its holder is told to give way, and does not.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        held.append(file)

    held: list[object] = []
    strangers.append(Stranger(lease_file))
    with LeaseListing() as listing:
        assert [(each.uid, each.name) for each in listing.ignored] == [(STRANGER, f"locked{LEASE}")]
    assert job.settle()


@pytest.mark.row(266)
def test_a_folder_of_another_user_that_cannot_be_read_is_no_error(
    job: Job, base: Path, strangers: list[Stranger]
) -> None:
    strangers.append(Stranger(forge_oldest))
    real = os.scandir

    def fail(folder: int) -> object:
        if os.fstat(folder).st_uid == STRANGER:
            raise OSError(errno.EIO, "Input/output error")
        return real(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote_tool.agent.leases.folders.os.scandir", fail)
        assert job.settle()
    assert (base / f"remote-tool-{STRANGER}").is_dir()


def test_a_user_without_a_name_is_shown_by_number() -> None:
    assert folders.name_of(STRANGER) == str(STRANGER)


def test_another_user_sees_leases_of_root(machine: Machine, job: Job, strangers: list[Stranger]) -> None:
    del machine
    assert job.settle()
    seen, tell = os.pipe()

    def look(_folder: Path) -> None:
        with LeaseListing() as listing:
            os.write(tell, repr([(lease.uid, lease.gpus) for lease in listing.live_leases()]).encode())

    strangers.append(Stranger(look))
    assert os.read(seen, 4096).decode() == "[(0, ('GPU-0',))]"
    os.close(seen)
    os.close(tell)


@pytest.mark.row(272)
def test_a_private_folder_of_a_service_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "systemd-private-0123-service" / "tmp"
    private.mkdir(parents=True)
    monkeypatch.delenv(folders.BASE_VARIABLE, raising=False)
    program = "from remote_tool.agent.leases.folders import find_privacy; print(find_privacy())"
    mount = f"mount --bind {shlex.quote(str(private))} /var/tmp && exec {shlex.quote(sys.executable)} -c '{program}'"
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        pytest.skip(f"no mount namespaces: {said.stderr}")
    assert said.stdout == "/var/tmp is private to this service (PrivateTmp), so leases of other users are not visible\n"
