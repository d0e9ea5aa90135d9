"""Steps as they are written: what `compute.replay = "off"` takes, and what replays must equal."""

from collections.abc import Callable, Hashable
from typing import ClassVar, Protocol

from torch import Tensor

from masquerade.core.round import Round
from masquerade.core.tree import State

RowStep = Callable[[State, Tensor, Round], State]
"""From the work of stacked clients and a row of their batches to their work."""

Key = tuple[Hashable, ...]
"""Of a step: kind and phase of the round, the stage's name, and what else tells steps apart."""


class Stepper(Protocol):
    """What takes the steps of a stage, for a chunk of clients."""

    few: ClassVar[bool]
    """Whether it should see few different numbers of clients: each graph costs memory and time."""
    rewrites: ClassVar[bool]
    """Whether convolutions may be computed as products of matrices."""

    def run(self, key: Key, step: RowStep, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows."""
        ...

    def clear(self) -> None:
        """Let go of all that is held."""
        ...


class Eager:
    """Takes every step as it is written."""

    few: ClassVar[bool] = False
    rewrites: ClassVar[bool] = False

    def run(self, key: Key, step: RowStep, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows."""
        for row in rows:
            work = step(work, row, round)
        return work

    def clear(self) -> None:
        """Hold nothing."""
