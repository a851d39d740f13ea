"""Works that are one short command: run, run once more, prepare, and the help."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, LABML, OURS, PARALLEL_SSH, Contender, Goal, Work
from benchmarks.field import small_files
from benchmarks.works.plan import how_many, with_labml
from benchmarks.works.syncs import SMALL_FILES, START

if TYPE_CHECKING:
    from benchmarks.field import Field

LOGINS = (
    "A login costs the server 22 to 38 ms of processor time with any client: parallel-ssh, which only logs in and"
    " starts true, needs half of the time by hand on 64 servers. Ours adds 14 ms on each server for a Python that"
    " ends the whole process tree of the command when the connection is lost."
)
PYTHONS = (
    "On each server a Python starts the command and ends its whole process tree when the connection is lost: 14"
    " ms of processor time, of which the bare interpreter takes 7 to 11. All servers share this machine."
)
REQUEST = "One more request than its rsync: 28 ms of a server's processor time."


def run_true(field: Field) -> Work:
    """Run a command that does nothing, on every server; each command logs in."""
    field.tool("prepare")
    field.forget("labml")
    for server in field.servers:
        (server.home / "labml" / ".remote-scripts").mkdir(parents=True)
    count = len(field.servers)
    contenders = [
        Contender(BY_HAND, lambda: field.everywhere("true").seconds),
        Contender(OURS, lambda: field.tool("run", "--cmd", "true").seconds),
        *_parallel_ssh(field),
    ]
    if field.has_labml and count == 1:
        words = ("run", "--server", field.servers[0].name, "--cmd", "true")
        contenders.append(Contender(LABML, lambda: field.labml_tool(*words).seconds))
    goals = {1: (Goal(1.6, why=START),), 8: (Goal(0.9, why=LOGINS),), 64: (Goal(0.35, why=LOGINS),)}.get(count, ())
    title = f"run a command, {how_many(field)}"
    return Work(f"run-{count}", title, tuple(contenders), goals, rounds=11)


def run_again(field: Field) -> Work:
    """Run it again, when an earlier command has left a login; by hand, that is ``ssh`` with ControlPersist."""
    field.configure(keep=True)
    field.tool("prepare")
    count = len(field.servers)
    contenders = [
        Contender(BY_HAND, lambda: field.everywhere("true", keep=True).seconds),
        Contender(OURS, lambda: field.tool("run", "--cmd", "true").seconds),
        *_parallel_ssh(field),
    ]
    if field.keeps_logins:
        # The next command would meet the login while it is being made.
        first = Contender(
            "its first", contenders[1].run, field.log_out, after=lambda: field.tool("run", "--cmd", "true")
        )
        contenders.append(first)
    goals = {1: (Goal(0.22, "s", why=START),), 64: (Goal(1.0, against=PARALLEL_SSH, why=PYTHONS),)}.get(count, ())
    title = f"run a command again, by hand with ControlPersist, {how_many(field)}"
    return Work(f"again-{count}", title, tuple(contenders), goals, rounds=11)


def _parallel_ssh(field: Field) -> tuple[Contender, ...]:
    if not field.has_labml:
        return ()
    addresses = [server.address for server in field.servers]
    words = [sys.executable, "-c", programs.PARALLEL_SSH, str(field.folder / "rsa"), "root", *addresses]
    return (Contender(PARALLEL_SSH, lambda: field.spend(words, field.hand).seconds),)


def prepare_again(field: Field) -> Work:
    """Prepare servers that are prepared."""
    field.fill(small_files(SMALL_FILES))
    field.tool("prepare")
    contenders = (
        Contender("its rsync", lambda: field.tool("rsync").seconds),
        Contender(OURS, lambda: field.tool("prepare").seconds),
    )
    title = f"prepare, nothing changed, {how_many(field)}"
    return Work("prepare", title, contenders, (Goal(1.3, against="its rsync", why=REQUEST),), against="its rsync")


def show_help(field: Field) -> Work:
    """Show the help, and complete a word."""
    complete = ["env", "_REMOTE_TOOL_COMPLETE=complete_bash", "COMP_WORDS=remote-tool job-", "COMP_CWORD=1"]
    script = shutil.which("remote-tool", path=f"{sys.prefix}/bin") or "remote-tool"
    contenders = (
        Contender("python -c pass", lambda: field.spend([sys.executable, "-c", "pass"], field.ours).seconds),
        Contender(OURS, lambda: field.spend([script, "--help"], field.ours).seconds),
        Contender("its completion", lambda: field.spend([*complete, script], field.ours, check=False).seconds),
        *with_labml(field, lambda: field.labml_tool("--help").seconds),
    )
    goals = (Goal(0.15, "s"), Goal(0.15, "s", of="its completion"))
    return Work("help", "--help and shell completion", contenders, goals, against="", rounds=11)
