"""GPUs of a server as a launch sees them: the files that NVIDIA's driver makes, on servers that have only these."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, LaunchRequest
from remote_tool.errors import SomeServersFailedError

if TYPE_CHECKING:
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-5ac02f11-1111-2222-3333-444455556666")
# A /dev of its own, with the files that programs need, and what the driver shows under /proc.
PLUG = """
mkdir /mnt/dev
mount --rbind /dev /mnt/dev
mount -t tmpfs -o mode=755 tmpfs /dev
for name in null zero full random urandom tty; do touch /dev/$name; mount --bind /mnt/dev/$name /dev/$name; done
for name in shm pts; do mkdir /dev/$name; mount --rbind /mnt/dev/$name /dev/$name; done
ln -s /proc/self/fd /dev/fd
touch /dev/nvidiactl /dev/nvidia-uvm
mount -t tmpfs tmpfs /proc/driver
n=0
for uuid; do
    touch /dev/nvidia$n
    folder=/proc/driver/nvidia/gpus/0000:0$n:00.0
    mkdir -p $folder
    printf 'Model: \\t\\t NVIDIA H200\\nGPU UUID: \\t %s\\n' "$uuid" > $folder/information
    n=$((n + 1))
done
"""


def plug_gpus(host: NetworkHost, *uuids: str) -> None:
    plugged = host.run("/bin/sh", "-ec", PLUG, "plug", *uuids)
    assert plugged.returncode == 0, plugged.stderr


@pytest.mark.slow
def test_a_launch_knows_the_gpus_of_its_servers(network: Network, make_workspace: MakeWorkspace) -> None:
    first, second = network.hosts("first", "second")
    plug_gpus(first, *UUIDS)
    plug_gpus(second, UUIDS[0])
    workspace = make_workspace(first, second)
    (workspace.root / "train.py").write_text("")

    def processes(*devices: str | int, nproc: int | None = None) -> list[int | None]:
        request = LaunchRequest("train.py", processes=nproc or "auto", devices=devices)
        return [node.processes for node in workspace.plan_torch(request).nodes]

    assert processes() == [2, 1]
    assert processes(0) == [1, 1]
    assert processes("GPU-8932") == [1, 1]
    for device, problem in ((1, "second has only GPU 0, not 1"), ("GPU-5ac0", "second has no GPU GPU-5ac0")):
        with pytest.raises(SomeServersFailedError) as caught:
            processes(device, nproc=1)
        assert {name: error.message for name, error in caught.value.failures.items()} == {"second": problem}
    chosen = FanOutRequest("true", devices=(0,))
    assert [slot.gpus for slot in workspace.plan_fan_out(FanOutRequest("true")).slots] == [("0",), ("1",), ("0",)]
    assert [slot.gpus for slot in workspace.plan_fan_out(chosen).slots] == [("0",), ("0",)]
    with pytest.raises(SomeServersFailedError, match="1 of 2 servers failed: second"):
        workspace.plan_fan_out(replace(chosen, devices=(0, 1)))
