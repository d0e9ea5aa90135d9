"""How long bytes take: a bandwidth, and the seconds that messages need at it."""

import re
from dataclasses import dataclass

from masquerade.errors import MasqueradeError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)(bps|bit/s|b/s|Bps|B/s)")


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second in each direction, as a client has them; latency is not counted."""

    down: float
    up: float
    text: str

    def seconds(self, down: float, up: float) -> float:
        """Return how long so many bytes take, one direction after the other."""
        return down / self.down + up / self.up


def bandwidth(text: str) -> Bandwidth:
    """Read one bandwidth for both directions, or DOWN:UP: `10MB/s`, `50Mbps:10Mbps`."""
    pieces = text.split(":")
    rates = [_rate(piece) for piece in pieces]
    if len(rates) > 2 or not all(rates):
        known = "give 10MB/s (bytes) or 50Mbps (bits), or two as DOWN:UP; prefixes are k, M and G"
        raise MasqueradeError("E201", f"`bandwidth` is {text!r}; {known}")
    names = [re.sub(r"(?<=\d)\s*(?=[a-zA-Z])", " ", piece.strip()) for piece in pieces]
    shown = f"{names[0]} both ways" if len(names) == 1 else f"{names[0]} down, {names[1]} up"
    return Bandwidth(rates[0], rates[-1], shown)


def _rate(text: str) -> float:
    """Return bytes per second, or 0 for what is no bandwidth."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return 0.0
    number, prefix, unit = found.groups()
    return float(number) * _SCALES[prefix.lower()] / (1 if unit.startswith("B") else 8)


FEDMASK = bandwidth("10MB/s")
"""What FedMask assumes of every device (§2.2, Figure 2)."""


def unit(seconds: float) -> tuple[str, float]:
    """Return the unit that a person would give so many seconds in, and its seconds."""
    if seconds >= 7200:
        return "h", 3600.0
    return ("min", 60.0) if seconds >= 120 else ("s", 1.0)
