"""Where the wall time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PARTS = ("start-up", "training", "evaluation", "commits")
"""What wall time is spent on; of commits, only the time that training waits for them."""


@dataclass
class Clock:
    """The seconds of a run, by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _first: list[float] = field(default_factory=list)
    """What the first two rounds of this process took."""

    @contextmanager
    def measure(self, part: str, lap: bool = False) -> Iterator[None]:
        """Add the time that a block takes; a `lap` is a round, and all rounds do the same."""
        begun = time.monotonic()
        try:
            yield
        finally:
            taken = time.monotonic() - begun
            self.seconds[part] += taken
            if lap and len(self._first) < 2:
                self._first.append(taken)
                self._set_start_up_apart()

    def _set_start_up_apart(self) -> None:
        """Count as start-up what the first round of a process took longer than its second.

        The first loads, compiles and captures what all others use.
        """
        if len(self._first) == 2:
            late = max(0.0, self._first[0] - self._first[1])
            self.seconds["training"] -= late
            self.seconds["start-up"] += late

    @property
    def total(self) -> float:
        """Return all seconds."""
        return sum(self.seconds.values())
