"""The privacy sheet of a training: what left a client, who got it, and what is guaranteed of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json

FILE = "privacy.json"
"""The file that has it, in the directory of a run."""
UP, DOWN = "up", "down"
HEADER = "header"
"""What is sent around the parts of a message: counters, names of states, a checksum."""


@dataclass(frozen=True)
class Sent:
    """What the messages of one kind of round had of one part."""

    when: str
    """"setup", or the phase of training."""
    direction: str
    """"up" to the server, or "down" to clients."""
    part: str
    kinds: Mapping[str, tuple[str, ...]]
    """Tensors by what they are: "weights", "statistics", "bits", "numbers", and "mask"."""
    bytes: float = 0.0
    """Over all clients and rounds."""
    fewest: int = 0
    """The fewest clients whose updates were aggregated in such a round."""


@dataclass(frozen=True)
class Leaving:
    """A line of the sheet: something that leaves a client, or is passed on to clients."""

    when: str
    direction: str
    name: str
    """A part of a message, or a fact."""
    kinds: Mapping[str, tuple[str, ...]]
    """What it is, and the tensors or figures that are so."""
    contributors: int
    """The least number of clients that a number of it is made of."""
    bytes: float | None = None
    """Mean per client over the run; None where it is not counted."""
    epsilon: float | None = None
    """None is no guarantee."""

    @property
    def to(self) -> str:
        """Say who gets it."""
        return "the server" if self.direction == UP else "clients"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy, as an accountant found it."""

    unit: str
    """What one of which is hidden: a "sample" of a client, or a whole "client"."""
    epsilon: float
    """Of the client for which it is largest."""
    delta: float
    noise_multiplier: float
    bound: float
    """The norm that gradients of samples, or updates of clients, are clipped to."""
    accountant: str
    clients: Mapping[str, float] = field(default_factory=dict)
    """ε by the number of the client."""


@dataclass(frozen=True)
class PrivacySheet:
    """What left a client in a training, and what is guaranteed of it."""

    title: str
    """The method."""
    seed: int
    clients: int
    lines: tuple[Leaving, ...]
    guarantee: Guarantee | None = None
    simulated: bool = True
    """Whether clients were simulated: then nothing crossed a network."""

    @property
    def epsilon(self) -> str:
        """Say in a few words what is guaranteed."""
        found = self.guarantee
        if found is None:
            return "none"
        whom = "" if found.unit == "sample" else ", not from the server"
        return (
            f"{found.epsilon:.3g} at δ = {found.delta:g} for one {found.unit}{whom}"
            f" ({found.accountant} accountant)"
        )

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(to_json(self), indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read it; E401 says what is wrong with one that cannot be."""
        try:
            return from_json(cls, parsed(data))
        except ValueError as error:
            raise MasqueradeError("E401", f"a privacy sheet is damaged: {error}") from None


def lines_of(
    sent: Sequence[Sent], clients: int, least: int, guarantee: Guarantee | None
) -> tuple[Leaving, ...]:
    """Return the lines of messages; `least` is how few clients may hold a coordinate.

    The server sees every client's own upload. What it passes on to clients is made of uploads. The
    noise that hides a whole client is added by the server, which so sees uploads without it.
    """
    passing = None if guarantee is None else guarantee.epsilon
    sending = passing if guarantee is not None and guarantee.unit == "sample" else None
    fewest = min((each.fewest for each in sent if each.fewest), default=0)
    masked = any("mask" in each.kinds for each in sent if each.direction == UP)
    passed_on = least if masked else max(least, fewest)
    return tuple(
        Leaving(
            when=each.when,
            direction=each.direction,
            name=each.part,
            kinds=each.kinds,
            contributors=1 if each.direction == UP else passed_on,
            bytes=each.bytes / clients,
            epsilon=sending if each.direction == UP else passing,
        )
        for each in sent
    )
