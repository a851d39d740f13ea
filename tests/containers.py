"""A podman that works where tests run, with an image made of this machine's own busybox: nothing is pulled."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("sh", "cat", "sleep", "env", "sed", "grep", "echo", "head", "kill", "ls", "printf", "tr", "true")
# What a machine without the right to raise limits needs.
OPTIONS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
IMAGE = "remote-tool-test"


class Podman:
    """Podman with a store of its own, in a folder whose path must be short.

    Attributes:
        problem: Why it does not work here; empty when it does.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self._folder = folder
        self.problem = self._set_up()

    def _set_up(self) -> str:
        podman, busybox = shutil.which("podman"), shutil.which("busybox")
        if podman is None or busybox is None or os.geteuid() != 0:
            return "needs podman, busybox and root"
        self.bin.mkdir(parents=True)
        store = f"--root {self._folder}/store --runroot {self._folder}/run --storage-driver vfs"
        # crun knows control groups of one version only.
        inner = f'umount /sys/fs/cgroup/unified 2>/dev/null; exec {podman} {store} "$@"'
        wrapper = self.bin / "podman"
        wrapper.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} podman "$@"\n')
        wrapper.chmod(0o755)
        self._import_image(Path(busybox))
        # A job's container gets the GPUs of the machine, which podman must know of.
        gpus = ("--device", "nvidia.com/gpu=all") if [*Path("/dev").glob("nvidia[0-9]*")] else ()
        trial = self.run("run", "--rm", "--network", "host", "--ipc", "host", *gpus, *OPTIONS, IMAGE, "echo", "works")
        return "" if trial.stdout == "works\n" else f"podman does not work here: {trial.stderr.strip()}"

    def _import_image(self, busybox: Path) -> None:
        root = self._folder / "root"
        for name in ("bin", "proc", "dev", "tmp", "etc"):
            (root / name).mkdir(parents=True)
        shutil.copy(busybox, root / "bin" / "busybox")
        for program in PROGRAMS:
            (root / "bin" / program).symlink_to("busybox")
        # Debian's busybox lacks it, images of other systems have it.
        nice = shutil.which("nice") or ""
        shutil.copy(nice, root / "bin" / "nice")
        programs = [["ldd", str(busybox)], ["ldd", nice]]
        libraries = [subprocess.run(words, check=False, capture_output=True, text=True).stdout for words in programs]
        for word in " ".join(libraries).split():
            if word.startswith("/"):
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
        archive = self._folder / "image.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        self.run("import", str(archive), IMAGE)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run podman."""
        return subprocess.run(
            [str(self.bin / "podman"), *words], check=False, capture_output=True, text=True, timeout=300
        )

    def names(self) -> list[str]:
        """The containers that there are, also those that have ended."""
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def end(self) -> None:
        """Remove every container."""
        if not self.problem:
            self.run("rm", "--all", "--force", "--time", "0")
