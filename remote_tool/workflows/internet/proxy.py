"""An HTTP proxy for one server: CONNECT to port 443 of allowed hosts, with a secret.

Names are looked up here, and an address that is not one of the internet is refused: a server must not reach what only
this machine does. The connection goes to the address that was checked.

It stands alone because it knows nothing of servers and tunnels: a pair of streams is all that it has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import os
import re
import socket
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

USER = "remote-tool"
HTTPS = 443
CHUNK = 64 * 1024
LONGEST_HEAD = 16 * 1024
HEAD_SECONDS, CONNECT_SECONDS, LOOK_UP_SECONDS = 30.0, 10.0, 10.0
# For tests: NAME=ADDRESS:PORT connects to a port of this machine in place of port 443 of a name; separated by commas.
TEST_VARIABLE = "REMOTE_TOOL_TEST_INTERNET"


_NAME = re.compile(r"[a-z0-9_][a-z0-9._-]{0,252}")
# IPv6 addresses that end in one of IPv4: of a translator (RFC 6052, 8215, 2765), and an old form.
_WITH_IPV4 = tuple(
    ipaddress.IPv6Network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")
)


class RefusedError(Exception):
    """A request that is not carried out: a status of HTTP, and why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class Proxy:
    """The proxy of one use.

    Args:
        secret: Only who knows it may use the proxy.
        hosts: Patterns of host names; ``*.`` in front stands for all names below.
        allow: Asks whether another host is allowed.

    Attributes:
        bytes: Carried so far, in both directions.
        problems: By host, why requests failed.
    """

    def __init__(self, secret: str, hosts: Iterable[str], allow: Callable[[str], Awaitable[bool]]) -> None:
        self._allow = allow
        self._secret = f"{USER}:{secret}".encode()
        self._hosts = tuple(each.lower() for each in hosts)
        self.bytes = 0
        self.problems: dict[str, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, until both sides have closed it."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n"))[:LONGEST_HEAD].decode("latin-1")
            there = await self._connect(head)
        except RefusedError as refused:
            await _answer(writer, refused)
            return
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
            return
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        except OSError:
            writer.transport.abort()
        finally:
            there[1].transport.abort()
            writer.close()

    async def _connect(self, head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line, *fields = head.split("\r\n")
        if not self._is_allowed(fields):
            raise RefusedError("407 Proxy Authentication Required", "this proxy is for another program")
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        name, _, port = target.rpartition(":") if method == "CONNECT" else (urlsplit(target).hostname or "", "", "")
        host = name.lower().rstrip(".")
        # A name with other characters may be another one for the patterns than for the name service.
        if not _NAME.fullmatch(host):
            raise RefusedError("403 Forbidden", "not a host name")
        if method != "CONNECT":
            self.problems[host] = "is wanted by http: only https is carried"
            raise RefusedError("403 Forbidden", "only https is carried")
        try:
            return await self._reach(host, port)
        except RefusedError as refused:
            self.problems[host] = str(refused)
            raise

    async def _reach(self, host: str, port: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port != str(HTTPS):
            raise RefusedError("403 Forbidden", f"is not reached at port {port:.10}: only port {HTTPS} is carried")
        if not any(_matches(host, pattern) for pattern in self._hosts) and not await self._allow(host):
            raise RefusedError("403 Forbidden", "is not one of internet_hosts in configs.yaml")
        return await _open(host)

    def _is_allowed(self, fields: list[str]) -> bool:
        for field in fields:
            name, _, value = field.partition(":")
            kind, _, word = value.strip().partition(" ")
            if name.strip().lower() == "proxy-authorization" and kind.lower() == "basic":
                with suppress(binascii.Error, ValueError):
                    return hmac.compare_digest(base64.b64decode(word.strip(), validate=True), self._secret)
        return False

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _matches(host: str, pattern: str) -> bool:
    return fnmatchcase(host, pattern) if pattern.startswith("*.") else host == pattern


async def _open(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to port 443 of a host, at an address of the internet."""
    places = _places_of_tests().get(host)
    addresses = [places] if places else [(address, HTTPS) for address in await _look_up(host)]
    why = ""
    for address, port in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, limit=CHUNK)
        except TimeoutError:
            why = f"no answer within {CONNECT_SECONDS:.0f} s"
        except OSError as error:
            why = error.strerror or str(error)
    behind = " (this machine uses a proxy itself, which is not used here)" if _has_own_proxy() else ""
    raise RefusedError("502 Bad Gateway", f"cannot be reached from this machine: {why}{behind}")


async def _look_up(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            found = await loop.getaddrinfo(host, HTTPS, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise RefusedError("502 Bad Gateway", "cannot be looked up by this machine: no answer") from None
    except UnicodeError:
        raise RefusedError("502 Bad Gateway", "is not a host name") from None
    except OSError as error:
        raise RefusedError(
            "502 Bad Gateway", f"cannot be looked up by this machine: {error.strerror or error}"
        ) from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    of_internet = [address for address in addresses if is_of_internet(address)]
    if not of_internet:
        raise RefusedError("403 Forbidden", f"is {', '.join(addresses)[:100]}, which is not an address of the internet")
    return of_internet


def is_of_internet(address: str) -> bool:
    """Return whether an address is one of the internet: not private, link-local, of this machine, or for many."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast
    inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
    if inner is None and any(found in network for network in _WITH_IPV4):
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    if inner is not None:
        return is_of_internet(str(inner))
    return found.is_global and not found.is_multicast and not found.is_site_local


def _places_of_tests() -> dict[str, tuple[str, int]]:
    places = {}
    for each in filter(None, os.environ.get(TEST_VARIABLE, "").split(",")):
        host, _, place = each.partition("=")
        address, _, port = place.rpartition(":")
        places[host] = address, int(port)
    return places


def _has_own_proxy() -> bool:
    return any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"))


async def _answer(writer: asyncio.StreamWriter, refused: RefusedError) -> None:
    body = f"{refused}\n".encode()
    fields = [f"HTTP/1.1 {refused.status}", f"Content-Length: {len(body)}", "Connection: close"]
    if refused.status.startswith("407"):
        fields.append(f'Proxy-Authenticate: Basic realm="{USER}"')
    with suppress(OSError):
        writer.write("\r\n".join([*fields, "", ""]).encode() + body)
        await writer.drain()
    writer.close()
