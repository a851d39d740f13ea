"""What the tests of prepare share: a project, a server's settings, and one call."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.events import Event, StepEnded, StepStarted
from remote_tool.workflows.prepare.prepare import PreparedServer, PrepareOptions, prepare, setup, update_packages
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.transport.pool import Results
    from tests.sshd import TestServer


@dataclass
class Desk:
    """A user's project folder with its configuration, and what was reported."""

    config: Config
    events: list[Event] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.config.local.root

    @property
    def logs(self) -> list[Path]:
        return sorted(self.config.local.logs.glob("*.log"))

    def wish(self, environment: Environment | None = None, python: str | None = None) -> None:
        """Change the configuration."""
        self.config = replace(self.config, environment=environment or self.config.environment, python=python)

    async def prepare(self, *, force: bool = False) -> dict[str, PreparedServer]:
        async with HostPool(self.config) as pool:
            return _all_of(await prepare(pool, self.config, (), PrepareOptions(force=force), self.events.append))

    async def setup(self, *, force: bool = False) -> dict[str, PreparedServer]:
        async with HostPool(self.config) as pool:
            return _all_of(await setup(pool, self.config, (), PrepareOptions(force=force), self.events.append))

    async def update_packages(self) -> dict[str, PreparedServer]:
        async with HostPool(self.config) as pool:
            return _all_of(await update_packages(pool, self.config, (), PrepareOptions(), self.events.append))

    def started(self) -> list[str]:
        return [event.step for event in self.events if isinstance(event, StepStarted)]

    def ended(self) -> list[StepEnded]:
        return [event for event in self.events if isinstance(event, StepEnded)]


def _all_of(results: Results[PreparedServer]) -> dict[str, PreparedServer]:
    results.raise_if_any_failed()
    return results.values


def desk_for(
    servers: Iterable[TestServer], root: Path, kind: EnvironmentKind = EnvironmentKind.VENV, **environment: Any
) -> Desk:
    """Make a project folder for servers."""
    config = make_configuration(servers, root)
    return Desk(replace(config, environment=Environment(kind, **environment), python="3.11"))


def scripts_of(server: TestServer) -> Path:
    return server.home / "project" / ".remote-scripts"


def record_of(server: TestServer) -> dict[str, Any]:
    """Return activation.json."""
    return dict(json.loads((scripts_of(server) / "activation.json").read_text()))


def make_wheel(folder: Path, name: str = "tiny_package", version: str = "1.0") -> Path:
    """Write the smallest wheel that installs."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return file


def keep_offline(server: TestServer, wheels: Path) -> None:
    """Let the server's pip and uv know nothing but a folder of wheels, and no Python but the system's."""
    pip = server.home / ".config" / "pip" / "pip.conf"
    pip.parent.mkdir(parents=True)
    pip.write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
    uv = server.home / ".config" / "uv" / "uv.toml"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'offline = true\nno-index = true\nfind-links = ["{wheels}"]\npython-downloads = "never"\n')
