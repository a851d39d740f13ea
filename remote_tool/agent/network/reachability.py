"""Check that the servers of a launch reach each other: one listens with a secret, the others try its addresses."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time

from remote_tool.agent.machine import addresses
from remote_tool.agent.requests import Request, client_is_gone, is_list, is_text
from remote_tool.protocol.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

_LISTEN_SECONDS = 60.0
_CONNECT_SECONDS = 60
_LAST_PORT = 65535
_MOST_CONNECTIONS = 64
_MOST_CANDIDATES = 64
_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_LOWEST_PORT = 20000
_HIGHEST_PORT = 64999
_ATTEMPTS = 200
# A port stays reserved until the launch that requested it has bound it, or has failed.
_RESERVED_SECONDS = 600.0


def listen(request: Request) -> None:
    """Answer op ``listen``: prove to each client that it has reached this machine.

    It listens on two ports: one for the ranks' rendezvous, one for the supervisors' heartbeat.
    """
    port = request.get("port", lambda value: type(value) is int and 0 <= value <= _LAST_PORT, default=0)
    secret = request.get("secret", is_text).encode("ascii", "replace")
    listener, port = _bind(port) if port else bind_free_port()
    with listener:
        watch_listener, watch_port = bind_free_port()
        with watch_listener:
            listeners = (listener, watch_listener)
            for each in listeners:
                each.listen(128)
            request.answer({"port": port, "watch_port": watch_port})
            _serve(listeners, secret)


def _serve(listeners: Tuple[socket.socket, ...], secret: bytes) -> None:
    deadline = time.monotonic() + _LISTEN_SECONDS
    peers: List[socket.socket] = []
    while time.monotonic() < deadline:
        watched: List[Any] = [0, *listeners, *peers]
        ready = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0]
        if 0 in ready and client_is_gone(0):
            break
        for peer in [peer for peer in peers if peer in ready]:
            # The peers close first, so that the port is free again at once.
            peers.remove(peer)
            peer.close()
        for listener in listeners:
            if listener in ready:
                _greet(listener, peers, secret)
    for peer in peers:
        peer.close()


def _greet(listener: socket.socket, peers: List[socket.socket], secret: bytes) -> None:
    try:
        peer, _ = listener.accept()
    except OSError:
        return
    try:
        peer.setblocking(False)
        peer.send(secret)
        peers.append(peer)
    except OSError:
        peer.close()
    if len(peers) > _MOST_CONNECTIONS:
        peers.pop(0).close()


def _bind(port: int) -> Tuple[socket.socket, int]:
    """Listen on all addresses, IPv4 and IPv6 where available."""
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise RequestError(f"Port {port} is in use on this server", hint="Choose another --master-port") from error
        raise RequestError(f"Port {port} could not be opened on this server: {error.strerror}") from error
    return listener, port


def bind_free_port() -> Tuple[socket.socket, int]:
    """Listen on a free port that no other launch has reserved."""
    low, high = ephemeral_range()
    # Between our test and torchrun's use, the kernel may give an ephemeral port to any program.
    usable = range(_LOWEST_PORT, _HIGHEST_PORT)
    ports = [port for port in usable if not low <= port <= high] or usable
    for _ in range(_ATTEMPTS):
        port = ports[int.from_bytes(os.urandom(4), "big") % len(ports)]
        if not _reserve(port):
            continue
        try:
            return _bind(port)
        except RequestError:
            continue
    raise RequestError("Found no free port on this server", hint="Choose one with --master-port")


def ephemeral_range() -> Tuple[int, int]:
    try:
        with open(_PORT_RANGE, encoding="ascii") as stream:
            low, high = stream.read(64).split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def _reserve(port: int) -> bool:
    """Reserve a port across projects; return whether it was free."""
    folder = os.path.join(os.environ["HOME"], ".cache", "remote-tool", "ports")
    os.makedirs(folder, 0o700, exist_ok=True)
    # A home may be shared by several servers.
    name = os.path.join(folder, f"{socket.gethostname()}-{port}")
    _forget_ports(folder)
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        pass
    else:
        return True
    try:
        if time.time() - os.stat(name).st_mtime > _RESERVED_SECONDS:
            # Whoever removes the old note may create a new one; only one process can.
            os.unlink(name)
    except FileNotFoundError:
        pass
    return False


def _forget_ports(folder: str) -> None:
    """Remove expired reservations."""
    before = time.time() - 2 * _RESERVED_SECONDS
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if os.stat(path).st_mtime < before:
                os.unlink(path)
        except FileNotFoundError:
            continue


def connect(request: Request) -> None:
    """Answer op ``connect``: try all addresses at once, and accept only those that prove the secret on all ports."""
    candidates = request.get("candidates", lambda value: is_list(value) and all(is_text(item) for item in value))
    ports = request.get("ports", lambda value: is_list(value) and value != [] and all(_is_port(each) for each in value))
    secret = request.get("secret", is_text).encode("ascii", "replace")
    seconds = request.get(
        "timeout", lambda value: isinstance(value, (int, float)) and 0 < value <= _CONNECT_SECONDS, default=5
    )
    deadline = time.monotonic() + seconds
    attempts = [_Attempt(address, ports, secret, deadline) for address in candidates[:_MOST_CANDIDATES]]
    for attempt in attempts:
        attempt.join(max(0.0, deadline + 0.5 - time.monotonic()))
    request.answer({"results": [attempt.result() for attempt in attempts]})


def _is_port(value: object) -> bool:
    return type(value) is int and 0 < value <= _LAST_PORT


class _Attempt(threading.Thread):
    def __init__(self, address: str, ports: List[int], secret: bytes, deadline: float) -> None:
        # A name server may not answer, so nothing waits for the thread.
        super().__init__(daemon=True)
        self._address = address
        self._ports = ports
        self._secret = secret
        self._deadline = deadline
        self._local: Optional[str] = None
        self._error = f"no answer on port {ports[0]} in time"
        self.start()

    def run(self) -> None:
        for port in self._ports:
            self._error = f"no answer on port {port} in time"
            try:
                local = self._try(port)
            except OSError as error:
                self._error = f"port {port}: {error.strerror or error}"
                return
            if local is None:
                self._error = f"another program answers on port {port}"
                return
        self._local = local

    def _try(self, port: int) -> Optional[str]:
        """Return our own address if the peer knows the secret."""
        with socket.create_connection((self._address, port), self._left()) as connection:
            local = str(connection.getsockname()[0])
            received = b""
            while len(received) < len(self._secret):
                connection.settimeout(self._left())
                piece = connection.recv(len(self._secret) - len(received))
                received += piece
                if not piece or not self._secret.startswith(received):
                    break
        return local if received == self._secret else None

    def _left(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    def result(self) -> Dict[str, Any]:
        local = self._local
        return {
            "address": self._address,
            "ok": local is not None,
            "error": None if local is not None else self._error,
            "local_address": local,
            "interface": addresses.interface_of(local) if local is not None else "",
        }
