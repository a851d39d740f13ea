"""Where a job starts when nobody says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

START = ("job-run", "--cmd", "true")
QUESTION = "Start on which server? (first, second or all) [all]: "


def servers_of(desk: Desk) -> list[str]:
    return [job["server"] for job in desk.jobs()]


def test_a_terminal_is_asked_once_and_told_how_to_choose_for_good(desk_of_two: Desk) -> None:
    desk = desk_of_two
    with Terminal(*START, cwd=desk.root) as terminal:
        terminal.until(QUESTION)
        terminal.type("third\n")
        terminal.until(QUESTION, times=2)
        assert "there is no server 'third'" in terminal.text
        terminal.type("second\n")
        assert terminal.end() == 0
    assert "default_server: second in .remote/configs.yaml" in terminal.text.replace("\n", " ")
    with Terminal(*START, cwd=desk.root) as terminal:
        assert terminal.end() == 0
    assert QUESTION not in terminal.text
    assert "starting on second, as answered before" in terminal.text
    assert servers_of(desk) == ["second", "second"]


def test_a_pipe_is_not_asked_and_the_configuration_decides(desk_of_two: Desk) -> None:
    desk = desk_of_two
    said = "starting on all 2 servers; --server NAME or default_server: in configs.yaml chooses one"
    assert said in desk.tries(*START).stderr.splitlines()
    assert servers_of(desk) == ["first", "second"]
    assert "starting on" not in desk.tries(*START, "--server", "first").stderr
    desk.configure(default_server="second")
    assert "starting on" not in desk.tries(*START).stderr
    assert servers_of(desk)[2:] == ["first", "second"]
    desk.configure(default_server="all")
    assert "starting on" not in desk.tries(*START).stderr
    assert servers_of(desk)[4:] == ["first", "second"]
    desk.configure(default_server="third")
    assert "default_server: must be one of first, second, all" in desk.refuses(*START, status=2)
