"""What is measured, in the order of the table: each makes the contenders of one work on a field of servers."""

from __future__ import annotations

from benchmarks.works import commands, jobs, output, syncs, waits
from benchmarks.works.plan import Plan

PLANS = {
    "sync-unchanged": Plan(8, syncs.unchanged),
    "sync-one": Plan(8, syncs.one_changed),
    "sync-first": Plan(8, syncs.first_small),
    "sync-big": Plan(4, syncs.first_big),
    "sync-big-again": Plan(4, syncs.big_again),
    "sync-unchanged-1": Plan(1, syncs.unchanged),
    "sync-one-1": Plan(1, syncs.one_changed),
    "sync-first-1": Plan(1, syncs.first_small),
    "sync-big-1": Plan(1, syncs.first_big),
    "run-1": Plan(1, commands.run_true),
    "run-8": Plan(8, commands.run_true),
    "run-64": Plan(64, commands.run_true),
    "again-1": Plan(1, commands.run_again),
    "again-8": Plan(8, commands.run_again),
    "again-64": Plan(64, commands.run_again),
    "submit-1": Plan(1, waits.first_line),
    "submit-8": Plan(8, waits.first_line),
    "kill-1": Plan(1, waits.kill),
    "kill-8": Plan(8, waits.kill),
    "reattach-1": Plan(1, waits.reattach),
    "reattach-8": Plan(8, waits.reattach),
    "start": Plan(8, jobs.start_many),
    "start-1": Plan(1, jobs.start_many),
    "launch": Plan(4, jobs.launch_torch),
    "launch-1": Plan(1, jobs.launch_torch),
    "tail": Plan(1, output.tail),
    "list": Plan(8, jobs.list_with_logs),
    "list-1": Plan(1, jobs.list_with_logs),
    "list-10000": Plan(1, jobs.list_ten_thousand),
    "prepare": Plan(8, commands.prepare_again),
    "prepare-1": Plan(1, commands.prepare_again),
    "help": Plan(1, commands.show_help),
    "print": Plan(1, output.print_much),
}
