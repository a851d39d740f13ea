"""The addresses of this machine's interfaces, read from the kernel without external programs."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Tuple

_RTM_GETADDR = 22
_RTM_NEWADDR = 20
_NLMSG_DONE = 3
_NLM_F_REQUEST_DUMP = 0x301
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_MESSAGE = struct.Struct("=LHHLL")
_ADDRESS = struct.Struct("=BBBBi")
_ATTRIBUTE = struct.Struct("=HH")
_SECONDS = 5.0


def list_addresses() -> List[Dict[str, str]]:
    """Return ``{"interface", "address"}`` for every address; empty where the kernel does not answer."""
    try:
        names = dict(socket.if_nameindex())
        messages = list(_dump())
    except (OSError, AttributeError, struct.error):
        return []
    found = []
    for family, index, address in messages:
        if index in names:
            found.append({"interface": names[index], "address": socket.inet_ntop(family, address)})
    return found


def interface_of(address: str) -> str:
    """Return the interface with an address; empty if none."""
    plain = address.partition("%")[0]
    if plain.startswith("::ffff:") and "." in plain:
        plain = plain[len("::ffff:") :]
    for known in list_addresses():
        if known["address"] == plain:
            return known["interface"]
    return ""


def _dump() -> Iterator[Tuple[int, int, bytes]]:
    """Yield family, interface index and address, as in rtnetlink(7)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_SECONDS)
        body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        kernel.send(_MESSAGE.pack(_MESSAGE.size + len(body), _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        while True:
            data = kernel.recv(65536)
            while len(data) >= _MESSAGE.size:
                length, kind = _MESSAGE.unpack_from(data)[:2]
                if kind == _NLMSG_DONE or length < _MESSAGE.size:
                    return
                if kind == _RTM_NEWADDR:
                    yield from _read_address(data[_MESSAGE.size : length])
                data = data[_aligned(length) :]


def _read_address(message: bytes) -> Iterator[Tuple[int, int, bytes]]:
    family, _, _, _, index = _ADDRESS.unpack_from(message)
    attributes: Dict[int, bytes] = {}
    rest = message[_ADDRESS.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[_aligned(length) :]
    # On a point-to-point link IFA_ADDRESS is the peer's.
    address = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
    if address is not None and family in {socket.AF_INET, socket.AF_INET6}:
        yield family, index, address


def _aligned(length: int) -> int:
    return (length + 3) & ~3
