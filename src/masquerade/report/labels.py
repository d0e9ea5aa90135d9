"""How classes lie with clients, as a figure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from masquerade.report.drawing import COLORS, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 20
"""Classes or clients, at most, whose names stand at an axis."""


@dataclass(frozen=True)
class ClientCounts:
    """A client's samples."""

    train: int
    validation: int
    test: int
    classes: tuple[int, ...] = ()
    """Of the training samples, those of every class."""
    name: str = ""


@dataclass(frozen=True)
class LabelCounts:
    """The samples of all clients."""

    data: str
    classes: int | None
    clients: tuple[ClientCounts, ...]
    class_names: tuple[str, ...] = ()


def over_classes(counts: LabelCounts) -> str:
    """Draw the classes of clients' training samples, and how many these are, as SVG."""
    from matplotlib.colors import to_rgba
    from matplotlib.ticker import MaxNLocator

    clients = counts.clients
    # One color that grows denser shows on a light page as on a dark one.
    red, green, blue, _ = to_rgba(COLORS[0])
    cells = [
        [(red, green, blue, one.classes[row] / max(1, one.train)) for one in clients]
        for row in range(counts.classes or 0)
    ]

    title = f"Classes of {counts.data} by client"

    def paint(figure: "Figure") -> None:
        sizes, shares = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
        edges = [place - 0.5 for place in range(len(clients) + 1)]
        below = [0] * len(clients)
        for part, alpha in (("train", 1.0), ("validation", 0.5), ("test", 0.2)):
            tops = [low + getattr(one, part) for low, one in zip(below, clients, strict=True)]
            style = {"fill": True, "color": COLORS[0], "alpha": alpha, "label": part}
            sizes.stairs(tops, edges, baseline=below, **style)
            below = tops
        sizes.set_ylabel("Samples")
        sizes.set_title(title, loc="left", fontsize="medium")
        sizes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
        shares.imshow(cells, aspect="auto", interpolation="none")
        shares.set(xlabel="Client", ylabel="Class (denser: a larger share)")
        for axis in (shares.xaxis, shares.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if 0 < len(counts.class_names) <= NAMED:
            shares.set_yticks(range(len(counts.class_names)), counts.class_names)
        if len(clients) <= NAMED and all(one.name for one in clients):
            shares.set_xticks(range(len(clients)), [one.name for one in clients], rotation=45)

    height = 2.6 + min(4.0, 0.16 * (counts.classes or 0))
    return drawn("partition", title, height, paint)
