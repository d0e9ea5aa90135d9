"""What methods cost, as tables: bytes and their time, operations, devices, the run itself."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from masquerade.cost.bandwidth import Bandwidth, unit
from masquerade.report.listing import Listing
from masquerade.report.tables import (
    Pick,
    Results,
    by_method,
    mean,
    of_adapt,
    of_setup,
    show_cost,
)
from masquerade.results import Bytes, Flops, Summary

CONVENTIONS = ("ours", "paper")

Columns = dict[str, list[float | None]]
"""Heading → one number per method, in the unit that the heading names."""


@dataclass(frozen=True)
class Section:
    """One table of costs: a number per method under every heading."""

    title: str
    note: str
    methods: list[str]
    columns: Columns

    def rows(self) -> list[list[str]]:
        """Return the method and its numbers as texts, row by row."""
        return [
            [name, *(show(column[row]) for column in self.columns.values())]
            for row, name in enumerate(self.methods)
        ]


def show(value: float | None) -> str:
    """Write a cost: whole numbers whole, others with three digits, or two where it is small."""
    if value is None or not (value >= 10 or value.is_integer()):
        return show_cost(value)
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.1f}"


def sections(results: Results, rate: Bandwidth, convention: str = "ours") -> list[Section]:
    """Return the tables of costs in a convention; what no method has is left out."""
    groups = list(by_method(results).values())
    ours = (_bytes, _parts, _flops, _device, _run)
    made = (_as_papers_count,) if convention == "paper" else ours
    found = []
    for make in made:
        name, note, columns = make(groups, rate)
        known = {h: c for h, c in columns.items() if any(value is not None for value in c)}
        if known:
            found.append(Section(name, note, [seeds[0].title for seeds in groups], known))
    return found


def records(results: Results, rate: Bandwidth, convention: str = "ours") -> list[dict[str, object]]:
    """Return the same for programs: one record per method, heading → number."""
    tables = sections(results, rate, convention)
    return [
        {"method": method}
        | {h: column[row] for table in tables for h, column in table.columns.items()}
        for row, method in enumerate(by_method(results))
    ]


Groups = list[list[Summary]]
Made = tuple[str, str, Columns]


def _column(groups: Groups, scale: float, pick: Pick) -> list[float | None]:
    values = [mean(seeds, pick) for seeds in groups]
    return [None if value is None else value / scale for value in values]


def _bytes(groups: Groups, rate: Bandwidth) -> Made:
    totals = [_seconds(seeds, rate) for seeds in groups]
    name, size = unit(max([total for total in totals if total is not None], default=0.0))
    columns = {
        "MB down": _column(groups, 1e6, lambda s: s.costs.train.bytes.down),
        "MB up": _column(groups, 1e6, lambda s: s.costs.train.bytes.up),
        "Setup: MB": _column(groups, 1e6, of_setup(lambda spent: spent.bytes.both)),
        "Adapt: MB": _column(groups, 1e6, of_adapt(lambda spent: spent.bytes.both)),
        "Bytes at the start": _column(groups, 1.0, lambda s: s.costs.initial),
        "s to send, a round": [_per_round(seeds, rate) for seeds in groups],
        f"{name} to send, in all": [None if total is None else total / size for total in totals],
    }
    note = (
        "Per client, over all of training, as encoded, masks included. A first download that is the"
        " initial model (FedAvg's) costs nothing: clients have that from the start. One that comes"
        " with a mask (DM-PFL's) is another, and is sent. Before use (Adapt) a client is sent what"
        " its model depends on of what the server has at the end. Times are those of training's"
        f" messages at {rate.text}: in a round that a client takes part in, and in all of them, of"
        " which there may be less than one for a client on average."
        f"{_fitting(groups)}"
    )
    return "Bytes, and the time they take", note, columns


def _fitting(groups: Groups) -> str:
    """Say what it cost to find out what clients' data decide before training."""
    seeds = [seed for group in groups for seed in group]
    return _once(
        *("Fitting the preprocessing", seeds),
        lambda summary: summary.preprocessing.bytes if summary.preprocessing else None,
    ) + _once(
        *("Counting labels for class weights", seeds),
        lambda summary: summary.class_weights.bytes if summary.class_weights else None,
    )


def _once(what: str, seeds: list[Summary], spent: Callable[[Summary], Bytes | None]) -> str:
    """Say what something cost a client once before training, if anything."""
    known = [found for found in map(spent, seeds) if found is not None]
    if not any(found.both for found in known):
        return ""
    down, up = (statistics.fmean(each) for each in ([b.down for b in known], [b.up for b in known]))
    return (
        f" {what}, once before training, cost a client {show(down)} bytes down and {show(up)} up,"
        " counted apart."
    )


def _parts(groups: Groups, rate: Bandwidth) -> Made:
    named = [{part for s in seeds for part in _sent(s)} for seeds in groups]
    # Where every message has one part, there is nothing to tell apart.
    several = max(map(len, named), default=0) > 1
    columns: Columns = {}
    for name in sorted(set().union(*named)) if several else ():
        down, up = _of_part(name)
        columns[f"{name} down"] = _column(groups, 1e6, down)
        columns[f"{name} up"] = _column(groups, 1e6, up)
    note = "MB per client, over all of training, without the headers of messages."
    return "Bytes by part", note, columns


def _sent(result: Summary) -> set[str]:
    return {*result.costs.train.parts.down, *result.costs.train.parts.up}


def _of_part(name: str) -> tuple[Pick, Pick]:
    return (
        lambda summary: summary.costs.train.parts.down.get(name),
        lambda summary: summary.costs.train.parts.up.get(name),
    )


def _seconds(seeds: list[Summary], rate: Bandwidth) -> float | None:
    """Return how long a client's messages take, over all of training."""
    down = mean(seeds, lambda s: s.costs.train.bytes.down)
    up = mean(seeds, lambda s: s.costs.train.bytes.up)
    return None if down is None or up is None else rate.seconds(down, up)


def _per_round(seeds: list[Summary], rate: Bandwidth) -> float | None:
    total, rounds = _seconds(seeds, rate), mean(seeds, lambda s: s.participation.mean)
    return total / rounds if total is not None and rounds else None


def _flops(groups: Groups, rate: Bandwidth) -> Made:
    columns = {
        "GFLOP dense": _column(groups, 1e9, lambda s: s.costs.train.flops.dense),
        "GFLOP masked": _column(groups, 1e9, lambda s: s.costs.train.flops.masked),
        "GFLOP executed": _column(groups, 1e9, lambda s: s.costs.train.flops.executed),
        "Setup: GFLOP": _column(groups, 1e9, of_setup(lambda spent: spent.flops.masked)),
        "Adapt: GFLOP": _column(groups, 1e9, of_adapt(lambda spent: spent.flops.masked)),
    }
    note = (
        "Per client, over all of training: as if nothing were masked, as the masks allow, and as"
        " the engine ran them, which pads batches and runs masked weights too, unless it can cut"
        " them out. Only products (matrix products and convolutions) are counted."
    )
    return "Operations", note, columns


def _device(groups: Groups, rate: Bandwidth) -> Made:
    columns = {
        "Parameters": _column(groups, 1.0, lambda s: s.model.parameters),
        "Kept": _column(groups, 1.0, lambda s: s.model.kept),
        "kB model": _column(groups, 1e3, lambda s: s.costs.storage.model),
        "kB of own state": _column(groups, 1e3, lambda s: s.costs.storage.state),
        "kB for the wire": _column(groups, 1e3, lambda s: s.costs.storage.session),
    }
    note = (
        "The model that a client uses, packed with its mask, what it keeps beside it from round to"
        " round, and what for the wire alone: the last download and the masks it sent last, where"
        " they lie nowhere else, so that they are not sent again. All without the initial weights."
    )
    return "On the client's device", note, columns


def _run(groups: Groups, rate: Bandwidth) -> Made:
    columns = {
        "Rounds to 80 %": _column(groups, 1.0, lambda s: s.rounds_to_80),
        "MB of memory": _column(groups, 1e6, lambda s: s.costs.memory.get("process")),
        "MB on CUDA": _column(groups, 1e6, lambda s: s.costs.memory.get("cuda")),
    }
    columns |= {f"s {what}": _column(groups, 1.0, _seconds_of(what)) for what in _CLOCK}
    note = (
        "Of the simulation itself: the first round that was evaluated and has 80 % of the final"
        " figure, the most memory that its process held, and its wall time. Start-up is what came"
        " before the first round, and what that one took longer than the second;"
        " commits are written beside the work, and only what it waited for is counted."
    )
    return "The run", note, columns


def _seconds_of(what: str) -> Pick:
    return lambda summary: summary.costs.seconds.get(what)


_CLOCK = ("start-up", "training", "evaluation", "commits")


def _as_papers_count(groups: Groups, rate: Bandwidth) -> Made:
    sent, spent = (
        _column(groups, 1e6, lambda s: s.costs.train.paper.bytes),
        _column(groups, 1e9, lambda s: s.costs.train.paper.flops),
    )
    columns = {
        "Papers: MB": sent,
        "Papers: MB, %": _shares(groups, sent),
        "Papers: GFLOP": spent,
        "Papers: GFLOP, %": _shares(groups, spent),
    }
    note = (
        "Per client, over all of training. Bytes are those of the values alone, without masks, the"
        " mean of both directions; operations three times the forward pass inside the masks, once"
        " where no gradient is taken. Percent are of FedAvg's."
    )
    return "As papers count", note, columns


def _shares(groups: Groups, column: list[float | None]) -> list[float | None]:
    """Return a column in percent of FedAvg's, where FedAvg is there."""
    place = [seeds[0].method for seeds in groups]
    whole = column[place.index("fedavg")] if "fedavg" in place else None
    return [100 * value / whole if whole and value is not None else None for value in column]


def layers(seeds: Results) -> list[list[str]]:
    """Return the GFLOP of a method by phase and layer: phase, layer, dense, masked, executed."""
    body = []
    for phase, found in seeds[0].costs.layers.items():
        for layer in found:
            counts = [mean(seeds, pick) for pick in _of_layer(phase, layer)]
            if any(counts):
                name = f"train, {phase} epochs" if phase.isdigit() else phase
                body.append([name, layer, *(show_cost(count, 1e9) for count in counts)])
    return body


def _of_layer(phase: str, layer: str) -> tuple[Pick, Pick, Pick]:
    def of(amount: Callable[[Flops], float]) -> Pick:
        def pick(summary: Summary) -> float | None:
            found = summary.costs.layers.get(phase, {}).get(layer)
            return None if found is None else amount(found)

        return pick

    return of(lambda it: it.dense), of(lambda it: it.masked), of(lambda it: it.executed)


def listings(results: Results, rate: Bandwidth, convention: str = "ours") -> list[Listing]:
    """Return the tables as texts."""
    return [
        Listing(each.title, ["Method", *each.columns], each.rows(), each.note)
        for each in sections(results, rate, convention)
    ]
