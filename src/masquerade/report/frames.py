"""Results as a data frame: a row for every method, view and seed, or for every client of each."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from masquerade.errors import MasqueradeError
from masquerade.report.tables import Results, bytes_before, under_rules
from masquerade.results import Accuracy, ClientFigures, Costs, Summary
from masquerade.results.lead import led

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]


def to_frame(results: Results, clients: bool = False) -> "DataFrame":
    """Return the rows of results, or of their clients, as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        text = "pandas is not installed, which makes the frame; pip install pandas"
        raise MasqueradeError("E202", text) from None
    return pandas.DataFrame(client_rows(results) if clients else rows(results))


def rows(results: Results) -> list[Row]:
    """Return a row for every method, view and seed; under a rule on outputs it has one more.

    The majority class comes first, as in a table; it has no costs.
    """
    return [_row(each) for each in _in_order(results)]


def client_rows(results: Results) -> list[Row]:
    """Return a row for every client of every method, view and seed, novel clients too."""
    return [
        _called(each) | row
        for each in _in_order(results)
        for group, novel in ((each.per_client, False), (_novel(each), True))
        if group is not None
        for row in _clients(group, novel)
    ]


def _in_order(results: Results) -> list[Summary]:
    """Return the majority class of every seed, if it is known, and then all results."""
    first, found = led(results), dict[int, Summary]()
    for each in first:
        row = each.majority_row()
        if row is not None:
            found.setdefault(row.seed, row)
    return [*found.values(), *under_rules(first)]


def _novel(summary: Summary) -> ClientFigures | None:
    return summary.novel.clients if summary.novel else None


def _called(summary: Summary) -> Row:
    return {
        "method": summary.method,
        "title": summary.title,
        "view": None if summary.scope == "baseline" else summary.view,
        "seed": summary.seed,
        "split": summary.split,
        "metric": summary.metric,
    }


def _row(summary: Summary) -> Row:
    run = {
        "data": summary.data,
        "network": summary.network,
        "clients": summary.clients,
        "rounds": summary.rounds,
    }
    others = {name: found.own.mean for name, found in summary.metrics.items()}
    defined = {f"{name}_clients": found.own.defined for name, found in summary.metrics.items()}
    found = summary.novel
    novel = {} if found is None else {"novel": found.accuracy.own.mean, "novel_gap": found.gap}
    ended = {"diverged": summary.diverged is not None, "refused": summary.refused}
    spent = (
        _costs(summary.costs)
        | {"bytes_before": bytes_before(summary)}
        | {"parameters": summary.model.parameters, "density": summary.model.density}
    )
    if summary.scope == "baseline":
        spent, run["network"] = dict.fromkeys(spent), None
    return (
        _called(summary) | run | _accuracy(summary.accuracy) | others | defined | novel | spent
    ) | ended


def _accuracy(found: Accuracy) -> Row:
    own = {
        "own": found.own.mean,
        "own_std": found.own.std,
        "own_clients": found.own.defined,
        "weighted": found.own.weighted,
        "bottom_decile": found.own.bottom_decile,
    }
    corrupted = {
        f"corruption_{kind}": steps["averaged"].mean
        for kind, steps in found.corruption.items()
        if "averaged" in steps
    }
    means = {
        kind: {step: at.mean for step, at in by_step.items()}
        for kind, by_step in (("shift", found.shift), ("pooled", found.pooled))
    }
    return own | _steps("shift", means["shift"]) | _steps("pooled", means["pooled"]) | corrupted


def _steps(kind: str, by_step: Mapping[str, Any]) -> Row:
    """Name the columns of degrees: `shift_20`, `shift_averaged`."""
    return {f"{kind}_{step}": value for step, value in by_step.items()}


def _costs(costs: Costs) -> Row:
    train, storage = costs.train, costs.storage
    return {
        "bytes": train.bytes.both,
        "bytes_down": train.bytes.down,
        "bytes_up": train.bytes.up,
        "flops": train.flops.masked,
        "flops_dense": train.flops.dense,
        "storage": storage.model + storage.state + storage.session,
        "seconds": costs.total_seconds,
    }


def _clients(group: ClientFigures, novel: bool) -> Iterator[Row]:
    for place, id in enumerate(group.ids):
        yield {
            "client": id,
            "name": group.names[place] if group.names else None,
            "novel": novel,
            "samples": group.samples[place],
            "test_samples": group.tests[place] if group.tests else None,
            "own": group.own[place],
            **{name: metric.own[place] for name, metric in group.metrics.items()},
            **{f"test_samples:{name}": each[place] for name, each in group.classes.items()},
            "one_class": id in group.one_class,
            **_steps("shift", {step: found[place] for step, found in group.shift.items()}),
            **_steps("pooled", {step: found[place] for step, found in group.pooled.items()}),
        }
