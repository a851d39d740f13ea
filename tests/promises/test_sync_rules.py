"""What a sync does where the server has another version than here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from pathlib import Path

BOTH = "changed both here and on the server since the last sync: results.csv"


@pytest.fixture
def there(desk: Desk) -> Path:
    """A file that was sent, and that a job has changed since."""
    (desk.root / "results.csv").write_text("step,loss\n")
    (desk.root / "train.py").write_text("rate = 0.1\n")
    desk.does("rsync")
    file = desk.there() / "results.csv"
    file.write_text("a job's\n")
    return file


@pytest.mark.row(146)
def test_what_a_job_has_changed_is_kept_and_named_also_with_checksum(desk: Desk, there: Path) -> None:
    said = desk.tries("rsync", "--checksum")
    assert (said.returncode, there.read_text()) == (0, "a job's\n")
    assert "results.csv" in said.stderr
    (desk.root / "train.py").write_text("rate = 0.2\n")
    for words in ((), ("--checksum",)):
        desk.does("rsync", *words)
        assert there.read_text() == "a job's\n"
    assert (desk.there() / "train.py").read_text() == "rate = 0.2\n"


@pytest.mark.row(146)
def test_what_was_changed_on_both_sides_is_refused_the_rest_is_sent_and_no_job_starts_on_it(
    desk: Desk, there: Path
) -> None:
    (desk.root / "results.csv").write_text("mine, and longer\n")
    (desk.root / "train.py").write_text("rate = 0.2\n")
    assert BOTH in " ".join(desk.refuses("rsync", status=1).split())
    assert (desk.there() / "train.py").read_text() == "rate = 0.2\n"
    for words in ((), ("--no-sync",)):
        desk.refuses("job-run", *words, "--cmd", "touch began")
    assert not (desk.there() / "began").exists()
    assert there.read_text() == "a job's\n"
    there.unlink()
    desk.does("job-run", "--follow", "--cmd", "touch began")
    assert there.read_text() == "mine, and longer\n"


@pytest.mark.row(146)
def test_a_second_laptop_replaces_what_the_first_sent_and_keeps_what_the_server_wrote(
    desk: Desk, there: Path, tmp_path: Path
) -> None:
    other = Desk(shutil.copytree(desk.root, tmp_path / "copied"), desk.servers)
    (desk.root / "train.py").write_text("rate = 0.2, of the first\n")
    desk.does("rsync")
    (other.root / "train.py").write_text("rate = 0.3, of the other one\n")
    other.does("rsync")
    assert (desk.there() / "train.py").read_text() == "rate = 0.3, of the other one\n"
    assert there.read_text() == "a job's\n"
    desk.does("rsync")
    assert (desk.there() / "train.py").read_text() == "rate = 0.2, of the first\n"
    (other.root / "results.csv").write_text("something else\n")
    assert "results.csv" in other.refuses("rsync", status=1)
    assert there.read_text() == "a job's\n"


@pytest.mark.row(146)
def test_what_a_job_has_changed_is_not_replaced_by_what_another_server_hands_on(desk_of_two: Desk) -> None:
    desk = desk_of_two
    (desk.root / "results.csv").write_text("step,loss\n")
    desk.does("rsync")
    there = desk.there("second") / "results.csv"
    there.write_text("a job's, and longer\n")
    for _ in range(2):
        (desk.root / "large.bin").write_bytes(os.urandom(300_000))
        desk.does("rsync", "--relay")
        assert (desk.there("second") / "large.bin").read_bytes() == (desk.root / "large.bin").read_bytes()
        assert there.read_text() == "a job's, and longer\n"
    assert (desk.there("first") / "results.csv").read_text() == "step,loss\n"


@pytest.mark.row(146)
def test_a_file_that_changes_while_it_is_sent_is_no_conflict_later(desk: Desk) -> None:
    here, there, rsync = desk.root / "run.log", desk.there() / "run.log", desk.servers["first"].programs / "rsync"
    here.write_text("1\n")
    rsync.parent.mkdir(exist_ok=True)
    # The project has been listed by now, and the file is not yet read.
    rsync.write_text(f'#!/bin/sh\nprintf "1\\n2\\n" > {here}\n{shutil.which("rsync")} "$@"\n')
    rsync.chmod(0o755)
    try:
        desk.does("rsync")
    finally:
        # The server is shared.
        rsync.unlink()
    assert there.read_text() == "1\n2\n"
    here.write_text("1\n2\n3\n")
    desk.does("rsync")
    assert there.read_text() == "1\n2\n3\n"


@pytest.mark.row(247)
def test_a_project_that_cannot_be_listed_is_one_error_before_any_login(desk: Desk) -> None:
    (desk.root / ".remote" / "exclude.txt").unlink(missing_ok=True)
    (desk.root / ".remote" / "exclude.txt").mkdir()
    # It takes connections and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = {"hostname": "127.0.0.1", "port": silent.getsockname()[1], "username": "me"}
        desk.configure(servers={"first": server, "second": server | {"username": "you"}}, keep_connections=0)
        assert desk.refuses("rsync").count("exclude.txt cannot be read: Is a directory") == 1


@pytest.fixture
def ignores(desk: Desk) -> Desk:
    """A repository that ignores logs, a folder, and all but one file of another folder, which git tracks."""
    subprocess.run(["git", "init", "-q", str(desk.root)], check=True)
    for name in (
        "train.py",
        "run.log",
        "wandb/a/b.json",
        "data/large.bin",
        "data/small.csv",
        "we[i]rd.log",
        "x.ckpt",
        "tmp",
    ):
        (desk.root / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.root / name).write_text("here\n")
    (desk.root / ".gitignore").write_text("*.log\nwandb/\ndata/\ntmp\n")
    (desk.root / ".remote" / "exclude.txt").write_text("*.ckpt\n/tmp\n")
    subprocess.run(["git", "-C", str(desk.root), "add", "-f", "data/small.csv", ".gitignore"], check=True)
    desk.configure(respect_gitignore="true")
    return desk


def sent_to(desk: Desk) -> list[str]:
    """Return the files of the project on the server."""
    found = (path.relative_to(desk.there()) for path in desk.there().rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] not in {".jobs", ".remote-scripts"})


@pytest.mark.row(342)
def test_what_git_ignores_is_not_sent_unless_git_tracks_it_or_exclude_txt_lets_it_through(ignores: Desk) -> None:
    desk, always = ignores, {".gitignore", "data/small.csv", "hello.py", "train.py"}
    desk.does("rsync")
    assert set(sent_to(desk)) == always
    # The first pattern that matches decides, and those of git come after ours.
    (desk.root / ".remote" / "exclude.txt").write_text("*.ckpt\n/tmp\n+ /run.log\n")
    desk.does("rsync")
    assert set(sent_to(desk)) == {*always, "run.log"}
    # Another sync sees what git has come to ignore, and removes nothing that is still here.
    (desk.root / ".gitignore").write_text("*.log\nwandb/\ndata/\ntrain.py\n")
    (desk.root / "train.py").write_text("changed\n")
    desk.does("rsync")
    assert (desk.there() / "train.py").read_text() == "here\n"
    (desk.root / ".gitignore").write_text("wandb/\ndata/\n")
    assert desk.does("job-run", "--follow", "--cmd", "cat train.py 'we[i]rd.log'") == "changed\nhere\n"


@pytest.mark.row(342)
def test_a_dry_run_names_the_rule_that_leaves_a_file_out(ignores: Desk) -> None:
    shown = ignores.does("rsync", "--dry-run", "-v").splitlines()
    assert [line for line in shown if line.startswith("not sent: ")] == [
        "not sent: .git/: never sent",
        "not sent: .remote/: never sent",
        "not sent: data/large.bin: data/ in .gitignore",
        "not sent: run.log: *.log in .gitignore",
        "not sent: tmp: /tmp in .remote/exclude.txt",
        "not sent: wandb/: wandb/ in .gitignore",
        "not sent: we[i]rd.log: *.log in .gitignore",
        "not sent: x.ckpt: *.ckpt in .remote/exclude.txt",
    ]
    assert "not sent" not in ignores.does("rsync", "--dry-run")
    assert sent_to(ignores) == ["hello.py"]


@pytest.mark.row(342)
def test_a_dry_run_says_so_where_the_rsync_here_does_not_name_its_rules(ignores: Desk, tmp_path: Path) -> None:
    program = tmp_path / "rsync"
    # As that of macOS, it has another name, and fewer options.
    program.write_text(
        "#!/bin/sh\n[ \"$1\" != --version ] || { echo 'openrsync: protocol version 29'; exit; }\n"
        f'exec {shutil.which("rsync")} "$@"\n'
    )
    program.chmod(0o755)
    shown = ignores.tries("rsync", "--dry-run", "-v", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert shown.returncode == 0, shown.stderr
    assert "first: send train.py" in shown.stdout
    assert "does not say which rule leaves a file out; rsync 3 does" in " ".join(shown.stderr.split())


@pytest.mark.row(342)
def test_a_project_of_which_git_knows_nothing_is_refused_with_the_way_out(ignores: Desk) -> None:
    shutil.rmtree(ignores.root / ".git")
    refused = ignores.refuses("rsync")
    assert "git cannot list what it ignores in" in refused
    assert "remove respect_gitignore from configs.yaml" in refused
    assert sent_to(ignores) == ["hello.py"]
