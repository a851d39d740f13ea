"""keys: from passwords to a key that logs in, on servers that take both."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError, LoginError, UsageError
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import key_files
from remote_tool.transport.ssh.host_keys.rules import UnconfirmedKeyError
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Event, Notice
from remote_tool.workflows.servers.install_keys import KeysRequest, KeyState, install_keys
from tests.extended.configuration import make_configuration
from tests.extended.transport.password_server import PasswordServer, password_server, trust
from tests.extended.transport.ssh.test_log_in import Answers, agent_with
from tests.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import asyncssh

    from remote_tool.config.model import Config
    from remote_tool.transport.pool import Results
    from remote_tool.workflows.servers.install_keys import KeyOnServer

SECRET = "open sesame"
BOTH = ("publickey", "password")
OTHERS = "# a comment\nssh-rsa AAAAB3Nza somebody@else\n"


@dataclass
class Desk:
    """A project with servers that take keys and passwords, and somebody at the terminal."""

    config: Config
    doors: dict[str, PasswordServer]
    user: Answers = field(default_factory=Answers)
    events: list[Event] = field(default_factory=list)
    confirm: Callable[[str], bool] = trust

    async def keys(self, *answers: str, **wishes: object) -> Results[KeyOnServer]:
        self.user = Answers(*answers)
        async with HostPool(self.config, ask_password=self.user, confirm=self.confirm) as pool:
            context = Context(self.config, pool, Registry(self.config.local.jobs), self.events.append)
            return await install_keys(context, KeysRequest(**wishes))  # type: ignore[arg-type]

    def configure(self, **changes: object) -> None:
        servers = {name: replace(server, **changes) for name, server in self.config.servers.items()}  # type: ignore[arg-type]
        self.config = replace(self.config, servers=servers)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


def states(results: Results[KeyOnServer]) -> dict[str, KeyState]:
    assert not results.errors, results.errors
    return {server: key.state for server, key in results.values.items()}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
async def desk(tmp_path: Path, own_home: Path) -> AsyncIterator[Desk]:
    assert not (own_home / ".ssh").exists()
    async with AsyncExitStack() as stack:
        doors = {}
        for name in ("first", "second"):
            home = tmp_path / f"{name}'s home"
            home.mkdir(0o700)
            doors[name] = await stack.enter_async_context(password_server(PasswordServer(methods=BOTH, home=home)))
        config = make_configuration([], tmp_path / "project")
        yield Desk(replace(config, servers={name: door.server(name) for name, door in doors.items()}), doors)


async def test_a_key_is_made_and_added_with_one_question_and_nothing_is_done_twice(desk: Desk, own_home: Path) -> None:
    results = await desk.keys(SECRET)
    assert states(results) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert desk.user.prompts == ["Password of someone on first, second (leave empty to enter them one by one): "]
    key = own_home / ".ssh" / "id_ed25519"
    line = key.with_name("id_ed25519.pub").read_text()
    assert [mode_of(path) for path in (key.parent, key, key.with_name("id_ed25519.pub"))] == [0o700, 0o600, 0o644]
    assert desk.notices == [f"created {key} and {key}.pub"]
    for name, door in desk.doors.items():
        assert door.authorized_keys.read_text() == line
        assert [mode_of(path) for path in (door.authorized_keys.parent, door.authorized_keys)] == [0o700, 0o600]
        assert results.values[name].file == str(door.authorized_keys)
        assert results.values[name].line == line.strip()
        assert list(door.authorized_keys.parent.iterdir()) == [door.authorized_keys]
        assert key.read_bytes() not in b"".join(path.read_bytes() for path in door.authorized_keys.parent.iterdir())
    again = await desk.keys()
    assert states(again) == {"first": KeyState.WORKS, "second": KeyState.WORKS}
    assert desk.user.prompts == []
    assert desk.doors["first"].authorized_keys.read_text() == line


@pytest.mark.row(141)
async def test_one_question_is_about_all_new_host_keys_and_a_no_stops_only_their_servers(
    desk: Desk,
) -> None:
    questions: list[str] = []

    def refuse(question: str) -> bool:
        questions.append(question)
        return False

    assert states(await desk.keys(SECRET, servers=("first",))) == {"first": KeyState.ADDED}
    third = replace(desk.config.servers["second"], name="third")
    desk.config = replace(desk.config, servers={**desk.config.servers, "third": third})
    # The host of the first is known by now, but its key is not there any more.
    desk.doors["first"].authorized_keys.unlink()
    desk.confirm = refuse
    results = await desk.keys(SECRET)
    assert {server: key.state for server, key in results.values.items()} == {"first": KeyState.ADDED}
    assert {server: type(error) for server, error in results.errors.items()} == {
        "second": UnconfirmedKeyError,
        "third": UnconfirmedKeyError,
    }
    shown = f"(127.0.0.1:{desk.doors['second'].port}): ssh-ed25519 {desk.doors['second'].fingerprint}"
    assert questions == [f"New host keys:\n  second {shown}\n  third {shown}\nDo you trust them?"]
    assert desk.doors["second"].attempts == []
    assert not desk.doors["second"].authorized_keys.exists()


async def test_only_where_the_common_password_fails_another_is_asked_for(desk: Desk) -> None:
    desk.doors["second"].password = "another"
    results = await desk.keys(SECRET, "another")
    assert states(results) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert desk.user.prompts[1:] == ["Password of someone on second: "]
    assert desk.doors["first"].attempts == [SECRET]
    assert desk.doors["second"].attempts == [SECRET, "another"]


async def test_users_with_other_names_are_asked_for_by_themselves(desk: Desk) -> None:
    desk.config = replace(
        desk.config,
        servers={**desk.config.servers, "second": replace(desk.config.servers["second"], username="else")},
    )
    assert states(await desk.keys(SECRET, SECRET)) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert sorted(desk.user.prompts) == ["Password of else on second: ", "Password of someone on first: "]


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_configured_passwords_are_used_and_nobody_is_asked(
    desk: Desk, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for door in desk.doors.values():
        door.methods = ("publickey", method)
    monkeypatch.setenv("DOOR", SECRET)
    desk.configure(password_env="DOOR")
    assert states(await desk.keys()) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert desk.user.prompts == []


async def test_one_question_answers_the_servers_own(desk: Desk) -> None:
    for door in desk.doors.values():
        door.methods = ("publickey", "keyboard-interactive")
    assert states(await desk.keys(SECRET)) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert len(desk.user.prompts) == 1


async def test_a_server_that_fails_stops_no_other(desk: Desk) -> None:
    away = replace(desk.config.servers["first"], name="away", port=1)
    desk.config = replace(desk.config, servers={"away": away, **desk.config.servers})
    desk.doors["second"].password = "unknown"
    results = await desk.keys(SECRET, "wrong", "wrong", "wrong")
    assert {server: key.state for server, key in results.values.items()} == {"first": KeyState.ADDED}
    assert list(results.errors) == ["away", "second"]
    assert "refused the connection" in str(results.errors["away"])
    assert isinstance(results.errors["second"], LoginError)
    assert not any("no server accepted" in notice for notice in desk.notices)


async def test_without_a_terminal_it_says_what_is_missing(desk: Desk, own_home: Path) -> None:
    async with HostPool(desk.config) as pool:
        context = Context(desk.config, pool, Registry(desk.config.local.jobs), desk.events.append)
        results = await install_keys(context, KeysRequest())
    assert "there is no terminal to ask for a password" in str(results.errors["first"])
    key = own_home / ".ssh" / "id_ed25519"
    assert desk.notices[1:] == [f"no server accepted the new key {key}; to remove it: rm {key} {key}.pub"]
    assert not desk.doors["first"].authorized_keys.exists()
    assert (own_home / ".ssh" / "id_ed25519").exists()


async def test_the_configured_key_is_made_where_it_is_configured(desk: Desk, own_home: Path) -> None:
    key = desk.config.local.remote_folder / "keys" / "private_key"
    desk.configure(private_key=key)
    assert states(await desk.keys(SECRET)) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert (mode_of(key), mode_of(key.parent)) == (0o600, 0o700)
    assert desk.doors["second"].authorized_keys.read_text() == key.with_name("private_key.pub").read_text()
    assert not (own_home / ".ssh").exists()
    printed = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, capture_output=True, text=True).stdout
    assert printed.split()[:2] == key.with_name("private_key.pub").read_text().split()[:2]


async def test_nothing_that_is_there_is_overwritten(desk: Desk, own_home: Path) -> None:
    (own_home / ".ssh").mkdir()
    half = own_home / ".ssh" / "id_ed25519.pub"
    half.write_text("the public half of a key on another machine\n")
    with pytest.raises(UsageError, match=r"id_ed25519\.pub already exists"):
        await desk.keys(SECRET)
    assert [path.name for path in half.parent.iterdir()] == [half.name]
    half.unlink()
    existing = make_key(own_home / ".ssh" / "id_rsa")
    before = existing.read_bytes()
    results = await desk.keys(SECRET)
    assert results.values["first"].key == str(existing)
    assert existing.read_bytes() == before
    assert desk.doors["first"].authorized_keys.read_text() == existing.with_name("id_rsa.pub").read_text()


@pytest.mark.parametrize("lines", [OTHERS, OTHERS.rstrip("\n")], ids=["whole", "without a last line break"])
async def test_other_lines_stay_as_they_are(desk: Desk, lines: str, own_home: Path) -> None:
    for door in desk.doors.values():
        door.authorized_keys.parent.mkdir(0o755)
        door.authorized_keys.write_text(lines)
        door.authorized_keys.chmod(0o644)
    await desk.keys(SECRET)
    line = (own_home / ".ssh" / "id_ed25519.pub").read_text()
    for door in desk.doors.values():
        assert door.authorized_keys.read_text() == OTHERS + line
        assert mode_of(door.authorized_keys) == 0o600
        assert mode_of(door.authorized_keys.parent) == 0o700


async def test_a_link_stays_a_link(desk: Desk) -> None:
    door = desk.doors["first"]
    target = door.authorized_keys.parents[1] / "managed keys"
    target.write_text(OTHERS.rstrip("\n"))
    door.authorized_keys.parent.mkdir()
    door.authorized_keys.symlink_to(target)
    assert (await desk.keys(SECRET, servers=("first",))).values["first"].state is KeyState.ADDED
    assert door.authorized_keys.is_symlink()
    assert target.read_text().startswith(OTHERS + "ssh-ed25519 ")


async def test_a_key_that_is_there_and_is_not_taken_is_added_once_and_explained(desk: Desk) -> None:
    door = desk.doors["first"]
    door.methods = ("password",)
    for _ in range(2):
        error = (await desk.keys(SECRET, servers=("first",))).errors["first"]
        assert "the key is in" in str(error)
        assert "it accepts password" in str(error)
        assert "pubkeyauthentication" in error.hint
    assert door.authorized_keys.read_text().count("ssh-ed25519") == 1
    assert door.home is not None
    door.home.chmod(0o775)
    error = (await desk.keys(SECRET, servers=("first",))).errors["first"]
    assert f"other users may write to {door.home}, so sshd ignores the keys there (StrictModes)" in str(error)
    assert error.hint == f"On first: chmod go-w {door.home}"


async def test_a_file_that_cannot_be_written_is_named(desk: Desk) -> None:
    desk.doors["first"].authorized_keys.mkdir(parents=True)
    error = (await desk.keys(SECRET, servers=("first",))).errors["first"]
    assert str(error).endswith(f"{desk.doors['first'].authorized_keys} is a folder")


async def test_servers_with_one_home_do_not_write_over_each_other(desk: Desk, tmp_path: Path) -> None:
    door = desk.doors["first"]
    servers = {
        f"s{number}": replace(door.server(f"s{number}"), private_key=tmp_path / f"key{number}") for number in range(6)
    }
    desk.config = replace(desk.config, servers=servers)
    assert set(states(await desk.keys(SECRET)).values()) == {KeyState.ADDED}
    lines = {(tmp_path / f"key{number}.pub").read_text() for number in range(6)}
    assert set(door.authorized_keys.read_text().splitlines(keepends=True)) == lines


async def test_an_interrupted_run_does_not_lock_out_the_next(desk: Desk) -> None:
    door = desk.doors["first"]
    door.authorized_keys.parent.mkdir()
    left = door.authorized_keys.with_name(".authorized_keys.remote-tool")
    left.write_text("half of it")
    os.utime(left, (0, 0))
    assert (await desk.keys(SECRET, servers=("first",))).values["first"].state is KeyState.ADDED
    assert [path.name for path in left.parent.iterdir()] == ["authorized_keys"]


async def test_a_key_with_a_passphrase_is_opened_once(
    desk: Desk, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decrypt it takes a quarter of a second, which all servers would wait for in turn."""
    opened: list[str] = []
    load = key_files.load_key_file

    def count(path: Path, passphrase: str | None = None) -> list[asyncssh.SSHKeyPair]:
        opened.extend([passphrase] if passphrase else [])
        return load(path, passphrase)

    monkeypatch.setattr(key_files, "load_key_file", count)
    (own_home / ".ssh").mkdir()
    key = make_key(own_home / ".ssh" / "id_ed25519", passphrase="between us")
    results = await desk.keys("between us", SECRET)
    assert states(results) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
    assert desk.user.prompts[0] == f"Passphrase of {key}: "
    assert len(desk.user.prompts) == 2
    assert opened == ["between us"]


async def test_the_agent_opens_a_key_and_its_own_is_added_where_there_is_no_file(desk: Desk, tmp_path: Path) -> None:
    key = make_key(tmp_path / "elsewhere")
    with agent_with(key):
        results = await desk.keys(SECRET)
        assert states(results) == {"first": KeyState.ADDED, "second": KeyState.ADDED}
        assert results.values["first"].key == ""
        assert states(await desk.keys()) == {"first": KeyState.WORKS, "second": KeyState.WORKS}
    public = key.with_name("elsewhere.pub").read_text().split()[:2]
    assert desk.doors["first"].authorized_keys.read_text().split()[:2] == public


async def test_a_new_key_may_have_a_passphrase(desk: Desk, own_home: Path) -> None:
    key = own_home / ".ssh" / "id_ed25519"
    with pytest.raises(UsageError, match="do not match"):
        await desk.keys("between us", "between me", passphrase=True)
    with pytest.raises(UsageError, match="No passphrase"):
        await desk.keys("", passphrase=True)
    assert not key.exists()
    assert states(await desk.keys("between us", "between us", SECRET, passphrase=True))
    assert len(desk.user.prompts) == 3
    opened = ["ssh-keygen", "-y", "-P", "between us", "-f", str(key)]
    assert await asyncio.to_thread(subprocess.call, opened, stdout=subprocess.DEVNULL) == 0
    assert subprocess.run([*opened[:3], "", *opened[4:]], capture_output=True, check=False).returncode != 0


async def test_a_dry_run_changes_nothing(desk: Desk, own_home: Path) -> None:
    assert states(await desk.keys(dry_run=True)) == {"first": KeyState.MISSING, "second": KeyState.MISSING}
    assert desk.user.prompts == []
    assert not (own_home / ".ssh").exists()
    assert not desk.doors["first"].authorized_keys.exists()
    await desk.keys(SECRET, servers=("second",))
    assert states(await desk.keys(dry_run=True)) == {"first": KeyState.MISSING, "second": KeyState.WORKS}


async def test_a_key_that_ssh_would_not_use_is_named_before_anything_is_done(desk: Desk, own_home: Path) -> None:
    (own_home / ".ssh").mkdir()
    key = make_key(own_home / ".ssh" / "id_ed25519")
    key.chmod(0o644)
    error = (await desk.keys(SECRET, servers=("first",))).errors["first"]
    assert isinstance(error, ConnectError)
    assert "is accessible to other users" in str(error)
    assert error.hint == f"chmod 600 {key}"
    assert desk.user.prompts == []
