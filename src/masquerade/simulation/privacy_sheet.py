"""The privacy sheet of a training, from what its messages had and what its accountant found."""

from collections.abc import Mapping, Sequence

from masquerade.results import Guarantee, Leaving, PrivacySheet
from masquerade.results.privacy import DOWN, UP, lines_of
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.server import Server
from masquerade.simulation.state import RunState

BEFORE, EVALUATION = "before training", "evaluation"
COUNTS: Mapping[str, tuple[str, ...]] = {"counts": ("training samples",)}
"""What the server knows of a client that it simulates, before any message."""


def sheet_of(
    server: Server,
    state: RunState,
    title: str,
    seed: int,
    fitting: Fitting,
    weighting: Weighting,
    figures: Sequence[str],
    facts: Mapping[str, tuple[str, ...]] = COUNTS,
    guarantee: Guarantee | None = None,
    simulated: bool = True,
) -> PrivacySheet:
    """Return the sheet; `figures` are what clients' models are measured by, `facts` what is told.

    A guarantee is of messages alone: facts and figures are told as they are.
    """
    least = max(1, server.aggregation.min_contributors)
    trained = len(server.participation.eligible)
    lines = [
        Leaving(BEFORE, UP, "facts", facts, 1),
        *_fitted("preprocessing", {"sums": fitting.sent}, fitting.up, fitting.down, trained),
        *_fitted(
            "class weights",
            {"counts": ("labels of each class",)} if weighting.weights is not None else {},
            weighting.up,
            weighting.down,
            trained,
        ),
        *lines_of(tuple(state.sent.values()), len(server.known), least, guarantee),
        Leaving(EVALUATION, UP, "figures", {"figures": tuple(figures)}, 1),
    ]
    return PrivacySheet(title, seed, len(server.known), tuple(lines), guarantee, simulated)


def _fitted(
    name: str, kinds: Mapping[str, tuple[str, ...]], up: float, down: float, clients: int
) -> list[Leaving]:
    """List what clients sent to have something fitted, and what all got of it."""
    if not any(kinds.values()):
        return []
    return [
        Leaving(BEFORE, UP, name, kinds, 1, up),
        Leaving(BEFORE, DOWN, name, kinds, clients, down),
    ]
