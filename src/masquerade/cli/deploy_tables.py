"""How a federation is, as tables for the terminal."""

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from masquerade.deploy.overview import ClientView, Overview

if TYPE_CHECKING:
    from masquerade.deploy.status import Status


def overview_table(found: Overview) -> Group:
    """Return how a federation is."""
    parts: list[RenderableType] = [_head(found), *map(Text, found.troubles)]
    if found.status is not None:
        parts += _counts(found.status)
    parts.append(_clients(found))
    parts += [Text(text) for text in found.warnings]
    return Group(*parts)


def progress_line(status: "Status | None") -> str:
    """Say in one line how far training is."""
    if status is None:
        return "not begun"
    said = f"{status.doing}: round {status.round} of {status.rounds}"
    if status.outstanding:
        said += f", waiting for {', '.join(status.outstanding)}"
    return said


def _head(found: Overview) -> Table:
    table = Table(box=None, show_header=False, title=found.federation, title_justify="left")
    running = ", ".join(found.running) or "nothing; `masquerade deploy server` starts it"
    table.add_row("address", found.address)
    table.add_row("running", running)
    table.add_row("training", progress_line(found.status))
    return table


def _counts(status: "Status") -> list[RenderableType]:
    counts = {
        "answers lost": status.lost,
        "updates refused": status.refused,
        "rounds below the quorum": status.below_quorum,
    }
    said = ", ".join(f"{text}: {count}" for text, count in counts.items() if count)
    return [Text(said)] if said else []


def _clients(found: Overview) -> Table:
    table = Table("client", "state", "last seen", "up", "down", box=None, title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for client in found.clients:
        size = [f"{value / 1e6:.1f} MB" for value in (client.up, client.down)]
        table.add_row(client.name, client.state, _ago(client), *size)
    return table


def _ago(client: ClientView) -> str:
    if client.last_seen is None:
        return "-"
    seconds = time.time() - client.last_seen
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
