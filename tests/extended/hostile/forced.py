"""What the sshd of these tests runs for every session: an honest shell, or what the test has written into answer.py.

The address that was connected to decides: 127.0.0.1 is hostile, 127.0.0.3 says nothing for ever, others are honest.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

HOSTILE, SILENT = "127.0.0.1", "127.0.0.3"


def main() -> None:
    address = os.environ["SSH_CONNECTION"].split()[2]
    if address == SILENT:
        time.sleep(600)
    read_line()
    script = unescape(read_line().partition(b"#")[2])
    source = os.path.join(os.environ["HOME"], "answer.py")  # noqa: PTH118 - it starts quickly
    if address != HOSTILE or not os.path.exists(source):  # noqa: PTH110
        os.execv("/bin/sh", ["/bin/sh", "-c", script])
    # It knows the mark, because it is sent to it.
    found = re.search(r"printf '\\000%s %s\\n' ([0-9a-f]{32}) \$\$\n", script)
    assert found
    mark = b"\0" + found[1].encode() + b" %d\n" % os.getpid()
    write(2, mark)
    request = json.loads(read_line()) if re.search(r"supervisor-\w+/run_control.py", script) else {}
    text = open(source).read()  # noqa: PTH123, SIM115
    exec(compile(text, source, "exec"), {**globals(), "mark": mark, "script": script, "request": request})


def frame(request: dict[str, Any], header: Any, body: bytes = b"", lengths: str = "") -> bytes:
    """Make a frame; a header of bytes is taken as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = lengths or f"{len(text)} {len(body)}"
    return b"\0%s %s\n%s%s" % (request["nonce"].encode(), lengths.encode(), text, body)


def write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_line() -> bytes:
    """Read byte by byte: what follows is for whoever comes next."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1) or b"\n"
    return line


def unescape(line: bytes) -> str:
    """Undo what is done for ``printf %b``."""
    found = re.sub(rb"\\(0[0-7]{3}|n|\\)", lambda each: _byte(each[1]), line.rstrip(b"\n"))
    return found.decode("utf-8", "surrogateescape")


def _byte(escape: bytes) -> bytes:
    return {b"n": b"\n", b"\\": b"\\"}.get(escape) or bytes([int(escape, 8)])


if __name__ == "__main__":
    main()
