"""Plays tic-tac-toe against itself and writes what came of it; needs nothing but Python.

The moves are the best that models/value.json knows, or chance where there is no model yet, and now and then chance
anyway: without it every game would be the same.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

MODEL = Path("models/value.json")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
CURIOSITY = 0.2

# 1: of whom it is about, -1: of the other, 0: free.
Board = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A network with one hidden layer: how good a board is for whom it is about, from -1 to 1."""

    hidden: list[list[float]]
    hidden_bias: list[float]
    output: list[float]
    output_bias: float

    @classmethod
    def load(cls, path: Path = MODEL) -> Model | None:
        """Read what was trained; None before the first training."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def value(self, board: Board) -> float:
        """Judge a board."""
        sums = [
            sum(weight * square for weight, square in zip(row, board, strict=True)) + bias
            for row, bias in zip(self.hidden, self.hidden_bias, strict=True)
        ]
        active = [max(0.0, each) for each in sums]
        return math.tanh(sum(a * b for a, b in zip(self.output, active, strict=True)) + self.output_bias)


def main() -> None:
    """Play, and write a line for each position of each game."""
    options = read_options()
    model, chance = Model.load(), random.Random(options.seed)  # noqa: S311 - it guards nothing
    games = [play((model, model), chance) for _ in range(options.games)]
    lines = [json.dumps({"board": board, "value": value}) + "\n" for game in games for board, value in game]
    write(options.out, "".join(lines))
    draws = sum(game[-1][1] == 0 for game in games)
    print(f"{len(games)} games, {draws} of them drawn, {len(lines)} positions in {options.out}", flush=True)


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="the same games again")
    return parser.parse_args()


def play(players: tuple[Model | None, Model | None], chance: random.Random) -> list[tuple[Board, int]]:
    """Play a game; return each board as whoever just moved sees it, with what became of it: 1 won, 0 drawn, -1 lost."""
    board: Board = (0,) * 9
    boards = []
    while not is_won(board) and 0 in board:
        # The other one moves, and sees the board from the other side.
        board = move(tuple(-square for square in board), players[len(boards) % 2], chance)
        boards.append(board)
    result = int(is_won(board))
    return [(seen, result * (-1) ** (len(boards) - 1 - number)) for number, seen in enumerate(boards)]


def move(board: Board, model: Model | None, chance: random.Random) -> Board:
    """Return the board after the move that leads to the best one, or after any."""
    free = [place for place in range(9) if board[place] == 0]
    after = [(*board[:place], 1, *board[place + 1 :]) for place in free]
    if model is None or chance.random() < CURIOSITY:
        return chance.choice(after)
    return max(after, key=model.value)


def measure(model: Model | None, games: int = 100) -> int:
    """Return how many games a model does not lose against chance; it has the first move in half of them."""
    chance, kept = random.Random(0), 0  # noqa: S311 - it guards nothing
    for game in range(games):
        positions = play((model, None) if game % 2 == 0 else (None, model), chance)
        _, result = positions[-1]
        is_last_mover = (len(positions) + game) % 2 == 1
        kept += result == 0 or is_last_mover
    return kept


def is_won(board: Board) -> bool:
    """Whether whoever just moved has a line."""
    return any(all(board[place] == 1 for place in line) for line in LINES)


def write(path: Path, text: str) -> None:
    """Write beside and rename: whoever reads it finds a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


if __name__ == "__main__":
    main()
