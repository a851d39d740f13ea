"""The keys of hosts are compared with those that are known."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk, folder_of_sockets, until
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.conftest import MakeServer


@pytest.mark.row(39)
def test_a_damaged_line_of_a_known_host_does_not_make_its_key_new(desk: Desk) -> None:
    desk.configure(keep_connections=0)
    known = desk.root / ".remote" / "known_hosts"
    (line,) = known.read_text().splitlines()
    name, kind, key = line.split()[:3]
    for damaged in (f"{name} {kind} {key[:-12]}", f"{name} {kind}", f"{name} {kind} {key[:40]} rest"):
        known.write_text(f"{damaged}\n")
        said = desk.refuses("run", "--cmd", "true")
        assert f"cannot be compared with the known one, as {known}:1 is damaged" in said
        assert known.read_text() == f"{damaged}\n"
    subprocess.run(["sed", "-i.bak", "1d", str(known)], check=True)
    assert "accepted" in desk.tries("run", "--cmd", "true").stderr


@pytest.mark.row(41)
def test_hashed_names_are_known_and_revoked_keys_are_refused(desk: Desk) -> None:
    desk.configure(keep_connections=0)
    known = desk.root / ".remote" / "known_hosts"
    line = known.read_text()
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True)
    assert known.read_text().startswith("|1|")
    assert "host key" not in desk.tries("run", "--cmd", "true").stderr
    # A pattern that is for all hosts but this one.
    name, kind, key = line.split()[:3]
    known.write_text(f"*,!{name} {kind} {key[:-8]}{key[:-9:-1]}\n")
    assert "new host key" in desk.tries("run", "--cmd", "true").stderr
    known.write_text(f"@revoked {line}")
    assert "revoked" in desk.refuses("run", "--cmd", "true", status=4)


@pytest.mark.row(116)
@pytest.mark.parametrize("changed", ["first", "second"])
def test_a_server_or_a_jump_host_on_the_way_that_has_another_key_gets_no_command(
    behind: Desk, tmp_path: Path, changed: str
) -> None:
    known = behind.root / ".remote" / "known_hosts"
    ports = {name: f":{each.port}" for name, each in behind.servers.items()}
    keys = {port: line.split()[2] for port in ports.values() for line in known.read_text().splitlines() if port in line}
    (other,) = keys.keys() - {ports[changed]}
    known.write_text(known.read_text().replace(keys[ports[changed]], keys[other]))
    before = behind.servers["first"].log().count("Accepted publickey")
    said = behind.refuses("run", "--server", "first", "--cmd", f"touch {tmp_path}/began", status=4)
    name = {"first": "first", "second": "jump host second"}[changed]
    assert f"The host key of {name} (127.0.0.1{ports[changed]}) has changed" in said
    assert not (tmp_path / "began").exists()
    assert behind.servers["first"].log().count("Accepted publickey") == before


@pytest.mark.row(116)
def test_a_server_that_is_only_a_jump_host_from_now_on_stays_known(behind: Desk) -> None:
    # Lines of servers that have left go when that of a new one is written.
    behind.configure(servers={"new": {"hostname": "first"}})
    known = behind.root / ".remote" / "known_hosts"
    for _ in range(2):
        assert "host key" not in behind.tries("run", "--cmd", "true").stderr
        assert f":{behind.servers['second'].port} " in known.read_text()


@pytest.mark.row(176)
def test_a_key_stays_known_when_the_server_that_it_was_recorded_for_gets_another_name(desk: Desk) -> None:
    servers = desk.settings()["servers"]
    desk.configure(servers={**servers, "other": servers["first"]}, keep_connections=0)
    assert "host key" not in desk.tries("run", "--server", "other", "--cmd", "true").stderr
    desk.configure(servers={"other": servers["first"]})
    desk.does("clean", "--yes")
    assert "host key" not in desk.tries("run", "--cmd", "true").stderr


@pytest.mark.row(141)
def test_before_any_password_one_question_is_about_all_new_keys_and_a_no_is_a_no(
    make_server: MakeServer, tmp_path: Path
) -> None:
    found = {name: make_server(name, PasswordAuthentication="yes") for name in ("first", "second")}
    desk = Desk(make_project(tmp_path / "project", found.values()), found)
    settings = desk.settings()["servers"]
    for each in settings.values():
        del each["private_key"]
    desk.configure(servers=settings)
    with Terminal("keys", cwd=desk.root) as terminal:
        terminal.until("Do you trust them? [y/N]: ", seconds=60)
        assert all(f"{name} (127.0.0.1:{each.port}): ssh-ed25519 " in terminal.text for name, each in found.items())
        terminal.type("n\n")
        assert terminal.end() == 4
    assert " ".join(terminal.text.split()).count("no password was sent to it") == 2
    assert not (desk.root / ".remote" / "known_hosts").exists()


@pytest.mark.row(108)
@pytest.mark.parametrize("key", ["hostname", "username"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(desk: Desk, key: str) -> None:
    servers = desk.settings()["servers"]
    servers["first"][key] = f"-oProxyCommand=touch {desk.root}/began"
    desk.configure(servers=servers, keep_connections=0)
    assert key in desk.refuses("run", "--cmd", "true", status=2)
    assert not (desk.root / "began").exists()


@pytest.mark.row(117)
def test_the_ssh_agent_is_not_forwarded(desk: Desk) -> None:
    command = 'echo "${SSH_AUTH_SOCK-none}"'
    with folder_of_sockets() as environment:
        environment["SSH_AUTH_SOCK"] = f"{environment['XDG_RUNTIME_DIR']}/agent"
        with subprocess.Popen(["ssh-agent", "-D", "-a", environment["SSH_AUTH_SOCK"]], stdout=subprocess.PIPE) as agent:
            try:
                until(Path(environment["SSH_AUTH_SOCK"]).exists, "the agent listens")
                for words in (("run",), ("job-run", "--follow"), ("shell", "--", "sh", "-c")):
                    line = [command] if "shell" in words else ["--cmd", command]
                    assert desk.does(*words, *line, environment=environment) == "none\n"
                desk.does("disconnect", environment=environment)
            finally:
                agent.kill()
