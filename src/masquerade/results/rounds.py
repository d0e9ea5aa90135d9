"""A round, and an evaluation between rounds, as `metrics.jsonl` and callbacks have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from masquerade.results.accuracy import Statistics
from masquerade.results.json_records import Json


@dataclass(frozen=True)
class EvaluationRecord:
    """What was measured on own data between two rounds."""

    round: int
    """Rounds done."""
    views: Mapping[str, Statistics]
    """Of every view that needs no training."""
    down: float
    """Mean bytes per client so far; so are `up` and `flops`."""
    up: float
    flops: float
    notes: Mapping[str, Json] = field(default_factory=dict)
    """What the method notes of its models, averaged over clients."""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round."""

    round: int
    """Rounds done: the first is 1."""
    clients: tuple[int, ...]
    """Clients whose update was taken."""
    costs: Mapping[str, float]
    """Sums over clients of bytes and operations; of bytes also by part, as "up/params"."""
    lost: tuple[int, ...] = ()
    """Clients that were asked and did not come back."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Clients whose update was refused, and the code that says why."""
    refused_setup: Mapping[str, str] = field(default_factory=dict)
    """The same of the setup before the first round."""
    evaluation: EvaluationRecord | None = None
    """What was measured after it, if anything was."""
