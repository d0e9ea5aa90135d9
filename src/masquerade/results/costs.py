"""What a run cost, as means per client unless something else is said."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bytes:
    """Bytes of messages."""

    down: float
    up: float

    @property
    def both(self) -> float:
        """Return the bytes in both directions."""
        return self.down + self.up


@dataclass(frozen=True)
class Flops:
    """Operations of products: without masks, as masks allow, and as the engine ran them."""

    dense: float
    masked: float
    executed: float


@dataclass(frozen=True)
class PaperCosts:
    """Costs as papers count them: values alone, three times the forward pass."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Parts:
    """Bytes by the part of a message, without headers."""

    down: Mapping[str, float] = field(default_factory=dict)
    up: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spent:
    """What all rounds of one kind cost a client."""

    bytes: Bytes
    flops: Flops
    paper: PaperCosts
    parts: Parts = field(default_factory=Parts)


@dataclass(frozen=True)
class Storage:
    """Bytes on a client's device: its model, its state, and what messages refer to."""

    model: float
    state: float
    session: float


@dataclass(frozen=True)
class Costs:
    """What a run cost."""

    train: Spent
    storage: Storage
    initial: float
    """Bytes of the initial weights: a seed, or a download."""
    setup: Spent | None = None
    """What clients do once before their first round."""
    adapt: Spent | None = None
    """What a view costs before it can be used: its download of the model as it is now, and the
    operations where it has to be trained; none where it needs neither."""
    layers: Mapping[str, Mapping[str, Flops]] = field(default_factory=dict)
    """Operations by phase and layer; what is in no layer is "beside"."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the run, by what it went to."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The most bytes that the run held at a time, of the process and on a CUDA device."""

    @property
    def total_seconds(self) -> float:
        """Return the wall time of the run."""
        return sum(self.seconds.values())
