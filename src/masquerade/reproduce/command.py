"""`reproduce`: list the tables, run what is missing of one, write its page."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from masquerade.config import toml
from masquerade.errors import MasqueradeError
from masquerade.experiments.processes import perform_all
from masquerade.reproduce import index, page, table
from masquerade.reproduce.jobs import Job, group, perform
from masquerade.reproduce.table import Table
from masquerade.results.json_records import Json
from masquerade.storage import atomic


@dataclass(frozen=True)
class Order:
    """What the command asks for."""

    rows: Sequence[str] = ()
    """None means all."""
    seeds: Sequence[int] = ()
    """None means the table's."""
    search: bool = False
    """Whether to stop after the trials on validation data."""
    quick: bool = False
    show: bool = False
    """Whether to run nothing, and only read results."""
    page: bool = True
    """Whether to write the table's page; a machine that only trains lacks scipy for it."""
    rerun: bool = False
    """Whether to run again what is done."""
    jobs: int = 1
    """How many trainings are run at a time."""
    minutes: float = math.inf
    """After how many of them nothing more is begun."""
    compute: Sequence[str] = ()
    """`compute.KEY=VALUE`: where and how the work is done."""
    quiet: bool = False


def reproduce(name: str, order: Order, root: Path) -> Table:
    """Run what is missing of a table, and write its page."""
    found = _read(name, order, root)
    if not order.show:
        perform_all(perform, _jobs([found], order, root), order.jobs)
    if order.page:
        found.page.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(found.page, page.page(found).encode())
    return found


def work_off(order: Order, root: Path) -> None:
    """Run what waits of all tables, those of most worth first."""
    names = dict.fromkeys(row.table for row in index.queue(index.states(root)))
    tables = [_read(name, order, root) for name in names]
    perform_all(perform, _jobs(tables, order, root), order.jobs)


def _read(name: str, order: Order, root: Path) -> Table:
    if order.jobs < 1:
        raise MasqueradeError("E201", f"`--jobs` is {order.jobs}; give 1 or more")
    found = table.read(name, root, order.quick)
    return replace(found, over=toml.merged(found.over, _computed(order.compute)))


def _computed(assignments: Sequence[str]) -> dict[str, Json]:
    tables = toml.apply({}, assignments)
    if set(tables) - {"compute"}:
        text = "here `--set` takes compute.KEY=VALUE; other settings of a row are in its file"
        raise MasqueradeError("E201", text)
    return tables


def _jobs(tables: Sequence[Table], order: Order, root: Path) -> Iterator[Job | None]:
    """Yield what to do next, until time is up; None where that depends on what is being done.

    A table's rows wait for all of its tries, so that rows share trainings. Other tables go on.
    """
    end = time.monotonic() + 60 * order.minutes
    begun: set[Path] = set()
    while time.monotonic() < end:
        jobs = [job for found in tables for job in _missing(found, order, root)]
        fresh = next((job for job in jobs if job.folder not in begun), None)
        if fresh is not None:
            begun.add(fresh.folder)
        elif not jobs:
            return
        yield fresh


def _missing(found: Table, order: Order, root: Path) -> list[Job]:
    """List what is missing of a table and can be done: its tries, or then its rows."""
    rows = table.wanted(found, order.rows)
    tries = [run for row in rows for run in found.tries(row)]
    again = order.search and order.rerun
    left = [run for run in tries if again or found.record(run) is None]
    if not left and not order.search:
        runs = [found.run(row, seed) for seed in order.seeds or found.seeds for row in rows]
        known = [run for run in runs if run is not None]
        left = [run for run in known if order.rerun or found.record(run) is None]
    return group(found, left, root, order.jobs, order.quiet)


@dataclass(frozen=True)
class Overview:
    """A table, and which of its rows and tries are done."""

    table: str
    paper: str
    title: str
    done: list[str]
    """Rows with a result of every seed of the table."""
    missing: list[str]
    seeds: list[int]
    runs: int
    """Rows times seeds."""
    runs_done: int
    minutes: float | None
    """What its runs are expected to take on a GPU, without tries; None where that is not said."""
    minutes_left: float | None
    tries: int
    tries_done: int


def overview(root: Path) -> list[Overview]:
    """Return every table, and which of its rows and tries are done."""
    return [_overview(table.read(name, root)) for name in table.names(root)]


def _overview(found: Table) -> Overview:
    scores = [score for row in found.figures for score in found.scores(row).values()]
    left = {row: missing_seeds(found, row) for row in found.figures}
    minutes = left_of = None
    if found.minutes:
        minutes = sum(found.minutes.get(row, 0) for row in left) * len(found.seeds)
        left_of = sum(found.minutes.get(row, 0) * len(seeds) for row, seeds in left.items())
    runs = len(left) * len(found.seeds)
    return Overview(
        table=found.name,
        paper=found.paper,
        title=found.title,
        done=[row for row, seeds in left.items() if not seeds],
        missing=[row for row, seeds in left.items() if seeds],
        seeds=list(found.seeds),
        runs=runs,
        runs_done=runs - sum(map(len, left.values())),
        minutes=minutes,
        minutes_left=left_of,
        tries=len(scores),
        tries_done=sum(score is not None for score in scores),
    )


def missing_seeds(found: Table, row: str) -> list[int]:
    """Return the seeds of a table that a row has no result of."""
    done = {record.result.seed for record in found.done(row)}
    return [seed for seed in found.seeds if seed not in done]


def listing(root: Path) -> str:
    """Return the list of tables for a terminal."""
    lines = []
    for each in overview(root):
        rows = len(each.done) + len(each.missing)
        state = f"rows {len(each.done)} of {rows}, tries {each.tries_done} of {each.tries}"
        if len(each.seeds) > 1:
            state += f", runs {each.runs_done} of {each.runs} ({len(each.seeds)} seeds)"
        if each.minutes is not None:
            state += f", GPU minutes left {each.minutes_left:g} of {each.minutes:g}"
        lines += [f"{each.table}  {each.paper}", f"    {each.title}", f"    {state}"]
        if each.missing:
            lines.append(f"    missing: {', '.join(each.missing)}")
    all_states = index.states(root)
    if all_states:
        lines += ["", "All tables and figures:"]
        lines += [f"    {each.item.paper}, {each.item.name}: {each.told}" for each in all_states]
        lines += ["", index.summary(all_states)]
    return "\n".join(lines) or "No tables here: call this in a checkout of the repository."


def describe(name: str | None, order: Order, root: Path) -> str:
    """List the tables, or run what is missing of one; return what a terminal shows."""
    if name is None:
        return listing(root)
    made = reproduce(name, order, root)
    return f"{page.text(made)}\nPage: {made.page}" if order.page else ""
