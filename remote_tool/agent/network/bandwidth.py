"""Measure bandwidth between two servers: one listens with a secret, the other measures both directions."""

from __future__ import annotations

import os
import select
import socket
import statistics
import threading
import time

from remote_tool.agent.machine import addresses
from remote_tool.agent.network import iperf, reachability, tcp_streams
from remote_tool.agent.requests import Request, client_is_gone, is_flag, is_list, is_text
from remote_tool.protocol.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

_MOST_SECONDS = 60
_CONNECT_SECONDS = 5.0
# Besides both directions: to connect, to wait for the last bytes, to start iperf3.
_SPARE_SECONDS = 40.0
_ANSWER_SECONDS = 15.0
_MOST_CONNECTIONS = 64
_MOST_CANDIDATES = 64
_PINGS = 100
_PING_SECONDS = 1.0
_PING, _RESULT, _IPERF = b"p", b"r", b"i"
IPERF, OWN = "iperf3", "own"


def bandwidth_listen(request: Request) -> None:
    """Answer op ``bandwidth_listen``: listen for one measurement, until the client goes or time is up."""
    secret, seconds = _secret(request), _seconds(request)
    listener, port = reachability.bind_free_port()
    with listener:
        listener.listen(128)
        request.answer({"port": port, "iperf3": iperf.is_there()})
        _Listening(listener, secret, seconds).serve()


def bandwidth_connect(request: Request) -> None:
    """Answer op ``bandwidth_connect``: connect to the listener and measure both directions."""
    candidates = request.get("candidates", lambda value: is_list(value) and all(is_text(item) for item in value))
    port = request.get("port", lambda value: type(value) is int and 0 < value < 65536)  # noqa: PLR2004
    use_iperf = request.get("iperf3", is_flag, default=False)
    reading, writing = os.pipe()
    measuring = _Measuring(
        candidates[:_MOST_CANDIDATES], port, _secret(request), _seconds(request), use_iperf and iperf.is_there()
    )
    try:
        measuring.start_waking(writing)
        if client_is_gone(2 * measuring.seconds + _SPARE_SECONDS, reading):
            return
    finally:
        measuring.running.end()
    request.answer(measuring.answer())


def _secret(request: Request) -> bytes:
    return str(request.get("secret", lambda value: is_text(value) and value != "")).encode("ascii", "replace")


def _seconds(request: Request) -> float:
    return float(
        request.get("seconds", lambda value: isinstance(value, (int, float)) and 0 < value <= _MOST_SECONDS, default=2)
    )


class _Listening:
    """The listening side."""

    def __init__(self, listener: socket.socket, secret: bytes, seconds: float) -> None:
        self._listener = listener
        self._secret = secret
        self._seconds = seconds
        self._running = iperf.IperfRun()
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._counted: List[tcp_streams.Counted] = []
        self._is_counted = threading.Condition()

    def serve(self) -> None:
        """Accept connections until the client goes or time is up."""
        deadline = time.monotonic() + 2 * self._seconds + _SPARE_SECONDS
        try:
            while time.monotonic() < deadline:
                if client_is_gone(max(0.0, deadline - time.monotonic()), self._listener.fileno()):
                    break
                if select.select([self._listener], [], [], 0)[0]:
                    self._accept()
        finally:
            self._running.end()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not self._connections.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_CONNECT_SECONDS)
                _say_at_once(connection)
                self._serve_purpose(connection, tcp_streams.greet(connection, self._secret))
        except OSError:
            return
        finally:
            self._connections.release()

    def _serve_purpose(self, connection: socket.socket, purpose: bytes) -> None:
        if purpose == tcp_streams.SEND:
            counted = tcp_streams.take(connection, self._seconds)
            with self._is_counted:
                self._counted.append(counted)
                self._is_counted.notify_all()
        elif purpose == tcp_streams.TAKE:
            tcp_streams.send(connection, self._seconds)
        elif purpose == tcp_streams.TALK:
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        local = str(connection.getsockname()[0])
        tcp_streams.send_line(connection, {"interface": addresses.interface_of(local)})
        connection.settimeout(2 * self._seconds + _SPARE_SECONDS)
        while True:
            word = tcp_streams.read_exactly(connection, 1)
            if word == _PING:
                connection.sendall(_PING)
            elif word == _RESULT:
                tcp_streams.send_line(connection, {"bits_per_second": self._result()})
            elif word == _IPERF:
                tcp_streams.send_line(connection, {"port": self._start_iperf(local)})

    def _result(self) -> float:
        with self._is_counted:
            self._is_counted.wait_for(lambda: len(self._counted) >= tcp_streams.STREAMS, _ANSWER_SECONDS)
            return tcp_streams.bits_per_second(self._counted) if self._counted else 0.0

    def _start_iperf(self, address: str) -> int:
        listener, port = reachability.bind_free_port()
        listener.close()
        self._running.listen(address.rpartition(":")[2] if "." in address else address, port, self._seconds)
        return port


class _Measuring:
    """The connecting side, which counts bytes or requests the listener's count."""

    def __init__(self, candidates: List[str], port: int, secret: bytes, seconds: float, use_iperf: bool) -> None:
        self.seconds = seconds
        self.running = iperf.IperfRun()
        self._candidates = candidates
        self._port = port
        self._secret = secret
        self._method = IPERF if use_iperf else OWN
        self._answer: Dict[str, Any] = {}
        self._error = "it took too long"

    def start_waking(self, descriptor: int) -> None:
        """Start; write to a descriptor at the end."""

        def work() -> None:
            try:
                self._measure()
                self._error = ""
            except OSError as error:
                self._error = error.strerror or str(error)
            os.write(descriptor, b"\0")

        threading.Thread(target=work, daemon=True).start()

    def answer(self) -> Dict[str, Any]:
        """Return the measurement; RequestError when it failed."""
        if self._error:
            raise RequestError(self._error)
        return self._answer

    def _measure(self) -> None:
        talk, address = self._reach()
        with talk:
            local = str(talk.getsockname()[0])
            self._answer = {
                "address": address,
                "interface": addresses.interface_of(local),
                "peer_interface": str(tcp_streams.read_line(talk).get("interface", "")),
                "round_trip": _round_trip(talk),
            }
            talk.settimeout(self.seconds + _ANSWER_SECONDS)
            if self._method == IPERF:
                try:
                    self._measure_with(self._by_iperf, talk)
                except iperf.IperfError:
                    self._method = OWN
            if self._method == OWN:
                self._measure_with(self._by_ourselves, talk)
            self._answer["method"] = self._method

    def _measure_with(self, measure: Callable[[socket.socket, str, bool], float], talk: socket.socket) -> None:
        for name, back in (("there", False), ("back", True)):
            self._answer[name] = measure(talk, self._answer["address"], back)

    def _reach(self) -> tuple[socket.socket, str]:
        """Return a connection to the first address that reaches the listener; OSError without one."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        attempts = [_ConnectAttempt(address, self._port, self._secret) for address in self._candidates]
        for attempt in attempts:
            attempt.join(max(0.0, deadline + 0.5 - time.monotonic()))
            if attempt.connection is not None:
                return attempt.connection, attempt.address
        reasons = "; ".join(f"{attempt.address}: {attempt.error}" for attempt in attempts)
        raise OSError(f"port {self._port} cannot be reached ({reasons or 'no address is known'})")

    def _by_iperf(self, talk: socket.socket, address: str, back: bool) -> float:
        talk.sendall(_IPERF)
        port = tcp_streams.read_line(talk).get("port")
        if type(port) is not int:
            raise iperf.IperfError("the other side did not start it")
        return self.running.measure(address, port, self.seconds, back=back)

    def _by_ourselves(self, talk: socket.socket, address: str, back: bool) -> float:
        purpose = tcp_streams.TAKE if back else tcp_streams.SEND
        streams = [_open(address, self._port, self._secret, purpose) for _ in range(tcp_streams.STREAMS)]
        try:
            if back:
                return tcp_streams.bits_per_second(tcp_streams.take_all(streams, self.seconds))
            tcp_streams.send_all(streams, self.seconds)
        finally:
            for stream in streams:
                stream.close()
        talk.sendall(_RESULT)
        return float(tcp_streams.read_line(talk)["bits_per_second"])


class _ConnectAttempt(threading.Thread):
    """One attempt to connect to an address, and its result."""

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        # A name server may not answer, so nothing waits for the thread.
        super().__init__(daemon=True)
        self.address = address
        self.connection: Optional[socket.socket] = None
        self.error = "no answer in time: a firewall?"
        self._port = port
        self._secret = secret
        self.start()

    def run(self) -> None:
        try:
            self.connection = _open(self.address, self._port, self._secret, tcp_streams.TALK)
        except socket.timeout:
            return
        except OSError as error:
            self.error = error.strerror or str(error)


def _open(address: str, port: int, secret: bytes, purpose: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), _CONNECT_SECONDS)
    try:
        _say_at_once(connection)
        tcp_streams.introduce(connection, secret, purpose)
    except BaseException:
        connection.close()
        raise
    return connection


def _say_at_once(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _round_trip(talk: socket.socket) -> float:
    """Return the median round-trip time in seconds."""
    times: List[float] = []
    end = time.monotonic() + _PING_SECONDS
    while len(times) < _PINGS and (not times or time.monotonic() < end):
        began = time.monotonic()
        talk.sendall(_PING)
        tcp_streams.read_exactly(talk, 1)
        times.append(time.monotonic() - began)
    return statistics.median(times)
