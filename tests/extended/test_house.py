"""The rules that ``make check`` holds besides those of other tools: each is seen to fail on a trespass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.house import sizes
from tests.house.__main__ import main
from tests.house.floors import PICTURE, PURPOSE, draw, read_floors, stale_picture
from tests.house.sizes import LONGER, MOST_LINES, MOST_MODULES, measure, too_large
from tests.house.words import odd_comments, odd_phrases

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project that keeps every rule."""
    monkeypatch.setattr(sizes, "LONGER", {})
    write(tmp_path, "remote_tool/__init__.py", '"""A package."""\n')
    write(tmp_path, "remote_tool/cli/commands/jobs.py", "def job_list() -> None:\n    '''List jobs.'''\n")
    write(tmp_path, "docs/guide.md", "# Guide\n\nJobs continue without the laptop.\n")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    write(tmp_path, PICTURE, draw(read_floors(tmp_path)))
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def phrases_in(root: Path) -> list[tuple[str, int, str]]:
    return [(each.path.as_posix(), each.line, each.phrase) for each in odd_phrases(root)]


def test_a_house_in_order_passes_and_its_sizes_are_printed(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(house) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines() == [
        "largest folder: remote_tool/cli/commands/, 1 modules (at most 20)",
        "longest module: remote_tool/cli/commands/jobs.py, 2 lines (at most 400)",
        "in all: 2 modules, 3 lines, 3 without blank lines and comments",
    ]


def test_a_rule_that_is_broken_fails_the_check(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(house, "docs/guide.md", "Jobs are started anew.\n")
    assert main(house) == 1
    assert capsys.readouterr().err == 'docs/guide.md:1: "anew": again, from scratch\n'


def test_a_folder_with_too_many_modules_is_named(house: Path) -> None:
    for number in range(MOST_MODULES):
        write(house, f"remote_tool/jobs/module{number}.py", "")
    write(house, "remote_tool/jobs/__init__.py", "")
    assert list(too_large(measure(house / "remote_tool"))) == []
    write(house, "remote_tool/jobs/one_more.py", "")
    (found,) = too_large(measure(house / "remote_tool"))
    assert found.startswith("remote_tool/jobs/: 21 modules; at most 20")


def test_a_module_that_is_too_long_is_named_and_an_exception_lets_it_through(house: Path) -> None:
    write(house, "remote_tool/long.py", "pass\n" * MOST_LINES)
    assert list(too_large(measure(house / "remote_tool"))) == []
    write(house, "remote_tool/long.py", "pass\n" * (MOST_LINES + 1))
    (found,) = too_large(measure(house / "remote_tool"))
    assert found.startswith("remote_tool/long.py: 401 lines; at most 400")
    assert list(too_large(measure(house / "remote_tool"), {"remote_tool/long.py": "one table"})) == []


def test_an_exception_that_nothing_needs_is_named(house: Path) -> None:
    (found,) = too_large(measure(house / "remote_tool"), {"remote_tool/gone.py": "one table"})
    assert found.startswith("remote_tool/gone.py: needs no exception")


def test_each_exception_has_its_reason() -> None:
    assert all(reason.strip() for reason in LONGER.values())


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("The environment is made anew.", "anew"),
        ("The user is told.", "told"),
        ("The file lies beside it.", "lies"),
        ("The key belongs into the file.", "belongs into"),
        ("The job goes on.", "goes on"),
        ("It is no JSON.", "is no"),
        ("The request cannot be meant.", "cannot be meant"),
        ("Looks whether servers agree.", "Looks whether"),
        ("Stop every process of them.", "process of them"),
        ("What was sent is removed.", "What was"),
        ("It removes only what was sent.", "only what was"),
        ("See the colours.", "colours"),
        ("End the strays.", "strays"),
    ],
)
def test_a_phrase_of_the_list_is_found_with_its_line(house: Path, sentence: str, phrase: str) -> None:
    write(house, "docs/guide.md", f"# Guide\n\nFirst line.\n{sentence}\n")
    assert phrases_in(house) == [("docs/guide.md", 4, phrase)]


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no free port.",
        "The job is no longer running.",
        "Both of them end; 300 of them take a second.",
        "The job goes on the first server.",
        "See `job-kill --strays`.",
        'The list is in {"strays": []}.',
        "A `CancelledError` is shown.",
        "What is a job? A command.",
        "Show what changed.",
        "Believe it.",
    ],
)
def test_ordinary_english_is_left_alone(house: Path, sentence: str) -> None:
    write(house, "docs/guide.md", f"{sentence}\n")
    assert phrases_in(house) == []


def test_a_phrase_is_found_over_the_end_of_a_line(house: Path) -> None:
    write(house, "docs/guide.md", "One\nthe job goes\non without you.\n")
    assert phrases_in(house) == [("docs/guide.md", 2, "goes on")]


def test_messages_are_read_and_comments_names_and_scripts_are_not(house: Path) -> None:
    source = '''
# It is told.
told = {"told": 1}
raise ValueError(
    f"{told!r} is"
    " no file"
)
SCRIPT = """
# It is told here.
exit 0
"""
'''
    write(house, "remote_tool/jobs/job.py", source)
    assert phrases_in(house) == [("remote_tool/jobs/job.py", 5, "is no")]


def test_docstrings_are_read_where_they_are_help_or_the_api(house: Path) -> None:
    source = "def job_list() -> None:\n    '''It is told.'''\n\n\ndef _rows() -> None:\n    '''It is told too.'''\n"
    write(house, "remote_tool/cli/commands/jobs.py", source)
    write(house, "remote_tool/cli/tables/jobs.py", source)
    write(house, "remote_tool/launchers/plan.py", source)
    write(house, "remote_tool/__init__.py", '_HOMES = {"LaunchRequest": "remote_tool.launchers.plan"}\n')
    assert phrases_in(house) == [
        ("remote_tool/cli/commands/jobs.py", 2, "told"),
        ("remote_tool/launchers/plan.py", 2, "told"),
    ]


def test_comments_and_private_docstrings_are_read_and_names_in_them_are_not(house: Path) -> None:
    source = "# It is\n# told.\ndef _rows() -> None:\n    '''It is ``told`` anew.'''\n"
    write(house, "remote_tool/jobs/job.py", source)
    assert [(each.line, each.phrase) for each in odd_comments(house)] == [(4, "anew"), (2, "told")]


def test_a_comment_with_its_reason_lets_a_phrase_through(house: Path) -> None:
    write(house, "docs/guide.md", '<!-- words "told": a quotation -->\n\nIt is told, and lies.\n')
    write(house, "remote_tool/jobs/job.py", 'TEXT = "it is told"  # words "told": a quotation\n')
    assert phrases_in(house) == [("docs/guide.md", 3, "told"), ("docs/guide.md", 3, "lies")]
    write(house, "docs/guide.md", '<!-- words "told": a quotation -->\nIt is told, and lies.\n')
    assert phrases_in(house) == [("docs/guide.md", 2, "lies")]
    write(house, "docs/guide.md", '<!-- words "told": -->\nIt is told.\n')
    assert ("docs/guide.md", 2, "told") in phrases_in(house)


def test_a_picture_that_is_not_of_the_contracts_is_stale(house: Path) -> None:
    assert stale_picture(house) == []
    settings = (house / "pyproject.toml").read_text()
    assert '    "config",\n    "paths",' in settings
    (house / "pyproject.toml").write_text(
        settings.replace('    "config",\n    "paths",', '    "paths",\n    "config",')
    )
    assert stale_picture(house) == [f"{PICTURE}: not made from the contracts as they are: run make reference"]


def test_a_new_room_makes_the_picture_stale(house: Path) -> None:
    write(house, "remote_tool/cli/tables/__init__.py", "")
    assert stale_picture(house) != []


def test_the_picture_has_every_floor_once_and_says_what_it_is_for() -> None:
    floors = read_floors(REPOSITORY)
    names = [name for floor in floors.floors for name in floor]
    assert set(names) <= set(PURPOSE)
    picture = draw(floors)
    assert all(picture.count(f">{name}</text>") >= 1 for name in names)
    assert "asyncssh" in picture
