"""What a shell makes of the commands of fan-outs and sweeps."""

from __future__ import annotations

import subprocess

import pytest

from remote_tool.workflows.fan_out.plan import ServerSlots, plan_fan_out
from remote_tool.workflows.fan_out.request import FanOutRequest
from remote_tool.workflows.sweep.request import command_of

LAUNCH = "20261121-053000-0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("lr=0.1 batch=32", ["lr=0.1", "batch=32"]),
        ("--name 'a b'  --note \"it's\" c\\ d ''", ["--name", "a b", "--note", "it's", "c d", ""]),
        (
            "dir=${now:%H} x={a:1,b:2} y=choice(1,2) z=[1,*] #n",
            ["dir=${now:%H}", "x={a:1,b:2}", "y=choice(1,2)", "z=[1,*]", "#n"],
        ),
        ("a; rm -rf / && b | c > d `e` $(f)", ["a;", "rm", "-rf", "/", "&&", "b", "|", "c", ">", "d", "`e`", "$(f)"]),
    ],
)
def test_a_raw_item_is_its_words_and_nothing_in_it_is_run_or_expanded(item: str, words: list[str]) -> None:
    made = plan_fan_out(
        FanOutRequest("printf '%s\\n' {item:raw} --as {shard}", items=(item,)), [ServerSlots("a")], LAUNCH
    )
    (command,) = [shard.command(made.command) for shard in made.shards]
    printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == [*words, "--as", "0"]
    assert made.shards[0].environment["REMOTE_TOOL_ITEM"] == item


@pytest.mark.row(312)
def test_a_value_reaches_the_program_as_it_is() -> None:
    value = """it's $HOME `id` "q" \\ {x} *\n"""
    command = command_of("printf %s {a}", 0, {"a": value})
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout == value
