"""prepare with conda: a real solver and linker, a real download; only the vendor's file is one of ours."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import EnvironmentKind, Installer
from remote_tool.environments import installers
from remote_tool.errors import EnvironmentSetupError
from remote_tool.jobs.registry import Registry
from remote_tool.paths import user_cache_folder
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Event, Outcome, StepEnded
from remote_tool.workflows.jobs.run import RunRequest, run_command
from remote_tool.workflows.prepare.prepare import PrepareOptions, setup
from tests.conda_parts import SHORT_VERSION, VERSION, build_channel, build_installer
from tests.extended.workflows.prepare.servers import Desk, desk_for, record_of, scripts_of
from tests.files_over_http import Site, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

pytest.importorskip("rattler", reason="py-rattler, of the test extra, is not installed")
pytestmark = pytest.mark.slow

FILE = "Tiny-1.0-Linux.sh"


@pytest.fixture(scope="session")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channel")
    build_channel(folder)
    return folder


@pytest.fixture
def site(tmp_path: Path, channel: Path) -> Iterator[Site]:
    """A web server with the channel; installers are added by the tests."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "channel").symlink_to(channel)
    with serve(folder) as served:
        yield served


def desk_with(site: Site, tmp_path: Path, *servers: TestServer, sha256: str = "", url: str = "") -> Desk:
    sha256 = sha256 or build_installer(site.folder / FILE)
    installer = Installer(sha256=sha256, url=url or f"{site.url}/{FILE}")
    desk = desk_for(
        servers, tmp_path / "desk", EnvironmentKind.MINICONDA, installer=installer, channels=(f"{site.url}/channel",)
    )
    desk.wish(python=SHORT_VERSION)
    return desk


def executed(server: TestServer) -> list[str]:
    """The prefixes that the installer was executed for."""
    file = server.home / "installer-calls"
    return file.read_text().splitlines() if file.exists() else []


async def until(condition: object, what: str) -> None:
    """Wait for something that happens on a server."""
    assert callable(condition)
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"not within 60 seconds: {what}")


@pytest.mark.row(118)
async def test_a_bare_server_gets_conda_and_an_environment_and_keeps_them(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    """Downloaded, checked, installed beside, visible at the end; from the configured channel only."""
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    await desk.setup()
    base = server.home / "miniconda3"
    assert subprocess.check_output([base / "bin" / "conda", "--version"]) == b"conda 26.5.3\n"
    assert executed(server) == [f"executed {base.resolve()}"]
    assert base.readlink() != base.resolve(), "a home that is moved takes the link along"
    environment = scripts_of(server) / "environment"
    assert (environment / "channels").read_text() == f'["{site.url}/channel"]'
    record = record_of(server)
    assert (record["kind"], record["version"], record["prefix"]) == ("miniconda", VERSION, str(environment))
    assert record["variables"]["CONDA_PREFIX"] == str(environment)
    assert record["variables"]["TINY_HOME"] == f"{environment}/share/tiny"
    assert record["path"] == [f"{environment}/share/tiny/bin", f"{environment}/bin", f"{base}/condabin"]
    assert subprocess.run([scripts_of(server) / "python", "-I", "-S", "-c", ""], check=True).returncode == 0
    assert subprocess.run([environment / "bin" / "python", "-m", "pip", "--version"], check=True).returncode == 0
    assert desk.started() == ["download", "conda", "environment"]

    calls, asked = (base / "calls").read_text(), list(site.requests)
    again = (await desk.setup())["first"]
    assert not again.changed
    assert [step.outcome for step in again.steps] == [Outcome.UNCHANGED]
    assert ((base / "calls").read_text(), site.requests) == (calls, asked)


async def test_variables_of_the_user_are_part_of_the_activation(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    await desk.setup()
    environment = scripts_of(server) / "environment"
    state = '{"env_vars": {"MINE": "1 2", "GONE": "***unset***"}}'
    (environment / "conda-meta" / "state").write_text(state)
    (environment / "etc" / "conda" / "activate.d" / "more.sh").write_text("f() { :; }; export -f f; export SAW=$MINE\n")
    desk.wish(desk.config.environment.__class__(EnvironmentKind.EXISTING, prefix=str(environment)), SHORT_VERSION)
    await desk.setup()
    variables = record_of(server)["variables"]
    assert (variables["MINE"], variables["SAW"]) == ("1 2", "1 2")
    assert "GONE" not in variables
    assert all(name.isidentifier() for name in variables), "an exported function is no variable for us"


@pytest.mark.row(118)
async def test_one_flipped_byte_is_refused_and_nothing_is_executed(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    expected = hashlib.sha256((site.folder / FILE).read_bytes()).hexdigest()
    site.changes[FILE] = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    found = hashlib.sha256(site.changes[FILE]((site.folder / FILE).read_bytes())).hexdigest()
    with pytest.raises(EnvironmentSetupError) as caught:
        await desk.setup()
    assert expected in caught.value.message
    assert found in caught.value.message
    assert "was not run" in caught.value.message
    assert executed(server) == []
    assert [path.name for path in server.home.glob(".miniconda3*")] == []
    assert list((server.home / ".cache" / "remote_tool").iterdir()) == []
    site.changes.clear()
    await desk.setup()
    assert record_of(server)["kind"] == "miniconda"


@pytest.mark.row(118)
async def test_a_file_changed_between_download_and_execution_is_refused(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    """What is executed is what is checked, also when it has lain there since an earlier try."""
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    data = (site.folder / FILE).read_bytes()
    cache = server.home / ".cache" / "remote_tool"
    cache.mkdir(parents=True)
    (cache / f"{hashlib.sha256(data).hexdigest()[:16]}-{FILE}").write_bytes(data + b"\n")
    await desk.setup()
    assert site.requests[0] == FILE, "the changed file was downloaded again"
    assert record_of(server)["kind"] == "miniconda"


@pytest.mark.row(118)
async def test_a_file_changed_after_its_download_is_not_executed(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    """The checksum is compared right before the execution."""
    server = make_server()
    desk = desk_with(site, tmp_path, server)

    def spoil(event: Event) -> None:
        if isinstance(event, StepEnded) and event.step == "download":
            (file,) = (server.home / ".cache" / "remote_tool").glob(f"*-{FILE}")
            file.write_bytes(file.read_bytes() + b"\n")

    async with HostPool(desk.config) as pool:
        results = await setup(pool, desk.config, (), PrepareOptions(), spoil)
    assert "was not run" in results.errors["first"].message
    assert executed(server) == []


async def test_a_server_that_cannot_keep_the_installer_says_so(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    file = tmp_path / "installer.sh"
    sha256 = build_installer(file)
    desk.wish(replace(desk.config.environment, installer=Installer(sha256=sha256, file=file)), SHORT_VERSION)
    (server.home / ".cache").write_text("a file, where a folder must be")
    with pytest.raises(EnvironmentSetupError, match=r"first: installer\.sh could not be written: .*cache"):
        await desk.setup()


@pytest.mark.row(118)
async def test_a_cut_download_is_refused(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    site.cut.add(FILE)
    with pytest.raises(EnvironmentSetupError):
        await desk.setup()
    assert executed(server) == []
    assert not (server.home / "miniconda3").exists()
    assert list(user_cache_folder().iterdir()) == []


@pytest.mark.row(118)
@pytest.mark.parametrize("where", ["there", "here"])
async def test_a_download_that_is_too_large_is_ended(
    make_server: MakeServer, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(installers, "MOST_BYTES", 64 * 1024)
    server = make_server(**({} if where == "there" else {"SetEnv": "http_proxy=http://127.0.0.1:9"}))
    desk = desk_with(site, tmp_path, server)
    site.changes[FILE] = lambda data: data + b"x" * 1024 * 1024
    with pytest.raises(
        EnvironmentSetupError, match=r"Tiny-1.0-Linux.sh is larger than 64.0 KiB and was not downloaded"
    ):
        await desk.setup()
    assert executed(server) == []
    assert list(server.home.rglob("*.part")) == []


@pytest.mark.row(118)
async def test_a_redirect_is_followed_to_the_same_checksum(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server, url=f"{site.url}/elsewhere/Tiny.sh")
    site.redirects["elsewhere/Tiny.sh"] = FILE
    await desk.setup()
    assert len(executed(server)) == 1


async def test_servers_without_a_way_out_get_the_installer_sent_after_one_download_here(
    make_server: MakeServer, site: Site, tmp_path: Path, channel: Path
) -> None:
    blocked = "http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9"
    servers = [make_server(name, SetEnv=blocked) for name in ("first", "second")]
    desk = desk_with(site, tmp_path, *servers)
    desk.wish(replace(desk.config.environment, channels=(f"file://{channel}",)), SHORT_VERSION)
    await desk.setup()
    assert site.requests.count(FILE) == 1
    assert [len(executed(server)) for server in servers] == [1, 1]
    kept = list(user_cache_folder().iterdir())
    assert [file.name.partition("-")[2] for file in kept] == [FILE]
    assert desk.started().count("send-installer") == 2


async def test_an_installer_from_a_file_is_sent(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    file = tmp_path / "My Installer's.sh"
    sha256 = build_installer(file)
    desk.wish(replace(desk.config.environment, installer=Installer(sha256=sha256, file=file)), SHORT_VERSION)
    await desk.setup()
    assert len(executed(server)) == 1
    assert FILE not in site.requests


@pytest.mark.row(118)
async def test_a_file_with_another_checksum_is_not_sent(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    file = tmp_path / "installer.sh"
    build_installer(file)
    desk.wish(replace(desk.config.environment, installer=Installer(sha256="0" * 64, file=file)), SHORT_VERSION)
    with pytest.raises(EnvironmentSetupError, match=r"0{64}"):
        await desk.setup()
    assert executed(server) == []


@pytest.mark.row(118)
async def test_an_installation_that_was_cut_off_is_invisible_and_done_again(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    """The connection goes while the installer runs; its processes end, and its half is removed."""
    server = make_server()
    go_on = tmp_path / "go on"
    desk = desk_with(site, tmp_path, server, sha256=build_installer(site.folder / FILE, wait_for=go_on))
    working = asyncio.create_task(desk.setup())
    await until(lambda: executed(server), "the installer runs")
    half = Path(executed(server)[0].removeprefix("executed "))
    server.drop_connections()
    with pytest.raises(Exception, match="first"):
        await working
    await until(lambda: not processes_with(str(half)), "the installer's processes are gone")
    assert half.exists()
    assert not (server.home / "miniconda3").exists()
    go_on.touch()
    await desk.setup()
    assert not half.exists()
    assert record_of(server)["kind"] == "miniconda"


def processes_with(text: str) -> list[int]:
    """The processes with a text among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_a_half_made_environment_is_rebuilt(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    half = scripts_of(server) / "environment" / "conda-meta"
    half.mkdir(parents=True)
    (half / "history").touch()
    await desk.setup()
    assert record_of(server)["version"] == VERSION


async def test_a_conda_that_is_there_is_used_as_it_is(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    subprocess.run(
        ["/bin/sh", site.folder / FILE, "-b", "-p", server.home / "miniforge3"],
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    await desk.setup()
    assert executed(server) == []
    assert record_of(server)["tool"] == f"{server.home}/miniforge3/bin/conda"
    assert FILE not in site.requests


async def test_other_channels_rebuild_the_environment(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    await desk.setup()
    (scripts_of(server) / "environment" / "mark").touch()
    (site.folder / "other").symlink_to(site.folder / "channel")
    desk.wish(replace(desk.config.environment, channels=(f"{site.url}/other",)), SHORT_VERSION)
    await desk.setup()
    assert not (scripts_of(server) / "environment" / "mark").exists()
    assert len(executed(server)) == 1, "conda itself stays"


async def test_a_folder_in_the_way_is_not_touched(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    (server.home / "miniconda3").mkdir()
    (server.home / "miniconda3" / "precious").touch()
    with pytest.raises(EnvironmentSetupError, match="contains no conda") as caught:
        await desk.setup()
    assert "mv " in caught.value.hint
    assert (server.home / "miniconda3" / "precious").exists()


async def test_environment_yml_is_installed_by_conda(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    (desk.project / "environment.yml").write_text(f"channels: [{site.url}/channel]\ndependencies: [extra]\n")
    await desk.prepare()
    python = record_of(server)["python"]
    assert subprocess.check_output([python, "-c", "import from_the_channel as f; print(f.ANSWER)"]) == b"42\n"
    assert not (await desk.prepare())["first"].changed


@pytest.mark.row(178)
async def test_environment_yml_without_channels_gets_the_configured_ones(
    make_server: MakeServer, site: Site, tmp_path: Path
) -> None:
    """Conda has no default channel any more; and what the file names comes first."""
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    (desk.project / "environment.yml").write_text("dependencies: [extra]\n")
    await desk.prepare()
    code = "import from_the_channel as f; print(f.ANSWER)"
    assert subprocess.check_output([record_of(server)["python"], "-c", code]) == b"42\n"


@pytest.mark.row(178)
async def test_conda_itself_is_on_the_path_of_commands(make_server: MakeServer, site: Site, tmp_path: Path) -> None:
    """As after `conda activate`; also for a prefix of the user's own."""
    server = make_server()
    desk = desk_with(site, tmp_path, server)
    await desk.prepare()
    assert await said_by(desk, "conda --version; command -v conda python") == [
        "conda 26.5.3",
        f"{server.home}/miniconda3/condabin/conda",
        f"{scripts_of(server)}/environment/bin/python",
    ]
    prefix = server.home / "miniconda3" / "envs" / "mine"
    prefix.parent.mkdir()
    (scripts_of(server) / "environment").rename(prefix)
    desk.wish(desk.config.environment.__class__(EnvironmentKind.EXISTING, prefix=str(prefix)), SHORT_VERSION)
    await desk.setup()
    assert record_of(server)["path"][-1] == f"{(server.home / 'miniconda3').resolve()}/condabin"


async def said_by(desk: Desk, command: str) -> list[str]:
    """The lines that a command prints on the server."""
    output: list[bytes] = []
    async with HostPool(desk.config) as pool:
        context = Context(desk.config, pool, Registry(desk.config.local.jobs), desk.events.append)
        results = await run_command(context, RunRequest(command), lambda _server, _stream, data: output.append(data))
    results.raise_if_any_failed()
    return b"".join(output).decode().splitlines()
