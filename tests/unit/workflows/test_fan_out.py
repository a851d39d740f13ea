"""Planning a fan-out is pure: facts in, one command per shard out."""

from __future__ import annotations

import shlex

import pytest

from remote_tool.errors import JobError, UsageError
from remote_tool.workflows.fan_out.plan import (
    FanOutPlan,
    ServerSlots,
    Slot,
    make_slots,
    plan_fan_out,
    split_evenly,
)
from remote_tool.workflows.fan_out.request import FanOutRequest

LAUNCH = "20261121-053000-0123456789abcdef0123456789abcdef"


def plan(request: FanOutRequest, *servers: ServerSlots) -> FanOutPlan:
    return plan_fan_out(request, servers, LAUNCH)


def commands(made: FanOutPlan) -> list[str]:
    return [shard.command(made.command) for shard in made.shards]


def test_a_total_is_split_evenly_and_the_first_take_the_rest() -> None:
    command = "play.py --games {count} --from {start} --to {stop} --out {shard}-{shards}"
    made = plan(FanOutRequest(command, total=10), ServerSlots("a", ("0", "1")), ServerSlots("b"), ServerSlots("c"))
    assert [(slot.server, slot.gpus) for slot in made.slots] == [("a", ("0",)), ("a", ("1",)), ("b", ()), ("c", ())]
    assert commands(made) == [
        "python play.py --games 3 --from 0 --to 3 --out 0-4",
        "python play.py --games 3 --from 3 --to 6 --out 1-4",
        "python play.py --games 2 --from 6 --to 8 --out 2-4",
        "python play.py --games 2 --from 8 --to 10 --out 3-4",
    ]
    assert made.shards[1].environment == {
        "REMOTE_TOOL_SHARD": "1",
        "REMOTE_TOOL_SHARDS": "4",
        "REMOTE_TOOL_COUNT": "3",
        "REMOTE_TOOL_START": "3",
        "REMOTE_TOOL_STOP": "6",
    }


@pytest.mark.parametrize("total", [1, 2, 7, 100, 101])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_the_parts_are_the_whole_and_differ_by_one_at_most(total: int, parts: int) -> None:
    bounds = split_evenly(total, parts)
    assert [start for start, _ in bounds] + [total] == [0, *(stop for _, stop in bounds)]
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_there_is_no_empty_shard() -> None:
    made = plan(FanOutRequest("echo {count}", total=2), ServerSlots("a"), ServerSlots("b"), ServerSlots("c"))
    assert (commands(made), [slot.server for slot in made.slots]) == (["echo 1", "echo 1"], ["a", "b"])


def test_without_a_total_every_slot_has_one_shard() -> None:
    made = plan(FanOutRequest("echo {shard} of {shards}"), ServerSlots("a", ("0", "1", "2")))
    assert commands(made) == ["echo 0 of 3", "echo 1 of 3", "echo 2 of 3"]


def test_slots_share_the_gpus_of_their_server_evenly() -> None:
    names = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    assert [slot.gpus for slot in make_slots([ServerSlots("a", names)], 2)] == [names[:2], names[2:]]
    assert [slot.gpus for slot in make_slots([ServerSlots("a", ("4", "7"))], 3)] == [("4",), ("7",), ("4",)]
    assert make_slots([ServerSlots("a")], 2) == (Slot("a", 0), Slot("a", 1))
    assert [slot.server for slot in make_slots([ServerSlots("a", listed=2), ServerSlots("b")])] == ["a", "a", "b"]
    assert Slot("a", 0, names[:2]).environment == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert Slot("a", 0).environment == {}


def test_an_item_is_one_word_to_the_shell_whatever_it_holds() -> None:
    items = ("a b", "it's", "$(rm -rf /)", "*", 'say "no"', "-n", "{shard}", "tab\there", "é", "#x")
    made = plan(FanOutRequest("play {item} --as {shard}", items=items), ServerSlots("a"))
    assert [shlex.split(command) for command in commands(made)] == [
        ["play", item, "--as", str(number)] for number, item in enumerate(items)
    ]
    assert made.shards[2].environment["REMOTE_TOOL_ITEM"] == "$(rm -rf /)"
    assert made.is_queue


@pytest.mark.parametrize(("item", "reason"), [("b 'c", "no closing quotation"), ("b\\", "no escaped character")])
def test_a_raw_item_that_has_no_words_is_refused_by_its_number(item: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        FanOutRequest("play {item:raw}", items=("a", item))
    assert refused.value.message == f"--items: {{item:raw}} cannot split item 2 into words: {item!r}: {reason}"
    FanOutRequest("play {item}", items=("a", item))


def test_braces_of_the_command_itself_are_doubled() -> None:
    made = plan(FanOutRequest("echo ${{HOME}} | awk '{{print $1}}' {shard}"), ServerSlots("a"))
    assert commands(made) == ["echo ${HOME} | awk '{print $1}' 0"]


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        (
            "x {gpu}",
            "--cmd: {gpu} is not a placeholder; use {shard}, {shards}, {count}, {start}, {stop}",
            "{{gpu}} is a literal pair of braces",
        ),
        (
            "awk '{print $1}'",
            "--cmd: {print $1} is not a placeholder; use {shard}, {shards}, {count}, {start}, {stop}",
            "{{print $1}} is a literal pair of braces",
        ),
        (
            "x {}",
            "--cmd: {} is not a placeholder; use {shard}, {shards}, {count}, {start}, {stop}",
            "{{}} is a literal pair of braces",
        ),
        (
            "x {shard:03}",
            "--cmd: {shard:03} is not a placeholder; use {shard}, {shards}, {count}, {start}, {stop}",
            "{{shard:03}} is a literal pair of braces",
        ),
        ("x {item}", "--cmd: {item} needs --items", "{{item}} is a literal pair of braces"),
        ("x {item:raw}", "--cmd: {item:raw} needs --items", "{{item:raw}} is a literal pair of braces"),
        ("x }", "--cmd 'x }' has an unmatched brace", "write {{ and }} for literal braces"),
        (" ", "--cmd is empty", "remote-tool helper-fan-out --cmd 'play.py --games {count}'"),
    ],
)
def test_a_command_that_can_not_be_meant_is_refused(command: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        FanOutRequest(command, total=4)
    assert (refused.value.message, refused.value.hint) == (message, hint)


@pytest.mark.parametrize(
    "command", ["play '{item}'", 'play "{item}"', 'play "{item:raw}"', "play --to='x {shard} {item}'"]
)
def test_quotes_around_an_item_are_refused_as_it_has_its_own(command: str) -> None:
    with pytest.raises(UsageError, match="is quoted automatically"):
        FanOutRequest(command, items=("a",))
    FanOutRequest("play 'x' {item} --to=\\'{item}", items=("a",))


def test_a_variable_that_gives_the_same_gpus_to_every_slot_is_refused() -> None:
    with pytest.raises(UsageError, match="--env CUDA_VISIBLE_DEVICES would give every slot the same GPUs") as refused:
        FanOutRequest("x", environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "--devices" in refused.value.hint
    FanOutRequest("x", environment={"CUDA_VISIBLE_DEVICES": ""})


def test_what_has_no_total_has_no_count() -> None:
    with pytest.raises(UsageError, match=r"^--cmd: \{count\} needs --total$"):
        FanOutRequest("x {count}")
    with pytest.raises(UsageError, match="--total or --items"):
        FanOutRequest("x", total=1, items=("a",))


def test_one_machine_by_two_names_is_refused() -> None:
    with pytest.raises(JobError, match=r"^a and c are the same machine$"):
        make_slots([ServerSlots("a", place="x"), ServerSlots("b", place="y"), ServerSlots("c", place="x")])


def test_the_plan_reads_well() -> None:
    request = FanOutRequest("play.py {count}", total=5)
    assert plan(request, ServerSlots("a", ("0", "1")), ServerSlots("b")).text().splitlines() == [
        "3 shards on 3 slots of 2 servers",
        "a: shard 0 of 3, 0 to 2, GPU 0",
        "  python play.py 2",
        "a: shard 1 of 3, 2 to 4, GPU 1",
        "  python play.py 2",
        "b: shard 2 of 3, 4 to 5, no GPU",
        "  python play.py 1",
    ]
    listed = FanOutRequest("play {item}", items=("x y", "z"))
    assert plan(listed, ServerSlots("a", ("0", "1"))).text().splitlines() == [
        "2 shards on 2 slots of 1 server, each handed out when a slot is free",
        "a: slot 0, GPU 0",
        "a: slot 1, GPU 1",
        "shard 0 of 2",
        "  play 'x y'",
    ]
