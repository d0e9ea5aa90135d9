"""Law 1: functions are pure."""

import torch
from torch import Tensor

from masquerade.core.round import Round, Stage
from masquerade.core.tree import State
from masquerade.laws.compare import clones, equal
from masquerade.laws.law import at, law
from masquerade.laws.problem import Exchange, Problem, after, exchanges, kinds, two_clients
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState

TRAINED = 4
"""Rounds after which functions are looked at again."""
WRITTEN = "a tensor that was given was written into"


@law(
    1,
    "Functions are pure: same in, same out, inputs untouched.",
    "make new tensors (`x * 0.5`, not `x.mul_(0.5)`), draw from the batch's key, and keep nothing "
    "outside of the states that are returned",
)
def functions_are_pure(problem: Problem) -> None:
    """Call every function twice, at the beginning and after some rounds."""
    with problem.simulating(TRAINED) as made:
        # Before any engine takes a step: it refuses what writes in place, and names no stage.
        _clients_are_pure(made, made.begin())
        state = after(made, TRAINED)
        _clients_are_pure(made, state)
        _aggregation_is_pure(made, state)


def _clients_are_pure(made: Simulation, state: RunState) -> None:
    for exchange in exchanges(made, state, two_clients(made)):
        with at(**exchange.place):
            _client_is_pure(exchange)


def _client_is_pure(exchange: Exchange) -> None:
    made, round, download = exchange.made, exchange.round, exchange.download
    method, task = made.server.method, made.server.task
    inputs = {
        "server": exchange.server,
        "row": exchange.row,
        "client": exchange.client,
        "message": download,
    }
    before = clones(inputs)
    known: dict[str, dict[str, Tensor]] = {}

    def observe(stage: Stage, work: State) -> None:
        with at(stage=stage.name):
            equal(before, inputs, WRITTEN)
            # The second time it is held against the first.
            first = known.setdefault(stage.name, clones(work))
            equal(first, work, "the same steps gave other work the second time")

    first, second = (exchange.answer(observe) for _ in range(2))
    for what, one, two in zip(("upload", "client"), first, second, strict=True):
        equal({what: one}, {what: two}, "the same round gave something else the second time")
    again = method.download(task, exchange.server, exchange.row, round)
    equal(download, again, "`download` gave something else the second time")
    equal(before, inputs, WRITTEN)
    if round.kind == "adapt":
        one, two = (
            method.personalize(task, download, held, round.phase[0]) for _, held in (first, second)
        )
        equal(one, two, "`personalize` gave something else the second time")
        x = made.federation.x[:5]
        found = ({"output": method.predict(task, each, x)} for each in (one, two))
        equal(next(found), next(found), "`predict` gave something else the second time")
    equal(before, inputs, WRITTEN)


def _aggregation_is_pure(made: Simulation, state: RunState) -> None:
    for kind, phase in kinds(made):
        if kind == "train":
            with at(kind=kind, phase=phase):
                _aggregate_is_pure(made, state, made.context.round(kind, phase, TRAINED - 1))


def _aggregate_is_pure(made: Simulation, state: RunState, round: Round) -> None:
    server, ids = made.server, torch.arange(0, len(made.server.clients), 2)
    job = server.make_job(state, ids, round)
    uploads = made.engine.work(job).uploads
    inputs = {"server": state.server, "rows": job.rows, "uploads": uploads}
    before = clones(inputs)
    given = (state.server, job.rows, uploads, server.cohort(ids, len(ids)), round)
    first, second = (server.method.aggregate(server.task, *given) for _ in range(2))
    equal(before, inputs, f"{WRITTEN} by `aggregate`")
    for what, one, two in zip(("server", "rows"), first, second, strict=True):
        equal({what: one}, {what: two}, "`aggregate` gave something else the second time")
