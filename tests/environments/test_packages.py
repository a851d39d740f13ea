"""Which package file counts, and what makes packages be installed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.config.model import EnvironmentKind
from remote_tool.environments.activation import Activation
from remote_tool.environments.packages import find_package_file, fingerprint
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from pathlib import Path

ACTIVATION = Activation("venv", "/e", "/e/bin/python", "3.11.2")


def print_of(root: Path, activation: Activation = ACTIVATION) -> str:
    file = find_package_file(root, EnvironmentKind.VENV)
    assert file is not None
    return fingerprint(file, activation)


def test_the_first_of_the_files_counts_and_the_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "Pipfile").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "environment.yml").touch()
    for name in ("requirements.txt", "Pipfile", "pyproject.toml", "environment.yml"):
        file = find_package_file(tmp_path, EnvironmentKind.MINICONDA)
        assert file is not None
        assert file.name == name
        assert name not in file.ignored
        assert len(file.ignored) == len(list(tmp_path.iterdir())) - 1
        (tmp_path / name).unlink()
    assert find_package_file(tmp_path, EnvironmentKind.MINICONDA) is None


def test_a_pyproject_with_settings_of_tools_only_is_no_package_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert find_package_file(tmp_path, EnvironmentKind.VENV) is None


def test_environment_yml_is_for_conda_only(tmp_path: Path) -> None:
    (tmp_path / "environment.yaml").touch()
    assert find_package_file(tmp_path, EnvironmentKind.VENV) is None
    file = find_package_file(tmp_path, EnvironmentKind.MINIFORGE)
    assert file is not None
    assert file.name == "environment.yaml"


def test_a_broken_pyproject_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(EnvironmentSetupError, match=r"pyproject\.toml: .*line 1"):
        find_package_file(tmp_path, EnvironmentKind.VENV)


def test_included_files_count_wherever_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "-r deep/a.txt\n--constraint=limits.txt\n-r https://x/y.txt\n-r ../z.txt\n"
    )
    (tmp_path / "deep" / "a.txt").write_text("  -c ../more.txt # why\n-r a.txt\nb\n")
    (tmp_path / "limits.txt").touch()
    (tmp_path / "more.txt").touch()
    file = find_package_file(tmp_path, EnvironmentKind.VENV)
    assert file is not None
    assert set(file.digests) == {"requirements.txt", "deep/a.txt", "limits.txt", "more.txt"}


@pytest.mark.parametrize("changed", ["requirements.txt", "deep.txt"])
def test_a_changed_byte_in_any_of_them_changes_the_fingerprint(tmp_path: Path, changed: str) -> None:
    (tmp_path / "requirements.txt").write_text("-r deep.txt\n")
    (tmp_path / "deep.txt").write_text("a\n")
    before = print_of(tmp_path)
    assert print_of(tmp_path) == before
    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "\n")
    assert print_of(tmp_path) != before


@pytest.mark.parametrize(("name", "beside"), [("Pipfile", "Pipfile.lock"), ("pyproject.toml", "setup.py")])
def test_what_lies_beside_counts_too(tmp_path: Path, name: str, beside: str) -> None:
    (tmp_path / name).write_text("[project]\n")
    before = print_of(tmp_path)
    (tmp_path / beside).touch()
    assert print_of(tmp_path) != before


def test_another_environment_changes_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    others = [
        Activation("uv", "/e", "/e/bin/python", "3.11.2"),
        Activation("venv", "/f", "/f/bin/python", "3.11.2"),
        Activation("venv", "/e", "/e/bin/python", "3.11.3"),
    ]
    assert len({print_of(tmp_path, activation) for activation in [ACTIVATION, *others]}) == 4


@pytest.mark.row(119)
def test_hashes_in_any_file_are_required_of_all(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text("a==1 --hash=sha256:00\n")
    file = find_package_file(tmp_path, EnvironmentKind.VENV)
    assert file is not None
    assert file.has_hashes
