"""Plans: facts and a wish in, steps or a refusal out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from remote_tool.config.environment import Environment, EnvironmentKind, Installer
from remote_tool.config.model import Config
from remote_tool.environments.activation import Activation
from remote_tool.environments.choice import is_fulfilled, plan_environment, require_own_folders, require_rsync
from remote_tool.environments.facts import Interpreter, ServerFacts, version_matches
from remote_tool.environments.installers import choose_installer, plan_download
from remote_tool.errors import EnvironmentSetupError
from remote_tool.paths import LocalPaths, RemotePaths

BARE = ServerFacts("gpu1", "/home/u", "x86_64", "Linux", 1000, distribution="ubuntu debian", free_kilobytes=10_000_000)
PYTHON = Interpreter("/usr/bin/python3.11", "3.11.2", makes_environments=True)


def config(kind: EnvironmentKind, python: str | None = "3.11", **environment: object) -> Config:
    wished = Environment(kind, **environment)  # type: ignore[arg-type]
    local, remote = LocalPaths(Path("/p")), RemotePaths("project")
    return Config(name="project", servers={}, local=local, remote=remote, python=python, environment=wished)


def names(wished: Config, facts: ServerFacts) -> list[str]:
    return [step.name for step in plan_environment(wished, facts).steps]


def refusal(wished: Config, facts: ServerFacts) -> EnvironmentSetupError:
    with pytest.raises(EnvironmentSetupError) as caught:
        plan_environment(wished, facts)
    return caught.value


def test_a_conda_that_is_there_is_used() -> None:
    facts = replace(BARE, condas=("/opt/conda/bin/conda",))
    plan = plan_environment(config(EnvironmentKind.MINICONDA), facts)
    assert [step.name for step in plan.steps] == ["environment"]
    assert plan.installer is None
    assert "/opt/conda/bin/conda create -y" in plan.steps[0].script


def test_a_server_without_conda_gets_one() -> None:
    plan = plan_environment(config(EnvironmentKind.MINICONDA), BARE)
    assert [step.name for step in plan.steps] == ["conda", "environment"]
    assert plan.installer is not None
    assert plan.installer.url == "https://repo.anaconda.com/miniconda/Miniconda3-py312_26.5.3-1-Linux-x86_64.sh"


def test_no_channels_but_the_configured_ones_are_asked() -> None:
    """Nobody's terms are accepted behind the user's back."""
    plan = plan_environment(config(EnvironmentKind.MINIFORGE, channels=("conda-forge", "my channel")), BARE)
    assert "--override-channels -c conda-forge -c 'my channel' python=3.11" in plan.steps[-1].script


@pytest.mark.row(118)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("kind", [EnvironmentKind.MINICONDA, EnvironmentKind.MINIFORGE])
def test_pinned_installers_are_exact_https_and_have_a_checksum(kind: EnvironmentKind, machine: str) -> None:
    """No ``latest``."""
    installer = choose_installer(Environment(kind), replace(BARE, machine=machine))
    assert installer.url.startswith("https://")
    assert "latest" not in installer.url
    assert machine in installer.name
    assert len(installer.sha256) == 64


@pytest.mark.row(118)
def test_a_download_by_https_stays_https() -> None:
    step = plan_download(choose_installer(Environment(), BARE))
    assert "protocols==https\n" in step.script


def test_a_configured_installer_replaces_the_pinned_one() -> None:
    wished = Installer(sha256="AB" * 32, url="https://mirror.example/some%20dir/My-Installer.sh?key=1")
    installer = choose_installer(Environment(installer=wished), replace(BARE, machine="riscv64"))
    assert (installer.name, installer.sha256) == ("My-Installer.sh", "ab" * 32)


@pytest.mark.parametrize("facts", [replace(BARE, machine="riscv64"), replace(BARE, libc="musl")])
def test_a_machine_without_an_installer_is_refused_with_another_way(facts: ServerFacts) -> None:
    error = refusal(config(EnvironmentKind.MINICONDA), facts)
    assert "gpu1" in error.message
    assert "venv" in error.hint


def test_too_little_room_for_conda_is_said_before_it_begins() -> None:
    error = refusal(config(EnvironmentKind.MINICONDA), replace(BARE, free_kilobytes=200_000))
    assert "has 195.3 MiB free" in error.message


def test_venv_takes_the_wished_version() -> None:
    other = Interpreter("/usr/bin/python3.12", "3.12.1", makes_environments=True)
    facts = replace(BARE, pythons=(other, PYTHON))
    assert "/usr/bin/python3.11 -m venv" in plan_environment(config(EnvironmentKind.VENV), facts).steps[0].script


def test_venv_without_the_version_names_what_is_there_and_what_to_install() -> None:
    error = refusal(config(EnvironmentKind.VENV, "3.12"), replace(BARE, pythons=(PYTHON,)))
    assert error.message == "gpu1 has no Python 3.12 for a venv; it has: 3.11.2"
    assert error.hint.startswith("on gpu1: sudo apt-get install python3.12 python3.12-venv;")


def test_a_python_without_venv_names_the_package() -> None:
    facts = replace(BARE, pythons=(replace(PYTHON, makes_environments=False),))
    error = refusal(config(EnvironmentKind.VENV), facts)
    assert "cannot create a venv" in error.message
    assert error.hint == "on gpu1: sudo apt-get install python3.11-venv; or set environment to uv or miniconda"


def test_uv_helps_a_python_without_venv() -> None:
    facts = replace(BARE, pythons=(replace(PYTHON, makes_environments=False),), uv="/usr/bin/uv")
    assert "/usr/bin/uv venv" in plan_environment(config(EnvironmentKind.VENV), facts).steps[0].script


def test_uv_is_installed_only_where_it_is_missing() -> None:
    assert names(config(EnvironmentKind.UV), replace(BARE, uv="/usr/bin/uv")) == ["environment"]
    assert names(config(EnvironmentKind.UV), replace(BARE, pythons=(PYTHON,))) == ["uv", "environment"]


def test_uv_without_any_python_is_refused_with_another_way() -> None:
    error = refusal(config(EnvironmentKind.UV), BARE)
    assert "no uv" in error.message
    assert "miniconda" in error.hint


@pytest.mark.row(33)
def test_a_python_too_old_for_the_supervisor_is_refused() -> None:
    assert "3.8" in refusal(config(EnvironmentKind.MINICONDA, "3.7"), BARE).message
    existing = replace(BARE, existing=Interpreter("/e/bin/python", "3.6.8", makes_environments=False))
    assert "3.6.8" in refusal(config(EnvironmentKind.EXISTING, None, prefix="/e"), existing).message


def test_an_existing_prefix_without_python_is_refused() -> None:
    assert "/e/bin/python" in refusal(config(EnvironmentKind.EXISTING, None, prefix="/e"), BARE).message


def test_an_existing_prefix_of_another_version_is_refused() -> None:
    facts = replace(BARE, existing=PYTHON)
    error = refusal(config(EnvironmentKind.EXISTING, "3.12", prefix="/e"), facts)
    assert "3.11.2" in error.message
    assert "3.12" in error.message


def test_an_existing_prefix_is_recorded_and_nothing_in_it_is_changed() -> None:
    plan = plan_environment(config(EnvironmentKind.EXISTING, None, prefix="/e"), replace(BARE, existing=PYTHON))
    assert [step.name for step in plan.steps] == ["environment"]
    assert "rm -rf" not in plan.steps[0].script


@pytest.mark.row(119)
def test_no_plan_needs_root() -> None:
    """Sudo is a word of hints only."""
    for kind in (EnvironmentKind.MINICONDA, EnvironmentKind.MINIFORGE, EnvironmentKind.VENV, EnvironmentKind.UV):
        for step in plan_environment(config(kind), replace(BARE, pythons=(PYTHON,))).steps:
            assert "sudo" not in step.script


def test_a_server_without_rsync_is_told_how_to_get_it() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        require_rsync(BARE)
    assert (caught.value.message, caught.value.hint) == (
        "rsync is not installed on gpu1",
        "on gpu1: sudo apt-get install rsync",
    )


@pytest.mark.row(113)
@pytest.mark.parametrize("reason", ["link", "file", "owner"])
def test_a_folder_that_is_a_trap_is_refused(reason: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"project/\.remote-scripts"):
        require_own_folders(replace(BARE, bad_folders=(f"{reason}:project/.remote-scripts",)))


FINISHED = replace(
    BARE,
    environment_python="3.11.2",
    activation=Activation("venv", "/e", "/e/bin/python", "3.11.2"),
)


def test_a_finished_environment_fulfils_the_wish() -> None:
    assert is_fulfilled(config(EnvironmentKind.VENV), FINISHED)
    assert is_fulfilled(config(EnvironmentKind.VENV, "3.11.2"), FINISHED)


def test_without_a_configured_version_any_will_do() -> None:
    assert is_fulfilled(config(EnvironmentKind.VENV, None), FINISHED)


@pytest.mark.parametrize(
    ("wished", "facts"),
    [
        (config(EnvironmentKind.VENV, "3.12"), FINISHED),
        (config(EnvironmentKind.VENV, "3.1"), FINISHED),
        (config(EnvironmentKind.UV), FINISHED),
        (config(EnvironmentKind.VENV), replace(FINISHED, activation=None)),
        (config(EnvironmentKind.VENV), replace(FINISHED, environment_python="")),
        (config(EnvironmentKind.VENV), replace(FINISHED, environment_python="3.12.1")),
        (config(EnvironmentKind.EXISTING, prefix="/f"), FINISHED),
    ],
    ids=["version", "shorter version", "kind", "not finished", "does not start", "upgraded", "prefix"],
)
def test_another_wish_or_a_broken_environment_is_done_again(wished: Config, facts: ServerFacts) -> None:
    assert not is_fulfilled(wished, facts)


def test_other_channels_are_another_wish() -> None:
    activation = Activation("miniconda", "/e", "/e/bin/python", "3.11.2", channels=("conda-forge",))
    facts = replace(FINISHED, activation=activation)
    assert is_fulfilled(config(EnvironmentKind.MINICONDA), facts)
    assert not is_fulfilled(config(EnvironmentKind.MINICONDA, channels=("other",)), facts)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 2}', '{"schema": 1, "kind": "venv"}', '"x"'])
def test_a_record_that_cannot_be_read_is_not_finished(text: str) -> None:
    assert Activation.parse(text) is None


def test_versions_are_compared_by_their_parts() -> None:
    assert version_matches("3.11.2", "3.11")
    assert not version_matches("3.11.2", "3.1")
    assert not version_matches("3.1.2", "3.11")
