"""Detect the torch version from a file, since importing torch takes seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class TorchBuild:
    """An installed torch.

    Attributes:
        version: Like ``2.5.1+cu124``.
        cuda: The CUDA that it was built for, like ``12.4``; empty if built without.
        hip: The same for ROCm.
    """

    version: str
    cuda: str = ""
    hip: str = ""

    @property
    def text(self) -> str:
        """Return the display text."""
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "no CUDA"
        return f"{self.version} ({built})"


def parse_torch(text: str) -> TorchBuild | None:
    """Parse ``torch/version.py``; None without a version."""
    version = _value("__version__", text)
    return TorchBuild(version, _value("cuda", text), _value("hip", text)) if version else None


def _value(name: str, text: str) -> str:
    found = re.search(rf"^{name}\s*(?::[^=\n]{{0,100}})?=\s*['\"]([0-9A-Za-z.+_-]{{1,40}})['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def parts_of(version: str) -> tuple[int, ...]:
    """Return the numbers of ``12.4`` for comparison."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,6}", version)[:3])
