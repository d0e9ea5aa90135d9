"""How classes lie with clients, as a figure."""

from dataclasses import dataclass

from masquerade.report.charts import Chart
from masquerade.report.client_plots import label_chart


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


def over_classes(counts: LabelCounts) -> Chart:
    """Draw the classes of clients' training samples."""
    names = counts.class_names or tuple(map(str, range(counts.classes or 0)))
    found = {
        one.name or str(id): dict(zip(names, one.classes, strict=True))
        for id, one in enumerate(counts.clients)
    }
    return label_chart(found, "", "partition", f"Classes of {counts.data} by client")
