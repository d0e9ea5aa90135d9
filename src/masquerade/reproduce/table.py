"""A table of a paper: what it prints, the runs behind its rows, and which of them are done.

`runs/PAPER/TABLE/table.toml` has the paper's figures, and how our side is made; beside it lies one
file of settings per row. Results are JSON files, one per row and seed, and one per try of a search.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.errors import MasqueradeError, nearest
from masquerade.methods import METHODS
from masquerade.reproduce.record import RowRecord
from masquerade.results.json_records import Json

FILE = "table.toml"


@dataclass(frozen=True)
class Column:
    """A column of figures: where in a summary ours are found, and how far they may miss."""

    name: str
    paths: list[str]
    """Keys joined by dots; what further ones lead to, where there is something, is added."""
    unit: float = 1.0
    miss: float = math.inf
    """A greater distance from the paper's figure needs a paragraph."""
    share_of: str = ""
    """The row of which figures are given in percent."""
    difference_from: str = ""
    """The row that figures are differences from, seed by seed."""


@dataclass(frozen=True)
class Search:
    """What every row tries on validation data before it is run."""

    values: list[float] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    """The settings that a try gives its value, as far as the row's method has them."""
    over: Mapping[str, Any] = field(default_factory=dict)
    """Tables put over the row's."""


@dataclass(frozen=True)
class Run:
    """One training for one row: how it is configured, and the name of its result."""

    row: str
    name: str
    config: Config

    @property
    def method(self) -> str:
        """Name the method."""
        return self.config.methods[0]


@dataclass(frozen=True)
class Table:
    """A table of a paper, and where our side of it lies."""

    name: str
    title: str
    paper: str
    columns: list[Column]
    figures: Mapping[str, list[list[float]]]
    """Mean, and where the paper has it the standard deviation, by row and column; an empty list is
    a cell of which the paper prints no number."""
    search: Search
    folder: Path
    """Where the rows' settings are."""
    results: Path
    page: Path
    quick: bool = False
    over: Mapping[str, Any] = field(default_factory=dict)
    """Tables put over every row's: what makes it small, and where its work is done."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Names of rows, where the title of the method is not enough."""
    note: str = ""
    """What whoever compares the figures has to know."""

    @property
    def command(self) -> str:
        """Return the command that runs what is missing."""
        return f"masquerade reproduce {self.name}{' --quick' if self.quick else ''}"

    def tables(self, row: str) -> toml.Tables:
        """Read the settings of a row."""
        if row not in self.figures:
            known = ", ".join(self.figures)
            text = f"{self.name} has no row `{row}`{nearest(row, self.figures)}; there are {known}"
            raise MasqueradeError("E201", text)
        return toml.merged(toml.read_file(self.folder / f"{row}.toml"), self.over)

    def title_of(self, row: str) -> str:
        """Return the name that a row is shown by."""
        return self.titles.get(row) or METHODS[self.tables(row)["methods"][0]].title

    def tries(self, row: str) -> list[Run]:
        """List the runs that choose a row's rate."""
        tables = toml.merged(self.tables(row), self.search.over)
        return [
            Run(row, f"search/{row}-{value}", toml.parse(self._with(tables, value)))
            for value in self.search.values
        ]

    def scores(self, row: str) -> dict[float, float | None]:
        """Return what every try reached on validation data, or None where it is not done."""
        done = [self.record(run) for run in self.tries(row)]
        return {
            value: None if record is None else record.result.accuracy.own.mean
            for value, record in zip(self.search.values, done, strict=True)
        }

    def chosen(self, row: str) -> float | None:
        """Return the value that was best on validation data, the first of equal ones.

        There is none until every try is done.
        """
        scores = {value: score for value, score in self.scores(row).items() if score is not None}
        complete = scores and len(scores) == len(self.search.values)
        return max(scores, key=lambda value: scores[value]) if complete else None

    def run(self, row: str, seed: int) -> Run | None:
        """Return the run of a row; None until its search is done."""
        tables = toml.merged(self.tables(row), {"train": {"seeds": [seed]}})
        if self.search.values:
            value = self.chosen(row)
            if value is None:
                return None
            tables = self._with(tables, value)
        return Run(row, f"{row}-seed{seed}", toml.parse(tables))

    def _with(self, tables: toml.Tables, value: float) -> toml.Tables:
        (name,) = tables["methods"]
        has = {each.name for each in fields(METHODS[name].method)}
        own = {setting: value for setting in self.search.settings if setting in has}
        return toml.merged(tables, {"method": {name: own}})

    def path(self, run: Run) -> Path:
        """Return the file of a run's result."""
        return self.results / f"{run.name}.json"

    def record(self, run: Run) -> RowRecord | None:
        """Read a run's result; None where there is none, or one of other settings."""
        try:
            found = RowRecord.from_json(json.loads(self.path(run).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, MasqueradeError) as error:
            said = str(error).removeprefix("E401 ")
            text = f"{self.path(run)} is damaged ({said}); restore it, or remove it"
            raise MasqueradeError("E401", text) from None
        try:
            then = toml.parse(found.settings)
        except MasqueradeError:
            # Settings that are no longer known are other settings.
            return None
        return found if meaning(then) == meaning(run.config) else None

    def done(self, row: str) -> list[RowRecord]:
        """Return the results of a row, in the order of their seeds."""
        names = self.results.glob(f"{row}-seed*.json")
        seeds = [int(path.stem.rpartition("seed")[2]) for path in names]
        runs = [self.run(row, seed) for seed in sorted(seeds)]
        found = [self.record(run) for run in runs if run is not None]
        return [record for record in found if record is not None]

    def notes(self) -> dict[str, str]:
        """Read the paragraphs on rows, each under a heading that is the row's name."""
        path = self.page.with_suffix("") / "notes.md"
        if not path.is_file():
            return {}
        parts = ("\n" + path.read_text(encoding="utf-8")).split("\n## ")[1:]
        split = (part.partition("\n") for part in parts)
        return {row.strip(): text.strip() for row, _, text in split if text.strip()}


def meaning(config: Config) -> tuple[object, ...]:
    """Return what a result depends on: all settings but where and how the work is done."""
    methods = [(name, toml.method_of(name, config)) for name in config.methods]
    return config.data, config.train, config.evaluate, methods


def settings(config: Config) -> dict[str, Json]:
    """Return a configuration as tables for JSON, which has no infinity: that is a default."""
    tables = toml.complete(config)
    for name, method in tables["method"].items():
        tables["method"][name] = {key: v for key, v in method.items() if v != math.inf}
    return {key: value for key, value in tables.items() if key != "compute"}


def names(root: Path) -> list[str]:
    """List the tables under `runs`."""
    runs = root / "runs"
    return sorted(path.parent.relative_to(runs).as_posix() for path in runs.glob(f"**/{FILE}"))


def read(name: str, root: Path, quick: bool = False) -> Table:
    """Read a table; what is quick keeps its results apart from those that are published."""
    known = names(root)
    if name not in known:
        where = ", ".join(known) or "none: call this in a checkout of the repository"
        text = f"unknown table `{name}`{nearest(name, known)}; in {root / 'runs'} there are {where}"
        raise MasqueradeError("E201", text)
    folder = root / "runs" / name
    given = toml.read_file(folder / FILE)
    rows = folder / given.pop("rows", "")
    how = toml.read_file(rows / FILE) if rows != folder else given
    over, search = dict(how.get("quick", {})), dict(how.get("search", {}))
    if quick:
        shorter = over.pop("search", {})
        search["over"] = toml.merged(search.get("over", {}), shorter)
    published = root / ("out/quick" if quick else "docs/results")
    rows_name = rows.resolve().relative_to((root / "runs").resolve()).as_posix()
    columns = [Column(**column) for column in given["columns"]]
    title = given["title"]
    if quick:
        title = f"Quick size, on other data, so that no figure is comparable: {title}"
        columns = [replace(column, miss=math.inf) for column in columns]
    return Table(
        name=name,
        title=title,
        paper=given["paper"],
        columns=columns,
        figures=given["figures"],
        search=Search(**search),
        folder=rows,
        results=published / _flat(rows_name),
        page=published / f"{_flat(name)}.md",
        quick=quick,
        over=over if quick else {},
        titles=how.get("titles", {}) | given.get("titles", {}),
        note=given.get("note", ""),
    )


def _flat(name: str) -> str:
    return name.replace("/", "-")


def wanted(table: Table, rows: Iterable[str]) -> list[str]:
    """Return the rows that are meant, all of them where none is named."""
    chosen = list(dict.fromkeys(rows)) or list(table.figures)
    for row in chosen:
        table.tables(row)
    return chosen
