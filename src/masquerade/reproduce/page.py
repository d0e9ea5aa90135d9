"""A table's page: the paper's figures and ours side by side, made of the files of results alone."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from masquerade.config.settings import TABLE_OPTIONS
from masquerade.errors import MasqueradeError
from masquerade.report import blocks
from masquerade.report.tables import (
    ABSENT,
    Figure,
    Pick,
    Value,
    about_seeds,
    figure,
    half_width,
    numbers,
    show,
)
from masquerade.reproduce.record import RowRecord
from masquerade.reproduce.table import Column, Table, parsed
from masquerade.reproduce.table import settings as complete
from masquerade.results import Statistics, Summary
from masquerade.results.json_records import Json

Done = Mapping[str, Sequence[Summary]]
"""The summaries of each row, by seed."""

MISS = "†"
COLLAPSE = 10
"""Points below the chosen trial at which one next to it is reported."""


def done(table: Table) -> dict[str, list[Summary]]:
    """Return the summaries of every row, none where nothing is done."""
    return {row: [each.result for each in table.done(row)] for row in table.figures}


def ours(column: Column, row: str, results: Done) -> Figure | None:
    """Return our figure of a row in a column."""
    first = figure(results[row], pick_of(column.paths[0]))
    if first is None or first.lost:
        return first
    for reference in column.references:
        compared = figure(results[reference], pick_of(column.paths[0]))
        if compared is not None and compared.lost:
            return compared
    by_seed = _values(column, results[row])
    values = list(by_seed.values())
    if column.share_of:
        whole = _values(column, results[column.share_of]).values()
        hundredth = sum(whole) / len(whole) / 100 if whole else 0.0
        values = [value / hundredth for value in values] if hundredth else []
    if column.difference_from:
        other = _values(column, results[column.difference_from])
        values = [value - other[seed] for seed, value in by_seed.items() if seed in other]
    if not values:
        return None
    # The clients of one row are not subtracted from those of another.
    std = None if column.difference_from else first.std
    return Figure(sum(values) / len(values), std, half_width(values))


def _values(column: Column, seeds: Sequence[Summary]) -> dict[int, float]:
    """Add up what a column's paths lead to, by seed; a seed without the first has no value."""
    first, *more = map(pick_of, column.paths)
    return {
        seed.seed: (own + sum(sum(numbers([seed], pick)) for pick in more)) / column.unit
        for seed in seeds
        for own in numbers([seed], first)
    }


def pick_of(path: str) -> Pick:
    """Return what reads a figure of a summary by its path, as a table's file has it.

    A path to the mean of some statistics brings their standard deviation along. Names of tensors
    have dots of their own.
    """
    where, _, range = path.removesuffix(".mean").removesuffix("]").partition("[")
    keys = where.split(".")

    def pick(summary: Summary) -> Value:
        at: object = summary
        for place, key in enumerate(keys):
            if at is None:
                return None
            rest = ".".join(keys[place:])
            if isinstance(at, Mapping) and rest in at:
                at = at[rest]
                break
            if not isinstance(at, Mapping) and not hasattr(at, key):
                raise MasqueradeError("E201", f"`{path}` leads to nothing in a summary")
            at = at.get(key) if isinstance(at, Mapping) else getattr(at, key)
        if range and isinstance(at, tuple):
            first, _, end = range.partition(":")
            clients = at[int(first) : int(end)]
            return sum(clients) / len(clients) if clients else None
        if at is None or isinstance(at, (int, float, Statistics)):
            return at
        raise MasqueradeError("E201", f"`{path}` leads to no figure of a summary")

    return pick


def misses(table: Table, results: Done) -> dict[str, dict[str, float]]:
    """Return by row and column how far our figures miss the paper's, where they miss too far."""
    found: dict[str, dict[str, float]] = {}
    for row, column, difference in _differences(table, results):
        if abs(difference) > column.miss:
            found.setdefault(row, {})[column.name] = difference
    return found


def _differences(table: Table, results: Done) -> list[tuple[str, Column, float]]:
    """Compare with the paper; what is quick has other sizes, and is not compared."""
    return [
        (row, column, figure.mean - paper[0])
        for row, papers in table.figures.items()
        for column, paper in zip(table.columns, papers, strict=True)
        if paper and not table.quick
        if (figure := ours(column, row, results)) and not figure.lost
    ]


@dataclass(frozen=True)
class Cell:
    """A figure of the paper and ours; None where there is none."""

    paper: float | None
    ours: float | None
    difference: float | None
    lost: bool = False
    """Whether a seed of ours diverged, or of the row that it is compared with."""


@dataclass(frozen=True)
class Row:
    """A row for a program: its seeds, and its figures by column."""

    row: str
    seeds: list[int]
    columns: dict[str, Cell]


def values(table: Table) -> list[Row]:
    """Return the table for a program."""
    results = done(table)
    compared = {(row, column.name): far for row, column, far in _differences(table, results)}

    def cell(row: str, column: Column, paper: list[float]) -> Cell:
        found = ours(column, row, results)
        mean = found.mean if found and not found.lost else None
        lost = found is not None and bool(found.lost)
        return Cell(next(iter(paper), None), mean, compared.get((row, column.name)), lost)

    return [
        Row(
            row,
            [seed.seed for seed in results[row]],
            {
                column.name: cell(row, column, paper)
                for column, paper in zip(table.columns, papers, strict=True)
            },
        )
        for row, papers in table.figures.items()
    ]


def lines(table: Table, results: Done) -> list[list[str]]:
    """Return the table as lines of cells: for every row the paper, ours, and the difference.

    Where the paper prints nothing, ours are alone.
    """
    found = [["Method", "", *(column.name for column in table.columns)]]
    for row, papers in table.figures.items():
        title = table.title_of(row)
        if table.is_printed:
            found.append([title, "paper", *(_printed(paper) for paper in papers)])
            title = ""
        if not results[row]:
            found.append([title, "ours", "not done", *[ABSENT] * (len(papers) - 1)])
            continue
        seeds = [str(seed.seed) for seed in results[row]]
        word = "seed" if len(seeds) == 1 else "seeds"
        figures = [ours(column, row, results) for column in table.columns]
        found.append([title, f"{word} {', '.join(seeds)}", *(show(one, ".2f") for one in figures)])
        if not table.is_printed:
            continue
        differences = [
            _difference(figure, paper, column)
            for figure, paper, column in zip(figures, papers, table.columns, strict=True)
        ]
        found += [["", "difference", *differences]] * (not table.quick)
    return found


def _printed(paper: list[float]) -> str:
    return " ± ".join(f"{figure:.2f}" for figure in paper) or ABSENT


def _difference(figure: Figure | None, paper: list[float], column: Column) -> str:
    if figure is None or figure.lost or not paper:
        return ABSENT
    difference = figure.mean - paper[0]
    return f"{difference:+z.2f}" + (f" {MISS}" if abs(difference) > column.miss else "")


def text(table: Table) -> str:
    """Return the table for a terminal, and what is to be said of it."""
    results = done(table)
    rows = lines(table, results)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([f"{table.paper}: {table.title}", "", *body, "", *remarks(table, results)])


def remarks(table: Table, results: Done) -> list[str]:
    """Return the sentences that a reader of the table needs."""
    bounds = sorted({column.miss for column in table.columns} - {math.inf})
    found = [table.note] if table.note else []
    if any(len(paper) > 1 for papers in table.figures.values() for paper in papers):
        found.append("± is the standard deviation over clients.")
    found += about_seeds(results.values())
    if table.quick:
        size = "the paper's" if table.is_printed else "the table's"
        found.append(f"Not {size} size (--quick), so there are no differences.")
    elif bounds and table.is_printed:
        most = " or ".join(f"{bound:g}" for bound in bounds)
        found.append(f"{MISS} is more than {most} away from the paper's figure.")
    lost = [row for row, seeds in results.items() if any(s.diverged is not None for s in seeds)]
    if lost:
        found.append(f"Diverged, so that the figures mean nothing: {', '.join(lost)}.")
    tries, runs = _precisions(table)
    if tries and runs and tries != runs:
        found.append(f"Settings were chosen with products in {_all(tries)}.")
        found.append(f"Rows were run with products in {_all(runs)}.")
    silent = unexplained(table, results)
    if silent:
        where = table.page.with_suffix("") / "notes.md"
        found.append(f"Misses without a paragraph in {where}: {', '.join(silent)}.")
    return found


def unexplained(table: Table, results: Done) -> list[str]:
    """Return the rows that miss the paper, and of which nothing is said."""
    notes = table.notes()
    return [row for row in misses(table, results) if row not in notes]


PAGE = """# {paper}

{title}

{made}

```sh
{command}
```

{table}

{remarks}

{parts}"""

BY_HAND = " Only the paragraphs on misses are written by hand."
BESIDE = " The paper's figures, and ours beside them."
MADE = """\
The command below writes this page, and runs what is missing of the table. Settings are in \
`runs/{name}`, results in [`{folder}`]({folder}).{notes} `--row ROW` runs one row, and `--rerun` \
repeats it."""


def page(table: Table) -> str:
    """Return the page in Markdown."""
    results = done(table)
    notes = BY_HAND * table.is_printed
    records = {row: table.done(row) for row in table.figures}
    parts = {
        "Figures": _figures(table),
        "Other means": _other_means(table, results),
        "Under rules on outputs": _under_rules(table, results),
        "Not done yet": _undone(table, results),
        "What misses the paper": _missing(table, results),
        "How settings were chosen": _searched(table),
        "Runs": _runs(table, records),
        "Settings": _settings(table, records),
    }
    return PAGE.format(
        paper=table.paper,
        title=wrapped(f"{table.title}.{BESIDE * table.is_printed}"),
        made=wrapped(MADE.format(name=table.name, folder=table.results.name, notes=notes)),
        command=table.command,
        table=markdown(lines(table, results)),
        remarks="\n".join(wrapped(f"- {remark}", "  ") for remark in remarks(table, results)),
        parts="\n".join(f"## {head}\n\n{part}\n" for head, part in parts.items() if part),
    )


def wrapped(text: str, indent: str = "") -> str:
    """Break a paragraph into lines of at most 100 columns; `indent` begins all but the first."""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _figures(table: Table) -> str:
    """Show the figures that lie beside the table's results, by what they say of themselves."""
    if table.results.name != table.page.stem:
        return ""
    shown = []
    for path in sorted(table.results.glob("*.svg")):
        # The first label is the figure's own, others are of its axes and legend.
        label = re.findall(r'aria-label="([^"]*)"', path.read_text(encoding="utf-8"))[0]
        shown.append(f"![{html.unescape(label)}]({table.results.name}/{path.name})")
    return "\n\n".join(shown)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table, the first of them its head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


OTHER_MEANS = """\
The table above averages over clients, each counted once, unless a column says otherwise. These are
other means of the same runs{unprinted}:

{columns}

{table}"""
COLUMNS = {
    "weighted": "the mean over test samples, each counted once",
    "bottom decile": "what nine clients in ten reach",
    "pooled": "shift by samples of *all* other clients; in the table above, of *one* other",
}
"""What the columns of other means say."""


def _other_means(table: Table, results: Done) -> str:
    """Show own data weighted, and shift by all other clients, where a table is of accuracy."""
    # The pooled form of a difference would need its reference's; its own row has both figures.
    plain = [column for column in table.columns if not column.difference_from]
    paths = {column.name: column.paths[0] for column in plain}
    if not any(path.startswith("accuracy.") for path in paths.values()):
        return ""
    picks = {
        "own data": "accuracy.own.mean",
        "weighted": "accuracy.own.weighted",
        "bottom decile": "accuracy.own.bottom_decile",
    }
    for name, path in paths.items():
        if path.startswith("accuracy.shift.") and path != "accuracy.shift.0.mean":
            picks[f"{name}, pooled"] = path.replace(".shift.", ".pooled.", 1)
    rows = [
        [
            table.title_of(row),
            *(show(figure(seeds, pick_of(path)), ".2f") for path in picks.values()),
        ]
        for row, seeds in results.items()
        if seeds
    ]
    if not rows:
        return ""
    told = [[name, text] for name, text in COLUMNS.items() if any(name in pick for pick in picks)]
    columns, values = markdown([["column", "says"], *told]), markdown([["Method", *picks], *rows])
    unprinted = ", for which the paper has no figures" * table.is_printed
    return OTHER_MEANS.format(columns=columns, table=values, unprinted=unprinted)


UNDER_RULES = """\
A rule reads outputs alone: the same trainings are judged again, with the client's label mix at
decision time ([what rules are](../rules.md)). {unprinted}`none` is the view
itself, as in the table above. The mean over clients, by what a rule may look at:

{blocks}"""


def _under_rules(table: Table, results: Done) -> str:
    """Show accuracies under rules, in blocks: of rules of one sample, and of several."""
    picks = {
        column.name: pick_of(column.paths[0])
        for column in table.columns
        if column.paths[0].startswith("accuracy.") and not column.references
    }
    judged = {row: seeds for row, seeds in results.items() if any(seed.rules for seed in seeds)}
    if not judged or not picks:
        return ""
    parts = []
    for scope in ("sample", "several"):
        rows = [["Method", "Rule", "Seeds", *picks]]
        for row, seeds in judged.items():
            rows += _by_rule(table.title_of(row), seeds, scope, list(picks.values()))
        if len(rows) > 1:
            parts.append(f"### {blocks.TITLES[scope]}\n\n{markdown(rows)}")
    without = [table.title_of(row) for row, seeds in results.items() if seeds and row not in judged]
    if without:
        parts.append(wrapped(f"Run before rules were recorded: {', '.join(without)}."))
    unprinted = "The paper has no such figures. " * table.is_printed
    return UNDER_RULES.format(blocks="\n\n".join(parts), unprinted=unprinted)


def _by_rule(
    title: str, seeds: Sequence[Summary], scope: str, picks: list[Pick]
) -> list[list[str]]:
    """Return a row's line without a rule and under those of a scope, of seeds that have them."""
    known = [seed for seed in seeds if seed.rules]
    names = [name for name, rule in known[0].rules.items() if rule.scope == scope]
    by_rule: dict[str, list[Summary]] = {"none": known} if names else {}
    for name in names:
        under = [each for seed in known for each in seed.under_rules()]
        by_rule[name] = [each for each in under if each.method.endswith(f"+{name}")]
    numbered = ", ".join(str(seed.seed) for seed in known)
    return [
        [title, f"`{name}`", numbered, *(show(figure(each, pick), ".2f") for pick in picks)]
        for name, each in by_rule.items()
    ]


def _undone(table: Table, results: Done) -> str:
    return wrapped(", ".join(table.title_of(row) for row, seeds in results.items() if not seeds))


def _missing(table: Table, results: Done) -> str:
    notes = table.notes()
    parts = []
    for row, columns in misses(table, results).items():
        told = ", ".join(f"{name} {difference:+.2f}" for name, difference in columns.items())
        note = notes.get(row, "*No paragraph yet.*")
        miss = wrapped(f"Misses: {told}.")
        parts.append(f"### {table.title_of(row)}\n\n{miss}\n\n{note}")
    return "\n\n".join(parts)


def _searched(table: Table) -> str:
    """Show every try of every row, and which was chosen."""
    search = table.search
    if not search.all_trials or table.results.name != table.page.stem:
        return ""
    rows = [["Method", *(trial.name for trial in search.all_trials), "chosen"]]
    for row in table.figures:
        chosen, scores = table.chosen(row), table.scores(row)
        rows.append([table.title_of(row), *map(_scored, scores.values()), chosen or ABSENT])
    told = ", ".join(f"`{key}` {_plain(value)}" for key, value in _flat(search.over).items())
    names = ", ".join(f"`{name}`" for name in search.settings)
    by = "what a trial sets, as far as a method has it" if search.trials else names
    tries, runs = _precisions(table)
    note = [f"Figures are the mean accuracy over clients on validation data, by {by}."]
    note += [f"Trials ran with {told}."] if told else []
    note += [f"Their products were in {_all(tries)}, those of the rows in {_all(runs)}."]
    fallen = collapses(table)
    beside = "Trials next to the chosen one that collapsed: " + "; ".join(fallen) + "."
    parts = [wrapped(" ".join(note if tries else note[:-1])), markdown(rows)]
    return "\n\n".join([*parts, wrapped(beside)] if fallen else parts)


def _scored(score: float | None) -> str:
    if score is None:
        return ABSENT
    return "diverged" if math.isnan(score) else f"{score:.2f}"


def _all(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or ABSENT


def collapses(table: Table) -> list[str]:
    """Say which trials next to a chosen one diverged, or fell far below it."""
    found = []
    for row in table.figures:
        chosen, scores = table.chosen(row), table.scores(row)
        best = None if chosen is None else scores[chosen]
        if chosen is None or best is None:
            continue
        for name in table.search.neighbors(chosen):
            score = scores[name]
            if score is not None and not score >= best - COLLAPSE:
                found.append(f"{table.title_of(row)} {name} {_scored(score)} ({chosen} {best:.2f})")
    return found


def _precisions(table: Table) -> tuple[set[str], set[str]]:
    """Return what products were taken in, of tries and of runs."""
    tries = [table.record(run) for row in table.figures for run in table.tries(row)]
    runs = [record for row in table.figures for record in table.done(row)]
    one, other = (
        {str(record.made.compute["precision"]) for record in records if record is not None}
        for records in (tries, runs)
    )
    return one, other


def _runs(table: Table, records: Mapping[str, Sequence[RowRecord]]) -> str:
    heads = ["Method", "Seed", "Date", "Device", "Engine", "Products in", "torch", "At a time"]
    rows = [[*heads, "Minutes", ""]]
    for row, results in records.items():
        for record in results:
            made, seed = record.made, record.result.seed
            file = f"{table.results.name}/{row}-seed{seed}.json"
            minutes = f"{record.result.costs.total_seconds / 60:.1f}"
            compute = [str(made.compute[key]) for key in ("engine", "precision")]
            known = [made.date, made.device, *compute, made.torch]
            cells = [table.title_of(row), str(seed), *known, str(made.at_a_time), minutes]
            rows.append([*cells, f"[result]({file})"])
    return (
        markdown(rows) + "\n\nMinutes are wall time: training, evaluation and commits."
        if len(rows) > 1
        else ""
    )


def _settings(table: Table, records: Mapping[str, Sequence[RowRecord]]) -> str:
    """Show the settings that all rows have in common, and of each row the others."""
    own = {row: _flat(_of_row(found[0].settings)) for row, found in records.items() if found}
    if not own:
        return ""
    first = next(iter(own.values()))
    common = {
        key: value
        for key, value in first.items()
        if all(key in flat and flat[key] == value for flat in own.values())
    }
    parts = ["All rows:\n\n" + _listed(common)]
    for row, flat in own.items():
        rest = {key: value for key, value in flat.items() if key not in common}
        parts.append(f"{table.title_of(row)}:\n\n{_listed(rest)}" if rest else "")
    return "\n\n".join(part for part in parts if part)


def _of_row(settings: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """Return the settings that rows are told apart by; a row has one method and any seeds."""
    # Results that are older than a setting have its default.
    now = complete(parsed(settings))
    found = {name: _table(now[name]) for name in ("data", "train", "evaluate", "method")}
    (method,) = found["method"].values()
    train = {key: value for key, value in found["train"].items() if key != "seeds"}
    # No table of a paper is on a table of one's own.
    columns = TABLE_OPTIONS.values()
    data = {key: value for key, value in found["data"].items() if key not in columns}
    return found | {"data": data, "train": train, "method": _table(method)}


def _table(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


def _flat(tables: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    return {f"{name}.{key}": value for name, own in tables.items() for key, value in own.items()}


def _listed(flat: Mapping[str, Json]) -> str:
    return "\n".join(["```", *(f"{key} = {_plain(value)}" for key, value in flat.items()), "```"])


def _plain(value: Json) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
