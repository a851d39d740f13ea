"""Draw curves, as PNG and SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def pyplot() -> Any:  # noqa: ANN401 - matplotlib has no types
    """Load what draws without a screen; only drawing needs it."""
    import matplotlib as mpl  # noqa: PLC0415 - see above
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the same

    mpl.use("agg")
    # No random names: the same figures give the same files.
    mpl.rcParams["svg.hashsalt"] = "remote_tool"
    return plt


def plain_seconds(axes: Any) -> None:  # noqa: ANN401 - the same
    """Write the seconds of a logarithmic axis as plain numbers, those that are in the picture."""
    low, high = axes.get_ylim()
    ticks = [tick for tick in SECONDS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def save(figure: Any, file: Path) -> None:  # noqa: ANN401 - the same
    """Write a picture beside its PNG; ``file`` is without a suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(file.with_suffix(".png"), dpi=130)
    pyplot().close(figure)
