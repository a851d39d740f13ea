"""prepare with projects of every kind: what they name is installed, or told with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.environments.package_files import find_packages
from remote_tool.environments.scm_version import git_version, version_variables
from remote_tool.errors import EnvironmentSetupError
from remote_tool.workflows.events import Notice, StepProgress
from remote_tool.workflows.prepare import steps
from tests.extended.workflows.prepare.projects import (
    BACKEND,
    SYSTEM_PYTHON,
    as_project,
    desk_at,
    give_uv,
    imported_version,
    needs_venv,
    with_packages,
    with_script,
)
from tests.extended.workflows.prepare.servers import make_wheel, record_of, scripts_of
from tests.files_over_http import serve

if TYPE_CHECKING:
    from tests.conftest import MakeServer
    from tests.extended.workflows.prepare.servers import Desk

FRAMEWORKS = Path(__file__).parents[4] / ".cache" / "frameworks"
pytestmark = [pytest.mark.slow, needs_venv]


def notices_of(desk: Desk) -> list[str]:
    return [event.text for event in desk.events if isinstance(event, Notice)]


def detail_of(desk: Desk) -> str:
    """What the last packages step said."""
    return [step.detail for step in desk.ended() if step.step == "packages"][-1]


async def test_an_installer_that_prints_nothing_is_said_to_run(
    make_server: MakeServer, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SIGN_OF_LIFE_SECONDS", 0.01)
    desk = desk_at(tmp_path, wheels, make_server("first"))
    await desk.prepare()
    assert StepProgress("first", "environment", "") in desk.events


@pytest.mark.row(178)
async def test_packages_that_are_not_installed_are_named_once_with_the_reason(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = desk_at(tmp_path, wheels, make_server("first"), make_server("second"))
    (desk.project / "environment.yml").touch()
    (desk.project / "pixi.toml").touch()
    await desk.prepare()
    told = [text for text in notices_of(desk) if "not installed" in text]
    assert len(told) == 2
    assert told[0].startswith("environment.yml: not installed, it requires environment: miniconda")
    assert detail_of(desk) == "none from environment.yml, pixi.toml"


async def test_a_project_without_package_files_gets_a_notice(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = desk_at(tmp_path, wheels, make_server())
    await desk.prepare()
    assert detail_of(desk) == "no requirements.txt, Pipfile, pyproject.toml or environment.yml"


def as_uv_project(desk: Desk, wheels: Path) -> None:
    """Lock tiny_package 1.0, as uv does; then there is a newer one."""
    (desk.project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1.0"\nrequires-python = ">=3.8"\ndependencies = ["tiny_package"]\n'
    )
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv, of the test extra, is not installed")
    options = ["--offline", "--no-index", "--find-links", str(wheels), "--python", str(SYSTEM_PYTHON)]
    subprocess.run([uv, "lock", "-q", *options], cwd=desk.project, check=True)
    make_wheel(wheels, version="2.0")


@pytest.mark.row(178)
@pytest.mark.parametrize("kind", [EnvironmentKind.UV, EnvironmentKind.VENV])
async def test_uv_lock_is_installed_as_it_is_locked(
    make_server: MakeServer, tmp_path: Path, wheels: Path, kind: EnvironmentKind
) -> None:
    """Also where the environment is not uv's and the server has no uv: then it is brought, into a folder of ours."""
    server = make_server()
    give_uv(server)
    real = (server.home / ".local" / "bin" / "uv").resolve()
    if kind is EnvironmentKind.VENV:
        (server.home / ".local" / "bin" / "uv").unlink()
        script = f"#!/bin/sh\nexec '{real}' \"$@\"\n"
        with_script(make_wheel(wheels, "uv", "1.0"), "uv-1.0.data/scripts/uv", script)
    desk = desk_at(tmp_path, wheels, server, kind=kind)
    as_uv_project(desk, wheels)
    await desk.prepare()
    assert imported_version(server) == "1.0"
    assert detail_of(desk) == "uv.lock"
    pip = subprocess.run([record_of(server)["python"], "-m", "pip", "--version"], check=False, capture_output=True)
    assert pip.returncode == 0, "what the lock does not name stays"
    assert not (await desk.prepare())["first"].changed
    (desk.project / "uv.lock").write_text((desk.project / "uv.lock").read_text() + "\n")
    assert (await desk.prepare())["first"].changed


@pytest.mark.row(178)
async def test_a_lock_for_another_python_leaves_the_environment_as_it_is(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """Uv would make an environment of its own anew; this one may be the user's."""
    server = make_server()
    give_uv(server)
    desk = desk_at(tmp_path, wheels, server)
    as_uv_project(desk, wheels)
    text = (desk.project / "pyproject.toml").read_text()
    (desk.project / "pyproject.toml").write_text(text.replace(">=3.8", ">=3.99"))
    (desk.project / ".python-version").write_text("3.99\n")
    await desk.setup()
    mark = scripts_of(server) / "environment" / "mark"
    mark.touch()
    with pytest.raises(EnvironmentSetupError, match="incompatible"):
        await desk.prepare()
    assert mark.exists()


POETRY = '[tool.poetry]\nname = "mine"\nversion = "1.0"\n'
OWN_BACKEND = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.mark.row(178)
async def test_a_poetry_project_is_installed_without_poetry_and_its_lock_is_said_to_be_left(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server(SetEnv="PATH=/usr/bin:/bin")
    desk = desk_at(tmp_path, wheels, server)
    (desk.project / "pyproject.toml").write_text(POETRY + OWN_BACKEND)
    (desk.project / "poetry.lock").touch()
    (desk.project / "backend.py").write_text(BACKEND)
    await desk.prepare()
    subprocess.run([record_of(server)["python"], "-c", "import backend"], check=True, cwd="/")
    assert "ignoring poetry.lock: poetry is not installed on this server" in notices_of(desk)


@pytest.mark.row(178)
async def test_a_poetry_project_without_a_package_asks_for_poetry(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    desk = desk_at(tmp_path, wheels, make_server(SetEnv="PATH=/usr/bin:/bin"))
    (desk.project / "pyproject.toml").write_text(POETRY + "package-mode = false\n")
    with pytest.raises(EnvironmentSetupError, match="package-mode = false") as caught:
        await desk.prepare()
    assert "pipx install poetry" in caught.value.hint


@pytest.mark.row(178)
@pytest.mark.skipif(not (FRAMEWORKS / "bin" / "poetry").exists(), reason="no poetry in .cache/frameworks: make test")
async def test_a_poetry_lock_is_installed_by_poetry(make_server: MakeServer, tmp_path: Path, wheels: Path) -> None:
    server = make_server()
    (server.home / ".local" / "bin").mkdir(parents=True)
    (server.home / ".local" / "bin" / "poetry").symlink_to(FRAMEWORKS / "bin" / "poetry")
    desk = desk_at(tmp_path, wheels, server)
    make_wheel(tmp_path / "index" / "tiny-package")
    make_wheel(tmp_path / "index" / "tiny-package", version="2.0")
    with serve(tmp_path / "index") as index:
        source = f'[[tool.poetry.source]]\nname = "here"\nurl = "{index.url}"\npriority = "primary"\n'
        text = f"{POETRY}package-mode = false\n[tool.poetry.dependencies]\npython = '>=3.8'\ntiny_package = '{{}}'\n"
        project = desk.project / "pyproject.toml"
        project.write_text(text.format("1.0") + source)
        subprocess.run([FRAMEWORKS / "bin" / "poetry", "lock", "-q"], cwd=desk.project, check=True)
        await desk.prepare()
    assert imported_version(server) == "1.0"
    assert detail_of(desk) == "poetry.lock"


@pytest.mark.row(178)
async def test_setup_py_and_what_the_configuration_names_are_installed(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """A folder and a file, in one go; and requirements.txt, which is not named, is left."""
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server), "no_such_package\n")
    (desk.project / "libs" / "mine").mkdir(parents=True)
    (desk.project / "libs" / "mine" / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='mine', version='1', py_modules=['mine_itself'])\n"
    )
    (desk.project / "libs" / "mine" / "mine_itself.py").touch()
    (desk.project / "requirements").mkdir()
    (desk.project / "requirements" / "gpu.txt").write_text("tiny_package==1.0\n")
    desk.config = replace(desk.config, packages=("libs/mine", "requirements/gpu.txt"))
    without_isolation(desk)
    await desk.prepare()
    subprocess.run([record_of(server)["python"], "-c", "import mine_itself"], check=True, cwd="/")
    assert imported_version(server) == "1.0"
    assert detail_of(desk) == "libs/mine/setup.py, requirements/gpu.txt"


def without_isolation(desk: Desk, **variables: str) -> None:
    """Let pip build with what the environment has, as its index has no setuptools."""
    desk.config = replace(desk.config, env={"PIP_NO_BUILD_ISOLATION": "0", **variables})


@pytest.mark.row(178)
async def test_a_sibling_is_named_as_not_sent_unless_it_is_there(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    server = make_server()
    desk = with_packages(desk_at(tmp_path, wheels, server), "tiny_package==1.0\n-e ../lib\n")
    with pytest.raises(EnvironmentSetupError) as caught:
        await desk.prepare()
    assert "requirements.txt refers to ../lib, which is outside the project: it is not sent" in caught.value.message
    assert "move .remote to the folder that contains both" in caught.value.hint
    library = as_project(desk_at(tmp_path / "other", wheels, make_server("other")))
    shutil.copytree(library.project, server.home / "lib")
    await desk.prepare()
    subprocess.run([record_of(server)["python"], "-c", "import imported_from_mine"], check=True, cwd="/")


@pytest.mark.row(160)
async def test_variables_of_the_configuration_hold_in_prepare_and_are_not_written_down(
    make_server: MakeServer, tmp_path: Path, wheels: Path
) -> None:
    """Its pip knows no place to look in but the one that a variable names; HOME and PYTHONPATH lead nothing astray."""
    server = make_server()
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    desk = with_packages(desk_at(tmp_path, nowhere, server))
    secret = f"{wheels}/../wheels"
    variables = {"PIP_FIND_LINKS": secret, "HOME": "/nonexistent", "PYTHONPATH": str(wheels), "QUOTED": "a'b\n$c"}
    desk.config = replace(desk.config, env=variables)
    await desk.prepare()
    assert imported_version(server) == "1.0"
    folder = scripts_of(server)
    assert subprocess.run(["grep", "-rlF", secret, folder], check=False, capture_output=True).stdout == b""


def committed(folder: Path, *tags: str) -> None:
    """Make a repository with one commit, and a tag and another commit for each."""
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    commit = ["commit", "-q", "--allow-empty", "-m", "x"]
    for arguments in (["init", "-q"], commit, *(words for tag in tags for words in (["tag", tag], commit))):
        subprocess.run(["git", *arguments], cwd=folder, check=True, env={**os.environ, **identity})


SCM = """\
[build-system]
requires = ["setuptools", "setuptools_scm"]
build-backend = "setuptools.build_meta"
[project]
name = "my-own.pkg"
dynamic = ["version"]
[tool.setuptools_scm]
[tool.setuptools]
py-modules = []
"""


@pytest.mark.row(178)
@pytest.mark.skipif(
    not list(FRAMEWORKS.glob("lib/python*/site-packages/setuptools_scm")), reason="no setuptools_scm: make test"
)
@pytest.mark.parametrize("has_git", [True, False])
async def test_a_version_that_comes_from_git_comes_along(
    make_server: MakeServer, tmp_path: Path, wheels: Path, *, has_git: bool
) -> None:
    server = make_server()
    prefix = server.home / "venv"
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", prefix], check=True)
    (packages,) = FRAMEWORKS.glob("lib/python*/site-packages")
    (folder,) = prefix.glob("lib/python*/site-packages")
    (folder / "others.pth").write_text(f"{packages}\n{Path(pytest.__file__).parents[1]}\n")
    desk = desk_at(tmp_path, wheels, server)
    desk.wish(Environment(EnvironmentKind.EXISTING, prefix=str(prefix)))
    (desk.project / "pyproject.toml").write_text(SCM)
    without_isolation(desk)
    if not has_git:
        with pytest.raises(EnvironmentSetupError) as caught:
            await desk.prepare()
        assert "SETUPTOOLS_SCM_PRETEND_VERSION" in caught.value.hint
        return
    committed(desk.project, "v1.2.3")
    await desk.prepare()
    code = "import importlib.metadata as m; print(m.version('my-own.pkg'))"
    said = subprocess.run([record_of(server)["python"], "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.startswith("1.2.4.dev1+g")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [((), "0.1.dev1+g"), (("nightly",), "0.1.dev2+g"), (("v1.9", "release-2.0rc1"), "2.0rc2.dev1+g")],
)
async def test_the_version_is_the_one_after_the_last_tag(tmp_path: Path, tags: tuple[str, ...], expected: str) -> None:
    committed(tmp_path, *tags)
    assert (await git_version(tmp_path)).startswith(expected)
    subprocess.run(["git", "tag", "v7.0"], cwd=tmp_path, check=True)
    assert await git_version(tmp_path) == "7.0"


async def test_no_variable_is_set_where_nobody_asks_git(tmp_path: Path) -> None:
    committed(tmp_path, "v1.0")
    text = SCM.replace("setuptools_scm", "more")
    (tmp_path / "pyproject.toml").write_text(text)
    assert await version_variables(tmp_path, find_packages(tmp_path, EnvironmentKind.VENV)) == {}
    (tmp_path / "pyproject.toml").write_text(SCM)
    (name,) = await version_variables(tmp_path, find_packages(tmp_path, EnvironmentKind.VENV))
    assert name == "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MY_OWN_PKG"
    (tmp_path / "pyproject.toml").write_text(SCM.replace("setuptools_scm", "hatch-vcs"))
    assert list(await version_variables(tmp_path, find_packages(tmp_path, EnvironmentKind.VENV))) == [
        "SETUPTOOLS_SCM_PRETEND_VERSION"
    ]
