"""A table of a paper: what it prints, the runs behind its rows, and which of them are done.

`runs/PAPER/TABLE/table.toml` has the paper's figures, and how our side is made; beside it lies one
file of settings per row, which a row that is the name of a method can do without. Results are JSON
files, one per row and seed, and one per try of a search.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from masquerade.config import toml
from masquerade.config.normalize import resolved
from masquerade.config.settings import Config, Data
from masquerade.errors import MasqueradeError, nearest
from masquerade.methods import METHODS
from masquerade.reproduce import raw
from masquerade.reproduce.record import RowRecord
from masquerade.results import Summary
from masquerade.results.json_records import Json

FILE = "table.toml"
BASE = "base.toml"
"""What rows share, and all that is set for a method that has no file of its own."""
INFINITE = "inf"
TRIES = "search/"
"""Where results of tries lie, among those of a table."""


@dataclass(frozen=True)
class Column:
    """A column of figures: where in a summary ours are found, and how far they may miss."""

    name: str
    paths: list[str]
    """Where a figure is in a summary, keys joined by dots; values at further paths are added. Of
    counts by client, [FIRST:END] is the mean over these clients."""
    unit: float = 1.0
    miss: float = math.inf
    """A greater distance from the paper's figure needs a paragraph."""
    share_of: str = ""
    """The row of which figures are given in percent."""
    difference_from: str = ""
    """The row that figures are differences from, seed by seed."""

    @property
    def references(self) -> list[str]:
        """List the rows that others are compared with."""
        return [row for row in (self.share_of, self.difference_from) if row]


@dataclass(frozen=True)
class Trial:
    """What a try sets: hyperparameters, as far as the row's method has them, and `train.KEY`."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Search:
    """What every row tries on validation data before it is run: the same trials for all rows."""

    values: list[float] = field(default_factory=list)
    """One trial for each, which gives it to all of `settings`."""
    settings: list[str] = field(default_factory=list)
    trials: list[Mapping[str, Any]] = field(default_factory=list)
    """Or each trial as a table of what it sets."""
    over: Mapping[str, Any] = field(default_factory=dict)
    """Tables put over the row's."""

    def __post_init__(self) -> None:
        faults = []
        if self.values and self.trials:
            faults.append("`values` and `trials` are both given; write all of them as `trials`")
        keys = {key for trial in self.all_trials for key in trial.settings}
        known = {each.name for entry in METHODS.values() for each in fields(entry.method)}
        for key in sorted(keys - known):
            if not key.startswith("train."):
                near = nearest(key, known)
                faults.append(f"no method has `{key}`{near}; settings of training are `train.KEY`")
        if len({trial.name for trial in self.all_trials}) < len(self.all_trials):
            faults.append("a trial is there twice")
        if "compute" in self.over:
            faults.append("`over.compute` is given, and tries are computed as rows are")
        if faults:
            raise MasqueradeError("E201", f"`search`: {'; '.join(faults)}")

    @cached_property
    def all_trials(self) -> list[Trial]:
        """List the trials; their names are those of files."""
        if self.trials:
            return [Trial(_named(trial), trial) for trial in self.trials]
        return [Trial(str(value), dict.fromkeys(self.settings, value)) for value in self.values]

    def neighbors(self, chosen: str) -> list[str]:
        """Name the trials next to one in the list, and those that differ from it in one setting."""
        names = [trial.name for trial in self.all_trials]
        at = names.index(chosen)
        own = self.all_trials[at].settings
        # The trials of `values` differ in one value, so that of them only the next ones are near.
        near = {at - 1, at + 1} | {
            place
            for place, trial in enumerate(self.all_trials)
            if self.trials and _differ(own, trial.settings) == 1
        }
        return [name for place, name in enumerate(names) if place in near]


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Count the settings that two trials do not have in common."""
    keys = one.keys() | other.keys()
    return sum(key not in one or key not in other or one[key] != other[key] for key in keys)


def _named(trial: Mapping[str, Any]) -> str:
    """Name a trial by what it sets, with what a file can be called."""
    text = ",".join(f"{key}={value}" for key, value in trial.items()) or "as-is"
    return re.sub(r"[^a-zA-Z0-9._=,+-]", "_", text)


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

    @property
    def is_try(self) -> bool:
        """Tell whether it chooses settings, on validation data."""
        return self.name.startswith(TRIES)


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
    """Tables put over every row's: what sets it apart from the table whose rows it has, what makes
    it small, and where its work is done."""
    seeds: tuple[int, ...] = (1,)
    """What is run where no seed is named; with `data.partition_per_seed` each is a partition."""
    minutes: Mapping[str, float] = field(default_factory=dict)
    """What a row is expected to take on a GPU, of one seed, and without its tries."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Names of rows, where the title of the method is not enough."""
    note: str = ""
    """What a reader who compares the figures has to know."""

    @property
    def command(self) -> str:
        """Return the command that runs what is missing."""
        return f"masquerade reproduce {self.name}{' --quick' if self.quick else ''}"

    @property
    def is_printed(self) -> bool:
        """Tell whether a paper prints any of its figures."""
        return any(figures for row in self.figures.values() for figures in row)

    def tables(self, row: str) -> toml.Tables:
        """Read the settings of a row."""
        if row not in self.figures:
            known = ", ".join(self.figures)
            text = f"{self.name} has no row `{row}`{nearest(row, self.figures)}; there are {known}"
            raise MasqueradeError("E201", text)
        path = self.folder / f"{row}.toml"
        if row in METHODS and not path.is_file():
            given = toml.read_file(self.folder / BASE) | {"methods": [row]}
        else:
            given = toml.read_file(path)
        return toml.merged(given, self.over)

    def title_of(self, row: str) -> str:
        """Return the name that a row is shown by."""
        return self.titles.get(row) or METHODS[self.tables(row)["methods"][0]].title

    def tries(self, row: str) -> list[Run]:
        """List the runs that choose a row's settings."""
        # A try is chosen by own data in the row's view, whatever rows are judged by besides.
        plain: toml.Tables = {"evaluate": {"prior": []}}
        tables = toml.merged(toml.merged(self.tables(row), self.search.over), plain)
        return [
            Run(row, f"{TRIES}{row}-{trial.name}", toml.parse(_with(tables, trial)))
            for trial in self.search.all_trials
        ]

    def scores(self, row: str) -> dict[str, float | None]:
        """Return what every trial reached on validation data, or None where it is not done.

        One that diverged has NaN.
        """
        done = [self.record(run) for run in self.tries(row)]
        return {
            trial.name: None if record is None else _score(record.result)
            for trial, record in zip(self.search.all_trials, done, strict=True)
        }

    def chosen(self, row: str) -> str | None:
        """Name the trial that was best on validation data, the first of equal ones.

        There is none until every try is done.
        """
        scores = {name: score for name, score in self.scores(row).items() if score is not None}
        if not scores or len(scores) < len(self.search.all_trials):
            return None
        return max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])

    def run(self, row: str, seed: int) -> Run | None:
        """Return the run of a row; None until its search is done."""
        return next(iter(self._runs(row, [seed])), None)

    def _runs(self, row: str, seeds: Iterable[int]) -> list[Run]:
        tables = self.tables(row)
        if self.search.all_trials:
            chosen = self.chosen(row)
            if chosen is None:
                return []
            (trial,) = (each for each in self.search.all_trials if each.name == chosen)
            tables = _with(tables, trial)
        given = [(seed, toml.merged(tables, {"train": {"seeds": [seed]}})) for seed in seeds]
        return [Run(row, f"{row}-seed{seed}", toml.parse(each)) for seed, each in given]

    def path(self, run: Run) -> Path:
        """Return the file of a run's result."""
        return self.results / f"{run.name}.json"

    def record(self, run: Run) -> RowRecord | None:
        """Read a run's result, with clients' figures where they lie beside it.

        None where there is none, or one of other settings.
        """
        try:
            found, then = _read(self.path(run).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, MasqueradeError) as error:
            said = str(error).removeprefix("E401 ")
            text = f"{self.path(run)} is damaged ({said}); restore it, or remove it"
            raise MasqueradeError("E401", text) from None
        if then is None or meaning(then) != meaning(run.config):
            return None
        return replace(found, result=raw.read(self.path(run), found.result))

    def done(self, row: str) -> list[RowRecord]:
        """Return the results of a row, in the order of their seeds."""
        names = self.results.glob(f"{row}-seed*.json")
        seeds = [int(path.stem.rpartition("seed")[2]) for path in names]
        found = [self.record(run) for run in self._runs(row, sorted(seeds))]
        return [record for record in found if record is not None]

    def notes(self) -> dict[str, str]:
        """Read the paragraphs on rows, each under a heading that is the row's name."""
        path = self.page.with_suffix("") / "notes.md"
        if not path.is_file():
            return {}
        parts = ("\n" + path.read_text(encoding="utf-8")).split("\n## ")[1:]
        split = (part.partition("\n") for part in parts)
        return {row.strip(): text.strip() for row, _, text in split if text.strip()}


def _with(tables: toml.Tables, trial: Trial) -> toml.Tables:
    (name,) = tables["methods"]
    has = {each.name for each in fields(METHODS[name].method)}
    own = {key: value for key, value in trial.settings.items() if key in has}
    train = {
        key.removeprefix("train."): value
        for key, value in trial.settings.items()
        if key.startswith("train.")
    }
    return toml.merged(tables, {"method": {name: own}, "train": train})


def _score(found: Summary) -> float:
    return math.nan if found.diverged is not None else found.accuracy.own.mean


def meaning(config: Config) -> tuple[object, ...]:
    """Return what a result depends on: all settings but where and how the work is done.

    Rules on outputs are left out: figures under them stand beside a view's own, which are what they
    are without.
    """
    methods = [(name, toml.method_of(name, config)) for name in config.methods]
    evaluate = replace(config.evaluate, prior=())
    return _data(config), config.train, evaluate, config.privacy, methods


def _data(config: Config) -> Data:
    """Return the settings of data with what is done to samples.

    Papers' tables are made of images, signals and texts, for which "auto" is "unit".
    """
    normalize = resolved(config.data.normalize, is_table=False)
    return replace(config.data, normalize=normalize)


def settings(config: Config) -> dict[str, Json]:
    """Return a configuration as tables for JSON, which has no infinity.

    Where that is a default it is left out, and elsewhere a word.
    """
    tables = toml.complete(replace(config, data=_data(config)))
    for name, method in tables["method"].items():
        default = METHODS[name].method()
        tables["method"][name] = {
            key: INFINITE if value == math.inf else value
            for key, value in method.items()
            if value != math.inf or getattr(default, key) != math.inf
        }
    return {key: value for key, value in tables.items() if key != "compute"}


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[RowRecord, Config | None]:
    """Read a result and its settings; None are settings that are no longer known.

    A page asks for every result many times, and reading one takes milliseconds.
    """
    found = RowRecord.from_json(json.loads(text))
    try:
        return found, parsed(found.settings)
    except MasqueradeError:
        return found, None


def parsed(given: Mapping[str, Json]) -> Config:
    """Return the configuration of tables that `settings` made."""
    tables: dict[str, Any] = dict(given)
    methods = tables.get("method", {})
    tables["method"] = {
        name: {key: math.inf if value == INFINITE else value for key, value in own.items()}
        if isinstance(own, dict)
        else own
        for name, own in methods.items()
    }
    return toml.parse(tables)


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
    over = given.get("over", {})
    search = toml.merged(how.get("search", {}), given.get("search", {}))
    if quick:
        smaller = toml.merged(how.get("quick", {}), given.get("quick", {}))
        shorter = smaller.pop("search", {})
        search["over"] = toml.merged(search.get("over", {}), shorter)
        over = toml.merged(over, smaller)
    both, figures = how | given, given["figures"]
    if isinstance(figures, list):
        # Rows of which no paper prints anything.
        figures = {row: [[] for _ in given["columns"]] for row in figures}
    seeds, minutes = tuple(both.get("seeds", [1])), both.get("minutes", {})
    if isinstance(minutes, (int, float)):
        # Those of the whole table: its rows and seeds are taken to be equal.
        minutes = dict.fromkeys(figures, minutes / len(figures) / len(seeds))
    published = root / ("out/quick" if quick else "docs/results")
    # Rows under other settings have results of their own.
    own = folder if "over" in given else rows
    rows_name = own.resolve().relative_to((root / "runs").resolve()).as_posix()
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
        figures=figures,
        search=Search(**search),
        folder=rows,
        results=published / _flat(rows_name),
        page=published / f"{_flat(name)}.md",
        quick=quick,
        over=over,
        # What is quick shows that a table runs, for which one seed is enough.
        seeds=seeds[:1] if quick else seeds,
        minutes=minutes,
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
