"""Adjust how asyncssh sends and receives packets, for speed."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.transport.ssh.library import asyncssh

MSG_IGNORE = 2  # RFC 4253, 11.2
WITHOUT_FILLERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")


def send_no_fillers(connection: asyncssh.SSHClientConnection) -> None:
    """Stop asyncssh from sending an empty packet before each packet.

    It hides a weakness of CBC ciphers (RFC 4251, 9.3.1), which other ciphers do not have; OpenSSH sends none either.
    """
    if connection.get_extra_info("send_cipher") not in WITHOUT_FILLERS:
        return
    send_packet = connection.send_packet

    def send(pkttype: int, *args: bytes, handler: Any = None) -> None:  # noqa: ANN401 - a private type
        if pkttype != MSG_IGNORE:
            send_packet(pkttype, *args, handler=handler)

    connection.send_packet = send  # type: ignore[method-assign]


def acknowledge_now(connection: asyncssh.SSHClientConnection) -> None:
    """Have Linux acknowledge received data at once, not after 40 ms: sshd's next message waits for that."""
    link = connection.get_extra_info("socket")
    if link is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def listen(connection: asyncssh.SSHClientConnection, on_data: Callable[[bytes], None]) -> None:
    """Call ``on_data`` with each piece of received data, before asyncssh handles it."""
    handle = connection.data_received

    def data_received(data: bytes, datatype: Any = None) -> None:  # noqa: ANN401 - a private type
        on_data(data)
        handle(data, datatype)

    connection.data_received = data_received  # type: ignore[method-assign]
