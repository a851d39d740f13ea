"""What rsync runs instead of ssh: hands its stdin and stdout to the program that holds the connection.

Started as ``python -I -S rsync_shell.py HOST rsync --server …``; exits as the remote rsync did.
"""

# It starts once per sync and server, and half of its time would go into importing the socket module.
import _socket
import os
import sys

# The descriptor of a socket to the program that started rsync, inherited through it.
SOCKET_VARIABLE = "REMOTE_TOOL_RSYNC_SOCKET"
NO_ANSWER = 255


def main() -> int:
    """Pass on descriptors and arguments, wait for one byte: the exit status."""
    connection = _socket.socket(fileno=int(os.environ[SOCKET_VARIABLE]))
    arguments = b"\0".join(os.fsencode(argument) for argument in sys.argv[2:])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1))
    request = b"%d\0%b" % (len(arguments), arguments)
    connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    # Ours would keep the streams open when the other program is done with them.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    answer = connection.recv(1)
    return answer[0] if answer else NO_ANSWER


if __name__ == "__main__":
    sys.exit(main())
