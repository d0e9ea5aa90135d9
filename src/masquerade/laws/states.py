"""Laws 6 and 7: states are kept, and a run is its state."""

from torch import Tensor

from masquerade.laws.compare import equal
from masquerade.laws.engines import round_of
from masquerade.laws.law import DoesNotApply, LawBroken, at, law
from masquerade.laws.problem import ROUNDS, Problem, after
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState

SAVED = 3
"""The round before which a run is saved and loaded."""
OWN = ("rows", "clients", "session")
"""Where clients have states of their own."""


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
        asked = set(made.server.participation.cohort(state.number).tolist())
        others = sorted(set(range(len(made.server.clients))) - asked)
        if not others:
            raise DoesNotApply("all clients are sampled in every round; give more of them")
        before = state.tensors()
        made.advance(state)
        with at(**round_of(made, 1)):
            for id in others:
                with at(client=id):
                    _is_untouched(_states_of(id, before), _states_of(id, state.tensors()))


def _states_of(id: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.partition("/")[2]: value[id]
        for name, value in tensors.items()
        if name.split("/")[0] in OWN
    }


def _is_untouched(before: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    # A session may have got its first entry for others in this round.
    same = {name: now[name] for name in before}
    equal(before, same, "a client that was not sampled has another state")


@law(
    7,
    "Save, load, continue gives the bits of continuing.",
    "keep all that is needed later in `server`, `row` or `client`, as tensors: neither in fields "
    "of the class, nor in globals or closures",
)
def saved_runs_continue(problem: Problem) -> None:
    """Run twice side by side, one of the runs saved and loaded in between."""
    with problem.simulating(ROUNDS) as made:
        whole, part = made.begin(), made.begin()
        for number in range(ROUNDS):
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
