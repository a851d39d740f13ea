"""Known host keys: what a file says, and what OpenSSH says of the same file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.ssh.host_keys import known_hosts
from remote_tool.transport.ssh.host_keys.entries import HostKey, Marker, UnusableFileError, parse, read_revoked
from remote_tool.transport.ssh.host_keys.known_hosts import KnownHosts, KnownHostsFile, Reader, Verdict, lookup_names
from remote_tool.transport.ssh.host_keys.record import accept
from tests.small_disks import small_disk
from tests.sshd import make_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


def key_of(path: Path) -> HostKey:
    kind, blob = path.with_name(path.name + ".pub").read_text().split()[:2]
    entries, _ = parse(f"x {kind} {blob}".encode(), path)
    return entries[0].key


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[HostKey, HostKey]:
    folder = tmp_path_factory.mktemp("keys")
    return key_of(make_key(folder / "one")), key_of(make_key(folder / "two"))


def verdict(content: str | bytes, host: str, port: int, key: HostKey, folder: Path) -> Verdict:
    content = content.encode() if isinstance(content, str) else content
    known = KnownHosts([KnownHostsFile(parse(content, folder / "known_hosts")[0])])
    return known.check(lookup_names(host, port), key).verdict


def hashed(name: str, key: HostKey, folder: Path) -> str:
    """Let ssh-keygen hash the name."""
    file = folder / "to_hash"
    file.write_text(f"{name} {key.text}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    return file.read_text()


@pytest.mark.row(144)
def test_hashed_lines_are_searched_once_for_each_name(
    keys: tuple[HostKey, HostKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of lines for hundreds of servers take seconds; several searches for each took as many times that."""
    rounds = 0

    class Counted:
        @staticmethod
        def sha1(data: bytes) -> hashlib._Hash:
            nonlocal rounds
            rounds += 1
            return hashlib.sha1(data)

    file = tmp_path / "known_hosts"
    file.write_text("".join(f"{hash_of(f'host{number}', keys[0])}\n" for number in range(40)))
    reader = Reader(print)
    reader.read([file])
    monkeypatch.setattr(known_hosts, "hashlib", Counted)
    for _ in range(3):
        known = reader.read([file])
        assert known.check(["host7", "other"], keys[0]).verdict is Verdict.KNOWN
        assert [entry.line for entry in known.select(["host9"], Marker.TRUSTED)] == [10]
        assert known.check(["host7"], keys[1]).verdict is Verdict.CHANGED
        assert known.select(["other"], Marker.AUTHORITY) == []
    assert rounds == 3 * 40 * 2


@pytest.mark.parametrize("size", [0, 1, 20, 64, 65, 200])
def test_a_salt_of_any_size_is_that_of_an_hmac(size: int, keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    line = hash_of("host", keys[0], bytes(range(size)))
    assert verdict(line, "host", 22, keys[0], tmp_path) is Verdict.KNOWN
    assert verdict(line, "other", 22, keys[0], tmp_path) is Verdict.NEW


def hash_of(name: str, key: HostKey, salt: bytes = b"salt") -> str:
    digest = hmac.new(salt, name.encode(), "sha1").digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} {key.text}"


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    path = make_key(tmp_path / "key")
    shown = subprocess.run(["ssh-keygen", "-lf", str(path)], check=True, capture_output=True, text=True).stdout
    assert key_of(path).fingerprint == shown.split()[1]


# Row 41. GOOD and BAD stand for the server's key and another one, NAME for [127.0.0.1]:port.
TABLE = {
    "empty": "",
    "plain": "NAME GOOD",
    "plain, another key": "NAME BAD",
    "both keys": "NAME BAD\nNAME GOOD",
    "list of names": "other,NAME,third GOOD",
    "upper case": "[LOCALHOST]:PORT,NAME GOOD",
    "other port": "[127.0.0.1]:1 GOOD",
    "plain host, right key": "127.0.0.1 GOOD",
    "plain host, another key": "127.0.0.1 BAD",
    "pattern": "[127.0.0.*]:PORT GOOD",
    "pattern with question mark": "[127.0.0.?]:PORT BAD",
    "pattern that matches all": "* BAD",
    "negated": "*,!NAME BAD",
    "negated pattern": "*,![127.*]:PORT BAD",
    "only negated": "!other GOOD",
    "brackets are no class": "[0-9]27.0.0.1 GOOD",
    "hashed": "HASHED GOOD",
    "hashed, another key": "HASHED BAD",
    "hashed, other host": "HASHEDOTHER BAD",
    "revoked": "@revoked NAME GOOD\nNAME GOOD",
    "revoked for all": "@revoked * GOOD\nNAME GOOD",
    "revoked, other host": "@revoked other GOOD\nNAME GOOD",
    "revoked, another key": "@revoked NAME BAD\nNAME GOOD",
    "authority but no certificate": "@cert-authority * BAD",
    "remarks and empty lines": "# NAME BAD\n\n   \nNAME GOOD remark",
    "leading white space": "   NAME GOOD",
    "tabs": "NAME\tGOOD",
    "damaged key": "NAME ssh-ed25519 AAAA\nNAME GOOD",
    "no key": "NAME\nNAME GOOD",
    "unknown marker": "@odd NAME BAD\nNAME GOOD",
    "latin-1 remark": "NAME GOOD caf\xe9",
    "latin-1 line": "caf\xe9 BAD\nNAME GOOD",
    "no newline at the end": "NAME GOOD",
    "carriage returns": "NAME GOOD\r\nother BAD\r",
}


@pytest.mark.row(41, 42)
@pytest.mark.parametrize("case", TABLE)
def test_the_answer_is_the_one_of_openssh(
    case: str, server: TestServer, keys: tuple[HostKey, HostKey], tmp_path: Path
) -> None:
    """Known or not, by the real ssh and by us, with one file."""
    good, bad = key_of(server.host_key), keys[0]
    name = f"[127.0.0.1]:{server.port}"
    content = TABLE[case]
    for word, host in (("HASHEDOTHER", "other"), ("HASHED", name)):
        if word in content:
            content = content.replace(word, hashed(host, good, tmp_path).split()[0])
    for word, text in (("NAME", name), ("PORT", str(server.port)), ("GOOD", good.text), ("BAD", bad.text)):
        content = content.replace(word, text)
    file = tmp_path / "known_hosts"
    file.write_bytes(content.encode("latin-1") + b"\n")

    ours = verdict(file.read_bytes(), "127.0.0.1", server.port, good, tmp_path)

    assert (ours is Verdict.KNOWN) is _ssh_logs_in(server, file, "yes"), ours
    if ours is not Verdict.KNOWN:
        assert (ours is Verdict.NEW) is _ssh_logs_in(server, file, "accept-new"), ours


def _ssh_logs_in(server: TestServer, file: Path, policy: str) -> bool:
    options = {
        "StrictHostKeyChecking": policy,
        "UserKnownHostsFile": str(file),
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
    }
    command = ["ssh", "-F", "none", "-p", str(server.port), "-i", str(server.key), "-l", server.username]
    for option, value in options.items():
        command += ["-o", f"{option}={value}"]
    return subprocess.run([*command, "127.0.0.1", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.row(39)
def test_a_host_known_by_another_type_of_key_is_not_new(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """Stricter than OpenSSH, which would take the second type at the first contact."""
    path = tmp_path / "ecdsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(path)], check=True)
    assert verdict(f"host {key_of(path).text}", "host", 22, keys[0], tmp_path) is Verdict.CHANGED


def test_names_are_written_as_openssh_does() -> None:
    assert lookup_names("Host.Example", 22) == ("host.example",)
    assert lookup_names("host", 2222) == ("[host]:2222", "host")
    assert lookup_names("::1", 2222)[0] == "[::1]:2222"
    assert lookup_names("host", 2222, "Alias") == ("alias",)


@pytest.mark.row(42)
def test_each_bad_line_is_named_once_and_the_others_count(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """File and line, and why."""
    good = keys[0]
    file = tmp_path / "known_hosts"
    lines = [
        b"one " + good.text.encode(),
        b"two ssh-ed25519 !!!",
        b"caf\xe9 " + good.text.encode(),
        b"@odd three " + good.text.encode(),
        b"four",
        b"|1|bad|hash " + good.text.encode(),
        b"five " + good.text.encode(),
    ]
    file.write_bytes(b"\n".join(lines))
    told: list[str] = []
    reader = Reader(told.append)

    for _ in range(2):
        known = reader.read([file, tmp_path / "missing"])
        assert known.check(("one",), good).verdict is Verdict.KNOWN
        assert known.check(("five",), good).verdict is Verdict.KNOWN
        assert known.check(("two",), good).verdict is Verdict.DAMAGED
        assert known.check(("four",), good).verdict is Verdict.DAMAGED
        assert known.check(("three",), good).verdict is Verdict.NEW

    assert told == [
        f"{file}:2: the ssh-ed25519 key is damaged; the line is skipped",
        f"{file}:3: the host name 'caf\\xe9' is not ASCII; the line is skipped",
        f"{file}:4: unknown marker '@odd'; the line is skipped",
        f"{file}:5: no key; the line is skipped",
        f"{file}:6: the hashed host name is damaged; the line is skipped",
    ]


def test_a_changed_file_is_read_again(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    reader = Reader(lambda _: None)
    assert reader.read([file]).check(("host",), keys[0]).verdict is Verdict.NEW
    accept(file, "host", keys[0])
    assert reader.read([file]).check(("host",), keys[0]).verdict is Verdict.KNOWN


@pytest.mark.row(39)
def test_an_accepted_key_is_one_line_for_us_alone(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    assert accept(file, "[host]:2222", keys[0]).verdict is Verdict.NEW
    assert accept(file, "[host]:2222", keys[0]).verdict is Verdict.KNOWN
    assert accept(file, "[host]:2222", keys[1]).verdict is Verdict.CHANGED

    assert file.read_text() == f"[host]:2222 {keys[0].text}\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_line_without_newline_is_not_glued_to_the_next(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"one {keys[0].text}")
    accept(file, "two", keys[1])
    assert file.read_text().splitlines() == [f"one {keys[0].text}", f"two {keys[1].text}"]


@pytest.mark.row(39)
def test_twenty_first_connects_at_once_write_one_line(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """Each opens the file for itself, so the lock is as between processes."""
    file = tmp_path / "known_hosts"
    ready = threading.Barrier(20)

    def connect(_: int) -> Verdict:
        ready.wait()
        return accept(file, "host", keys[0]).verdict

    with ThreadPoolExecutor(20) as threads:
        verdicts = list(threads.map(connect, range(20)))
    assert sorted(verdicts, key=str) == [Verdict.KNOWN] * 19 + [Verdict.NEW]
    assert file.read_text() == f"host {keys[0].text}\n"


@pytest.mark.row(109)
def test_a_link_in_place_of_the_file_is_not_followed(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """A project from elsewhere may hold one."""
    other = tmp_path / "authorized_keys"
    other.write_text("")
    file = tmp_path / "known_hosts"
    file.symlink_to(other)
    with pytest.raises(UnusableFileError, match="cannot be recorded"):
        accept(file, "host", keys[0])
    assert other.read_text() == ""


@pytest.mark.row(29)
def test_a_full_disk_leaves_no_half_line(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """A file system with room for nothing more."""
    with small_disk(tmp_path / "small", "size=4k") as folder:
        file = folder / "known_hosts"
        file.write_text("# " + "x" * 4060 + "\n")
        before = file.read_bytes()
        with pytest.raises(UnusableFileError, match="No space left"):
            accept(file, "host", keys[0])
        assert file.read_bytes() == before


@pytest.mark.row(51)
def test_revoked_keys_of_a_file(keys: tuple[HostKey, HostKey], tmp_path: Path) -> None:
    """RevokedHostKeys is honoured, or refused where we cannot read it; never left out."""
    file = tmp_path / "revoked"
    file.write_text(f"# gone\n{keys[0].text} remark\n")
    assert read_revoked(file) == {keys[0]}
    binary = tmp_path / "krl"
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(binary), str(file)], check=True)
    for unusable in (binary, tmp_path / "missing"):
        with pytest.raises(UnusableFileError, match="RevokedHostKeys"):
            read_revoked(unusable)
