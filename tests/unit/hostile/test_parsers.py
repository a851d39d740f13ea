"""Everything that is read from a server or a file: cut at every byte, with bits turned, and made up.

Whatever comes, the answer is a value or the one error of that reader, in bounded time and memory.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.config import loading
from remote_tool.environments.activation import Activation
from remote_tool.environments.facts import parse_facts
from remote_tool.errors import ConfigError, EnvironmentSetupError, JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.jobs.record_file import format_record, read_record
from remote_tool.jobs.records import parse_job
from remote_tool.protocol import strict_json
from remote_tool.protocol.framing import NOISE_LIMIT, FrameReader, FramingError, encode
from remote_tool.protocol.records import RecordError, encode_record, parse_record
from remote_tool.transport.ssh.host_keys import entries as known_hosts
from remote_tool.transport.sync.server_state import parse_state
from remote_tool.workflows.jobs.failures import first_failure
from remote_tool.workflows.launch import node_facts, rendezvous
from tests.extended.hostile.test_jobs import entry
from tests.figures import record_figure
from tests.unit.protocol.test_records import RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NONCE = "0123456789abcdef"
ID = "20261121-053000-0123456789abcdef0123456789abcdef"
FLIPS = 1500
JOB = Job(1, ID, "bad", "python train.py", JobState.FAILED, ("sweep",), exit_code=1, created_at=1.5e9, started_at=1.6e9)
FACTS = b"".join(
    b"%s=%s\0" % pair
    for pair in (
        (b"home", b"/home/me"),
        (b"machine", b"x86_64"),
        (b"system", b"Linux"),
        (b"uid", b"1000"),
        (b"libc", b"glibc"),
        (b"free", b"123456"),
        (b"interpreter", b"3.11.7 1 /usr/bin/python3"),
        (b"activation", b'{"schema": 1, "kind": "venv"}'),
        (b"probed", b"yes"),
        (b"end", b""),
    )
)
ACTIVATION = json.dumps(
    {
        "schema": 1,
        "kind": "venv",
        "prefix": "/p",
        "python": "/p/bin/python",
        "version": "3.11.7",
        "tool": "",
        "wish": {"channels": [], "prefix": ""},
        "variables": {"A": "1"},
        "unset": ["B"],
        "path": ["/p/bin"],
    }
).encode()
KNOWN_HOSTS = (
    b"# comment\n@revoked * ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJYC4m1Vbgu4b7oXrhQbQGtOQwzFsYyFt0bhRZtPsrGP\n"
    b"[127.0.0.1]:2222,other ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJYC4m1Vbgu4b7oXrhQbQGtOQwzFsYyFt0bhRZtPsrGP x\n"
    b"|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-ed25519 "
    b"AAAAC3NzaC1lZDI1NTE5AAAAIJYC4m1Vbgu4b7oXrhQbQGtOQwzFsYyFt0bhRZtPsrGP\n"
)
CONFIGURATION = (
    b"name: project\nservers:\n  gpu1: {hostname: 10.0.0.5, port: 22}\n  gpu2:\n    hostname: h\npython: '3.11'\n"
)
STATE = b"complete abc\n12 1500000000 src/train.py\x0034 -5 data/a b\x005 6 folder/\x00"
LAUNCH = json.dumps(
    {
        "python": "3.11.7",
        "torch": "2.13.0",
        "gpus": 2,
        "addresses": [{"address": "10.0.0.5", "interface": "eth0"}],
        "ssh_server_address": "10.0.0.5",
        "results": [{"address": "10.0.0.5", "ok": True, "local_address": "10.0.0.6", "interface": "eth0"}],
    }
).encode()


def read_frames(text: bytes, _folder: Path) -> None:
    FrameReader(NONCE).feed(text)


def read_record_of_a_server(name: str, text: bytes, _folder: Path) -> None:
    parse_record(name, text, RECORDS[name]["id"])


def read_local_record(text: bytes, folder: Path) -> None:
    file = folder / ID / "job.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text)
    read_record(file)


def read_answer(text: bytes, _folder: Path) -> None:
    parse_job(strict_json.parse(text), "bad", 1.0)


def read_launch(text: bytes, _folder: Path) -> None:
    answer = strict_json.parse(text)
    if isinstance(answer, dict):
        for read in (node_facts.read_facts, rendezvous._read_routes):
            try:
                read("bad", answer)
            except JobError:
                continue


def read_errors(text: bytes, folder: Path) -> None:
    """What a rank wrote when it failed, and what torchrun said about it."""
    logs = folder / ID
    (logs / "ranks" / "0" / "0").mkdir(parents=True, exist_ok=True)
    (logs / "ranks" / "0" / "0" / "error").write_bytes(text)
    (logs / "job.err").write_bytes(b"Root Cause (first observed failure)\n" + text)
    assert first_failure([JOB], folder) is not None


READERS: dict[str, tuple[bytes, Callable[[bytes, Path], object], tuple[type[Exception], ...]]] = {
    "frames": (encode(NONCE, {"job": ID, "offset": 0}, b"bytes") * 2, read_frames, (FramingError,)),
    **{
        name: (encode_record(record), partial(read_record_of_a_server, name), (RecordError,))
        for name, record in RECORDS.items()
    },
    "answer about a job": (json.dumps(entry(ID)).encode(), read_answer, (JobError, ValueError)),
    "record here": (format_record(JOB), read_local_record, (JobError,)),
    "configs.yaml": (CONFIGURATION, lambda text, folder: loading.parse(text, folder / "c", folder), (ConfigError,)),
    "known_hosts": (KNOWN_HOSTS, known_hosts.parse, ()),
    "facts": (FACTS, lambda text, _: parse_facts("bad", text), (EnvironmentSetupError,)),
    "activation": (ACTIVATION, lambda text, _: Activation.parse(text.decode(errors="surrogateescape")), ()),
    "sent files": (STATE, lambda text, _: parse_state(text), ()),
    "launch": (LAUNCH, read_launch, (ValueError,)),
    "error of a rank": (
        b'{"message": {"message": "x", "extraInfo": {"py_callstack": "y", "timestamp": "1"}}}',
        read_errors,
        (),
    ),
}
WORDS = st.sampled_from(
    [
        b"\0",
        b"\n",
        b" ",
        b"-",
        b"9" * 30,
        b"9" * 5000,
        b"1e999",
        b"NaN",
        b"[" * 3000,
        b"{",
        b"}",
        b'"',
        b"null",
        b"true",
        b"\\ud800",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just("x" * 5000)
    | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.row(106, 123)
@pytest.mark.parametrize("name", READERS)
def test_a_cut_at_any_byte_is_a_value_or_the_readers_own_error(name: str, tmp_path: Path) -> None:
    sample, read, refused = READERS[name]
    read(sample, tmp_path)
    for end in range(len(sample)):
        _try(read, sample[:end], tmp_path, refused)
    record_figure("texts cut at every byte", len(sample))


@pytest.mark.row(106, 123)
@pytest.mark.parametrize("name", READERS)
def test_turned_bits_and_put_in_words_are_a_value_or_the_readers_own_error(name: str, tmp_path: Path) -> None:
    sample, read, refused = READERS[name]
    chosen = random.Random(7)
    words = [b"\0", b"9" * 5000, b"1e999", b"NaN", b"[" * 3000, b"}", b'"', b"null", b"\\ud800", b"\xff", b"-"]
    for turn in range(FLIPS):
        text = bytearray(sample)
        place = chosen.randrange(len(text))
        if turn % 3:
            text[place] ^= 1 << chosen.randrange(8)
        else:
            text[place : place + chosen.randrange(8)] = chosen.choice(words)
        _try(read, bytes(text), tmp_path, refused)
    record_figure("texts with turned bits", FLIPS)


@pytest.mark.row(106)
@pytest.mark.parametrize("name", READERS)
def test_made_up_text_is_a_value_or_the_readers_own_error(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    sample, read, refused = READERS[name]
    folder = tmp_path_factory.mktemp("made-up")

    @given(st.binary(max_size=60) | st.lists(WORDS, max_size=6).map(b"".join), st.integers(0, len(sample)))
    def check(text: bytes, place: int) -> None:
        _try(read, text, folder, refused)
        _try(read, sample[:place] + text + sample[place:], folder, refused)

    check()
    record_figure("texts made up", 200)


@pytest.mark.row(106)
@given(st.dictionaries(st.sampled_from([*json.loads(LAUNCH), "x"]), json_values | st.lists(json_values, max_size=2)))
def test_any_facts_of_a_launch_are_read_or_refused(answer: dict[str, object]) -> None:
    for read in (node_facts.read_facts, rendezvous._read_routes):
        try:
            read("bad", answer)
        except JobError:
            continue


@pytest.mark.slow
@pytest.mark.row(106, 120)
def test_endless_text_fills_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(NONCE)
        while reader.noise <= NOISE_LIMIT - (1 << 18):
            reader.feed(bytes(1 << 18))
        with pytest.raises(FramingError, match="no answer"):
            reader.feed(bytes(1 << 19))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def _try(
    read: Callable[[bytes, Path], object], text: bytes, folder: Path, refused: tuple[type[Exception], ...]
) -> None:
    with suppress(*refused):
        read(text, folder)
