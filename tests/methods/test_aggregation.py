"""Every method averages by its cohort: under each rule it gives what its definition gives."""

from dataclasses import replace

import pytest
import torch

from masquerade.core import tree
from masquerade.core.aggregation import Aggregation
from masquerade.core.round import Cohort
from tests.core.by_hand import ByHand
from tests.support import METHOD_TABLE, simulation

RULES = (
    {"rule": "median", "min_contributors": 2},
    {"rule": "trimmed_mean", "trim": 0.3},
    {"clip_updates": 1.0, "min_contributors": 3},
)


class Counted(ByHand):
    """Says how often it was asked."""

    asked = 0

    def reduce(self, *given, **more):
        type(self).asked += 1
        return super().reduce(*given, **more)


@pytest.mark.parametrize("name", METHOD_TABLE)
def test_every_method_aggregates_by_the_rule(name: str) -> None:
    method = replace(METHOD_TABLE[name], local_epochs=2)
    made = simulation(method, rounds=3, participation=1.0)
    state, server = made.begin(), made.server
    while len((turn := server.choose(state)).asked) and turn.kind == "setup":
        job = server.make_job(state, turn.asked, turn.round)
        done = made.engine.work(job)
        cohort = server.cohort(turn.asked, len(turn.asked))
        _, rows = method.aggregate(
            server.task, state.server, job.rows, done.uploads, cohort, turn.round
        )
        state.keep(turn.asked, rows, done)
        state.set_up = True
    job = server.make_job(state, turn.asked, turn.round)
    uploads = made.engine.work(job).uploads
    for rule in RULES:
        found, wanted = (
            method.aggregate(server.task, state.server, job.rows, uploads, cohort, turn.round)
            for cohort in (
                Cohort(turn.asked, server.samples, 6, 6, by(**rule))
                for by in (Aggregation, Counted)
            )
        )
        left, right = tree.named({"": list(found)}), tree.named({"": list(wanted)})
        assert left.keys() == right.keys()
        for path, value in left.items():
            assert torch.allclose(value.double(), right[path].double(), rtol=0, atol=1e-12), path
    assert Counted.asked >= len(RULES) or not uploads
    Counted.asked = 0
