"""How a federation is, as tables for the terminal."""

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from masquerade.deploy.client_overview import ClientOverview
from masquerade.deploy.joining import WORKER
from masquerade.deploy.overview import ClientView, Overview

if TYPE_CHECKING:
    from masquerade.deploy.status import ClientStatus, Status


def overview_table(found: Overview) -> Group:
    """Return how a federation is."""
    parts: list[RenderableType] = [_head(found), *map(Text, found.troubles)]
    if found.status is not None:
        parts += _counts(found.status)
    parts.append(_clients(found))
    parts += [Text(text) for text in found.warnings]
    return Group(*parts)


def client_table(found: ClientOverview) -> Group:
    """Return how a client is."""
    table = Table(
        box=None,
        show_header=False,
        title=f"{found.client} of {found.federation}",
        title_justify="left",
    )
    running = ", ".join(found.running) or "nothing; `masquerade deploy join` starts it"
    table.add_row("server", f"{found.address} {found.server if found.well else ''}".rstrip())
    table.add_row("running", running)
    for name, text in _worked(found.status, WORKER in found.running):
        table.add_row(name, text)
    if found.certificate is not None:
        table.add_row("server's certificate", f"ends in {found.certificate:.0f} days")
    return Group(table, *map(Text, (*found.troubles, *found.warnings)))


def _worked(status: "ClientStatus | None", works: bool) -> list[tuple[str, str]]:
    """Say what a worker does, and what it did last."""
    if status is None:
        return [("worker", "was asked nothing yet")]
    said = [("worker", f"{status.doing}, for {_since(status.since)}")] if works else []
    if status.samples:
        train, validation, test = status.samples
        said.append(("samples", f"{train} to train, {validation} to validate, {test} to test"))
    if status.rounds:
        done = f"{status.round} of {status.rounds}, {_since(status.trained)} ago"
        said.append(("last round", done if status.round else f"none yet of {status.rounds}"))
    if status.measured:
        text = f"measured {_since(status.measured)} ago; `masquerade deploy export` takes it out"
        said.append(("own model", text))
    return said


def progress_line(status: "Status | None") -> str:
    """Say in one line how far training is."""
    if status is None:
        return "not begun"
    # Before clients have agreed there are no rounds.
    said = status.doing + (f": round {status.round} of {status.rounds}" if status.rounds else "")
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
    return "-" if client.last_seen is None else f"{_since(client.last_seen)} ago"


def _since(moment: float) -> str:
    seconds = time.time() - moment
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
