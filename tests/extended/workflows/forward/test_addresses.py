"""What a forward may be written as."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from remote_tool.errors import UsageError
from remote_tool.workflows.forward.addresses import Forward, SocketAddress, parse_forward
from remote_tool.workflows.forward.forward import ForwardRequest
from remote_tool.workflows.forward.session import bind_free_port


@pytest.mark.parametrize(
    ("text", "listen", "target"),
    [
        ("6006", SocketAddress(port=6006), SocketAddress(port=6006)),
        ("8888:6006", SocketAddress(port=8888), SocketAddress(port=6006)),
        ("0:6006", SocketAddress(port=0), SocketAddress(port=6006)),
        ("8888:localhost:6006", SocketAddress(port=8888), SocketAddress(port=6006)),
        ("8888:db.internal:5432", SocketAddress(port=8888), SocketAddress("db.internal", 5432)),
        ("8888:[fd00::1]:5432", SocketAddress(port=8888), SocketAddress("fd00::1", 5432)),
        ("0.0.0.0:8888:localhost:6006", SocketAddress("0.0.0.0", 8888), SocketAddress(port=6006)),
        ("*:8888:6006", SocketAddress("*", 8888), SocketAddress(port=6006)),
        ("[::1]:8888:6006", SocketAddress("::1", 8888), SocketAddress(port=6006)),
        ("8888:/run/a b.sock", SocketAddress(port=8888), SocketAddress(path="/run/a b.sock")),
        ("0.0.0.0:8888:~/a.sock", SocketAddress("0.0.0.0", 8888), SocketAddress(path="~/a.sock")),
        ("/run/a.sock", SocketAddress(), SocketAddress(path="/run/a.sock")),
    ],
)
def test_a_forward_is_written_as_for_ssh(text: str, listen: SocketAddress, target: SocketAddress) -> None:
    assert parse_forward(text) == Forward(listen, target)


def test_a_reverse_forward_may_listen_on_a_socket_of_the_server() -> None:
    assert parse_forward("~/s.sock:6006", reverse=True) == Forward(
        SocketAddress(path="~/s.sock"), SocketAddress(port=6006)
    )
    assert parse_forward("6006", reverse=True) == Forward(SocketAddress(port=6006), SocketAddress(port=6006))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "a",
            "6006:",
            ":6006",
            "-1",
            "65536",
            "0",
            "8888:0",
            "8888:a",
            "1:2:3:4:5",
            "٣",
            "8:/a:b",
            "9" * 5000,
        ),
        *("[::1", "a:/run/x", "6006\n"),
        *("8888:a..b:80", "a..b:8888:localhost:80", "8888:[]:80", f"8888:{'a' * 64}:80"),
    ],
)
def test_a_wrong_forward_is_refused_with_the_word_and_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_forward(text)
    assert text[:20] in refused.value.message or repr(text)[:20] in refused.value.message
    assert refused.value.hint
    assert len(refused.value.message) < 300


def test_a_reverse_forward_needs_a_port_on_the_server() -> None:
    for text in ("0:6006", "/run/a.sock", "*:/run/a.sock:6006"):
        with pytest.raises(UsageError):
            parse_forward(text, reverse=True)


def test_a_request_without_a_port_or_with_two_servers_is_refused() -> None:
    for wrong in ({}, {"reverse": True, "job": "1"}, {"forwards": ("1",), "job": "1", "servers": ("gpu1",)}):
        with pytest.raises(UsageError):
            ForwardRequest(**wrong)


@pytest.mark.row(211)
def test_a_port_that_is_taken_here_gets_the_next_free_one() -> None:
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = taken.getsockname()[1]
        sockets, found = bind_free_port(SocketAddress(port=port))
        for each in sockets:
            stack.enter_context(each)
        assert found != port
        assert {each.getsockname()[:2] for each in sockets} <= {("127.0.0.1", found), ("::1", found)}
        assert sockets[0].getsockname()[0] == "127.0.0.1"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^Cannot listen on 192\.0\.2\.1: "):
        bind_free_port(SocketAddress("192.0.2.1", 6006))
