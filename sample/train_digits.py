"""Train a small network on handwritten digits, on all processes of torchrun, or alone as a script."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINT = Path("checkpoints/digits.pt")
HELD_OUT = 360
SEED = 7


@dataclass(frozen=True)
class Place:
    """The rank of this process, and its device."""

    rank: int
    world_size: int
    device: torch.device


@record
def main() -> None:
    """Join the process group, train, and leave it."""
    options = read_options()
    torch.manual_seed(SEED)
    device = choose_device()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    # Made before the process group: torch.optim imports modules that would hold the group for good, and gloo's threads
    # that outlive Python's own end crash now and then.
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    place = join(device)
    train(options, model, optimizer, place)
    leave()


def train(options: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> None:
    """Train, report every epoch, and finally the accuracy on digits that were held out."""
    seen, held_out = load_data()
    first_epoch = 0 if options.fresh else resume(model, optimizer, place)
    network = wrap(model, place)
    for epoch in range(first_epoch, options.epochs):
        train_epoch(epoch, network, optimizer, seen, place)
        if place.rank == 0:
            save(epoch, model, optimizer)
    if place.rank == 0:
        print(f"accuracy {measure(model, held_out, place):.1f} % on {HELD_OUT} held-out digits", flush=True)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--fresh", action="store_true", help="start from scratch, even if there is a checkpoint")
    return parser.parse_args()


def choose_device() -> torch.device:
    """Return a separate GPU if every process here can have one, else the CPU: one thread, or OMP_NUM_THREADS."""
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    return torch.device("cpu")


def join(device: torch.device) -> Place:
    """Join the process group, if torchrun started several processes: nccl with GPUs, gloo without."""
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    place = Place(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), device)
    print(f"rank {place.rank} of {place.world_size} on {place.device}", flush=True)
    return place


def leave() -> None:
    """Leave the process group when all processes are done."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits to train on and those held out; the same split on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=HELD_OUT, random_state=SEED, stratify=digits.target)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def wrap(model: nn.Module, place: Place) -> nn.Module:
    """Average gradients over all processes, if there are several."""
    return DistributedDataParallel(model) if dist.is_initialized() and place.world_size > 1 else model


def train_epoch(
    epoch: int, network: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset, place: Place
) -> None:
    """Train on every digit once, each process on its share."""
    began = time.monotonic()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(
        data, num_replicas=place.world_size, rank=place.rank, seed=SEED
    )
    sampler.set_epoch(epoch)
    total = 0.0
    batches = DataLoader(data, batch_size=32, sampler=sampler)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images.to(place.device)), labels.to(place.device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    if place.rank == 0:
        seconds = time.monotonic() - began
        print(f"epoch {epoch + 1} loss {total / len(batches):.4f} seconds {seconds:.2f}", flush=True)


@torch.no_grad()
def measure(model: nn.Module, data: TensorDataset, place: Place) -> float:
    """Return the accuracy in percent."""
    images, labels = data.tensors
    guesses = model(images.to(place.device)).argmax(dim=1).cpu()
    return 100.0 * (guesses == labels).double().mean().item()


def save(epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint to a temporary file and rename it, so that readers always find a complete one."""
    CHECKPOINT.parent.mkdir(exist_ok=True)
    beside = CHECKPOINT.with_suffix(".new")
    torch.save({"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
    beside.replace(CHECKPOINT)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> int:
    """Resume from the checkpoint of rank 0, if there is one; return the epoch to start with."""
    state: list[object] = [None]
    if place.rank == 0 and CHECKPOINT.exists():
        state = [torch.load(CHECKPOINT, map_location="cpu", weights_only=True)]
    if dist.is_initialized():
        # The other machines have no such file, or an older one.
        dist.broadcast_object_list(state, src=0, device=place.device)
    found = state[0]
    if not isinstance(found, dict):
        return 0
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    if place.rank == 0:
        print(f"resuming after epoch {found['epoch']}", flush=True)
    return int(found["epoch"])


if __name__ == "__main__":
    main()
