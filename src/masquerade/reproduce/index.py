"""The index of all tables and figures with their state, and the queue of rows that wait."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from masquerade.config import toml
from masquerade.errors import MasqueradeError
from masquerade.reproduce import page, table
from masquerade.reproduce.table import Table
from masquerade.storage import atomic

FILE = "runs/papers.toml"
INDEX = "docs/results/index.md"
QUEUE = "runs/QUEUE.md"
COMMAND = "masquerade reproduce --index"


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, as `runs/papers.toml` has it."""

    paper: str
    name: str
    title: str
    table: str = ""
    """Its name under `runs`."""
    minutes: float | None = None
    """GPU minutes, estimated, as long as there is no folder that says them."""
    worth: int = 0
    """Its place in the queue."""
    not_here: str = ""
    """Why it cannot be run here."""

    def __post_init__(self) -> None:
        runs = bool(self.worth and (self.table or self.minutes is not None))
        if runs == bool(self.not_here):
            text = "give `worth` with `table` or `minutes`, or else `not_here`"
            raise MasqueradeError("E201", f"{FILE}: {self.paper}, {self.name}: {text}")


@dataclass(frozen=True)
class Waiting:
    """A row that waits: seeds without a result, and how many tries come first."""

    table: str
    results: str
    """The folder of its results, which tables with the same rows share."""
    row: str
    seeds: list[int]
    tries: int
    seed_minutes: float | None
    """GPU minutes of one seed; None where the table does not say it."""
    try_minutes: float = 0.0
    begun: bool = False
    """Whether some of its seeds have a result."""

    @property
    def minutes(self) -> float | None:
        """Return the GPU minutes of all that is left of it."""
        if self.seed_minutes is None:
            return None
        return self.seed_minutes * len(self.seeds) + self.try_minutes * self.tries


@dataclass(frozen=True)
class State:
    """How far a table or figure is."""

    item: Item
    folder: bool = False
    begun: bool = False
    """Whether any of its rows has a result, so that it has a page."""
    cells: int = 0
    """Figures of the paper that ours are compared with."""
    run: int = 0
    within: int = 0
    """Of those that are run, how many are as near as the table asks."""
    explained: int = 0
    """Of the others, how many have a paragraph."""
    waiting: tuple[Waiting, ...] = ()

    @property
    def minutes(self) -> float:
        """Return the GPU minutes that it waits for."""
        if not self.folder:
            return self.item.minutes or 0.0
        return sum(each.minutes or 0.0 for each in self.waiting)

    @property
    def told(self) -> str:
        """Describe the state in a line."""
        if self.item.not_here:
            return f"not runnable here: {self.item.not_here}"
        if not self.folder:
            return f"queued, no folder yet, {self.minutes:.0f} GPU minutes"
        text = f"cells run {self.run} of {self.cells}, within the bar {self.within}"
        text = text if self.cells else "no figures to be compared with"
        missed = self.run - self.within
        text += f", misses explained {self.explained} of {missed}" if missed else ""
        rows = len(self.waiting)
        return text + (f"; {rows} rows wait, {self.minutes:.0f} GPU minutes" if rows else "")


def items(root: Path) -> list[Item]:
    """Read the list of all tables and figures; none where there is no such file."""
    path = root / FILE
    if not path.is_file():
        return []
    try:
        return [Item(**entry) for entry in toml.read_file(path)["item"]]
    except (TypeError, KeyError) as error:
        raise MasqueradeError("E201", f"{path}: {error}; see the head of the file") from None


def states(root: Path) -> list[State]:
    """Return how far every table and figure is, in the order of the file."""
    known = table.names(root)
    return [
        _state(each, table.read(each.table, root)) if each.table in known else State(each)
        for each in items(root)
    ]


def _state(item: Item, found: Table) -> State:
    bars = {column.name: column.miss for column in found.columns if math.isfinite(column.miss)}
    notes, rows = found.notes(), page.values(found)
    # A row that is compared with itself can neither hit nor miss.
    itself = {(column.name, row) for column in found.columns for row in column.references}
    cells = [
        # What diverged misses by any distance.
        (math.inf if cell.lost else cell.difference, bars[name], row.row)
        for row in rows
        for name, cell in row.columns.items()
        if name in bars and cell.paper is not None and (name, row.row) not in itself
    ]
    run = [(abs(far), bar, row in notes) for far, bar, row in cells if far is not None]
    return State(
        item=item,
        folder=True,
        begun=any(row.seeds for row in rows),
        cells=len(cells),
        run=len(run),
        within=sum(far <= bar for far, bar, _ in run),
        explained=sum(far > bar and told for far, bar, told in run),
        waiting=tuple(_waiting(found)),
    )


def _waiting(found: Table) -> Iterable[Waiting]:
    for row in found.figures:
        done = {record.result.seed for record in found.done(row)}
        seeds = [seed for seed in found.seeds if seed not in done]
        tries = sum(score is None for score in found.scores(row).values())
        if seeds:
            one = found.minutes.get(row)
            of_try = (one or 0.0) * _length_of_try(found, row)
            names = (found.name, found.results.name, row)
            yield Waiting(*names, seeds, tries, one, of_try, begun=bool(done))


def _length_of_try(found: Table, row: str) -> float:
    """Return the rounds of a try as a share of the row's."""
    whole = toml.parse(found.tables(row)).train.rounds
    return found.tries(row)[0].config.train.rounds / whole if found.search.all_trials else 0.0


def summary(found: Sequence[State]) -> str:
    """Say in a line how far all tables and figures are."""
    here = [state for state in found if not state.item.not_here]
    begun = [state for state in here if state.begun]
    cells, run, within, explained = (
        sum(getattr(state, key) for state in here)
        for key in ("cells", "run", "within", "explained")
    )
    share = f" ({100 * within / run:.0f} %)" if run else ""
    missed = run - within
    minutes = sum(each.minutes or 0.0 for each in queue(found)) + sum(
        state.minutes for state in here if not state.folder
    )
    return (
        f"The papers have {len(found)} tables and figures, some counted in parts. "
        f"{len(begun)} are run or begun, and {len(found) - len(here)} cannot be run here. "
        f"Of {cells} cells with a figure of the paper, {run} are run and {within} are within the "
        f"bar{share}. {explained} of {missed} misses have a paragraph. {_seeds(found)}"
        f"What waits takes about {minutes:.0f} GPU minutes."
    )


def _seeds(found: Sequence[State]) -> str:
    """Say whether what is run has all seeds that its table plans."""
    begun = sum(row.begun for state in found for row in state.waiting)
    return f"{begun} rows lack some of their seeds. " if begun else "Every row run has all seeds. "


def queue(found: Sequence[State]) -> list[Waiting]:
    """Return the rows that wait, in order of worth; what two tables share is there once.

    Of a table, rows that lack most seeds come first.
    """
    rows: list[Waiting] = []
    known: dict[tuple[str, str], set[int]] = {}
    for state in sorted(found, key=lambda each: each.item.worth):
        for each in sorted(state.waiting, key=lambda row: -len(row.seeds)):
            seen = known.setdefault((each.results, each.row), set())
            seeds = [seed for seed in each.seeds if seed not in seen]
            if seeds:
                rows.append(replace(each, seeds=seeds, tries=0 if seen else each.tries))
            seen.update(seeds)
    return rows


INDEX_PAGE = """# All tables and figures

`{command}` writes this page from [`{file}`](../../{file}),
the tables' folders and their results. Nothing on it is typed.

| word | means |
|---|---|
| cell | a figure of the paper that ours is compared with |
| bar | how far ours may be from it: 3 points unless the table's page says otherwise |
| min | GPU minutes of one H200, estimated before a row is run |

{summary}

{parts}"""


def index_page(found: Sequence[State]) -> str:
    """Return the index in Markdown."""
    papers = dict.fromkeys(state.item.paper for state in found)
    parts = []
    for paper in papers:
        rows = [
            [
                "",
                "What",
                "Cells run",
                "Within the bar",
                "Misses with a paragraph",
                "Queued",
                "Notes",
            ]
        ]
        rows += [_index_row(state) for state in found if state.item.paper == paper]
        parts.append(f"## {paper}\n\n{page.markdown(rows)}\n")
    head = {"command": COMMAND, "file": FILE, "summary": page.wrapped(summary(found))}
    return INDEX_PAGE.format(parts="\n".join(parts), **head)


def _index_row(state: State) -> list[str]:
    item = state.item
    queued = (
        f"{state.minutes:.0f} min" if state.waiting or not (state.folder or item.not_here) else ""
    )
    if not state.folder:
        note = f"not runnable here: {item.not_here}" if item.not_here else "no folder yet"
        return [item.name, item.title, "", "", "", queued, note]
    name = item.table.replace("/", "-")
    missed = state.run - state.within
    cells = [f"{state.run} of {state.cells}" if state.cells else ""]
    cells.append(str(state.within) if state.run else "")
    explained = f"{state.explained} of {missed}" if missed else ""
    where = f"[page]({name}.md)" if state.begun else f"`runs/{item.table}`"
    return [item.name, item.title, *cells, explained, queued, where]


QUEUE_PAGE = """# What waits for a GPU

`{command}` writes this page from [`papers.toml`](papers.toml), the tables'
folders and their results. The most useful rows come first. To run what fits in eight minutes, six
trainings at a time, or one row:

    masquerade reproduce --queue --jobs 6 --minutes 8 --device cuda
    masquerade reproduce TABLE --row ROW --no-page

Both go on where they were stopped. Minutes of rows are estimates for one H200, and include tries.

## Rows

{rows}

## Tables and figures without a folder

{others}
"""


def queue_page(found: Sequence[State]) -> str:
    """Return the queue in Markdown."""
    rows = [["", "Table", "Row", "Seeds", "Tries first", "Minutes", "State"]]
    for place, row in enumerate(queue(found), start=1):
        minutes = "" if row.minutes is None else f"{row.minutes:.1f}"
        seeds = ", ".join(map(str, row.seeds))
        ready = "settings to be chosen" if row.tries else "ready"
        rows.append([str(place), row.table, row.row, seeds, str(row.tries), minutes, ready])
    others = [["", "Paper", "What", "Title", "Minutes"]]
    waits = [state for state in found if not state.folder and not state.item.not_here]
    for state in sorted(waits, key=lambda state: state.item.worth):
        item = state.item
        others.append([str(item.worth), item.paper, item.name, item.title, f"{state.minutes:g}"])
    return QUEUE_PAGE.format(
        command=COMMAND,
        rows=page.markdown(rows) if len(rows) > 1 else "None.",
        others=page.markdown(others) if len(others) > 1 else "None.",
    )


def pages(root: Path) -> dict[Path, str]:
    """Return the files that are generated, and what is to stand in them."""
    found = states(root)
    return {root / INDEX: index_page(found), root / QUEUE: queue_page(found)}


def write(root: Path) -> list[Path]:
    """Write the index and the queue."""
    written = pages(root)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(path, text.encode())
    return list(written)
