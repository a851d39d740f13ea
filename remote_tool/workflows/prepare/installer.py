"""Bring a verified conda installer to a server: downloaded there, else through this machine.

It stands alone because it loads an HTTP client, which is slow and seldom needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import shlex
import urllib.request
from typing import TYPE_CHECKING

from remote_tool.config.servers import Internet
from remote_tool.environments import installers
from remote_tool.environments.installers import NOT_DOWNLOADED, REMOTE_CACHE, plan_download
from remote_tool.errors import EnvironmentSetupError
from remote_tool.paths import user_cache_folder
from remote_tool.readable import readable_size
from remote_tool.system.files import replacing
from remote_tool.transport.host import Stream
from remote_tool.workflows.events import Outcome, StepProgress
from remote_tool.workflows.prepare.steps import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.environments.installers import ChosenInstaller
    from remote_tool.transport.host import Host
    from remote_tool.workflows.prepare.steps import ServerWork

CHUNK = 256 * 1024
SEND_TIMEOUT = 3600.0
READ_TIMEOUT = 30.0


async def bring_installer(work: ServerWork, installer: ChosenInstaller) -> None:
    """Bring an installer to a server, which verifies the checksum before running it.

    Raises:
        EnvironmentSetupError: It cannot be had, or is not the expected file.
    """
    if installer.file is not None:
        await _send(work, installer, installer.file)
        return
    if work.config.internet_of(work.server) is Internet.THROUGH_ME:
        await _send(work, installer, await _fetch_here(work, installer))
        return
    try:
        await work.run(plan_download(installer), detail=installer.name)
    except StepFailedError as error:
        if error.status != NOT_DOWNLOADED:
            raise
        await _send(work, installer, await _fetch_here(work, installer, error))


async def _fetch_here(work: ServerWork, installer: ChosenInstaller, reason: StepFailedError | None = None) -> Path:
    """Return the installer in this user's cache; download it if it is missing or incomplete.

    Args:
        work: The server's.
        installer: The installer.
        reason: Why the server could not download it; None if it did not try.
    """
    file = user_cache_folder() / installer.cache_name
    async with work.download_lock:
        try:
            if not await asyncio.to_thread(_is_complete, file, installer.sha256):
                with work.reported("download-here") as done:
                    await asyncio.to_thread(_download, installer, file)
                    done(installer.name)
        except (OSError, http.client.HTTPException) as error:
            is_alone = reason is None or work.config.servers[work.server].localhost
            raise EnvironmentSetupError(
                f"{'this machine cannot' if is_alone else f'neither {work.server} nor this machine can'} "
                f"download {installer.name}: {error}",
                hint=f"download {installer.url} yourself and set "
                f"{installer.key}: {{file: PATH, sha256: {installer.sha256}}} in configs.yaml; "
                "or environment: {existing: PREFIX}, if the servers have a Python of yours",
                server=work.server,
            ) from reason
    return file


def _download(installer: ChosenInstaller, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file) as target:
        # The URL is configured, or an https URL of ours, and the download is verified by its checksum.
        with urllib.request.urlopen(installer.url, timeout=READ_TIMEOUT) as answer:  # noqa: S310
            while chunk := answer.read(CHUNK):
                target.write(chunk)
                if target.tell() > installers.MOST_BYTES:
                    raise EnvironmentSetupError(installers.too_large(installer), hint=f"check {installer.key}")
        target.seek(0)
        found = hashlib.file_digest(target, "sha256").hexdigest()
        if found != installer.sha256:
            raise EnvironmentSetupError(
                _checksum_mismatch(installer, found), hint="try again, or check the configured sha256"
            )


def _is_complete(file: Path, sha256: str) -> bool:
    return file.is_file() and _digest(file) == sha256


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_mismatch(installer: ChosenInstaller, found: str) -> str:
    return (
        f"{installer.name} is not the expected file and was not run: its sha256 is {found}, expected {installer.sha256}"
    )


async def _send(work: ServerWork, installer: ChosenInstaller, file: Path) -> None:
    async def send() -> tuple[Outcome, str]:
        try:
            found = await asyncio.to_thread(_digest, file)
        except OSError as error:
            raise EnvironmentSetupError(
                f"The installer {file} cannot be read: {error.strerror}", hint=f"check {installer.key}.file"
            ) from error
        if found != installer.sha256:
            raise EnvironmentSetupError(
                _checksum_mismatch(installer, found), hint=f"check {installer.key}.sha256", server=work.server
            )

        def progress(sent: int, total: int) -> None:
            text = f"{installer.name}: {readable_size(sent)} of {readable_size(total)}"
            work.report(StepProgress(work.server, "send-installer", text))

        async with asyncio.timeout(SEND_TIMEOUT):
            await send_file(work.host, file, installer.remote_path, progress)
        return Outcome.DONE, installer.name

    await work.do("send-installer", send)


async def send_file(
    host: Host,
    file: Path,
    path: str,
    progress: Callable[[int, int], None],
) -> None:
    """Send a file to a path below ``$HOME`` on a server, where it appears whole or not at all.

    Raises:
        EnvironmentSetupError: The server could not write it.
    """
    size = await asyncio.to_thread(lambda: file.stat().st_size)
    quoted = f'"$HOME"/{shlex.quote(path)}'
    script = (
        f'umask 077; mkdir -p "$HOME"/{shlex.quote(os.path.dirname(path) or REMOTE_CACHE)} || exit\n'  # noqa: PTH120
        f"part={quoted}.$$.part; trap 'rm -f \"$part\"' EXIT; trap 'exit 1' HUP PIPE TERM\n"
        f'cat >"$part" && [ "$(wc -c <"$part")" -eq {size} ] && mv -f "$part" {quoted}\n'
    )
    async with host.open(script, label=f"send {file.name}") as channel:
        sent = 0
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                await channel.write(chunk)
                sent += len(chunk)
                progress(sent, size)
        await channel.write_eof()
        stderr = b""
        while data := await channel.read(Stream.ERR):
            stderr = (stderr + data)[-CHUNK:]
        ended = await channel.wait()
    if ended.status != 0:
        reason = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentSetupError(
            f"{host.name}: {file.name} could not be written: {reason}",
            hint=f"check that ~/{REMOTE_CACHE} is writable and that the disk has space",
            server=host.name,
        )
