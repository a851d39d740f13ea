"""Which addresses are of the internet: a server must not reach what only this machine does."""

from __future__ import annotations

import pytest

from remote_tool.workflows.internet.proxy import is_of_internet


@pytest.mark.row(321)
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("255.255.255.255", "224.0.0.1", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1"),
        *("::10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "::ffff:0:10.0.0.1", "fec0::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:c0a8:101::"),
    ],
)
def test_private_and_local_addresses_are_not(address: str) -> None:
    assert not is_of_internet(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_others_are(address: str) -> None:
    assert is_of_internet(address)
