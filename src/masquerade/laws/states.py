"""Laws 6 and 7: states are kept, and a run is its state."""

from masquerade.laws.compare import OWN, equal
from masquerade.laws.engines import round_of
from masquerade.laws.law import DoesNotApply, LawBroken, at, law
from masquerade.laws.problem import ROUNDS, Problem, after
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState

SAVED = 2
"""The round before which a run is saved and loaded."""


@law(
    6,
    "An unsampled client's state keeps its bits.",
    "return rows and clients' states from `aggregate` and `finish` alone, and hold no other "
    "reference to them",
)
def unsampled_clients_are_untouched(problem: Problem) -> None:
    """Do a round, and look at whoever was not asked."""
    with problem.simulating(ROUNDS) as made:
        # Round 0 may be preceded by everybody's setup.
        state = after(made, 1)
        asked = made.server.participation.cohort(state.number)
        if len(asked) == len(made.server.clients):
            raise DoesNotApply("all clients are sampled in every round; give more of them")
        before = {n: value for n, value in state.tensors().items() if n.startswith(OWN)}
        made.advance(state)
        now = state.tensors()
        with at(**round_of(made, 1)):
            found = {n: now[n].index_copy(0, asked, value[asked]) for n, value in before.items()}
            equal(before, found, "a client that was not sampled has another state")


@law(
    7,
    "Save, load, continue gives the bits of continuing.",
    "keep all that is needed later in `server`, `row` or `client`, as tensors: neither in fields "
    "of the class, nor in globals or closures",
)
def saved_runs_continue(problem: Problem) -> None:
    """Run twice side by side, one of the runs saved and loaded in between."""
    with problem.simulating(problem.rounds) as made:
        whole, part = made.begin(), made.begin()
        for number in range(problem.rounds):
            if number == SAVED:
                part = _saved_and_loaded(made, part)
            made.advance(whole)
            made.advance(part)
            with at(**round_of(made, number)):
                equal(whole.tensors(), part.tensors(), _otherwise(number))
        if whole.costs != part.costs:
            raise LawBroken(f"a run that was loaded costs {part.costs}, and else {whole.costs}")


def _otherwise(number: int) -> str:
    return "a run that was loaded goes on otherwise" if number >= SAVED else "two runs differ"


def _saved_and_loaded(made: Simulation, state: RunState) -> RunState:
    loaded = made.begin()
    loaded.restore(state.number, state.tensors(), state.facts())
    return loaded
