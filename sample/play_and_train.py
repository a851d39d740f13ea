"""Play on every GPU, collect the games, train on them, and play with the new model. Run this in a prepared workspace.

python play_and_train.py --train master    the first server trains, all play
python play_and_train.py --train all       all train together with torchrun, all play
python play_and_train.py --train alone     the first server does everything
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from remote_tool import FanOutRequest, RunningJob, Workspace

GAMES = "data/self_play"
MODEL, NEW_MODEL = Path("models/value.json"), "models/new.json"


def main() -> None:
    """Play and train for the requested number of rounds."""
    options = read_options()
    workspace = Workspace.find()
    servers = tuple(workspace.config.servers)
    players = servers[:1] if options.train == "alone" else servers
    for number in range(1, options.rounds + 1):
        answer = workspace.fan_out(
            FanOutRequest(
                "self_play.py --games {count} --out played/{shard}.jsonl",
                servers=players,
                total=options.games,
                artifacts=("played/{shard}.jsonl",),
                gather=GAMES,
            )
        )
        print(f"round {number}: {options.games} games in {len(answer.gathered)} files")
        first = train(workspace, servers, together=options.train == "all")
        (model,) = first.pull(NEW_MODEL)
        take(model, workspace.root / MODEL)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", choices=("master", "all", "alone"), default="master")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--games", type=int, default=600)
    return parser.parse_args()


def train(workspace: Workspace, servers: tuple[str, ...], *, together: bool) -> RunningJob:
    """Train on all collected games, which are sent at the start; return the job that writes the model."""
    command = f"train_value.py --data {GAMES} --out {NEW_MODEL}"
    jobs = workspace.launch_torch(command) if together else [workspace.start(servers[0], f"python {command}")]
    for line in jobs[0].tail():
        print(f"  {line}")
    if any(job.wait() != "succeeded" for job in jobs):
        raise SystemExit("the training failed")
    return jobs[0]


def take(model: Path, place: Path) -> None:
    """Copy a model to where the next start sends it to all servers."""
    place.parent.mkdir(exist_ok=True)
    shutil.copy(model, place)


if __name__ == "__main__":
    main()
