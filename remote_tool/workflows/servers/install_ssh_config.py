"""ssh-config --install: write ``Host`` blocks into a file of their own, which ``~/.ssh/config`` includes."""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.system.files import read_bounded, replacing
from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.config.model import Config

FOLDER = "remote-tool"
# Relative to ~/.ssh; one line serves all projects.
INCLUDE = f"Include {FOLDER}/*.conf\n"
OWNER = "# Written by remote-tool ssh-config --install for "
LARGEST = 1024 * 1024
LOCK_SECONDS = 5.0
_NEXT_SECTION = re.compile(rb"^[ \t]*(?:host|match)\b", re.IGNORECASE | re.MULTILINE)
_INCLUDE_LINE = re.compile(rb"^" + re.escape(INCLUDE.encode()) + rb"\n?", re.MULTILINE)


def installed_file(config: Config) -> Path:
    """Return the file with the blocks of a project."""
    return _ssh_folder() / FOLDER / f"{config.name.replace('/', '-')}.conf"


def install(config: Config, blocks: Sequence[str]) -> None:
    """Write the blocks, and include them first in ``~/.ssh/config``: for ssh, the first value of an option counts.

    Raises:
        UsageError: A file cannot be written, or belongs to another project.
    """
    file = installed_file(config)
    with _writing(), _locked(file.parent):
        _refuse_foreign(config, file)
        with replacing(file) as written:
            written.write(os.fsencode(_owner_line(config) + "\n\n" + "\n".join(blocks)))
        before = _read(_user_config())
        if _included(before) is None:
            _rewrite(_user_config(), INCLUDE.encode() + (b"\n" if before else b"") + before)


def remove(config: Config) -> bool:
    """Remove the blocks of a project, and with the last ones the line in ``~/.ssh/config``.

    Raises:
        UsageError: A file cannot be written, or belongs to another project.
    """
    file = installed_file(config)
    if not file.parent.is_dir():
        return False
    with _writing(), _locked(file.parent):
        _refuse_foreign(config, file)
        had_file = file.exists()
        file.unlink(missing_ok=True)
        if any(file.parent.glob("*.conf")):
            return had_file
        before = _read(_user_config())
        line = _included(before)
        if line is not None:
            _rewrite(_user_config(), before[: line.start()] + before[line.end() :])
        # Another program may have a file there.
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
    return had_file or line is not None


def _included(content: bytes) -> re.Match[bytes] | None:
    """Return our line if it is where it concerns every host: before the first block."""
    section = _NEXT_SECTION.search(content)
    return _INCLUDE_LINE.search(content, 0, section.start() if section else len(content))


def _rewrite(file: Path, content: bytes) -> None:
    """Replace a file, also behind a link, and keep its permissions; one that would be empty is removed."""
    place = file.resolve()
    if not content and not file.is_symlink():
        place.unlink(missing_ok=True)
        return
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o600
    with replacing(place, mode=mode) as written:
        written.write(content)


def _read(file: Path) -> bytes:
    try:
        return read_bounded(file.resolve(), LARGEST)[0]
    except FileNotFoundError:
        return b""
    except ValueError as error:
        raise UsageError(f"{file} cannot be changed: {error}", hint=f"ls -l {file}") from None


def _refuse_foreign(config: Config, file: Path) -> None:
    owner = os.fsdecode(_read(file).partition(b"\n")[0])
    if owner and owner != _owner_line(config):
        of = f"belongs to {owner.removeprefix(OWNER)}" if owner.startswith(OWNER) else "was not written by remote-tool"
        raise UsageError(f"{file} {of}", hint=f"rm {file}, or give one of the projects another name: in configs.yaml")


def _owner_line(config: Config) -> str:
    # In this form it is one line, whatever the folder is called.
    return f"{OWNER}{str(config.local.root)!a}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock(descriptor, seconds=LOCK_SECONDS)
        yield
    finally:
        unlock(descriptor)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = error.filename or _user_config()
        raise UsageError(f"{name} cannot be changed: {error.strerror or error}", hint=f"ls -ld {name}") from error


def _ssh_folder() -> Path:
    return Path.home() / ".ssh"


def _user_config() -> Path:
    return _ssh_folder() / "config"
