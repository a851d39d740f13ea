"""Train the network of models/value.json on the games of self_play.py: alone, or on all processes of torchrun."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from self_play import Model, measure, write
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HIDDEN = 32
SEED = 7


@record
def main() -> None:
    """Join the process group, train, and leave it."""
    options = read_options()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(9, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1), nn.Tanh())
    resume(network)
    # Made before the process group: torch.optim imports modules that would hold the group for good.
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    loss = train(options, network, optimizer, load(options.data, rank, world_size))
    if rank == 0:
        save(network, options.out)
        kept = measure(Model.load(options.out))
        print(f"loss {loss:.4f} on {world_size} processes; {kept} of 100 games not lost against chance", flush=True)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/self_play"))
    parser.add_argument("--out", type=Path, default=Path("models/new.json"))
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def load(folder: Path, rank: int, world_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return the positions of all files, each process its share."""
    files = sorted(folder.rglob("*.jsonl"))
    positions = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    if not positions:
        raise SystemExit(f"no positions in {folder}: play first")
    if rank == 0:
        print(f"{len(positions)} positions of {len(files)} files", flush=True)
    boards = torch.tensor([each["board"] for each in positions], dtype=torch.float32)
    values = torch.tensor([[each["value"]] for each in positions], dtype=torch.float32)
    data = TensorDataset(boards, values)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        data, num_replicas=world_size, rank=rank, seed=SEED
    )
    return DataLoader(data, batch_size=64, sampler=sampler)


def train(
    options: argparse.Namespace,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: DataLoader[tuple[torch.Tensor, ...]],
) -> float:
    """Train, gradients averaged over all processes; return the mean loss of the last epoch."""
    together = DistributedDataParallel(network) if dist.is_initialized() else network
    total = 0.0
    for _ in range(options.epochs):
        total = 0.0
        for boards, values in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(together(boards), values)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(batches)


def resume(network: nn.Sequential) -> None:
    """Load the existing model."""
    model = Model.load()
    if model is not None:
        values = (model.hidden, model.hidden_bias, [model.output], [model.output_bias])
        for parameter, value in zip(network.parameters(), values, strict=True):
            parameter.data = torch.tensor(value)


def save(network: nn.Sequential, path: Path) -> None:
    """Write the model in the format of self_play.py."""
    hidden, hidden_bias, output, output_bias = (each.tolist() for each in network.parameters())
    names = ("hidden", "hidden_bias", "output", "output_bias")
    write(path, json.dumps(dict(zip(names, (hidden, hidden_bias, output[0], output_bias[0]), strict=True))))


if __name__ == "__main__":
    main()
