"""The plan of a sweep, without a server."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool import SweepRequest
from remote_tool.errors import JobError, UsageError
from remote_tool.protocol.limits import MOST_AFTER
from remote_tool.workflows.sweep.plan import MOST_PER_SERVER, ServerQueue, place, plan_sweep
from remote_tool.workflows.sweep.request import command_of

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def planned(queues: Sequence[ServerQueue], count: int = 6) -> list[tuple[str, int, int | None, tuple[str, ...]]]:
    """The server, the GPUs, the slots and the predecessors of each job; ids are the letters."""
    request = SweepRequest("train.py {n}", grid={"n": range(count)})
    plan = plan_sweep(request, range(count), queues, "id", "abcdefghijklmnopqrstuvwxyz"[:count])
    return [(job.server, job.gpus, job.slots, job.after) for job in plan.jobs]


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        ("train.py --lr {lr} {n}", "python train.py --lr 0.1 'a b'"),
        ("echo {lr}{n}", "echo 0.1'a b'"),
        ("echo {lr} {n} {number}", "echo 0.1 'a b' 3"),
        ("echo {lr} {n} {{lr}}", "echo 0.1 'a b' {lr}"),
        ("echo {lr} {n} ${lr} ${LR:-x}", "echo 0.1 'a b' ${lr} ${LR:-x}"),
        ("""echo {n} '{"lr": {"start": {lr}}, "b": {}}'""", """echo 'a b' '{"lr": {"start": 0.1}, "b": {}}'"""),
        ("f() { echo {n} {lr}; }; f {a,b} {1..3}", "f() { echo 'a b' 0.1; }; f {a,b} {1..3}"),
    ],
)
def test_each_parameter_is_a_quoted_word_and_other_braces_stay(command: str, filled: str) -> None:
    request = SweepRequest(command, grid={"lr": [0.1], "n": ["a b"]})
    assert command_of(request.command, 3, request.made[0]) == filled


@pytest.mark.row(312)
@given(VALUES, VALUES)
def test_any_value_is_one_word_for_the_shell(first: str, second: str) -> None:
    command = command_of("x {a} y{b.c}z", 0, {"a": first, "b.c": second})
    assert shlex.split(command) == ["x", first, "y" + second + "z"]


@pytest.mark.row(312)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train.py --lr {lr}", "--cmd does not use the parameter name"),
        ("train.py {lr} {name} {wd}", "--cmd: {wd} is not a parameter of the sweep; it has {lr}, {name}, {number}"),
        ("awk '{print}' {lr} {name}", "--cmd: {print} is not a parameter of the sweep"),
        ("echo {lr} 'x {name}'", "--cmd: {name} is quoted automatically, as 'a b' needs; remove the quotes around it"),
        ("echo {lr} ${name}", "--cmd does not use the parameter name"),
        (" ", "--cmd is empty"),
    ],
)
def test_a_command_with_other_placeholders_is_refused(command: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        SweepRequest(command, grid={"lr": [0.1], "name": ["a", "a b"]})
    assert str(refused.value).startswith(message)


def test_a_value_that_needs_no_quotes_may_be_in_quotes() -> None:
    request = SweepRequest("""python -c 'print({lr})' "{n}" """, grid={"lr": [0.1], "n": ["a"]})
    assert command_of(request.command, 0, request.made[0]) == """python -c 'print(0.1)' "a" """.strip()


def test_options_that_contradict_each_other_are_refused() -> None:
    for options, message in (
        ({"gpus": 1, "per_server": 2}, "--gpus and --per-server cannot be combined"),
        ({"per_server": 0}, "--per-server must be at least 1, found 0"),
        ({"after": ("3",)}, "--after is only for job-run"),
        ({"priority": 5}, "--priority is for jobs that wait for GPUs"),
    ):
        with pytest.raises(UsageError, match=message):
            SweepRequest("x {a}", grid={"a": [1]}, **options)


def test_servers_get_jobs_by_what_they_can_do_and_have_to_do() -> None:
    assert Counter(place(12, [ServerQueue("a", 1, 4), ServerQueue("b", 1, 8)])) == {"a": 4, "b": 8}
    assert Counter(place(12, [ServerQueue("a", 1, 4, load=4), ServerQueue("b", 1, 4)])) == {"a": 4, "b": 8}
    assert place(3, [ServerQueue("a", 1, 4, load=400), ServerQueue("b", 2, 1)]) == ["b", "b", "b"]


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0, 100)), min_size=1, max_size=8), st.integers(0, 200))
def test_no_server_ends_more_than_one_job_later_than_it_could_elsewhere(
    servers: list[tuple[int, float]], count: int
) -> None:
    queues = [ServerQueue(str(number), 1, slots, load) for number, (slots, load) in enumerate(servers)]
    counts = Counter(place(count, queues))
    assert counts.total() == count
    ends = {queue.server: (queue.load + counts[queue.server]) / queue.slots for queue in queues if counts[queue.server]}
    for queue in queues:
        one_more = (queue.load + counts[queue.server] + 1) / queue.slots
        assert all(end <= one_more + 1e-6 for end in ends.values())


@pytest.mark.row(310)
def test_without_gpus_each_job_waits_for_a_slot_and_for_those_that_an_older_version_started() -> None:
    assert planned([ServerQueue("a", 0, 2)]) == [("a", 0, 2, ())] * 6
    resumed = ServerQueue("a", 0, 2, load=3, before=("x", "y", "z"), chained=("x", "y"))
    assert planned([resumed], 2) == [("a", 0, 2, ("x", "y"))] * 2
    many = tuple(map(str, range(MOST_AFTER + 1)))
    assert planned([ServerQueue("a", 0, 2000, chained=many)], 1) == [("a", 0, MOST_PER_SERVER, many[1:])]


def test_with_gpus_each_job_waits_in_the_queue_of_its_server() -> None:
    assert planned([ServerQueue("a", 1, 2, before=("x", "y", "z"))], 3) == [("a", 1, None, ())] * 3


def test_two_names_of_one_machine_and_too_many_jobs_on_one_server_are_refused() -> None:
    with pytest.raises(JobError, match="a and b are the same machine"):
        planned([ServerQueue("a", place="p"), ServerQueue("b", place="p")])
    request = SweepRequest("x {n}", grid={"n": range(MOST_PER_SERVER + 1)})
    numbers = range(MOST_PER_SERVER + 1)
    with pytest.raises(JobError, match="1001 combinations would be 1,001 jobs on a; at most 1,000 jobs of a sweep"):
        plan_sweep(request, numbers, [ServerQueue("a")], "id", [str(number) for number in numbers])
    split = plan_sweep(request, numbers, [ServerQueue("a"), ServerQueue("b")], "id", [str(each) for each in numbers])
    assert len(split.jobs) == MOST_PER_SERVER + 1


def test_the_plan_for_people_shows_the_first_jobs() -> None:
    request = SweepRequest("x {n}", grid={"n": range(50)})
    plan = plan_sweep(request, range(50), [ServerQueue("a", 1), ServerQueue("b", 0)], "id", [str(n) for n in range(50)])
    lines = plan.text().splitlines()
    assert lines[:3] == ["50 combinations on 2 servers: a 25, b 25", "a: combination 0, waits for 1 GPU", "  x 0"]
    assert (lines[-1], len(lines)) == ("and 30 more; --json shows all", 42)
    assert plan.as_json()["combinations"][49] == {
        "number": 49,
        "parameters": {"n": "49"},
        "server": "b",
        "gpus": 0,
        "command": "x 49",
    }
