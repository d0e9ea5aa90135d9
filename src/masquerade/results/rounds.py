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
class Preparation:
    """What was done with some clients before a round."""

    kind: str
    """"setup", or "renewed": they had lost their states, and began anew."""
    clients: tuple[int, ...]
    back: tuple[int, ...] = ()
    """Of a setup: those whose answer came."""


@dataclass(frozen=True)
class Attendance:
    """Who took part in a round of real clients: what it takes to simulate the round again."""

    eligible: tuple[int, ...]
    """Clients that may take part."""
    asked: tuple[int, ...]
    back: tuple[int, ...]
    """Clients whose answer came in time and could be read."""
    prepared: tuple[Preparation, ...] = ()
    """Setups and new beginnings before the round, in their order."""
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    """Clients that were removed since the round before."""
    quorum: int = 0
    """How many updates the round needed."""
    answers: int = 0
    """How many came that could be taken: read, and not refused."""
    faults: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What came and was not taken, or did not come: by code and client, how often."""
    seconds: float = 0.0
    """From the first question to the last answer, or the deadline."""

    @property
    def below_quorum(self) -> bool:
        """Tell whether the round changed nothing because too few updates could be taken."""
        return self.answers < self.quorum


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
    attendance: Attendance | None = None
    """Of clients that are real: who took part, and what came that was not taken."""
