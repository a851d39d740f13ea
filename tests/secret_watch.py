"""Looks after every test whether a secret that it gave the program is in anything that the program said or wrote.

A secret is a value of ``--env``, of a request of the Python API, or a password, of at least 8 characters. What is
looked through is what the program prints but the output of jobs and of ``run``, our errors and notices, and the records
and logs in ``.remote`` here and in ``.jobs`` on the servers of the test but the logs of jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from remote_tool import redaction
from remote_tool.errors import ConfigError, RemoteToolError
from remote_tool.workflows.events import Notice
from tests.below import files_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PASSES_OUTPUT_ON = {"run", "job-tail", "helper-fan-out", "demo"}
OURS = ("error:", "hint:", "next:", "[")
# Output of jobs, what the user wrote, and the user's command.
NOT_OURS = {"configs.yaml", "exclude.txt", "hosts.yaml", "job.out", "job.err", "command"}
COMMAND_KEYS = ("command", "tags", "items", "template")
_watches: list[SecretWatch] = []


class SecretWatch:
    """What one test gave the program, and what the program said."""

    def __init__(self) -> None:
        self.secrets: dict[str, None] = {}
        self.said: list[tuple[str, str]] = []

    def began(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Note the secrets of a program that begins; a value that is in its command too is none."""
        pairs, others = _split_variables(words)
        values = [pair.partition("=")[2] for pair in pairs]
        self._add(value for value in [*values, *_passwords(folder, environment)] if value not in " ".join(others))

    def heard(self, words: Sequence[str], *texts: str | bytes | None) -> None:
        """Note what a program of ours printed."""
        is_raw = "--follow" in words or PASSES_OUTPUT_ON & set(words)
        for text in texts:
            lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").splitlines()
            ours = [line for line in lines if line.startswith(OURS) or not is_raw]
            self.said.append((f"output of {' '.join(words)}", "\n".join(ours)))

    def found(self, folders: Iterable[Path]) -> list[str]:
        """Return where secrets are, which should be nowhere."""
        self._add(set(redaction._values) - redaction._spared)
        if not self.secrets:
            return []
        files = ((str(path), _ours_of(path)) for path in files_below(*folders) if _is_ours(path))
        return [
            f"{secret[:4]}… is in {where}"
            for where, text in (*self.said, *files)
            for secret in self.secrets
            if secret in text or json.dumps(secret)[1:-1] in text
        ]

    def _add(self, values: Iterable[str]) -> None:
        # The path of a test's own folder stands in records for other reasons.
        wanted = [value for value in values if len(value) >= redaction.SHORTEST and not value.startswith("/")]
        self.secrets.update(dict.fromkeys(wanted))


def _split_variables(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the variables of ``--env K V`` and ``--env K=V``, and the other words."""
    rest = list(words)
    pairs: list[str] = []
    others: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            return pairs, others + rest
        if word != "--env" or not rest:
            others.append(word)
        elif "=" in rest[0] or len(rest) == 1:
            pairs.append(rest.pop(0))
        else:
            pairs.append(f"{rest.pop(0)}={rest.pop(0)}")
    return pairs, others


@contextmanager
def watching(folders: Callable[[], Iterable[Path]]) -> Iterator[SecretWatch]:
    """Watch what happens inside; AssertionError at the end where a secret is in what was said or written."""
    watch = SecretWatch()
    originals = (
        subprocess.Popen.__init__,
        subprocess.Popen.communicate,
        RemoteToolError.__init__,
        Notice.__post_init__,
    )
    begin, communicate, make_error, make_notice = originals

    def begun(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if (words := _words_of(args)) is not None:
            watch.began(words, options.get("env") or os.environ, Path(options.get("cwd") or "."))
        begin(self, args, *rest, **options)

    def communicated(self: Any, *arguments: Any, **options: Any) -> Any:
        said = communicate(self, *arguments, **options)
        if (words := _words_of(self.args)) is not None:
            watch.heard(words, *said)
        return said

    def made(self: RemoteToolError, *arguments: Any, **options: Any) -> None:
        make_error(self, *arguments, **options)
        problems = self.problems if isinstance(self, ConfigError) else []
        watch.said.append(("an error", "\n".join([str(self), repr(self), self.hint, *problems])))

    def noticed(self: Notice) -> None:
        make_notice(self)
        watch.said.append(("a notice", self.text))

    _put(begun, communicated, made, noticed)
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)
        _put(begin, communicate, make_error, make_notice)
    found = watch.found(folders())
    assert not found, "\n".join(found)


def hear(words: Sequence[str], text: bytes) -> None:
    """Tell every watch what a program printed that was not read by ``communicate``."""
    for watch in _watches:
        watch.heard([str(word) for word in words], text)


def typed(text: str) -> None:
    """Tell every watch what was typed where it is not shown."""
    for watch in _watches:
        watch._add([text.strip()])


def _put(begin: Any, communicate: Any, make_error: Any, make_notice: Any) -> None:
    subprocess.Popen.__init__ = begin  # type: ignore[method-assign]
    subprocess.Popen.communicate = communicate  # type: ignore[method-assign]
    RemoteToolError.__init__ = make_error  # type: ignore[method-assign]
    Notice.__post_init__ = make_notice  # type: ignore[method-assign]


def _words_of(arguments: object) -> list[str] | None:
    """Return the words of a program of ours; None of any other."""
    words = [os.fsdecode(word) for word in arguments] if isinstance(arguments, list | tuple) else []
    return words[words.index("remote_tool") + 1 :] if "remote_tool" in words else None


def _passwords(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the passwords that the configuration in a folder has or names."""
    file = folder / ".remote" / "configs.yaml"
    if not file.is_file():  # a pipe would wait
        return
    try:
        document = yaml.safe_load(file.read_text())
        servers = [server for server in document["servers"].values() if isinstance(server, dict)]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return
    for server in servers:
        yield str(server.get("password") or "")
        yield environment.get(str(server.get("password_env")), "")


def _is_ours(path: Path) -> bool:
    below = {".remote", ".jobs"} & set(path.parts)
    return bool(below) and path.name not in NOT_OURS and "artifacts" not in path.parts and not path.is_symlink()


def _ours_of(path: Path) -> str:
    """Return a file's text without the lines that are the user's command."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if not line.startswith(tuple(f"{key}:" for key in COMMAND_KEYS))]
    try:
        document = json.loads(text)
    except ValueError:
        return "\n".join(lines)
    if isinstance(document, dict):
        return json.dumps({key: value for key, value in document.items() if key not in COMMAND_KEYS})
    return text
