"""Validators for names, addresses, paths and sizes: for configs.yaml and for the options of ``init``."""

from __future__ import annotations

import ipaddress
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.config.launch_command import begins_shell
from remote_tool.protocol.artifact_patterns import MOST_NEWEST, is_glob
from remote_tool.protocol.limits import (
    LONGEST_DURATION,
    LONGEST_IDLE_AFTER,
    LONGEST_LOST_AFTER,
    MOST_RETRIES,
    SHORTEST_LOST_AFTER,
    SMALLEST_LOG_LIMIT,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Validator:
    """A rule for a text.

    Attributes:
        expected: Completes "must be …".
        accepts: Returns whether a text follows the rule.
        is_secret: Whether invalid values are hidden.
    """

    expected: str
    accepts: Callable[[str], bool]
    is_secret: bool = False


def _like(expected: str, pattern: str, *, is_secret: bool = False) -> Validator:
    compiled = re.compile(pattern)
    return Validator(expected, lambda text: compiled.fullmatch(text) is not None, is_secret)


LARGEST_PORT = 65535
OLDEST_PYTHON = (3, 8)
LONGEST_SBATCH = 1000

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_PYTHON = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,15}) ?(?:([KMGT])i?)?B?", re.IGNORECASE)
_AGE = re.compile(r"([0-9]{1,6}) ?([mhdw])")
_DURATION = re.compile(r"([0-9]{1,6}) ?([smhdw])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
# The signals of servers, which run Linux; this computer may have others.
_SIGNALS = (
    "ABRT|ALRM|BUS|CHLD|CONT|FPE|HUP|ILL|INT|IO|KILL|PIPE|PROF|PWR|QUIT|SEGV|STKFLT|STOP|SYS|TERM|TRAP|TSTP"
    r"|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ|RTMIN(?:\+[0-9]{1,2})?|RTMAX"
)
EXIT_CODE_OR_SIGNAL = f"[1-9][0-9]?|1[0-9]{{2}}|2[0-4][0-9]|25[0-5]|SIG(?:{_SIGNALS})"
_HUNDREDTHS = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?) ?%")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}")
_NO_OPTION = r"[A-Za-z0-9_][A-Za-z0-9._-]"


def plain_host(text: str) -> str:
    """Return a host without the brackets of an IPv6 address."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def canonical_host(hostname: str) -> str:
    """Return the canonical form of a host, for comparison."""
    try:
        return str(ipaddress.ip_address(hostname))
    except ValueError:
        return hostname.lower()


def _is_host(text: str) -> bool:
    """Return whether ssh accepts it and cannot mistake it for an option, a pattern or a command."""
    inner = plain_host(text)
    if ":" in inner:
        return _is_ipv6(inner)
    return inner == text and _HOST.fullmatch(text) is not None


def _is_login(text: str) -> bool:
    user, at, host = text.rpartition("@")
    return _is_host(host) and (not at or USERNAME.accepts(user))


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and 1 <= int(text) <= LARGEST_PORT


def _is_newest(text: str) -> bool:
    return re.fullmatch("[0-9]{1,4}", text) is not None and 1 <= int(text) <= MOST_NEWEST


def _is_lost_after(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and SHORTEST_LOST_AFTER <= int(text) <= LONGEST_LOST_AFTER


def _is_python(text: str) -> bool:
    if not _PYTHON.fullmatch(text):
        return False
    major, minor = (int(number) for number in text.split(".")[:2])
    return OLDEST_PYTHON <= (major, minor) < (OLDEST_PYTHON[0] + 1, 0)


def read_size(text: str) -> int | None:
    """Return the bytes of a size such as 500MB or 4 GiB; None if it is not a size."""
    found = _SIZE.fullmatch(text)
    if not found:
        return None
    power = " KMGT".index((found[2] or " ").upper())
    return int(found[1]) << (10 * power)


def read_age(text: str) -> float | None:
    """Return the seconds of an age such as 12h, 30d or 8w; None if it is not an age."""
    found = _AGE.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def read_duration(text: str) -> float | None:
    """Return the seconds of a duration such as 45s, 90m, 12h or 2d; 0 turns a limit off; None if it is neither."""
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0 if text == "0" else None
    return seconds if seconds is not None and seconds <= LONGEST_DURATION else None


def read_hundredths(text: str) -> float | None:
    """Return the number of a part such as 5% or 2.5 %; None if it is not a share."""
    found = _HUNDREDTHS.fullmatch(text)
    return float(found[1]) if found else None


def _is_local_path(text: str) -> bool:
    return text.isprintable() and (not text.startswith("~") or text.startswith("~/"))


def _is_inside(text: str) -> bool:
    return text.isprintable() and not text.startswith(("/", "~")) and ".." not in text.split("/") and within(text) != ""


def _is_package_source(text: str) -> bool:
    path = re.sub(r"\[[A-Za-z0-9._, -]+\]$", "", text)
    return path in {".", "./"} or _is_inside(path)


def within(text: str) -> str:
    """Return a path in its shortest form: ./a//b/ is a/b."""
    return "/".join(part for part in text.split("/") if part not in {"", "."})


def _is_prefix(text: str) -> bool:
    return text.startswith(("/", "~/")) and text.isprintable() and ".." not in text.split("/")


def _split(text: str) -> list[str]:
    """Return the words of a command; none for an open quote or an invalid character."""
    try:
        return shlex.split(text) if text.isprintable() else []
    except ValueError:
        return []


def _names_image(text: str) -> bool:
    words = _split(text)
    return bool(words) and _IMAGE.fullmatch(words[-1]) is not None


PROJECT_NAME = _like(
    "a folder name of letters, digits, . _ - that starts with a letter, a digit or _; "
    "or several joined by /, such as dev/digits, for a folder below the home folder",
    f"(?=.{{1,255}}$)(?:{_NO_OPTION}{{0,127}}/){{0,7}}{_NO_OPTION}{{0,127}}",
)
# Absolute paths are refused with their reason.
NAME_AS_WRITTEN = Validator(
    PROJECT_NAME.expected,
    lambda text: (text.startswith("/") and text.isprintable()) or PROJECT_NAME.accepts(text.removeprefix("~/")),
)
SERVER_NAME = _like("made of letters, digits, . _ - and start with a letter, a digit or _", _NO_OPTION + "{0,63}")
HOSTNAME = Validator("a host name, an address or an alias from ~/.ssh/config, without user or port", _is_host)
ADDRESS = Validator("a host name or an address that the other servers can reach", _is_host)
USERNAME = _like("a user name", r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
CONFIGURED_HOST = Validator(
    "a host name, an address or an alias from ~/.ssh/config, optionally with user@ in front, without a port",
    _is_login,
)
INTERNET_HOST = Validator(
    "a host name, such as index.example.com or *.example.org", lambda text: _is_host(text.removeprefix("*."))
)
PORT = Validator(f"a whole number from 1 to {LARGEST_PORT}", _is_port)
LOCAL_PATH = Validator(
    "the path of a local file: relative to the project, absolute, or starting with ~/", _is_local_path
)
LOCAL_FOLDER = Validator(
    "the path of a local folder: relative to the project, absolute, or starting with ~/", _is_local_path
)
INSIDE = Validator("a path inside the project", _is_inside)
WORKDIR = Validator(
    "a folder in the project, such as src, or . for the project folder itself",
    lambda text: text == "." or _is_inside(text),
)
FOLDER_NAME = _like(
    "the name of a folder inside the project on the server", r"[A-Za-z0-9._][A-Za-z0-9._-]{1,63}(?<!\.\.)"
)
SECRET = Validator("a single line of text", lambda text: "\n" not in text and "\0" not in text, is_secret=True)
VARIABLE = _like("the name of an environment variable", "[A-Za-z_][A-Za-z0-9_]{0,127}")
# The name of a secret; people type the secret itself there.
SECRET_VARIABLE = replace(VARIABLE, is_secret=True)
DEVICE = _like(
    "the number of a GPU, or its UUID such as GPU-8932f937 or MIG-…",
    "0|[1-9][0-9]{0,3}|GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,63}|MIG-[0-9A-Za-z][0-9A-Za-z/-]{0,99}",
)
VALUE = Validator("text without NUL characters", lambda text: "\0" not in text, is_secret=True)
SCRIPT = Validator("a shell script without NUL characters", lambda text: "\0" not in text, is_secret=True)
PYTHON = Validator('a Python version, 3.8 or newer, such as "3.11" or "3.11.7"', _is_python)
LOG_LIMIT = Validator(
    "a size of 1MB or more, such as 500MB or 4GB", lambda text: (read_size(text) or 0) >= SMALLEST_LOG_LIMIT
)
ARTIFACT = Validator("a glob inside the project, such as checkpoints/*.pt, or a folder such as out/", is_glob)
SENT_ANYWAY = Validator(
    "a file in the project or a pattern, such as tests/keys/*.pem",
    lambda text: bool(text.strip("/")) and text.isprintable() and ".." not in text.split("/"),
)
LOST_AFTER = Validator(f"a whole number of seconds from {SHORTEST_LOST_AFTER} to {LONGEST_LOST_AFTER}", _is_lost_after)
IDLE_AFTER = Validator(
    f"a whole number of seconds from 0 to {LONGEST_IDLE_AFTER}",
    lambda text: re.fullmatch("[0-9]{1,5}", text) is not None and int(text) <= LONGEST_IDLE_AFTER,
)
PACKAGES = Validator(
    "a file or folder in the project, such as requirements/gpu.txt, libs/mine or .[train]", _is_package_source
)
NEWEST = Validator(f"a whole number from 1 to {MOST_NEWEST}", _is_newest)
SIZE = Validator("a size such as 500MB or 10GB", lambda text: read_size(text) is not None)
MIN_FREE = Validator(
    "a size such as 5GB, or a share of the disk such as 5%",
    lambda text: read_size(text) is not None or read_hundredths(text) is not None,
)
KEPT_JOBS = Validator(
    "a number of jobs from 1 to 999999, or an age such as 30d",
    lambda text: re.fullmatch("[1-9][0-9]{0,5}", text) is not None or bool(read_age(text)),
)
DURATION = Validator("a duration such as 45s, 90m, 12h or 2d, or 0", lambda text: read_duration(text) is not None)
RETRIES = Validator(
    f"a whole number from 0 to {MOST_RETRIES}",
    lambda text: re.fullmatch("[0-9]{1,3}", text) is not None and int(text) <= MOST_RETRIES,
)
# Python has no name for SIGRTMIN+N, and none for SIGSTKFLT before 3.11: a server would send SIGTERM instead.
SIGNAL = _like("a signal, such as SIGINT", rf"SIG(?!RTMIN\+|STKFLT)(?:{_SIGNALS})")
RETRY_ON = _like("an exit code such as 75, or a signal such as SIGKILL", EXIT_CODE_OR_SIGNAL)
KEPT_LOGINS = Validator("0, or a time such as 10m or 2h", lambda text: text == "0" or bool(read_age(text)))
PREFIX = Validator("a path on the server, absolute or starting with ~/", _is_prefix)
# These two may hold a user, a password or a token.
CHANNEL = _like("the name or URL of a channel", r"[A-Za-z0-9_./][A-Za-z0-9_./:~%+@-]{0,500}", is_secret=True)
URL = _like("a URL that starts with https:// or http://", r"https?://[!-~]{1,2000}", is_secret=True)
LAUNCH = Validator(
    "a command that passes stdin on, such as docker exec -i NAME; for a new container per job, use container:",
    lambda text: begins_shell(_split(text)),
)
CONTAINER = Validator("an image, optionally with docker run options in front", _names_image)
SBATCH_OPTION = _like("the long name of an option of sbatch, such as partition", "[a-z][a-z0-9-]{0,40}")
SBATCH_VALUE = Validator(
    "a value of one line for sbatch", lambda text: 0 < len(text) <= LONGEST_SBATCH and text.isprintable()
)
NODES = _like("a whole number of nodes, at least 1", "[1-9][0-9]{0,3}")
STATUS_NAME = _like("a word of letters, digits, . _ -, at most 20 characters long", _NO_OPTION + "{0,19}")
PATTERN = Validator("a regular expression with one group, such as 'accuracy ([0-9.]+)'", str.isprintable)
SHA256 = _like("64 hexadecimal digits", "[0-9a-fA-F]{64}")


def one_of(choices: tuple[str, ...]) -> Validator:
    """Return the validator of a choice."""
    return Validator(f"one of {', '.join(choices)}", choices.__contains__)
