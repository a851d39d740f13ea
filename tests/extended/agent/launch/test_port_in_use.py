from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.supervisor.causes import find_taken_port

if TYPE_CHECKING:
    from pathlib import Path

SAID = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {port}, useIpv6: false, code: -98, name: {name}, message: why\n"
)


@pytest.mark.row(93)
@pytest.mark.parametrize(
    ("command", "port", "name", "found"),
    [
        ("--master-addr 10.0.0.5 --master-port 23456 --nproc-per-node 1", 23456, "EADDRINUSE", 23456),
        ("--rdzv-endpoint 10.0.0.5:23456 --nproc-per-node 1", 23456, "EADDRINUSE", 23456),
        ("--rdzv-endpoint '[fd00::5]:23456' --nproc-per-node 1", 23456, "EADDRINUSE", 23456),
        ("--master-port 23456 train.py --port 8080", 8080, "EADDRINUSE", None),
        ("--master-port 23456 train.py", 23456, "EACCES", None),
    ],
)
def test_only_the_port_of_the_launch_is_why_it_ended(
    tmp_path: Path, command: str, port: int, name: str, found: int | None
) -> None:
    (tmp_path / "command").write_text(f"python -m torch.distributed.run {command}\n")
    (tmp_path / "job.err").write_text("x" * 100_000 + "\n" + SAID.format(port=port, name=name) + "more\n")
    folder = os.open(tmp_path, os.O_RDONLY)
    assert find_taken_port(folder) == found
    os.close(folder)


def test_without_files_there_is_no_cause(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    assert find_taken_port(folder) is None
    os.close(folder)
