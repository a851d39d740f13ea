"""Reads configs.yaml: every problem at once, each with its line and key; nothing in the file can run anything."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from remote_tool.config.model import (
    CONDA_FORGE,
    Config,
    Environment,
    EnvironmentKind,
    HostKeyPolicy,
    Installer,
    Server,
)
from remote_tool.errors import ConfigError
from remote_tool.paths import LocalPaths, RemotePaths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LARGEST_FILE = 1024 * 1024
LARGEST_PORT = 65535
OLDEST_PYTHON = (3, 8)
# Aliases could make a small file mean a huge one.
MOST_NODES = 20_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
FOLDER = re.compile(r"[A-Za-z0-9._-]{1,64}")
# What ssh accepts, less what could be taken for an option or a pattern.
HOSTNAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._:\[\]-]{0,254}")
USERNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PYTHON = re.compile(r"(\d+)\.(\d+)(\.\d+)?")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
CHANNEL = re.compile(r"[A-Za-z0-9_./:~-][A-Za-z0-9_./:~%+-]{0,500}")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(root: Path) -> Config:
    """Read the configuration of the workspace in a folder.

    Raises:
        ConfigError: It is missing, cannot be read or is wrong; every problem is named.
    """
    file = LocalPaths(root).config_file
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="remote-tool init") from error
    return parse(text, file, root)


def parse(text: bytes, file: Path, root: Path) -> Config:
    """Read a configuration from its text; file is what problems name, root is the project folder.

    Raises:
        ConfigError: It is wrong; every problem is named.
    """
    shown = _shown(file, root)
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{shown}: larger than {LARGEST_FILE // 1024} KiB")
    reader = _Reader(shown, root)
    config = reader.read(_compose(text, shown))
    if reader.problems or config is None:
        raise ConfigError(reader.problems, hint=f"Mend {shown}; docs/configuration.md has every key")
    return config


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def _compose(text: bytes, shown: str) -> Node | None:
    try:
        return yaml.compose(text.decode("utf-8-sig"), Loader=_LOADER)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ConfigError(f"{shown}: nested too deep") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{shown}:{line}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown}: {' '.join(str(error).split())}") from None


@dataclass
class _Place:
    """A node and the way to it, for messages."""

    node: Node
    key: str

    def at(self, name: str, node: Node) -> _Place:
        return _Place(node, f"{self.key}.{name}" if self.key else name)


@dataclass
class _Reader:
    """Turns nodes into values; collects what is wrong."""

    shown: str
    root: Path
    problems: list[str] = field(default_factory=list)

    def read(self, node: Node | None) -> Config | None:
        if node is None or not isinstance(node, MappingNode):
            line = node.start_mark.line + 1 if node else 1
            self.problems.append(f"{self.shown}:{line}: must be a mapping with name: and servers:")
            return None
        if not self._is_small(node):
            return None
        values = self._mapping(_Place(node, ""), _TOP_KEYS)
        servers = self._servers(values.get("servers"))
        name = self._text(values.get("name"), NAME, "a folder name of letters, digits, . _ -") or self._default_name(
            values
        )
        return Config(
            name=name,
            servers=servers,
            local=self._local(values),
            remote=self._remote(name, values),
            python=self._python(values.get("python")),
            environment=self._environment(values.get("environment")),
            host_keys=HostKeyPolicy(
                self._choice(values.get("host_keys"), tuple(HostKeyPolicy)) or HostKeyPolicy.ACCEPT_NEW
            ),
        )

    def _default_name(self, values: dict[str, _Place]) -> str:
        name = self.root.name
        if "name" not in values and not NAME.fullmatch(name):
            self.problems.append(
                f"{self.shown}:1: name: the project folder {name!r} cannot be its default; write name:"
            )
        return name

    def _is_small(self, node: Node) -> bool:
        count = 0
        waiting = [node]
        while waiting and count <= MOST_NODES:
            count += 1
            current = waiting.pop()
            if isinstance(current, MappingNode):
                waiting += [each for pair in current.value for each in pair]
            elif isinstance(current, SequenceNode):
                waiting += current.value
        if count > MOST_NODES:
            self.problems.append(f"{self.shown}:1: more than {MOST_NODES} values")
        return count <= MOST_NODES

    def _wrong(self, place: _Place, wanted: str, *, secret: bool = False) -> None:
        found = "" if secret else f", found {_described(place.node)}"
        self.problems.append(f"{self._line(place)}: must be {wanted}{found}")

    def _line(self, place: _Place) -> str:
        return f"{self.shown}:{place.node.start_mark.line + 1}: {place.key}"

    def _mapping(self, place: _Place, allowed: tuple[str, ...]) -> dict[str, _Place]:
        """Return the values of a mapping; unknown keys are refused with the likely one."""
        values = {}
        for name, found in self._pairs(place):
            if name not in allowed:
                likely = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
                meant = f"; did you mean {likely[0]}?" if likely else f"; known are {', '.join(allowed)}"
                self.problems.append(f"{self._line(found)}: unknown key{meant}")
            else:
                values[name] = found
        return values

    def _pairs(self, place: _Place) -> Iterator[tuple[str, _Place]]:
        """Yield the pairs of a mapping; a key given twice is refused."""
        if not isinstance(place.node, MappingNode):
            if not _is_null(place.node):
                self._wrong(place, "a mapping")
            return
        seen: dict[str, int] = {}
        for key, value in place.node.value:
            if not isinstance(key, ScalarNode):
                self._wrong(place.at("?", key), "a plain key")
                continue
            found = place.at(key.value, value)
            line = key.start_mark.line + 1
            if key.value in seen:
                self.problems.append(f"{self.shown}:{line}: {found.key}: given twice, first on line {seen[key.value]}")
                continue
            seen[key.value] = line
            # The key's own line is where a reader looks for it.
            yield key.value, _Place(value, found.key)

    def _servers(self, place: _Place | None) -> dict[str, Server]:
        if place is None:
            return {}
        servers = {}
        for name, found in self._pairs(place):
            if not NAME.fullmatch(name):
                self.problems.append(f"{self._line(found)}: a server's name has letters, digits, . _ - only")
                continue
            server = self._server(name, found)
            if server is not None:
                servers[name] = server
        self._refuse_same_machine(place, servers)
        return servers

    def _refuse_same_machine(self, place: _Place, servers: dict[str, Server]) -> None:
        machines: dict[tuple[str, int | None, str | None], str] = {}
        for server in servers.values():
            other = machines.setdefault((server.hostname, server.port, server.username), server.name)
            if other != server.name:
                self.problems.append(f"{self._line(place)}: {other} and {server.name} are the same machine")

    def _server(self, name: str, place: _Place) -> Server | None:
        values = self._mapping(place, _SERVER_KEYS)
        hostname = self._text(values.get("hostname"), HOSTNAME, "a host name, an address or an alias of ~/.ssh/config")
        if hostname is None:
            if "hostname" not in values:
                self.problems.append(f"{self._line(place)}: hostname is missing")
            return None
        return Server(
            name=name,
            hostname=hostname.strip("[]"),
            username=self._text(values.get("username"), USERNAME, "a user name"),
            port=self._port(values.get("port")),
            private_key=self._path(values.get("private_key")),
            password=self._secret(values.get("password")),
            password_env=self._text(values.get("password_env"), VARIABLE, "the name of an environment variable"),
            address=self._text(values.get("address"), HOSTNAME, "an address"),
        )

    def _local(self, values: dict[str, _Place]) -> LocalPaths:
        default = LocalPaths(self.root)
        return LocalPaths(
            self.root,
            jobs_folder=self._inside(values.get("jobs_folder")) or default.jobs_folder,
            logs_folder=self._inside(values.get("logs_folder")) or default.logs_folder,
            exclude=self._inside(values.get("exclude_file")) or default.exclude,
        )

    def _remote(self, name: str, values: dict[str, _Place]) -> RemotePaths:
        self._inside(values.get("scripts_folder"))
        default = RemotePaths(name)
        return RemotePaths(
            name,
            scripts_name=self._folder(values.get("remote_scripts_folder_name")) or default.scripts_name,
            jobs_name=self._folder(values.get("remote_jobs_folder_name")) or default.jobs_name,
        )

    def _environment(self, place: _Place | None) -> Environment:
        if place is None:
            return Environment()
        if isinstance(place.node, ScalarNode):
            kinds = tuple(kind for kind in EnvironmentKind if kind is not EnvironmentKind.EXISTING)
            return Environment(EnvironmentKind(self._choice(place, kinds) or EnvironmentKind.MINICONDA))
        values = self._mapping(place, tuple(EnvironmentKind))
        if len(values) != 1:
            self._wrong(place, "one kind of environment, such as {existing: /path/to/prefix}")
            return Environment()
        ((kind, found),) = values.items()
        if kind == EnvironmentKind.EXISTING:
            prefix = self._check(found, _is_prefix, "a path on the server, absolute or beginning with ~/")
            return Environment(EnvironmentKind.EXISTING, prefix=prefix)
        return self._conda(EnvironmentKind(kind), found)

    def _conda(self, kind: EnvironmentKind, place: _Place) -> Environment:
        values = self._mapping(place, ("channels", "installer") if kind.is_conda else ())
        channels = self._channels(values.get("channels"))
        return Environment(kind, channels=channels, installer=self._installer(values.get("installer")))

    def _channels(self, place: _Place | None) -> tuple[str, ...]:
        if place is None:
            return CONDA_FORGE
        if not isinstance(place.node, SequenceNode) or not place.node.value:
            self._wrong(place, "a list of channels")
            return CONDA_FORGE
        found = [
            self._text(place.at(str(index), each), CHANNEL, "a channel") for index, each in enumerate(place.node.value)
        ]
        return tuple(each for each in found if each)

    def _installer(self, place: _Place | None) -> Installer | None:
        if place is None:
            return None
        values = self._mapping(place, ("url", "file", "sha256"))
        sha256 = self._text(values.get("sha256"), SHA256, "64 hexadecimal digits")
        if ("url" in values) == ("file" in values) or sha256 is None:
            self.problems.append(f"{self._line(place)}: needs url or file, and sha256")
            return None
        url = self._check(
            values.get("url"), lambda text: text.startswith(("https://", "http://")), "an http(s) address"
        )
        return Installer(sha256.lower(), url=url, file=self._path(values.get("file")))

    def _python(self, place: _Place | None) -> str | None:
        text = self._check(place, lambda text: bool(PYTHON.fullmatch(text)), 'a version like "3.11"')
        if place is None or text is None:
            return None
        major, minor = (int(number) for number in text.split(".")[:2])
        if (major, minor) < OLDEST_PYTHON or major > OLDEST_PYTHON[0]:
            self._wrong(place, "Python 3.8 or newer")
        return text

    def _port(self, place: _Place | None) -> int | None:
        text = self._check(place, lambda text: text.isascii() and text.isdigit(), "a whole number", any_type=True)
        if place is None or text is None:
            return None
        if not 1 <= int(text) <= LARGEST_PORT:
            self._wrong(place, f"from 1 to {LARGEST_PORT}")
        return int(text)

    def _path(self, place: _Place | None) -> Path | None:
        text = self._check(place, lambda text: bool(text) and text.isprintable(), "a path")
        if text is None:
            return None
        from pathlib import Path  # noqa: PLC0415 - annotations alone need it elsewhere

        return self.root / Path(text).expanduser()

    def _inside(self, place: _Place | None) -> str | None:
        """A path that stays in the project."""
        return self._check(place, _is_inside, "a path inside the project")

    def _folder(self, place: _Place | None) -> str | None:
        return self._check(
            place, lambda text: bool(FOLDER.fullmatch(text)) and text not in {".", ".."}, "the name of a folder"
        )

    def _secret(self, place: _Place | None) -> str | None:
        if place is None:
            return None
        if not isinstance(place.node, ScalarNode) or not place.node.value:
            self._wrong(place, "a text", secret=True)
            return None
        return str(place.node.value)

    def _text(self, place: _Place | None, form: re.Pattern[str], wanted: str) -> str | None:
        return self._check(place, lambda text: bool(form.fullmatch(text)), wanted)

    def _choice(self, place: _Place | None, allowed: tuple[str, ...]) -> str | None:
        return self._check(place, lambda text: text in allowed, f"one of {', '.join(allowed)}")

    def _check(
        self, place: _Place | None, accepts: Callable[[str], bool], wanted: str, *, any_type: bool = False
    ) -> str | None:
        """Return the text as it stands in the file, so that 3.10 stays 3.10 and a server may be called no."""
        if place is None:
            return None
        node = place.node
        known = (
            isinstance(node, ScalarNode)
            and (any_type or not _is_null(node))
            and not node.tag.startswith("tag:yaml.org,2002:python")
        )
        if not known or not accepts(node.value):
            self._wrong(place, wanted)
            return None
        return str(node.value)


def _is_null(node: Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _described(node: Node) -> str:
    if _is_null(node):
        return "nothing"
    if isinstance(node, ScalarNode):
        return repr(node.value[:80])
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


def _is_inside(text: str) -> bool:
    parts = text.removeprefix("./").split("/")
    return bool(text) and not text.startswith(("/", "~")) and ".." not in parts and text.isprintable()


def _is_prefix(text: str) -> bool:
    return text.startswith(("/", "~/")) and text.isprintable() and ".." not in text.split("/")


_SERVER_KEYS = ("hostname", "username", "port", "private_key", "password", "password_env", "address")
_TOP_KEYS = (
    "name",
    "python",
    "environment",
    "servers",
    "host_keys",
    "scripts_folder",
    "logs_folder",
    "jobs_folder",
    "exclude_file",
    "remote_scripts_folder_name",
    "remote_jobs_folder_name",
)
