"""Hosts of a list are the configured servers that they name, else servers with names that stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.hosts import parse_hosts
from remote_tool.config.listed import with_listed, with_remembered
from remote_tool.config.loading import parse
from remote_tool.config.servers import Server
from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from remote_tool.config.model import Config

ROOT = Path("/home/me/digits")
LAB = """
servers:
  gpu1: {hostname: 10.0.0.5, username: ubuntu, port: 2222}
  gpu2: {hostname: gpu-lab}
  gpu3: {hostname: fd00::5}
"""


def read(text: str = LAB) -> Config:
    return parse(text.encode(), ROOT / ".remote" / "configs.yaml", ROOT)


def meant(text: str, config: Config) -> list[Server]:
    chosen = with_listed(config, parse_hosts(text))
    return [chosen.servers[name] for name in chosen.usual_servers]


def test_a_configured_host_keeps_its_configuration() -> None:
    config = read()
    found = meant("10.0.0.5:2,gpu2:4,[fd00:0::5]", config)
    assert found == [config.servers["gpu1"], config.servers["gpu2"], config.servers["gpu3"]]
    assert with_listed(config, parse_hosts("GPU-LAB:4,ubuntu@10.0.0.5:2")).listed == {"gpu2": 4, "gpu1": 2}


def test_another_host_becomes_a_server_with_nothing_configured() -> None:
    assert meant("10.0.0.9:2,me@[fd00::9]:1,gpu1", read())[:2] == [
        Server("10.0.0.9", "10.0.0.9", is_listed=True),
        Server("fd00--9", "fd00::9", "me", is_listed=True),
    ]


@pytest.mark.parametrize("text", ["", "servers:\n", "servers: {}\n", "python: '3.11'\n"])
def test_no_server_need_be_configured(text: str) -> None:
    assert [server.name for server in meant("a:2,b:2", read(text))] == ["a", "b"]
    assert read(text).usual_servers == ()


def test_what_a_list_does_not_name_is_not_meant_but_known() -> None:
    chosen = with_listed(read(), parse_hosts("gpu2,10.0.0.9"))
    assert chosen.usual_servers == ("gpu2", "10.0.0.9")
    assert list(chosen.servers) == ["gpu1", "gpu2", "gpu3", "10.0.0.9"]


def test_a_host_keeps_the_name_that_it_had_in_an_earlier_list() -> None:
    """Whatever has changed in the list: two users of one machine are two servers, and stay what they are."""
    first = with_listed(read(), parse_hosts("me@10.0.0.9,you@10.0.0.9"))
    names = {server.username: name for name, server in first.servers.items() if server.is_listed}
    assert names == {"me": "10.0.0.9", "you": "10.0.0.9-2"}
    later = with_remembered(read(), [server for server in first.servers.values() if server.is_listed])
    assert [each.name for each in meant("10.0.0.9:2,you@10.0.0.9,a", later)] == ["10.0.0.9-3", "10.0.0.9-2", "a"]


def test_a_new_host_never_takes_the_name_of_a_server() -> None:
    config = read("servers: {a: {hostname: 10.0.0.5}, fd00--9: {hostname: 10.0.0.6}}")
    assert [each.name for each in meant("[fd00::9]", config)] == ["fd00--9-2"]
    long = "x" * 64
    crowded = read(f"servers: {{{long}: {{hostname: a}}}}")
    assert [each.name for each in meant("x" * 80, crowded)] == ["x" * 59 + "-2"]


def test_remembered_servers_are_meant_only_when_named_and_the_configured_win() -> None:
    config = with_remembered(read(), [Server("gpu1", "10.9.9.9", is_listed=True), Server("b", "b", is_listed=True)])
    assert config.usual_servers == ("gpu1", "gpu2", "gpu3")
    assert config.servers["gpu1"].hostname == "10.0.0.5"
    assert config.servers["b"].is_listed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpu1,10.0.0.5", "gpu1 and 10.0.0.5 are both the server gpu1"),
        ("me@gpu1", "me@gpu1 is the server gpu1, which is configured with the user ubuntu"),
        ("me@gpu-lab", "me@gpu-lab is the server gpu2, which is configured with no username"),
    ],
)
def test_a_host_that_is_not_told_from_a_server_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        meant(text, read())
    assert caught.value.message == problem
    assert caught.value.hint


def test_another_user_of_a_configured_machine_is_another_server() -> None:
    assert meant("me@10.0.0.5", read()) == [Server("10.0.0.5", "10.0.0.5", "me", is_listed=True)]


def test_one_address_of_two_servers_must_be_named_better() -> None:
    config = read("servers: {a: {hostname: h, port: 22}, b: {hostname: h, port: 2222}}")
    with pytest.raises(UsageError, match="h is ambiguous: it is the host of a and b"):
        meant("h:2", config)
    assert [each.port for each in meant("b:2", config)] == [2222]
