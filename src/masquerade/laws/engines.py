"""Laws 2 and 4: who does the clients' work, and in which order, does not matter."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.task import accuracy
from masquerade.engine import select
from masquerade.engine.batched import Batched
from masquerade.evaluation.evaluate import Evaluator
from masquerade.laws.compare import close, equal
from masquerade.laws.law import LawBroken, at, law
from masquerade.laws.problem import Problem, after
from masquerade.results import Spent, Summary
from masquerade.results.json_records import Json, to_json
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState

TOLERANCE = 1e-9
"""How far apart two ways of computing the same in double precision may be."""
DROP = 0.3
"""The share of answers that are lost where processes are looked at."""


@law(
    2,
    "Loop and batched agree, in float64 to 1e-9 with equal masks; processes change no bit.",
    "let no number decide in Python (`torch.where`, not `if`), average with `batch.mean`, and hold "
    "nothing from client to client; `compute.replay` and `compute.processes` say which way is "
    "wrong",
)
def engines_agree(problem: Problem) -> None:
    """Run the loop beside the batched engine, and alone beside two processes.

    The batched engine replays steps, as it does by default: law 9 has that this changes no bit.
    """
    _loop_equals_batched(problem)
    _processes_change_no_bit(problem)


def _loop_equals_batched(problem: Problem) -> None:
    rounds = problem.rounds
    # Three clients at a time of four: the second chunk is padded.
    with (
        problem.simulating(rounds) as loop,
        batched(problem, rounds, clients_per_chunk=3) as made,
    ):
        reference, state = loop.begin(), made.begin()
        for number in range(rounds):
            loop.advance(reference)
            made.advance(state)
            with at(**round_of(made, number)):
                text = "batched differs from the loop"
                close(numbers(reference), numbers(state), TOLERANCE, text)
        _same_outcome(_outcome(loop, reference), _outcome(made, state), problem)


def _processes_change_no_bit(problem: Problem, rounds: int = 3) -> None:
    """Look at one process and at two, some of whose clients' answers are lost."""

    def run(processes: int) -> list[tuple[dict[str, Any], Any, dict[str, Tensor]]]:
        found: list[tuple[dict[str, Any], Any, dict[str, Tensor]]] = []
        with problem.simulating(rounds, drop=DROP, processes=processes) as made:
            state = made.begin()
            for number in range(rounds):
                made.advance(state)
                costs = {kind: dict(sums) for kind, sums in state.costs.items()}
                found.append((round_of(made, number), costs, state.tensors()))
        return found

    for (place, cost, one), (_, theirs, two) in zip(run(1), run(2), strict=True):
        with at(**place):
            equal(one, two, "two processes differ from one")
        if cost != theirs:
            raise LawBroken(f"two processes cost {theirs}, one {cost}")


@contextmanager
def batched(problem: Problem, rounds: int, **compute: Any) -> Iterator[Simulation]:
    """Build a simulation that is batched; a method that has to be looped breaks the law."""
    with problem.simulating(rounds, engine="batched", **compute) as made:
        if not isinstance(made.engine, Batched):
            why = select.obstacle(made.context)
            raise LawBroken(f"it cannot be batched over clients, and is looped instead: {why}")
        yield made


def round_of(made: Simulation, number: int) -> dict[str, Any]:
    """Name a training round as the place where a law is broken."""
    phase = made.server.method.schedule(number, made.server.rounds)
    return {"kind": "train", "phase": phase, "number": number}


def numbers(state: RunState) -> dict[str, Tensor]:
    """Return all of a run's state, by name; digests aside, which compare bits and not numbers."""
    found = state.tensors()
    return {name: value for name, value in found.items() if not name.startswith("session/version/")}


Outcome = tuple[Any, Any, dict[str, Tensor]]
"""What training cost, the figures of every view, and the models."""


def _outcome(made: Simulation, state: RunState) -> Outcome:
    summaries, models = Evaluator.of(made).final(state)
    return owed(state.costs), _figures(summaries), tree.named(models)


def _figures(summaries: Sequence[Summary]) -> list[Json]:
    """Return what of every summary no engine may change."""
    return [
        to_json([each.accuracy, each.global_view, each.per_client, owed(each.costs.adapt)])
        for each in summaries
    ]


def owed(costs: Any) -> Any:
    """Return the costs that no engine changes: all but the operations that one really ran."""
    if isinstance(costs, Spent):
        return owed(to_json(costs))
    if not isinstance(costs, Mapping):
        return costs
    return {name: owed(value) for name, value in costs.items() if name != "executed"}


def _same_outcome(left: Outcome, right: Outcome, problem: Problem) -> None:
    # Accuracy counts samples; another metric is rounded as everything is.
    tolerance = 0.0 if problem.task.metric is accuracy else TOLERANCE
    for what, one, two, within in (
        ("costs", left[0], right[0], 1e-12),
        ("figures", left[1], right[1], tolerance),
    ):
        if not _alike(one, two, within):
            raise LawBroken(f"batched has other {what}: {two}, the loop {one}")
    with at(kind="adapt"):
        close(left[2], right[2], TOLERANCE, "batched evaluates other models")


def _alike(left: Any, right: Any, tolerance: float) -> bool:
    """Tell whether two records of numbers are the same but for rounding."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            _alike(value, right[key], tolerance) for key, value in left.items()
        )
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_alike(*pair, tolerance) for pair in pairs)
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    return bool(left == right)


@law(
    4,
    "The order of clients does not matter.",
    "keep nothing from client to client: what a client needs later goes into its state, and what "
    "is random comes from the batch's key",
)
def order_does_not_matter(problem: Problem) -> None:
    """Do a round with the clients in another order."""
    with problem.simulating(8) as made:
        ids = torch.arange(len(made.server.clients))
        mixed = ids.flip(0).roll(1)

        def outcome(order: Tensor) -> dict[str, Any]:
            job = made.server.make_job(after(made, 1), order, made.server.round("train", 1))
            done = made.engine.work(job)
            return {"uploads": done.uploads, "clients": done.clients}

        with at(**round_of(made, 1)):
            found = tree.take(outcome(mixed), mixed.argsort())
            equal(outcome(ids), found, "another order of clients gave something else")
