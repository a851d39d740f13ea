"""The program that rsync starts in place of ssh: pass its stdin and stdout to the process with the connection.

Started as ``python -I -S shell.py HOST rsync --server …``; exits with the status of the remote rsync.
"""

# This program starts once per sync and server, and importing socket would take half of its time.
import _socket
import os
import sys

# The descriptor of a socket to the process that started rsync; inherited through rsync.
SOCKET_VARIABLE = "REMOTE_TOOL_RSYNC_SOCKET"
NO_ANSWER = 255


def main() -> int:
    """Pass on descriptors and arguments; return the exit status, which arrives as one byte."""
    connection = _socket.socket(fileno=int(os.environ[SOCKET_VARIABLE]))
    arguments = b"\0".join(os.fsencode(argument) for argument in sys.argv[2:])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1))
    request = b"%d\0%b" % (len(arguments), arguments)
    connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    # Open copies here would keep the streams open after the other process has closed them.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    answer = connection.recv(1)
    return answer[0] if answer else NO_ANSWER


if __name__ == "__main__":
    sys.exit(main())
