"""What a machine tells of itself, in every shell, and what is made of an answer that is cut, strange or hostile."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.environments.checks.gpu_facts import Gpu, GpuReport, NvidiaSmiStatus, parse_gpus
from remote_tool.environments.checks.machine import (
    Disk,
    Machine,
    TorchBuild,
    machine_script,
    parse_machine,
    parse_torch,
    split_answer,
)
from remote_tool.environments.facts import facts_script, parse_facts
from tests.extended.environments.test_facts import SHELLS, WORST_NAME, config_for, stub

CSV = "NVIDIA H100 80GB HBM3, 81559, 1024, 37, 550.54.15"
TABLE = "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "server's home"
    folder.mkdir()
    return folder


def ask(
    home: Path,
    *,
    shell: list[str] | None = None,
    name: str = "project",
    names: tuple[str, ...] = (),
    path: str = "/usr/bin:/bin",
    prefix: str = "",
    devices: Path = Path("/sys"),
    gpu_seconds: float = 10.0,
) -> Machine:
    environment = Environment(EnvironmentKind.EXISTING, prefix=prefix) if prefix else Environment(EnvironmentKind.VENV)
    config = config_for(home.parent, name, environment)
    script = machine_script(
        config, facts_script(config, "0123", look_only=True), names, gpu_seconds=gpu_seconds, devices=str(devices)
    )
    done = subprocess.run(
        [*(shell or ["sh"]), "-s"],
        input=script.encode(),
        capture_output=True,
        env={"HOME": str(home), "PATH": f"{home}/stubs:{path}", "SHELL": "/bin/sh"},
        check=True,
        timeout=300,
    )
    told, facts = split_answer(done.stdout)
    assert parse_facts("first", facts).home == str(home)
    return parse_machine(told)


def programs_without(folder: Path, *names: str) -> str:
    """Return a PATH with the machine's programs but these."""
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in names:
            (folder / program.name).symlink_to(program)
    return str(folder)


def smi(home: Path, text: str) -> None:
    """Give the machine an nvidia-smi; $1 is what it is asked for."""
    stub(home / "stubs", "nvidia-smi", text)


def answering(table: str = TABLE, csv: str = CSV, parts: str = "", processes: str = "") -> str:
    return (
        f'case "$1" in\n--query-gpu=*) echo "{csv}" ;;\n-L) printf "{parts}" ;;\n'
        f'--query-compute-apps=*) printf "{processes}" ;;\n"") echo "{table}" ;;\nesac'
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_posix_shell_tells_the_same(home: Path, shell: list[str]) -> None:
    smi(home, answering(processes=f"{os.getpid()}\\n"))
    before = time.time()
    machine = ask(home, shell=shell, name=WORST_NAME, names=("localhost",))
    assert machine.clock is not None
    assert before - 1 <= machine.clock <= time.time() + 1
    assert machine.hostname == os.uname().nodename
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_kilobytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    assert machine.open_files
    assert machine.disk_kind
    assert {"127.0.0.1", "::1"} & set(machine.names["localhost"])
    assert machine.gpus.driver == "550.54.15"
    assert machine.gpus.cuda == "12.4"
    assert machine.gpus.gpus == (Gpu("NVIDIA H100 80GB HBM3", 81559, 1024, 37),)
    assert machine.gpus.processes == ((Path(f"/proc/{os.getpid()}").owner(), 1),)
    assert not (home / "here").exists(), "a name was run as a command"


def test_a_bare_machine_is_left_as_it_was(home: Path) -> None:
    (home / "project").mkdir(mode=0o777)
    (home / "project").chmod(0o777)
    ask(home)
    assert [each.name for each in home.iterdir()] == ["project"]
    assert (home / "project").stat().st_mode & 0o777 == 0o777


def test_a_name_that_nobody_knows_has_no_address(home: Path) -> None:
    assert ask(home, names=("nowhere.invalid",)).names["nowhere.invalid"] == ()


def disk(folder: Path, name: str, *, turns: bool, model: str = "") -> Path:
    """Make what the kernel tells of a disk with one partition; return the partition."""
    base = folder / "devices" / name
    (base / "queue").mkdir(parents=True)
    (base / "queue" / "rotational").write_text(f"{int(turns)}\n")
    if model:
        (base / "device").mkdir()
        (base / "device" / "model").write_text(f"{model}\n")
    partition = base / f"{name}1"
    partition.mkdir()
    return partition


def place(folder: Path, home: Path, device: Path) -> None:
    """Say that the home lies on a device."""
    number = home.stat().st_dev
    (folder / "dev" / "block").mkdir(parents=True)
    (folder / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}").symlink_to(device)


@pytest.mark.parametrize(
    ("name", "model", "turns"),
    [
        ("sda", "ST4000NM0035", True),
        ("sda", "QEMU HARDDISK", False),
        ("sda", "Virtual Disk", False),
        ("vda", "", False),
    ],
)
def test_a_turning_disk_is_told_from_a_virtual_one(
    home: Path, tmp_path: Path, name: str, model: str, *, turns: bool
) -> None:
    """Hypervisors say of their disks that they turn."""
    devices = tmp_path / "sys"
    place(devices, home, disk(devices, name, turns=True, model=model))
    assert ask(home, devices=devices).disks == (Disk(name, turns),)


def test_the_disks_below_a_mapped_device_are_found(home: Path, tmp_path: Path) -> None:
    """A volume of LVM upon a RAID of one disk that turns and one that does not."""
    devices = tmp_path / "sys"
    parts = [disk(devices, "sdb", turns=True), disk(devices, "nvme0n1", turns=False)]
    raid, volume = devices / "devices" / "md0", devices / "devices" / "dm-0"
    for upper, lower in ((raid, parts), (volume, [raid])):
        (upper / "slaves").mkdir(parents=True)
        for each in lower:
            (upper / "slaves" / each.name).symlink_to(each)
    place(devices, home, volume)
    assert set(ask(home, devices=devices).disks) == {
        Disk("sdb", is_rotational=True),
        Disk("nvme0n1", is_rotational=False),
    }


def test_a_card_without_a_driver_is_seen(home: Path, tmp_path: Path) -> None:
    card = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:3b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    path = programs_without(tmp_path / "tools", "nvidia-smi")
    assert ask(home, devices=tmp_path / "sys", path=path).gpus.state is NvidiaSmiStatus.NO_DRIVER


def test_no_card_and_no_nvidia_smi_is_no_gpu(home: Path, tmp_path: Path) -> None:
    path = programs_without(tmp_path / "tools", "nvidia-smi")
    assert ask(home, devices=tmp_path / "sys", path=path).gpus == GpuReport(NvidiaSmiStatus.NONE)


def test_an_nvidia_smi_that_hangs_holds_nothing_up(home: Path) -> None:
    smi(home, "sleep 60")
    began = time.monotonic()
    assert ask(home, gpu_seconds=0.5).gpus.state is NvidiaSmiStatus.SILENT
    assert time.monotonic() - began < 50


def test_it_is_ended_also_where_there_is_no_timeout_program(home: Path, tmp_path: Path) -> None:
    """Like on a Mac, or a small image."""
    smi(home, "exec sleep 60")
    path = programs_without(tmp_path / "tools", "timeout")
    assert ask(home, path=path, gpu_seconds=0.5).gpus.state is NvidiaSmiStatus.SILENT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9", "NVIDIA-SMI has failed"),
        ("printf '\\033]0;owned\\007\\0nonsense'", "\x1b]0;owned"),
        ("exit 0", "it printed nothing"),
        (f"echo '{CSV}'; echo 'Unable to determine the device handle for GPU0000:3B:00.0'; exit 15", "NVIDIA H100"),
        (f"echo '{CSV}'; echo 'a, b'", "NVIDIA H100"),
        ("yes", "y"),
    ],
)
def test_an_nvidia_smi_that_fails_or_prints_garbage_is_no_answer(home: Path, text: str, message: str) -> None:
    smi(home, text)
    gpus = ask(home).gpus
    assert gpus.state is NvidiaSmiStatus.FAILED
    assert gpus.message.startswith(message)
    assert len(gpus.message) <= 200


def test_parts_of_a_gpu_are_counted_and_what_is_not_told_is_none(home: Path) -> None:
    parts = "GPU 0: NVIDIA H100 (UUID: GPU-1)\\n  MIG 1g.10gb Device 0: (UUID: M-1)\\n  MIG 1g.10gb Device 1: (U)\\n"
    smi(home, answering(csv="NVIDIA H100, 81559, [N/A], [N/A], 550.54.15", parts=parts))
    gpus = ask(home).gpus
    assert (gpus.parts, gpus.gpus) == (2, (Gpu("NVIDIA H100", 81559, None, None),))


@pytest.mark.parametrize("words", ["CUDA Version: 12.4", "CUDA UMD Version: 12.4", "CUDA Version:  12.4"])
def test_the_newest_cuda_of_a_driver_is_read_from_its_table(words: str) -> None:
    single = {"gpus": f"{CSV}\n\nstatus 0", "gpu_summary": f"| Driver Version: 1 {words} |"}
    assert parse_gpus(single, ()).cuda == "12.4"


def test_a_silence_in_the_middle_is_no_machine_without_gpus() -> None:
    assert parse_machine(b"cores=4\0").gpus.state is NvidiaSmiStatus.SILENT
    assert parse_machine(b"cores=4\0gpu_end=\0").gpus.state is NvidiaSmiStatus.NONE


VERSION = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.5.1+cu124'
debug = False
cuda: Optional[str] = '12.4'
hip: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (VERSION, TorchBuild("2.5.1+cu124", "12.4")),
        ("__version__ = '1.9.0'\ndebug = False\ncuda = None\n", TorchBuild("1.9.0")),
        ("__version__ = '2.4.0'\ncuda: Optional[str] = None\nhip = '6.1.4'\n", TorchBuild("2.4.0", "", "6.1.4")),
        ("__version__ = '\x1b[31m'\n", None),
        ("", None),
    ],
)
def test_the_file_of_torch_is_read_and_not_run(text: str, build: TorchBuild | None) -> None:
    assert parse_torch(text) == build


@pytest.mark.parametrize("prefix", ["env", "~/env"])
def test_torch_and_nccl_are_found_in_the_environment(home: Path, prefix: str) -> None:
    site = home / "env" / "lib" / "python3.11" / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text(VERSION)
    (site / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    if prefix == "env":
        (home / "project" / ".remote-scripts").mkdir(parents=True)
        (home / "project" / ".remote-scripts" / "python").symlink_to(home / "env" / "bin" / "python")
        machine = ask(home)
    else:
        machine = ask(home, prefix=prefix)
    assert (machine.torch, machine.nccl) == (TorchBuild("2.5.1+cu124", "12.4"), "2.21.5")


@given(st.binary(max_size=400))
def test_no_answer_breaks_the_reader(answer: bytes) -> None:
    told, _ = split_answer(answer)
    parse_machine(told)


KEYS = st.sampled_from(
    ["clock", "cores", "memory", "disks", "name", "gpus", "gpu_process", "gpu_summary", "torch", "nccl", "machine_uid"]
)


@given(st.lists(st.tuples(KEYS, st.text(max_size=60).map(lambda text: text.replace("\0", ""))), max_size=8))
def test_no_value_of_a_record_breaks_the_reader(records: list[tuple[str, str]]) -> None:
    text = "".join(f"{key}={value}\0" for key, value in records)
    parse_machine(text.encode(errors="replace"))


def test_facts_that_are_cut_are_none() -> None:
    assert split_answer(b"cores=4\0facts_begin=\0home=/h\0")[1] == b""
    assert split_answer(b"a=1\0facts_begin=\0home=/h\0end=\0facts_end=\0b=2\0") == (b"a=1\0b=2\0", b"home=/h\0end=\0")
