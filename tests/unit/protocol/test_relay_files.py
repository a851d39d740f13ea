"""The list of what servers hand on to each other."""

from __future__ import annotations

import pytest

from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.relay_files import RelayFile, pack, unpack


@pytest.mark.row(109)
@pytest.mark.parametrize("name", [b"../outside", b"/etc/x", b"a//b", b"./a", b"sub/../../x", b""])
def test_a_list_that_leads_out_of_the_project_is_refused(name: bytes) -> None:
    inside = RelayFile(b"0" * 64, 0o600, 1, 1, b"sub/a..b")
    assert unpack(pack([inside])) == [inside]
    with pytest.raises(RequestError, match="paths outside the project"):
        unpack(pack([inside, inside._replace(name=name)]))
