"""What a name, an address, a path may look like: for configs.yaml and for what ``init`` is told."""

from __future__ import annotations

import ipaddress
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from remote_tool.supervisor.artifact_patterns import MOST_NEWEST, is_glob
from remote_tool.supervisor.log_limit import SMALLEST_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Form:
    """What a text may be.

    Attributes:
        wanted: Completes "must be …".
        accepts: Tells whether a text is of this form.
        is_secret: What is found instead is not shown.
    """

    wanted: str
    accepts: Callable[[str], bool]
    is_secret: bool = False


def _like(wanted: str, pattern: str, *, is_secret: bool = False) -> Form:
    compiled = re.compile(pattern)
    return Form(wanted, lambda text: compiled.fullmatch(text) is not None, is_secret)


LARGEST_PORT = 65535
OLDEST_PYTHON = (3, 8)

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_PYTHON = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,15}) ?(?:([KMGT])i?)?B?", re.IGNORECASE)
_ENGINES = {"docker", "podman", "nerdctl"}
_PASSES_STDIN = re.compile("--interactive|-[a-zA-Z]*i[a-zA-Z]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}")
_NO_OPTION = r"[A-Za-z0-9_][A-Za-z0-9._-]"


def plain_host(text: str) -> str:
    """Return a host without the brackets of an IPv6 address."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _is_host(text: str) -> bool:
    """What ssh accepts, less what could be taken for an option, a pattern or a command."""
    inner = plain_host(text)
    if ":" in inner:
        return _is_ipv6(inner)
    return inner == text and _HOST.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and 1 <= int(text) <= LARGEST_PORT


def _is_newest(text: str) -> bool:
    return re.fullmatch("[0-9]{1,4}", text) is not None and 1 <= int(text) <= MOST_NEWEST


def _is_python(text: str) -> bool:
    if not _PYTHON.fullmatch(text):
        return False
    major, minor = (int(number) for number in text.split(".")[:2])
    return OLDEST_PYTHON <= (major, minor) < (OLDEST_PYTHON[0] + 1, 0)


def read_size(text: str) -> int | None:
    """Return the bytes of a size such as 500MB or 4 GiB; None for what is no size."""
    found = _SIZE.fullmatch(text)
    if not found:
        return None
    power = " KMGT".index((found[2] or " ").upper())
    return int(found[1]) << (10 * power)


def _is_local_path(text: str) -> bool:
    return text.isprintable() and (not text.startswith("~") or text.startswith("~/"))


def _is_inside(text: str) -> bool:
    return text.isprintable() and not text.startswith(("/", "~")) and ".." not in text.split("/") and within(text) != ""


def within(text: str) -> str:
    """Return a path in its shortest form: ./a//b/ is a/b."""
    return "/".join(part for part in text.split("/") if part not in {"", "."})


def _is_prefix(text: str) -> bool:
    return text.startswith(("/", "~/")) and text.isprintable() and ".." not in text.split("/")


def _split(text: str) -> list[str]:
    """Return the words of a command; none when quotes are open, or a character cannot stand there."""
    try:
        return shlex.split(text) if text.isprintable() else []
    except ValueError:
        return []


def _begins_shell(text: str) -> bool:
    """Whether a command may begin a job: where an engine is asked to, it must pass stdin on, and start nothing new."""
    words = _split(text)
    if not words or PurePosixPath(words[0]).name not in _ENGINES:
        return bool(words)
    return "exec" in words and any(_PASSES_STDIN.fullmatch(word) for word in words)


def _names_image(text: str) -> bool:
    words = _split(text)
    return bool(words) and _IMAGE.fullmatch(words[-1]) is not None


PROJECT_NAME = _like(
    "a folder name of letters, digits, . _ - that begins with a letter, a digit or _", _NO_OPTION + "{0,127}"
)
SERVER_NAME = _like("made of letters, digits, . _ - and begin with a letter, a digit or _", _NO_OPTION + "{0,63}")
HOSTNAME = Form("a host name, an address or an alias of ~/.ssh/config, without user and port", _is_host)
ADDRESS = Form("a host name or an address that the other servers reach", _is_host)
USERNAME = _like("a user name", r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
PORT = Form(f"a whole number from 1 to {LARGEST_PORT}", _is_port)
LOCAL_PATH = Form("the path of a file here, relative to the project, absolute or beginning with ~/", _is_local_path)
INSIDE = Form("a path inside the project", _is_inside)
FOLDER_NAME = _like(
    "the name of a folder inside the project on the server", r"[A-Za-z0-9._][A-Za-z0-9._-]{1,63}(?<!\.\.)"
)
SECRET = Form("a text in one line", lambda text: "\n" not in text and "\0" not in text, is_secret=True)
VARIABLE = _like("the name of an environment variable", "[A-Za-z_][A-Za-z0-9_]{0,127}")
DEVICE = _like(
    "the number of a GPU, or its UUID such as GPU-8932f937 or MIG-…",
    "0|[1-9][0-9]{0,3}|GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,63}|MIG-[0-9A-Za-z][0-9A-Za-z/-]{0,99}",
)
VALUE = Form("a text without NUL", lambda text: "\0" not in text, is_secret=True)
SCRIPT = Form("a text for the shell, without NUL", lambda text: "\0" not in text, is_secret=True)
PYTHON = Form('a version such as "3.11" or "3.11.7", 3.8 or newer', _is_python)
LOG_LIMIT = Form("a size of 1MB or more, such as 500MB or 4GB", lambda text: (read_size(text) or 0) >= SMALLEST_LIMIT)
ARTIFACT = Form("a glob inside the project, such as checkpoints/*.pt, or a folder/", is_glob)
NEWEST = Form(f"a whole number from 1 to {MOST_NEWEST}", _is_newest)
SIZE = Form("a size such as 500MB or 10GB", lambda text: read_size(text) is not None)
PREFIX = Form("a path on the server, absolute or beginning with ~/", _is_prefix)
# These two may hold a user, a password or a token.
CHANNEL = _like("the name or address of a channel", r"[A-Za-z0-9_./][A-Za-z0-9_./:~%+@-]{0,500}", is_secret=True)
URL = _like("an address that begins with https:// or http://", r"https?://[!-~]{1,2000}", is_secret=True)
LAUNCH = Form(
    "a command that passes its stdin on, such as docker exec -i NAME; for a container per job there is container:",
    _begins_shell,
)
CONTAINER = Form("an image, with options of docker run before it if need be", _names_image)
STATUS_NAME = _like("a word of letters, digits, . _ - with 20 characters at most", _NO_OPTION + "{0,19}")
PATTERN = Form("a regular expression with one group, such as 'accuracy ([0-9.]+)'", str.isprintable)
SHA256 = _like("64 hexadecimal digits", "[0-9a-fA-F]{64}")


def one_of(choices: tuple[str, ...]) -> Form:
    """Return the form of a choice."""
    return Form(f"one of {', '.join(choices)}", choices.__contains__)
