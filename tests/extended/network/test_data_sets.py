"""A data set on a disk that each machine has for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network


@pytest.mark.slow
def test_a_relay_brings_a_data_set_to_the_disk_of_each_machine(
    network: Network, make_workspace: MakeWorkspace, tmp_path: Path
) -> None:
    hosts = network.hosts("first", "second")
    source = tmp_path / "set"
    (source / "a folder").mkdir(parents=True)
    (source / "a folder" / "large.bin").write_bytes(bytes(range(256)) * 8192)
    for host in hosts:
        assert host.run("mount", "-t", "tmpfs", "disk", "/srv").returncode == 0
    workspace = make_workspace(*hosts, data={"set": {"from": str(source), "to": "/srv/data/set"}})
    placed = workspace.data_sync(relay=True)["set"].values.values()
    assert sorted(each.relayed for each in placed) == [0, 256 * 8192]
    for host in hosts:
        assert host.run("sh", "-c", "cd /srv/data && find . -type f -size +1M").stdout == "./set/a folder/large.bin\n"
    look = (
        'cmp -s "$REMOTE_TOOL_DATA_SET/a folder/large.bin" /srv/data/set/a*/large.bin && echo "$REMOTE_TOOL_DATA_SET"'
    )
    assert workspace.run(look).values == {"first": 0, "second": 0}
    data = [check for each in workspace.check().servers for check in each.checks if check.name == "data set"]
    assert [(check.status.name, check.value) for check in data] == [("OK", "/srv/data/set")] * 2
