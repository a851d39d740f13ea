"""What the tests of venv, uv and packages share: the system's Python, servers that are offline, and projects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import EnvironmentKind
from tests.extended.workflows.prepare.servers import desk_for, keep_offline, record_of

if TYPE_CHECKING:
    from tests.extended.workflows.prepare.servers import Desk
    from tests.sshd import TestServer

SYSTEM_PYTHON = Path("/usr/bin/python3")


def system_version() -> str:
    if not SYSTEM_PYTHON.exists():
        return ""
    said = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import ensurepip, sys; print('%d.%d.%d' % sys.version_info[:3])"],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip()


VERSION = system_version()
SHORT_VERSION = VERSION.rpartition(".")[0]
needs_venv = pytest.mark.skipif(not VERSION, reason="/usr/bin/python3 has no venv: apt-get install python3-venv")


def desk_at(tmp_path: Path, wheels: Path, *servers: TestServer, kind: EnvironmentKind = EnvironmentKind.VENV) -> Desk:
    for server in servers:
        keep_offline(server, wheels)
    desk = desk_for(servers, tmp_path / "desk", kind)
    desk.wish(python=SHORT_VERSION)
    return desk


def with_packages(desk: Desk, text: str = "tiny_package==1.0\n") -> Desk:
    (desk.project / "requirements.txt").write_text(text)
    return desk


def imported_version(server: TestServer) -> str:
    """The version of tiny_package that the environment of a server has; empty without one."""
    python = record_of(server)["python"]
    code = "import tiny_package; print(tiny_package.VERSION)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def give_uv(server: TestServer) -> None:
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uv is None:
        pytest.skip("uv, of the test extra, is not installed")
    (server.home / ".local" / "bin").mkdir(parents=True)
    (server.home / ".local" / "bin" / "uv").symlink_to(uv)


def with_script(wheel: Path, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o100755 << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(entry, text)


BACKEND = """
import os, time, zipfile
from pathlib import Path


def get_requires_for_build_editable(config_settings=None):
    return []


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    if Path("../wait").exists():
        Path("../building").write_text(str(os.getpid()))
        time.sleep(600)
    name = "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("mine.pth", str(Path.cwd()) + chr(10))
        wheel.writestr("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1.0\\n")
        wheel.writestr("mine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mine-1.0.dist-info/RECORD", "")
    return name
"""


def as_project(desk: Desk) -> Desk:
    """Make the desk's folder a Python project with a build backend of its own."""
    (desk.project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (desk.project / "backend.py").write_text(BACKEND)
    (desk.project / "imported_from_mine.py").touch()
    return desk
