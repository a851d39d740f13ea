"""What is written down of host lists: enough to reach their jobs, never a secret, and whole at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from remote_tool.config.hosts import parse_hosts
from remote_tool.config.loading import parse
from remote_tool.config.servers import Server
from remote_tool.errors import JobError
from remote_tool.jobs import listed_hosts
from remote_tool.jobs.listed_hosts import recall_hosts, remember_hosts
from remote_tool.jobs.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = b"name: x\nservers: {gpu1: {hostname: 10.0.0.5, password: hush}}"
    return parse(text, tmp_path / ".remote" / "configs.yaml", tmp_path)


@pytest.fixture
def registry(config: Config) -> Registry:
    return Registry(config.local.jobs)


def test_hosts_are_known_later_and_keep_their_names(config: Config, registry: Registry) -> None:
    remember_hosts(config, registry, parse_hosts("10.0.0.5:2,me@[fd00::9]:2,10.0.0.7"))
    remember_hosts(config, registry, parse_hosts("10.0.0.8,me@[fd00::9]:4"))
    known = [server for server in recall_hosts(config, registry, pytest.fail).servers.values() if server.is_listed]
    assert known == [
        Server("fd00--9", "fd00::9", "me", is_listed=True),
        Server("10.0.0.7", "10.0.0.7", is_listed=True),
        Server("10.0.0.8", "10.0.0.8", is_listed=True),
    ]


def test_the_file_is_private_yaml_without_configured_servers(config: Config, registry: Registry) -> None:
    assert recall_hosts(config, registry, pytest.fail) == config
    remember_hosts(config, registry, parse_hosts("gpu1:2"))
    file = registry.folder / listed_hosts.FILE
    assert not file.exists()
    remember_hosts(config, registry, parse_hosts("gpu1:2,me@1.2.3.4:2"))
    assert yaml.safe_load(file.read_text()) == {"1.2.3.4": {"hostname": "1.2.3.4", "username": "me"}}
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hush" not in file.read_text()


def test_the_oldest_hosts_are_forgotten_when_there_are_very_many(
    config: Config, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_hosts, "MOST_HOSTS", 3)
    for name in "abcd":
        remember_hosts(config, registry, parse_hosts(name))
    assert [name for name in recall_hosts(config, registry, pytest.fail).servers if name != "gpu1"] == ["b", "c", "d"]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        '"a": {"hostname": "-oProxyCommand=x", "username": null}',
        '"a": {"hostname": "b", "username": "-l"}',
        '"../a": {"hostname": "b", "username": null}',
        '"a": {"hostname": "b"}',
        '"a": "b"',
        '"a": {"hostname": ["b"], "username": null}',
        '"a": {"hostname": "b", "username": null}, "c": {"hostname": "d", "username": null}',
    ],
)
@pytest.mark.row(123)
def test_a_line_that_is_not_ours_is_named_and_hides_and_loses_no_other(
    line: str, config: Config, registry: Registry
) -> None:
    remember_hosts(config, registry, parse_hosts("known"))
    file = registry.folder / listed_hosts.FILE
    written = file.read_text() + f"{line}\n"
    file.write_text(written)
    told: list[str] = []
    assert list(recall_hosts(config, registry, told.append).servers) == ["gpu1", "known"]
    (text,) = told
    assert text.startswith(f"{file}:3: not a host that we wrote")
    assert text.endswith("; remove that line")
    assert remember_hosts(config, registry, parse_hosts("known")).listed == {"known": None}
    with pytest.raises(JobError, match=":3: not a host that we wrote"):
        remember_hosts(config, registry, parse_hosts("new"))
    assert file.read_text() == written


def test_of_very_many_lines_that_are_not_ours_a_few_are_named(config: Config, registry: Registry) -> None:
    registry.folder.mkdir(parents=True)
    (registry.folder / listed_hosts.FILE).write_bytes(b"\xff\n" * 1000)
    told: list[str] = []
    recall_hosts(config, registry, told.append)
    assert len(told) == 4
    assert told[-1].endswith(": 1000 lines cannot be read")


def test_a_link_in_its_place_is_not_followed(config: Config, registry: Registry, tmp_path: Path) -> None:
    registry.folder.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("")
    (registry.folder / listed_hosts.FILE).symlink_to(tmp_path / "elsewhere")
    told: list[str] = []
    assert recall_hosts(config, registry, told.append) == config
    assert "cannot be read" in told[0]
    with pytest.raises(JobError, match="cannot be read"):
        remember_hosts(config, registry, parse_hosts("new"))
