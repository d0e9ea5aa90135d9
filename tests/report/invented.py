"""Invented results: their form is that of `results.json`, their numbers mean nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from masquerade.results import (
    AVERAGED,
    Accuracy,
    Bytes,
    ClientFigures,
    Costs,
    Flops,
    ModelSize,
    Novel,
    Overlap,
    PaperCosts,
    Participations,
    Point,
    Spent,
    Statistics,
    Storage,
    Summary,
)
from masquerade.results.costs import Parts

DEGREES = (0, 20, 40, 60, 80, 100)
FLOPS = Flops(3e9, 2e9, 3.5e9)
PAPER = PaperCosts(1.0e6, 2.5e9)
NO_PARTS = Parts()


def accuracy(own: float = 80.0, slope: float = 20.0, **changes: Any) -> Accuracy:
    """Invent an accuracy that falls by `slope` from no shift to full shift."""
    shift = {str(d): Statistics(own - slope * d / 100, 5.0 + d / 20) for d in DEGREES}
    shift[AVERAGED] = Statistics(own - slope / 2, 7.5)
    found = Accuracy(
        own=Statistics(own, 5.0, weighted=own + 1, bottom_decile=own - 9),
        shift=shift,
        pooled={step: Statistics(at.mean + 1, 2.0) for step, at in shift.items()},
    )
    return replace(found, **changes)


def spent(
    down: float = 1.2e6,
    up: float = 1.1e6,
    *,
    flops: Flops = FLOPS,
    paper: PaperCosts = PAPER,
    parts: Parts = NO_PARTS,
) -> Spent:
    """Invent what rounds of one kind cost a client."""
    return Spent(Bytes(down, up), flops, paper, parts)


def costs(train: Spent | None = None, **changes: Any) -> Costs:
    """Invent the costs of a run."""
    found = Costs(
        train=train or spent(),
        storage=Storage(49380.0, 8.0, 0.0),
        initial=8.0,
        layers={"train": {"fc": FLOPS}},
        seconds={"start-up": 1.0, "training": 9.0, "evaluation": 3.0, "commits": 0.3},
        memory={"process": 4.2e8},
    )
    return replace(found, **changes)


def listed(own: Mapping[int, float | None]) -> ClientFigures:
    """Invent clients of a sample each with these figures on own data, by their number."""
    return ClientFigures(tuple(own), (1,) * len(own), tuple(own.values()))


def curve(own: Mapping[int, float]) -> tuple[Point, ...]:
    """Invent a curve with these figures on own data, by round."""
    return tuple(Point(number, value, 5.0, 1e4, 1e4, 1e6) for number, value in own.items())


def novel(own: Sequence[float], *, first: int = 20, gap: float = 9.0) -> Novel:
    """Invent novel clients, numbered from `first` on, with these figures on own data."""
    found = listed({first + place: value for place, value in enumerate(own)})
    return Novel(found, Accuracy(Statistics(sum(own) / len(own), 3.0)), gap)


def result(
    method: str = "fedavg", seed: int = 1, own: float = 80.0, slope: float = 20.0, **changes: Any
) -> Summary:
    """Invent one result; accuracy falls by `slope` from no shift to full shift."""
    found = Summary(
        method=method,
        title=method.upper(),
        view="personal",
        data="invented",
        seed=seed,
        rounds=60,
        clients=20,
        network="cnn",
        metric="accuracy",
        better="higher",
        accuracy=accuracy(own, slope),
        costs=costs(),
        model=ModelSize(12345, 12345.0, 1.0),
        participation=Participations(30.0, 0, 0),
        history=curve({number: own - 60 / number for number in (5, 10, 20, 40, 60)}),
        rounds_to_80=20,
        per_client=clients([min(100.0, own + (id * 7 % 20) - 10) for id in range(20)], slope),
    )
    return replace(found, **changes)


def clients(own: Sequence[float], slope: float = 20.0) -> ClientFigures:
    """Invent clients with these figures on own data, of which each loses `slope` at full shift."""
    shift = {str(d): tuple(value - slope * d / 100 for value in own) for d in DEGREES}
    shift[AVERAGED] = tuple(value - slope / 2 for value in own)
    return ClientFigures(
        ids=tuple(range(len(own))),
        samples=tuple(30 + id for id in range(len(own))),
        own=tuple(own),
        tests=tuple(10 + id for id in range(len(own))),
        shift=shift,
        pooled={step: tuple(value + 1 for value in values) for step, values in shift.items()},
    )


def corrupted(method: str, own: float = 80.0) -> Summary:
    """Invent a result with corruption, gates, masks that overlap, and novel clients."""
    steps = {"1": 5.0, "5": 15.0, AVERAGED: 10.0}
    kinds = {"fog": 0.0, "jpeg_compression": 20.0, AVERAGED: 10.0}
    corruption = {
        kind: {step: Statistics(own - less - more, 4.0) for step, more in steps.items()}
        for kind, less in kinds.items()
    }
    found = result(method, own=own)
    *before, last = found.history
    gates = replace(last, notes={"gate_weights": [30.0, 0.0, 10.0, 0.0]})
    return replace(
        found,
        accuracy=replace(found.accuracy, corruption=corruption),
        corrupted_images="generated",
        history=(*before, gates),
        overlap=Overlap(0.25, {}, {"w": ((1.0, 0.5), (0.5, 1.0))}),
        novel=novel([70.0, 72.0], gap=own - 71.0),
    )


def six_methods(seed: int = 1, gain: float = 0.0) -> list[Summary]:
    """Invent results of the six methods of the demo."""
    tuning = spent(2e4, 0.0, flops=Flops(4e7, 4e7, 4e7), paper=PaperCosts(0.0, 4e7))
    sparse = spent(0.5e6, 0.4e6, flops=Flops(3e9, 1.3e9, 3.5e9), paper=PaperCosts(4.0e5, 1.6e9))
    personal: dict[str, Any] = {
        "costs": costs(sparse),
        "model": ModelSize(12345, 6296.0, 0.51),
        "global_view": accuracy(84.0 + gain, 3.0),
    }
    tuned = curve({60: 93.1 + gain})
    return [
        result("local", seed, 91.3 + gain, 55.0, title="Local", costs=costs(spent(0.0, 0.0))),
        result("fedavg", seed, 86.2 + gain, 2.0, title="FedAvg", view="global"),
        result(
            *("fedavg_ft", seed, 94.1 + gain, 22.0),
            title="FedAvg+FT",
            costs=costs(adapt=tuning),
            history=tuned,
        ),
        result("fedprox", seed, 86.9 + gain, 2.5, title="FedProx", view="global"),
        result("dmpfl", seed, 93.8 + gain, 30.0, title="DM-PFL", **personal),
        result("dmpfl_plus", seed, 94.1 + gain, 13.0, title="DM-PFL+", **personal),
    ]
