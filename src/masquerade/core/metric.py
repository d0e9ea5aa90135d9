"""What reads all outputs of a client on a test set: metrics of the set, and rules on outputs."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from masquerade.errors import MasqueradeError


@dataclass(frozen=True)
class SetMetric:
    """A metric of all outputs of a client on a test set, such as F1 or AUROC."""

    function: Callable[[Tensor, Tensor], float | None]
    """From outputs [samples, …] and targets [samples, …]; None where it is not defined."""
    better: str = "higher"

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            text = f"`better` is {self.better!r}; choose higher or lower"
            raise MasqueradeError("E202", text)


@dataclass(frozen=True, eq=False)
class RuleClient:
    """What a rule may know of the client whose outputs it is given."""

    id: int
    labels: Tensor
    """The targets of its training samples."""


Rule = Callable[[Tensor, RuleClient], Tensor]
"""From all outputs on a test set [samples, …], and their client, to the outputs that count."""
