"""Which package file counts, and what triggers a reinstall of packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.activation import Activation
from remote_tool.environments.package_files import PackageInstaller, Packages, find_packages
from remote_tool.environments.packages import fingerprint
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from pathlib import Path

ACTIVATION = Activation("venv", "/e", "/e/bin/python", "3.11.2")


def packages_of(root: Path, *named: str, kind: EnvironmentKind = EnvironmentKind.VENV) -> Packages:
    return find_packages(root, kind, named or None)


def print_of(root: Path, activation: Activation = ACTIVATION) -> str:
    packages = packages_of(root)
    assert packages.sources
    return fingerprint(packages, activation)


def reasons_of(packages: Packages) -> dict[str, str]:
    assert packages.sources == ()
    return {each.name: each.reason for each in packages.unusable}


def write(root: Path, **files: str) -> Path:
    """Write files; a name has two underscores for a slash, and one for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_first_of_the_files_counts_and_the_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "Pipfile").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "environment.yml").touch()
    for name in ("requirements.txt", "Pipfile", "pyproject.toml", "environment.yml"):
        packages = packages_of(tmp_path, kind=EnvironmentKind.MINICONDA)
        assert packages.name == name
        assert name not in packages.ignored
        assert len(packages.ignored) == len(list(tmp_path.iterdir())) - 1
        (tmp_path / name).unlink()
    assert packages_of(tmp_path, kind=EnvironmentKind.MINICONDA) == Packages()


@pytest.mark.row(178)
def test_a_pyproject_with_settings_of_tools_only_is_said_not_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert reasons_of(packages_of(tmp_path)) == {"pyproject.toml": "it has no [project] section"}
    (tmp_path / "requirements.txt").touch()
    assert packages_of(tmp_path).ignored == ()


@pytest.mark.row(178)
def test_environment_yml_is_for_conda_only_and_the_reason_says_so(tmp_path: Path) -> None:
    (tmp_path / "environment.yaml").touch()
    for kind in (EnvironmentKind.VENV, EnvironmentKind.UV, EnvironmentKind.EXISTING):
        why = reasons_of(packages_of(tmp_path, kind=kind))["environment.yaml"]
        assert why == f"it requires environment: miniconda or miniforge, and this environment is {kind}"
    assert packages_of(tmp_path, kind=EnvironmentKind.MINIFORGE).name == "environment.yaml"


POETRY = '[tool.poetry]\nname = "x"\nversion = "1"\n[build-system]\nrequires = ["poetry-core"]\n'
PROJECT = '[project]\nname = "x"\nversion = "1"\n'


@pytest.mark.row(178)
@pytest.mark.parametrize(
    ("files", "name", "installer"),
    [
        ({"pyproject_toml": POETRY}, "pyproject.toml", PackageInstaller.PIP),
        ({"pyproject_toml": POETRY, "poetry_lock": ""}, "poetry.lock", PackageInstaller.POETRY),
        (
            {"pyproject_toml": POETRY.replace("name", "package-mode = false\nname")},
            "pyproject.toml",
            PackageInstaller.POETRY,
        ),
        ({"pyproject_toml": PROJECT, "uv_lock": ""}, "uv.lock", PackageInstaller.UV),
        ({"pyproject_toml": PROJECT, "poetry_lock": ""}, "pyproject.toml", PackageInstaller.PIP),
        ({"setup_py": ""}, "setup.py", PackageInstaller.PIP),
        ({"setup_py": "", "pyproject_toml": "[tool.black]\n"}, "setup.py", PackageInstaller.PIP),
        ({"setup_cfg": "[metadata]\nname = x\n"}, "setup.cfg", PackageInstaller.PIP),
        ({"requirements__all_txt": ""}, "requirements/all.txt", PackageInstaller.PIP),
    ],
    ids=str,
)
def test_projects_of_every_kind_are_installed(
    tmp_path: Path, files: dict[str, str], name: str, installer: PackageInstaller
) -> None:
    packages = packages_of(write(tmp_path, **files))
    assert (packages.name, packages.sources[0].installer) == (name, installer)
    assert name in packages.digests


@pytest.mark.row(178)
@pytest.mark.parametrize(
    ("files", "name", "why"),
    [
        ({"pdm_lock": ""}, "pdm.lock", "pdm export"),
        ({"pixi_toml": ""}, "pixi.toml", "pixi"),
        ({"pyproject_toml": "[tool.pixi]\n"}, "pyproject.toml", "pixi"),
        (
            {"requirements__a_txt": "", "requirements__b_txt": ""},
            "requirements/a.txt, requirements/b.txt",
            "packages: [",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_installed_is_named_with_the_reason(
    tmp_path: Path, files: dict[str, str], name: str, why: str
) -> None:
    assert why in reasons_of(packages_of(write(tmp_path, **files)))[name]


def test_a_lock_of_pdm_is_named_as_ignored(tmp_path: Path) -> None:
    packages = packages_of(write(tmp_path, pyproject_toml=PROJECT, pdm_lock=""))
    assert (packages.name, packages.ignored) == ("pyproject.toml", ("pdm.lock",))


def test_settings_of_tools_in_setup_cfg_are_no_project(tmp_path: Path) -> None:
    assert packages_of(write(tmp_path, setup_cfg="[flake8]\n")) == Packages()


@pytest.mark.row(178)
def test_the_configuration_names_files_and_folders(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="x", deep__a_txt="--hash=sha256:0", deep__b_txt="", lib__pyproject_toml=PROJECT)
    packages = packages_of(tmp_path, "lib[train, eval]", "deep")
    assert [(source.path, source.extras) for source in packages.sources] == [
        ("lib", ("train", "eval")),
        ("deep/a.txt", ()),
        ("deep/b.txt", ()),
    ]
    assert set(packages.digests) == {"lib/pyproject.toml", "deep/a.txt", "deep/b.txt"}
    assert packages.has_hashes
    assert packages_of(tmp_path, "lib/pyproject.toml").sources[0].path == "lib"


@pytest.mark.row(178)
@pytest.mark.parametrize(
    ("named", "why"),
    [("gone.txt", "does not exist"), ("notes.md", "not a requirements file"), ("docs", "contains no pyproject")],
)
def test_what_the_configuration_names_must_be_installable(tmp_path: Path, named: str, why: str) -> None:
    write(tmp_path, notes_md="", docs__index_md="")
    with pytest.raises(EnvironmentSetupError, match=why) as caught:
        packages_of(tmp_path, named)
    assert "packages:" in caught.value.hint


@pytest.mark.row(178)
@pytest.mark.parametrize(
    ("files", "outside"),
    [
        ({"requirements_txt": "torch\n-e ../lib\n# ../no\n-e ./here\n"}, [("requirements.txt", "../lib")]),
        (
            {"requirements_txt": "lib @ file:../lib#egg=lib\n../a.whl"},
            [("requirements.txt", "../lib"), ("requirements.txt", "../a.whl")],
        ),
        (
            {"requirements_txt": "-r deep/a.txt\n", "deep__a_txt": "-r ../../b.txt\n-c ../c.txt"},
            [("deep/a.txt", "../b.txt")],
        ),
        (
            {"pyproject_toml": PROJECT + '[tool.uv.sources]\nlib = { path = "../lib", editable = true }\n'},
            [("pyproject.toml", "../lib")],
        ),
        ({"pyproject_toml": PROJECT + '[tool.mypy]\nmypy_path = "../stubs"\n'}, []),
        ({"Pipfile": '[packages]\nlib = {path = "../lib", editable = true}\n'}, [("Pipfile", "../lib")]),
    ],
    ids=str,
)
def test_what_lies_outside_of_the_project_is_found(
    tmp_path: Path, files: dict[str, str], outside: list[tuple[str, str]]
) -> None:
    assert list(packages_of(write(tmp_path, **files)).outside) == outside


def test_a_broken_pyproject_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(EnvironmentSetupError, match=r"pyproject\.toml: .*line 1"):
        packages_of(tmp_path)


def test_included_files_count_wherever_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "-r deep/a.txt\n--constraint=limits.txt\n-r https://x/y.txt\n-r ../z.txt\n"
    )
    (tmp_path / "deep" / "a.txt").write_text("  -c ../more.txt # why\n-r a.txt\nb\n")
    (tmp_path / "limits.txt").touch()
    (tmp_path / "more.txt").touch()
    assert set(packages_of(tmp_path).digests) == {"requirements.txt", "deep/a.txt", "limits.txt", "more.txt"}


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
    assert packages_of(tmp_path).has_hashes
