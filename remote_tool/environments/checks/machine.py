"""Facts about a machine that matter for training: a read-only script, and a parser of its answer.

The script needs only a POSIX shell. It reports quick facts first, and facts that may hang last, so that a truncated
answer is useful, too.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.environments.checks.gpu_facts import GpuReport, parse_gpus
from remote_tool.environments.step import SEARCH_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config

GPU_SECONDS = 10.0
LONGEST_TEXT = 200
MOST_DISKS = 64
_NUMBER = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"([0-9]{9,12})(\.[0-9]{1,9})?")
# Models of virtual disks, many of which say that they are rotational.
_VIRTUAL = re.compile(r"virtual|qemu|vmware|persistent|amazon|msft|google", re.IGNORECASE)
_VIRTUAL_NAMES = ("vd", "xvd")


@dataclass(frozen=True)
class Disk:
    """A disk below the project's folder.

    Attributes:
        name: The kernel's, like ``sda``.
        is_rotational: Whether it is a hard disk; False for a virtual disk, as that is unknown.
    """

    name: str
    is_rotational: bool


@dataclass(frozen=True)
class TorchBuild:
    """An installed torch.

    Attributes:
        version: Like ``2.5.1+cu124``.
        cuda: The CUDA that it was built for, like ``12.4``; empty if built without.
        hip: The same for ROCm.
    """

    version: str
    cuda: str = ""
    hip: str = ""

    @property
    def text(self) -> str:
        """Return the display text."""
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "no CUDA"
        return f"{self.version} ({built})"


@dataclass(frozen=True)
class Machine:
    """Facts about a machine; None and empty mean unknown.

    Attributes:
        clock: Its time at the start of the script, in seconds since the epoch.
        clock_has_fractions: Whether that time has fractions of a second.
        hostname: Its own hostname.
        cores: Number of cores available to us.
        memory_kilobytes: Total memory.
        free_memory_kilobytes: Available memory.
        shared_memory_kilobytes: Free in ``/dev/shm``.
        disk_kind: The file system of the project's folder, like ``ext2/ext3`` or ``nfs``.
        disk_free_kilobytes: Space available to us there.
        disks: The disks below that folder.
        open_files: Soft limit of open files.
        most_open_files: Hard limit of open files.
        names: Addresses by resolved host name, including its own.
        removes_shared_memory: Whether its systemd removes our shared memory upon logout.
        torch: The torch in the environment.
        nccl: Its NCCL; empty without one.
        gpus: The report of nvidia-smi.
    """

    clock: float | None = None
    clock_has_fractions: bool = False
    hostname: str = ""
    cores: int | None = None
    memory_kilobytes: int | None = None
    free_memory_kilobytes: int | None = None
    shared_memory_kilobytes: int | None = None
    disk_kind: str = ""
    disk_free_kilobytes: int | None = None
    disks: tuple[Disk, ...] = ()
    open_files: int | None = None
    most_open_files: int | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removes_shared_memory: bool = False
    torch: TorchBuild | None = None
    nccl: str = ""
    gpus: GpuReport = field(default_factory=GpuReport)


def machine_script(
    config: Config,
    facts_script: str,
    names: Sequence[str] = (),
    *,
    gpu_seconds: float = GPU_SECONDS,
    devices: str = "/sys",
) -> str:
    """Return a script that reports the facts about a machine and the facts for prepare, in one round trip.

    Args:
        config: Has the folders, and an existing prefix.
        facts_script: The script of :mod:`remote_tool.environments.facts`; its answer is part of ours.
        names: Host names that the machine should resolve.
        gpu_seconds: Timeout of nvidia-smi.
        devices: The kernel's folder of devices.
    """
    values = {
        "project": config.remote.project,
        "scripts": config.remote.scripts,
        "existing": config.environment.prefix or "",
        "devices": devices,
        "gpu_seconds": f"{gpu_seconds:g}",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    words = " ".join(map(shlex.quote, names))
    look_up = f"look_up {words}" if words else ""
    return "\n".join(
        [
            _BEGINNING,
            'cd "$HOME" || exit 90',
            SEARCH_PATH,
            *lines,
            BOUNDED,
            _MACHINE,
            look_up,
            "printf 'facts_begin=\\0'",
            f"(\n{facts_script}\n)",
            "printf 'facts_end=\\0'",
            _GPUS,
            "printf 'gpu_end=\\0'",
        ]
    )


def split_answer(answer: bytes) -> tuple[bytes, bytes]:
    """Split the answer into the part for :func:`parse_machine` and the facts, which are empty if incomplete."""
    before, has_begun, rest = answer.partition(b"facts_begin=\0")
    facts, has_ended, after = rest.partition(b"facts_end=\0")
    if not has_begun or not has_ended:
        return before, b""
    return before + after, facts


def parse_machine(answer: bytes) -> Machine:
    """Parse the facts; a truncated, missing or invalid fact is unknown."""
    records: dict[str, list[str]] = {}
    for record in answer.decode(errors="replace").split("\0")[:-1]:
        key, separator, value = record.partition("=")
        if separator:
            records.setdefault(key, []).append(value)
    single = {key: values[0] for key, values in records.items()}
    clock = _TIME.match(single.get("clock", ""))
    memory = dict(_memory(single.get("memory", "")))
    return Machine(
        clock=float(clock[0]) if clock else None,
        clock_has_fractions=bool(clock and clock[2]),
        hostname=_short(single.get("hostname", "")),
        cores=_number(single.get("cores", "")),
        memory_kilobytes=memory.get("MemTotal"),
        free_memory_kilobytes=memory.get("MemAvailable"),
        shared_memory_kilobytes=_number(single.get("shared_memory", "")),
        disk_kind=_short(single.get("disk_kind", "")),
        disk_free_kilobytes=_number(single.get("disk_free", "")),
        disks=tuple(_disks(single.get("disks", ""))),
        open_files=_number(single.get("open_files", "")),
        most_open_files=_number(single.get("most_open_files", "")),
        names=dict(_names(records.get("name", ()))),
        removes_shared_memory=_removes_shared_memory(single),
        torch=parse_torch(single.get("torch", "")),
        nccl=_nccl(single.get("nccl", "")),
        gpus=parse_gpus(single, records.get("gpu_process", ())),
    )


def _short(text: str) -> str:
    return text.strip()[:LONGEST_TEXT]


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text.strip()) else None


def _memory(text: str) -> list[tuple[str, int]]:
    return [
        (name, int(kilobytes)) for name, kilobytes in re.findall(r"^(\w{1,20}): +([0-9]{1,18}) kB$", text, re.MULTILINE)
    ]


def _disks(text: str) -> list[Disk]:
    """Parse lines of name, ``rotational`` and model."""
    disks = []
    for line in text.splitlines()[:MOST_DISKS]:
        name, _, rest = line.partition(" ")
        rotational, _, model = rest.partition(" ")
        is_virtual = name.startswith(_VIRTUAL_NAMES) or bool(_VIRTUAL.search(model))
        disks.append(Disk(_short(name), rotational == "1" and not is_virtual))
    return disks


def _names(records: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Parse records of a name and its addresses."""
    lines = [record.split()[:20] for record in records]
    return [(words[0], tuple(dict.fromkeys(words[1:]))) for words in lines if words]


def _removes_shared_memory(single: Mapping[str, str]) -> bool:
    """Parse RemoveIPC of logind.conf(5): it exempts system users, and lingering users never log out."""
    uid = _number(single.get("machine_uid", ""))
    is_person = uid is not None and uid >= 1000  # noqa: PLR2004 - the usual UID_MIN of login.defs(5)
    return single.get("remove_ipc", "").strip() == "RemoveIPC=yes" and is_person and "linger" not in single


def parse_torch(text: str) -> TorchBuild | None:
    """Parse ``torch/version.py``, as an import of torch takes seconds; None without a version."""
    version = _assigned_value("__version__", text)
    return TorchBuild(version, _assigned_value("cuda", text), _assigned_value("hip", text)) if version else None


def _assigned_value(name: str, text: str) -> str:
    found = re.search(rf"^{name}\s*(?::[^=\n]{{0,100}})?=\s*['\"]([0-9A-Za-z.+_-]{{1,40}})['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def _nccl(folder: str) -> str:
    found = re.fullmatch(r"nvidia_nccl_\w{1,20}-([0-9.]{1,20})\.dist-info", folder)
    return found[1] if found else ""


# The clock comes first, as the client compares it with the time of the request.
_BEGINNING = r"""
report() { printf '%s=%s\0' "$1" "$2"; }
report clock "$(date +%s.%N 2>/dev/null)"
"""

# No signal ends a program that hangs in the kernel; then the client stops waiting, and has all other facts.
BOUNDED = r"""
bounded() {
    if command -v timeout >/dev/null; then timeout -s KILL "$@"; return; fi
    seconds=$1; shift
    "$@" & child=$!
    (sleep "$seconds"; kill -KILL "$child") >/dev/null 2>&1 & watch=$!
    wait "$child"; status=$?
    kill "$watch" 2>/dev/null
    return "$status"
}
"""

# machine_script sets the variables. `ulimit -S` and `-H` are not in POSIX, but every current shell has them.
_MACHINE = r"""
free_on() {
    df -Pk "$1" 2>/dev/null | { read -r _; read -r _ _ _ free _ && printf %s "$free"; }
}

# One line for each disk below a block device: name, rotational, model. A mapped device has slaves.
disks_below() (
    cd -P -- "$1" 2>/dev/null || exit
    has_slaves=
    for slave in slaves/*; do
        [ -e "$slave" ] && has_slaves=yes && disks_below "$PWD/$slave"
    done
    [ "$has_slaves" ] && exit
    [ -e queue/rotational ] || cd -P ..
    read -r rotational 2>/dev/null < queue/rotational || exit
    model=; [ -r device/model ] && read -r model < device/model
    printf '%s %s %s\n' "${PWD##*/}" "$rotational" "$model"
)

# Disks are found by the number of the device. File systems such as btrfs have a number of their own; df names a device.
find_disks() {
    number=$(stat -L -c %d "$1" 2>/dev/null) || return
    major=$(((number >> 8) & 4095)) minor=$(((number & 255) | ((number >> 12) & 1048320)))
    if [ -e "$devices/dev/block/$major:$minor" ]; then
        disks_below "$devices/dev/block/$major:$minor"
        return
    fi
    source=$(df -P "$1" 2>/dev/null | { read -r _; read -r source _ && printf %s "$source"; })
    case $source in /dev/*) ;; *) return ;; esac
    source=$(readlink -f "$source") && disks_below "$devices/class/block/${source##*/}"
}

look_up() {
    command -v getent >/dev/null || return
    for name; do
        report name "$name $(bounded 5 getent ahosts "$name" 2>/dev/null </dev/null | while read -r address _; do
            printf '%s ' "$address"
        done)" &
    done
    wait
}

report machine_uid "$(id -u)"
name=$(hostname 2>/dev/null || uname -n)
report hostname "$name"
report cores "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null)"
report memory "$(grep -E '^Mem(Total|Available):' /proc/meminfo 2>/dev/null)"
[ -d /dev/shm ] && report shared_memory "$(free_on /dev/shm)"
report open_files "$(ulimit -Sn 2>/dev/null)"
report most_open_files "$(ulimit -Hn 2>/dev/null)"
if command -v loginctl >/dev/null; then
    report remove_ipc "$(bounded 3 loginctl show-user -p RemoveIPC 2>/dev/null </dev/null)"
    [ -e "/var/lib/systemd/linger/$(id -un)" ] && report linger yes
fi

place=$project; [ -d "$place" ] || place=.
report disk_kind "$(stat -f -c %T "$place" 2>/dev/null)"
report disk_free "$(free_on "$place")"
report disks "$(find_disks "$place")"

case $existing in '~') existing=$HOME ;; '~/'*) existing=$HOME/${existing#??} ;; esac
prefix=$(readlink "$scripts/python") && prefix=${prefix%/bin/*} || prefix=$existing
for site in "$prefix"/lib/python3*/site-packages "$prefix"/lib/python3*/dist-packages; do
    [ -f "$site/torch/version.py" ] || continue
    report torch "$(head -c 10000 "$site/torch/version.py")"
    for nccl in "$site"/nvidia_nccl_*.dist-info; do [ -d "$nccl" ] && report nccl "${nccl##*/}"; done
    break
done
look_up "$name"
"""

_GPUS = r"""
# Prints the output of nvidia-smi, and its status at the end.
ask_gpus() {
    { bounded "$gpu_seconds" "$smi" "$@" 2>&1 </dev/null; printf '\nstatus %s' $?; } | head -c 65536
}

smi=$(command -v nvidia-smi) || smi=/usr/lib/wsl/lib/nvidia-smi
if [ -x "$smi" ]; then
    answer=$(ask_gpus --query-gpu=name,memory.total,memory.used,utilization.gpu,driver_version \
        --format=csv,noheader,nounits)
    report gpus "$answer"
    case $answer in *'
status 0')
        report gpu_summary "$(ask_gpus)"
        report gpu_parts "$(ask_gpus -L)"
        for pid in $(ask_gpus --query-compute-apps=pid --format=csv,noheader | grep -E '^[0-9]+$' | head -n 200); do
            report gpu_process "$pid $(stat -c %U "/proc/$pid" 2>/dev/null)"
        done
        ;;
    esac
else
    for card in "$devices"/bus/pci/devices/*; do
        read -r vendor 2>/dev/null < "$card/vendor" && [ "$vendor" = 0x10de ] || continue
        read -r class 2>/dev/null < "$card/class"
        case $class in 0x03*) report gpu_without_driver "${card##*/}" ;; esac
    done
fi
"""
