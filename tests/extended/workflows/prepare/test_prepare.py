"""prepare, setup and update-packages on real servers: kinds of environments, packages, logs, what goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.errors import EnvironmentSetupError, RemoteToolError, SomeServersFailedError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync.project.snapshot import take_snapshot
from remote_tool.workflows.events import Notice, Outcome, StepEnded
from remote_tool.workflows.prepare.prepare import PrepareOptions, prepare, update_packages
from tests.extended.environments.test_facts import stub
from tests.extended.workflows.prepare.projects import (
    SHORT_VERSION,
    SYSTEM_PYTHON,
    VERSION,
    as_project,
    desk_at,
    give_uv,
    imported_version,
    needs_venv,
    with_packages,
    with_script,
)
from tests.extended.workflows.prepare.servers import desk_for, make_wheel, record_of, scripts_of
from tests.files_over_http import serve
from tests.processes import is_running

if TYPE_CHECKING:
    from remote_tool.transport.host import Host
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.project.snapshot import SelectionRules
    from remote_tool.workflows.events import Event
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, needs_venv]


async def test_a_bare_server_is_prepared_and_the_second_time_nothing_is_done(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    first = (await desk.prepare())["first"]
    assert first.changed
    assert imported_version(server) == "1.0"
    record = record_of(server)
    environment = scripts_of(server) / "environment"
    assert record["version"] == VERSION
    assert record["variables"] == {"VIRTUAL_ENV": str(environment)}
    assert record["path"] == [f"{environment}/bin"]
    assert (scripts_of(server) / "python").readlink() == environment / "bin" / "python"
    assert (scripts_of(server) / "activation.json").stat().st_mode & 0o777 == 0o600
    assert scripts_of(server).stat().st_mode & 0o777 == 0o700
    assert list(scripts_of(server).glob("supervisor-*"))
    assert {"environment", "packages"} <= {log.stem.rpartition("-")[2] for log in desk.logs}
    packages = next(log for log in desk.logs if log.name.endswith("-first-packages.log"))
    assert b"Successfully installed tiny" in packages.read_bytes()
    assert packages.stat().st_mode & 0o777 == 0o600

    desk.events.clear()
    logs = set(desk.logs)
    second = (await desk.prepare())["first"]
    assert not second.changed
    assert {step.outcome for step in second.steps} == {Outcome.UNCHANGED}
    assert {"environment", "rsync", "packages", "supervisor"} == {step.step for step in second.steps}
    assert {log.stem.rpartition("-")[2] for log in set(desk.logs) - logs} <= {"rsync"}

    labels: list[str] = []
    async with HostPool(desk.config, trace=lambda _server, label, _seconds: labels.append(label)) as pool:
        await update_packages(pool, desk.config, (), PrepareOptions(), desk.events.append)
    assert [label for label in labels if "log in" not in label] == ["the server's facts"], "one question is all"


class PatientPool(HostPool):
    """Logs in when the project is being listed, and not before."""

    listing = asyncio.Event()

    async def host(self, name: str, *, logs_in: bool = False) -> Host:
        async with asyncio.timeout(20):
            await self.listing.wait()
        return await super().host(name, logs_in=logs_in)


async def test_the_project_is_listed_during_the_login_and_again_after_something_was_made(
    make_server: MakeServer, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    desk = desk_at(tmp_path, wheels, server)
    listed = 0

    async def list_it(root: Path, rules: SelectionRules) -> Snapshot:
        nonlocal listed
        listed += 1
        PatientPool.listing.set()
        return await take_snapshot(root, rules)

    def report(event: Event) -> None:
        if isinstance(event, StepEnded) and event.step == "environment":
            (desk.project / "late.py").touch()

    monkeypatch.setattr("remote_tool.workflows.sync.project.take_snapshot", list_it)
    PatientPool.listing = asyncio.Event()
    for expected in (2, 3):
        async with PatientPool(desk.config) as pool:
            (await prepare(pool, desk.config, (), PrepareOptions(), report)).raise_if_any_failed()
        assert (server.home / desk.config.remote.project / "late.py").exists()
        assert listed == expected


async def test_changed_requirements_are_installed_and_nothing_else_is_done(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    make_wheel(wheels, version="2.0")
    with_packages(desk, "-r more.txt\n")
    (desk.project / "more.txt").write_text("tiny_package==2.0\n")
    done = {step.step: step.outcome for step in (await desk.prepare())["first"].steps}
    assert imported_version(server) == "2.0"
    assert (done["environment"], done["packages"]) == (Outcome.UNCHANGED, Outcome.DONE)


@pytest.mark.row(119)
async def test_packages_that_fail_stop_the_run_say_why_and_are_done_again(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server), "tiny_package==1.0\nno_such_package\n")
    with pytest.raises(EnvironmentSetupError) as caught:
        await desk.prepare()
    assert "no_such_package" in caught.value.message
    assert caught.value.server == "first"
    first, last = caught.value.message.splitlines()
    assert first == "first: Installing requirements.txt failed: No matching distribution found for no_such_package"
    assert last == f"  full output: .remote/logs/{desk.logs[-1].name}"
    assert not (scripts_of(server) / "packages").exists()
    assert desk.ended()[-1].outcome is Outcome.FAILED
    with pytest.raises(EnvironmentSetupError):
        await desk.prepare()
    with_packages(desk)
    await desk.prepare()
    assert imported_version(server) == "1.0"


async def test_after_packages_that_failed_the_earlier_ones_are_done_again(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """Half of the new packages may be there, so the old fingerprint must not vouch for the old ones."""
    desk = with_packages(desk_at(tmp_path, wheels, make_server()))
    await desk.prepare()
    with_packages(desk, "no_such_package\n")
    with pytest.raises(EnvironmentSetupError):
        await desk.prepare()
    done = {step.step: step.outcome for step in (await with_packages(desk).prepare())["first"].steps}
    assert done["packages"] is Outcome.DONE


@pytest.mark.row(119)
async def test_a_package_with_another_hash_is_not_installed(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server), f"tiny_package==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(EnvironmentSetupError, match=r"(?i)hash"):
        await desk.prepare()
    assert imported_version(server) == ""


@pytest.mark.row(119)
async def test_one_hash_makes_uv_require_all(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    """With pip it is so without our help."""
    server = make_server()
    give_uv(server)
    digest = hashlib.sha256(make_wheel(wheels, "other").read_bytes()).hexdigest()
    text = f"other==1.0 --hash=sha256:{digest}\ntiny_package==1.0\n"
    desk = with_packages(desk_at(tmp_path, wheels, server, kind=EnvironmentKind.UV), text)
    with pytest.raises(EnvironmentSetupError, match=r"(?i)hash"):
        await desk.prepare()
    assert imported_version(server) == ""


async def test_one_failing_server_does_not_stop_the_others(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    servers = [make_server("first"), make_server("second")]
    desk = with_packages(desk_at(tmp_path, wheels, *servers))
    (servers[0].home / "project").write_text("in the way")
    with pytest.raises(SomeServersFailedError) as caught:
        await desk.prepare()
    assert list(caught.value.failures) == ["first"]
    assert "is a file" in caught.value.failures["first"].message
    assert caught.value.exit_code == 3
    assert imported_version(servers[1]) == "1.0"


@pytest.mark.row(55)
async def test_nothing_is_found_by_the_path_alone(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    """A server whose sessions have a PATH without a single program."""
    server = make_server(SetEnv="PATH=/nonexistent")
    desk = with_packages(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    assert imported_version(server) == "1.0"


async def test_a_half_made_environment_is_rebuilt(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    half = scripts_of(server) / "environment" / "bin"
    half.mkdir(parents=True)
    (half / "python").symlink_to(SYSTEM_PYTHON)
    desk = desk_at(tmp_path, wheels, server)
    await desk.setup()
    assert (scripts_of(server) / "environment" / "pyvenv.cfg").exists()


async def test_an_environment_that_no_longer_starts_is_rebuilt(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """The system's Python went, as after an upgrade of the distribution."""
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    python = scripts_of(server) / "environment" / "bin" / "python3"
    for link in python.parent.glob("python*"):
        link.unlink()
    await desk.prepare()
    assert imported_version(server) == "1.0", "its packages are installed again too"


async def test_another_kind_rebuilds_the_environment(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    give_uv(server)
    desk = desk_at(tmp_path, wheels, server)
    await desk.setup()
    assert record_of(server)["kind"] == "venv"
    desk.wish(Environment(EnvironmentKind.UV), SHORT_VERSION)
    await desk.setup()
    assert record_of(server)["kind"] == "uv"


async def test_an_environment_in_use_is_not_pulled_away(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    desk = desk_at(tmp_path, wheels, server)
    await desk.setup()
    python = record_of(server)["python"]
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE, env=record_of(server)["variables"]) as user:
        with pytest.raises(EnvironmentSetupError, match=rf"processes are using it: {user.pid}$") as caught:
            await desk.setup(force=True)
        assert "job-list" in caught.value.hint
        assert Path(python).exists()


async def test_force_rebuilds_the_environment_and_its_packages(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    mark = scripts_of(server) / "environment" / "mark"
    mark.touch()
    await desk.prepare(force=True)
    assert not mark.exists()
    assert imported_version(server) == "1.0"


async def test_uv_makes_the_environment_and_installs_the_packages(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    give_uv(server)
    desk = with_packages(desk_at(tmp_path, wheels, server, kind=EnvironmentKind.UV))
    await desk.prepare()
    assert imported_version(server) == "1.0"
    assert "uv" in (scripts_of(server) / "environment" / "pyvenv.cfg").read_text()
    pip = subprocess.run([record_of(server)["python"], "-m", "pip", "--version"], check=False, capture_output=True)
    assert pip.returncode == 0, "a user's own `pip install` must not go to the system's"
    assert not (await desk.prepare())["first"].changed


async def test_uv_that_is_missing_is_installed_without_root(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """The wheel of uv here is a stand-in, a script that calls the real one: the real wheel has 20 MB."""
    server = make_server()
    give_uv(server)
    real = (server.home / ".local" / "bin" / "uv").resolve()
    (server.home / ".local" / "bin" / "uv").unlink()
    wheel = make_wheel(wheels, "uv", "1.0")
    script = f"#!/bin/sh\nexec '{real}' \"$@\"\n"
    with_script(wheel, "uv-1.0.data/scripts/uv", script)
    desk = with_packages(desk_at(tmp_path, wheels, server, kind=EnvironmentKind.UV))
    await desk.prepare()
    assert desk.started()[0] == "uv"
    assert imported_version(server) == "1.0"


async def test_an_existing_prefix_is_used_and_never_removed(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    prefix = server.home / "my own"
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", prefix], check=True)
    (prefix / "mine").touch()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    desk.wish(Environment(EnvironmentKind.EXISTING, prefix="~/my own"))
    await desk.prepare()
    assert record_of(server)["prefix"] == str(prefix)
    assert imported_version(server) == "1.0"
    await desk.prepare(force=True)
    assert (prefix / "mine").exists()


async def test_an_existing_prefix_that_is_not_there_is_named(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = desk_at(tmp_path, wheels, make_server())
    desk.wish(Environment(EnvironmentKind.EXISTING, prefix="/no/where"))
    with pytest.raises(EnvironmentSetupError, match="/no/where/bin/python"):
        await desk.setup()


async def test_a_python_project_is_installed_as_it_lies(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    desk = as_project(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    python = record_of(server)["python"]
    subprocess.run([python, "-c", "import imported_from_mine"], check=True, cwd="/")
    assert not (await desk.prepare())["first"].changed


async def test_other_package_files_are_said_to_be_ignored(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = as_project(with_packages(desk_at(tmp_path, wheels, make_server())))
    await desk.prepare()
    notices = [event.text for event in desk.events if isinstance(event, Notice)]
    assert "packages come from requirements.txt; ignored: pyproject.toml" in notices


async def until(condition: object, what: str) -> None:
    """Wait for something that happens on a server."""
    assert callable(condition)
    for _ in range(8000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"not within 80 seconds: {what}")


async def test_a_step_ends_with_its_client_and_is_done_again(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """Ctrl-C here, or a broken link: nothing goes on over there that the next prepare would meet."""
    server = make_server()
    desk = as_project(desk_at(tmp_path, wheels, server))
    (server.home / "wait").touch()
    working = asyncio.create_task(desk.prepare())
    building = server.home / "building"
    await until(lambda: building.exists() and building.read_text(), "the build runs")
    pid = int(building.read_text())
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await until(lambda: not is_running(pid), "the build is gone")
    (server.home / "wait").unlink()
    done = {step.step: step.outcome for step in (await desk.prepare())["first"].steps}
    assert done["packages"] is Outcome.DONE


async def test_two_at_once_make_one_environment(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    desk = desk_at(tmp_path, wheels, server)
    await asyncio.gather(desk.setup(), desk.setup())
    outputs = [log.read_bytes() for log in desk.logs if log.name.endswith("-environment.log")]
    assert sum(b"The environment is up to date" in output for output in outputs) == 1
    assert record_of(server)["version"] == VERSION


async def test_packages_of_a_file_that_was_not_sent_are_refused(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """update-packages alone must not vouch for what the server's older file says."""
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server))
    await desk.prepare()
    with_packages(desk, "tiny_package>=1.0\n")
    with pytest.raises(EnvironmentSetupError, match=r"differs between .*: requirements\.txt") as caught:
        await desk.update_packages()
    assert "remote-tool rsync" in caught.value.hint


async def test_packages_without_an_environment_are_refused(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = with_packages(desk_at(tmp_path, wheels, make_server()))
    with pytest.raises(RemoteToolError) as caught:
        await desk.update_packages()
    assert caught.value.hint == "remote-tool setup --server first"


PIPENV = shutil.which("pipenv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(PIPENV is None, reason="pipenv is neither beside the tests' Python nor on the PATH")
@pytest.mark.parametrize("locked", [False, True], ids=["Pipfile", "Pipfile.lock"])
async def test_a_pipfile_is_installed_by_pipenv(
    make_server: MakeServer, tmp_path: Path, wheels: Path, *, locked: bool
) -> None:
    server = make_server()
    desk = desk_at(tmp_path, wheels, server)
    (server.home / ".local" / "bin").mkdir(parents=True)
    (server.home / ".local" / "bin" / "pipenv").symlink_to(str(PIPENV))
    wheel = make_wheel(tmp_path / "index" / "tiny-package")
    with serve(tmp_path / "index") as index:
        source = f'[[source]]\nname = "here"\nurl = "{index.url}"\nverify_ssl = false\n'
        (desk.project / "Pipfile").write_text(f'{source}[packages]\ntiny_package = "==1.0"\n')
        if locked:
            (desk.project / "Pipfile.lock").write_text(lock_of(wheel, index.url))
        await desk.prepare()
    assert imported_version(server) == "1.0"


def lock_of(wheel: Path, url: str) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    sources = [{"name": "here", "url": url, "verify_ssl": False}]
    return json.dumps(
        {
            "_meta": {"hash": {"sha256": "0" * 64}, "pipfile-spec": 6, "requires": {}, "sources": sources},
            "default": {"tiny-package": {"hashes": [f"sha256:{digest}"], "version": "==1.0"}},
            "develop": {},
        }
    )


@pytest.mark.row(15)
async def test_a_server_that_ends_processes_at_logout_is_warned_of(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    stub(server.programs, "loginctl", "echo KillUserProcesses=yes")
    desk = desk_for([server], tmp_path / "project", EnvironmentKind.EXISTING, prefix=sys.prefix)
    desk.wish(python=".".join(map(str, sys.version_info[:2])))
    await desk.setup()
    (warning,) = [event.text for event in desk.events if isinstance(event, Notice) and "logout" in event.text]
    assert "including jobs (KillUserProcesses=yes)" in warning
    assert f"KillExcludeUsers={server.username} to /etc/systemd/logind.conf" in warning
