"""Works that are one short command: run, run once more, prepare, and the help."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, LABML, OURS, PARALLEL_SSH, Contender, Goal, Work
from benchmarks.field import small_files
from benchmarks.works.plan import how_many, with_labml
from benchmarks.works.syncs import SMALL_FILES

if TYPE_CHECKING:
    from benchmarks.field import Field

MANY = 16


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
    limit = {1: 1.6, 8: 0.9, 64: 0.35}.get(count)
    goals = (Goal(limit),) if limit else ()
    title = f"run a command, {how_many(field)}"
    return Work(f"run-{count}", title, tuple(contenders), goals, rounds=_rounds(field))


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
    goals = {1: (Goal(0.22, "s"),), 64: (Goal(1.0, against=PARALLEL_SSH),)}.get(count, ())
    title = f"run a command again, by hand with ControlPersist, {how_many(field)}"
    return Work(f"again-{count}", title, tuple(contenders), goals, rounds=_rounds(field))


def _rounds(field: Field) -> int:
    return 3 if len(field.servers) > MANY else 11


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
    return Work("prepare", title, contenders, (Goal(1.3, against="its rsync"),), against="its rsync")


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
