"""Writes docs/skill.md, which coding agents follow, from the commands: ``python -m remote_tool.cli.skill``."""

from __future__ import annotations

import re
from pathlib import Path

from remote_tool.cli.program import GROUPS, PROGRAM, load_command
from remote_tool.cli.reference import INTRODUCTION

FILE = Path(__file__).parents[2] / "docs" / "skill.md"
STATUSES = re.compile(r"^\| exit status .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
READS, SAME, AGAIN, STAYS, PERSON, ASK = (
    "changes nothing",
    "a second one has nothing left to do",
    "a second one starts it again",
    "runs until it is stopped",
    "needs a person at a terminal",
    "ask the user first",
)
# What a command does when it is repeated; every command has to be here.
REPEATED = {
    READS: (
        *("check", "bandwidth", "gpus", "connections", "job-list", "job-show", "sweep-show", "top", "job-tail"),
        *("job-stacks", "job-wait", "job-diff"),
    ),
    SAME: (
        *("prepare", "setup", "rsync", "data-sync", "update-packages", "ssh-config", "disconnect", "job-kill"),
        *("job-requeue", "job-note", "job-rsync", "job-pull"),
    ),
    AGAIN: (
        *("run", "job-run", "helper-torch-launch", "helper-launch", "helper-mpi-launch", "helper-ray-launch"),
        *("helper-fan-out", "helper-sweep", "job-rerun", "demo"),
    ),
    STAYS: ("forward", "jupyter", "tensorboard"),
    PERSON: ("keys", "shell", "job-attach"),
    ASK: ("init", "clean"),
}
TEXT = """\
---
name: remote-tool
description: Prepare machines reached by SSH, and start, follow, and stop training jobs on them with remote-tool. Use it
  if the project has a folder .remote, or if the user wants to run something on their servers or GPUs.
---

# A skill for coding agents

`python -m remote_tool.cli.skill` writes this page in a clone of the project. To install it, copy it to
`remote-tool/SKILL.md` in your agent's folder of skills. Everything below is for the agent.

## How to work

1. Run commands in the project's folder, with `--json` where the table below has it: one document on stdout, with
   `"errors"` in it. Text for people is on stderr, and may change. `remote-tool COMMAND --help` has every option.
2. Look before you act: `check --json` says what a server lacks, `job-list --json` what runs, and `gpus --json` what is
   free.
3. Give what you start a tag of its own (`--tag`). A start whose answer you did not get may have succeeded:
   `job-list --stopped --tag TAG --json` shows it. Start again only what is not there.
4. Take the `"key"` of each job from the answer, and name jobs by it: `job-wait 1 --timeout 600`. With `--tag`,
   `job-wait` and `job-kill` choose among the jobs that still run, so `job-wait --tag` does not tell how a quick job
   ended.
5. Jobs do not need your connection. Do not poll in a loop, and do not keep `--follow` open for hours.
6. When something fails, the `hint` of an error says what to do next, mostly as a command. Read the error of a job with
   `job-show KEY --json` and its output with `job-tail KEY --no-follow --lines 50`.

## Never

- `clean --all`, `clean --yes`, `rsync --overwrite`, `rsync --adopt`, `job-kill --all`, `job-kill --orphans`: they
  remove or end what others may need. Ask the user.
- Stop a job that you did not start: its `started_by` and `tags` say whose it is.
- Put a password, token, or key into `--cmd`, a file of the project, or `send_anyway`. `--env NAME` passes a variable of
  your environment on, and no record has its value.
- Accept a changed host key, or write into `.remote/jobs`, `.jobs`, or `.remote-scripts`.
- Run `ssh`, `scp`, or `kill` beside it for something that a command here does.

## A job from start to end

If there is no `.remote/configs.yaml`, ask the user for the servers:

```console
$ remote-tool init --name digits --server gpu1=ubuntu@10.0.0.5 --server gpu2=ubuntu@10.0.0.6
$ remote-tool prepare --json
…
  "errors": []
```

Start a job, wait for it, and get what it wrote. The job has the key 1, and the exit status of `job-wait` is its own:

```console
$ remote-tool job-run --server gpu1 --tag try-1 --cmd 'python train_digits.py --epochs 2' --json
…
  "errors": []
$ remote-tool job-list --stopped --tag try-1 --json
…
  "errors": []
$ remote-tool job-wait 1 --timeout 600 --json
…
  "errors": []
$ remote-tool job-tail 1 --no-follow --lines 2
…
$ remote-tool job-pull 1 --artifact 'checkpoints/*.pt' --json
…
  "errors": []
```

On several servers at once, with a job on each:

```console
$ remote-tool helper-torch-launch --cmd 'train_digits.py --epochs 2 --fresh' --nproc-per-node 1 --tag try-2 --json
…
  "errors": []
$ remote-tool job-wait 2 3 --timeout 600
```

A job that fails says why, and one that is stopped ends with all of its processes:

```console
$ remote-tool job-run --server gpu1 --tag try-3 --cmd 'echo no data; exit 3' --json
…
  "errors": []
$ remote-tool job-wait 4
$ echo $?
3
$ remote-tool job-run --server gpu1 --tag try-4 --cmd 'sleep 1000' --json
…
  "errors": []
$ remote-tool job-kill 5 --json
…
  "errors": []
```

## Exit statuses

STATUSES

`run`, `job-wait`, and `--follow` exit with the job's own status.

## Commands

| command | what it does | run twice | `--json` |
|---|---|---|---|
COMMANDS
"""


def skill() -> str:
    """Return the page."""
    statuses = STATUSES.search(INTRODUCTION)
    assert statuses is not None
    rows = [_row(name, summary) for commands in GROUPS.values() for name, (_, summary, _) in commands.items()]
    return TEXT.replace("STATUSES", statuses[0], 1).replace("COMMANDS", "\n".join(rows))


def _row(name: str, summary: str) -> str:
    (repeated,) = [how for how, names in REPEATED.items() if name in names]
    has_json = any("--json" in option.opts for option in load_command(name).params)
    return f"| `{PROGRAM} {name}` | {summary} | {repeated} | {'yes' if has_json else 'no'} |"


if __name__ == "__main__":
    FILE.write_text(skill(), encoding="utf-8")
