"""The metric over clients: on own data, under shift, under corruption."""

from collections.abc import Mapping
from dataclasses import dataclass, field

AVERAGED = "averaged"
"""The key of the mean over all steps: degrees of shift, severities or kinds of corruption."""


@dataclass(frozen=True)
class Statistics:
    """One figure per client, described: its mean and standard deviation over clients."""

    mean: float
    std: float
    weighted: float | None = None
    """The mean over all samples."""
    bottom_decile: float | None = None
    """Nine clients in ten do at least this well."""
    defined: int | None = None
    """How many clients have a figure; None where that is not known."""


ByStep = Mapping[str, Statistics]
"""By degree of shift or severity of corruption, and `AVERAGED` over them."""


@dataclass(frozen=True)
class Accuracy:
    """A metric over clients, whatever the metric is; accuracy in percent by default."""

    own: Statistics
    better: str = "higher"
    """Whether "higher" or "lower" is better."""
    shift: ByStep = field(default_factory=dict)
    """By degree: some test samples are replaced by those of one other client."""
    pooled: ByStep = field(default_factory=dict)
    """By degree: they are replaced by samples of all others."""
    corruption: Mapping[str, ByStep] = field(default_factory=dict)
    """By kind and severity, and `AVERAGED` over kinds."""
    percent: bool = True
    """Of a further metric, whether it is given in percent."""
