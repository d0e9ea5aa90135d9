"""Metrics of a whole test set, and rules on outputs: both read all outputs of a client on it."""

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
    targets: str = ""
    """What it is a metric of: "classes", "numbers", "tokens", or anything."""
    percent: bool = True
    """Whether it is given in percent."""

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            text = f"`better` is {self.better!r}; choose higher or lower"
            raise MasqueradeError("E202", text)


PSEUDO_COUNT = 1.0
"""What every class is counted beside its samples (Laplace): none is thought impossible."""


def smoothed(counts: Tensor) -> Tensor:
    """Return the label mix that counts of classes give: what is added to outputs and taken out."""
    mass = counts + PSEUDO_COUNT
    return mass / mass.sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class RuleClient:
    """What a rule may know of the client whose outputs it is given."""

    id: int
    labels: Tensor
    """The targets of its training samples."""
    reference: Tensor
    """The model's outputs, before any rule, on samples of its own that it is not evaluated on;
    empty unless a rule asks for them."""
    reference_labels: Tensor
    """Their targets."""
    contains_mix: bool = False
    """Whether the outputs are known to contain the client's label mix."""


Rule = Callable[[Tensor, RuleClient], Tensor]
"""From all outputs on a test set [samples, …], and their client, to the outputs that count."""


@dataclass(frozen=True)
class OutputRule:
    """A rule that says what it reads; a plain function may read all samples of a test set."""

    function: Rule
    scope: str = "several"
    """"sample" where every sample is answered by itself, "several" where others of its test set
    count too. A rule of the second kind gets them in random order: shifted samples would stand
    last."""
    reference: bool = False
    """Whether it reads reference outputs."""

    def __post_init__(self) -> None:
        if self.scope not in ("sample", "several"):
            text = f"`scope` is {self.scope!r}; choose sample or several"
            raise MasqueradeError("E202", text)

    def __call__(self, outputs: Tensor, client: RuleClient) -> Tensor:
        """Return the outputs that count."""
        return self.function(outputs, client)
