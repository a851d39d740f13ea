"""The example and the page about the configuration are right, and complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from remote_tool.config.artifacts import LIMIT_KEYS, PATTERN_KEYS
from remote_tool.config.data_sets import KEYS as DATA_KEYS
from remote_tool.config.environment import INSTALLER_KEYS, Environment, EnvironmentKind, Installer
from remote_tool.config.keys import keys_of
from remote_tool.config.loading import parse
from remote_tool.config.model import Config, HostKeyPolicy
from remote_tool.config.reference import with_keys
from remote_tool.config.servers import Server
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.workflows.servers.init import EXCLUDES

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / ".remote.example"
PAGE = REPOSITORY / "docs" / "configuration.md"
ROOT = Path("/home/me/my_project")
DECLARED = [*keys_of(Config), *keys_of(Server), *keys_of(Environment)]
KEYS = (*DECLARED, *DATA_KEYS, *INSTALLER_KEYS, *PATTERN_KEYS, *LIMIT_KEYS)


def read(text: str) -> Config:
    return parse(text.encode(), ROOT / ".remote/configs.yaml", ROOT)


def examples() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_is_a_configuration_with_the_defaults() -> None:
    config = read((EXAMPLE / "configs.yaml").read_text())
    plain = read("servers: {first: {hostname: a}}")
    assert list(config.servers) == ["first", "second"]
    assert (config.local, config.remote) == (LocalPaths(ROOT), RemotePaths("my_project"))
    assert (config.environment, config.host_keys) == (plain.environment, plain.host_keys)


def commented_keys() -> list[str]:
    """Return the example once for each key behind a comment, with that one taken in, and the lines below it."""
    lines = (EXAMPLE / "configs.yaml").read_text().splitlines(keepends=True)
    found = []
    for number, line in enumerate(lines):
        if key := re.match(r"( *)# [a-z_]+:(?: |$)", line):
            below = re.compile(rf"{key[1]}#  +\S")
            end = number + 1
            while end < len(lines) and below.match(lines[end]):
                end += 1
            taken = [each.replace("# ", "", 1) for each in lines[number:end]]
            found.append("".join([*lines[:number], *taken, *lines[end:]]))
    return found


def test_what_the_example_has_behind_a_comment_is_right_too() -> None:
    """Each key that is commented out can be taken in."""
    plain = read((EXAMPLE / "configs.yaml").read_text())
    configs = [read(text) for text in commented_keys()]
    assert len(configs) > 25
    assert [config for config in configs if config == plain] == []


@pytest.mark.parametrize("file", [EXAMPLE / "configs.yaml", PAGE], ids=["example", "page"])
def test_every_key_is_explained(file: Path) -> None:
    text = file.read_text()
    words = [*KEYS, *EnvironmentKind, *HostKeyPolicy]
    assert [word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)] == []


@pytest.mark.parametrize("text", examples())
def test_every_example_of_the_page_is_a_configuration(text: str) -> None:
    assert isinstance(read(text), Config)


def test_the_page_has_a_row_for_every_key_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(?:[^|\n]*\|){2}$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(DECLARED)


def test_the_rows_of_the_page_are_the_declarations() -> None:
    page = PAGE.read_text()
    assert with_keys(page) == page, "run: python -m remote_tool.config.reference"


def test_the_defaults_on_the_page_are_the_real_ones() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE))
    local, remote = LocalPaths(ROOT), RemotePaths("x")
    assert rows == {
        "environment": read("").environment.kind,
        "host_keys": read("").host_keys,
        "log_limit": f"{read('').log_limit // 1024**3}GB",
        "lost_after": f"{read('').lost_after:g}",
        "idle_after": f"{read('').idle_after:g}",
        "snapshots": read("").snapshots,
        "internet": read("").internet,
        "stop_signal": read("").stop_signal,
        "respect_gitignore": str(read("").respect_gitignore).lower(),
        "keep_connections": f"{read('').keep_connections // 60}m",
        "artifact_limit": "{{file: {}GB, job: {}GB}}".format(
            *(size // 1024**3 for size in dataclasses.astuple(read("").artifact_limit))
        ),
        "channels": f"[{', '.join(read('').environment.channels)}]",
        "jobs_folder": local.jobs_folder,
        "logs_folder": local.logs_folder,
        "exclude_file": local.exclude,
        "remote_scripts_folder_name": remote.scripts_name,
        "remote_jobs_folder_name": remote.jobs_name,
    }


def test_every_value_of_the_model_has_a_key() -> None:
    """So that none can be forgotten in the file, the example and the page."""
    assert {field.name for field in dataclasses.fields(Server)} == {"name", "project", "is_listed", *keys_of(Server)}
    assert {field.name for field in dataclasses.fields(Installer)} == set(INSTALLER_KEYS)
    assert {field.name for field in dataclasses.fields(Config)} - {"local", "remote", "listed"} < set(keys_of(Config))


def test_the_example_leaves_out_what_init_leaves_out() -> None:
    assert (EXAMPLE / "exclude.txt").read_text() == EXCLUDES
