"""Play tic-tac-toe against itself and write the results. Needs only Python.

Each move is the best one according to models/value.json, or random if there is no model yet. Some moves are always
random: otherwise, every game would be the same.
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

# 1: the player in question, -1: the opponent, 0: free.
Board = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A network with one hidden layer: the value of a board for a player, from -1 to 1."""

    hidden: list[list[float]]
    hidden_bias: list[float]
    output: list[float]
    output_bias: float

    @classmethod
    def load(cls, path: Path = MODEL) -> Model | None:
        """Load the trained model; None before the first training."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def value(self, board: Board) -> float:
        """Evaluate a board."""
        sums = [
            sum(weight * square for weight, square in zip(row, board, strict=True)) + bias
            for row, bias in zip(self.hidden, self.hidden_bias, strict=True)
        ]
        active = [max(0.0, each) for each in sums]
        return math.tanh(sum(a * b for a, b in zip(self.output, active, strict=True)) + self.output_bias)


def main() -> None:
    """Play, and write one line per position of each game."""
    options = read_options()
    model, chance = Model.load(), random.Random(options.seed)  # noqa: S311 - it guards nothing
    games = [play((model, model), chance) for _ in range(options.games)]
    lines = [json.dumps({"board": board, "value": value}) + "\n" for game in games for board, value in game]
    write(options.out, "".join(lines))
    draws = sum(game[-1][1] == 0 for game in games)
    print(f"{len(games)} games, {draws} of them drawn, {len(lines)} positions in {options.out}", flush=True)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="seed for reproducible games")
    return parser.parse_args()


def play(players: tuple[Model | None, Model | None], chance: random.Random) -> list[tuple[Board, int]]:
    """Play a game; return each board as its last player sees it, with the result: 1 won, 0 drawn, -1 lost."""
    board: Board = (0,) * 9
    boards = []
    while not is_won(board) and 0 in board:
        # The opponent moves next, and sees the board from the other side.
        board = move(tuple(-square for square in board), players[len(boards) % 2], chance)
        boards.append(board)
    result = int(is_won(board))
    return [(seen, result * (-1) ** (len(boards) - 1 - number)) for number, seen in enumerate(boards)]


def move(board: Board, model: Model | None, chance: random.Random) -> Board:
    """Return the board after the best move, or after a random one."""
    free = [place for place in range(9) if board[place] == 0]
    after = [(*board[:place], 1, *board[place + 1 :]) for place in free]
    if model is None or chance.random() < CURIOSITY:
        return chance.choice(after)
    return max(after, key=model.value)


def measure(model: Model | None, games: int = 100) -> int:
    """Return how many games a model does not lose against random moves; it moves first in half of the games."""
    chance, kept = random.Random(0), 0  # noqa: S311 - it guards nothing
    for game in range(games):
        positions = play((model, None) if game % 2 == 0 else (None, model), chance)
        _, result = positions[-1]
        is_last_mover = (len(positions) + game) % 2 == 1
        kept += result == 0 or is_last_mover
    return kept


def is_won(board: Board) -> bool:
    """Whether the last player to move has a line."""
    return any(all(board[place] == 1 for place in line) for line in LINES)


def write(path: Path, text: str) -> None:
    """Write to a temporary file and rename it, so that readers always find a complete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


if __name__ == "__main__":
    main()
