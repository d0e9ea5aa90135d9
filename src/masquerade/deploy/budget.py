"""What a client has spent of its privacy in a run: counted where the noise is drawn, on its disk.

Steps are counted before what came of them is sent. A server that crashed may ask again, and whoever
answers anew draws new noise: the count says so, and what is over the bound is not done.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from masquerade.config.settings import Privacy
from masquerade.core.dp import DPSGD
from masquerade.errors import MasqueradeError
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.simulation.accountant import epsilon_of, sampling_rate
from masquerade.storage import atomic

FILE = "spent.json"
"""The file that has it, in the folder of a run."""


@dataclass(frozen=True)
class Taken:
    """Steps of one sort: whoever's samples change has others."""

    noise_multiplier: float
    rate: float
    """The chance of a sample to be in a batch."""
    steps: int


@dataclass(frozen=True)
class Ledger:
    """All steps that a client has taken in a run."""

    taken: tuple[Taken, ...] = ()

    @property
    def steps(self) -> int:
        """Count them."""
        return sum(each.steps for each in self.taken)

    def with_steps(self, noise_multiplier: float, rate: float, steps: int) -> "Ledger":
        """Return it after some more."""
        new = Taken(noise_multiplier, rate, steps)
        for place, each in enumerate(self.taken):
            if replace(each, steps=steps) == new:
                more = replace(each, steps=each.steps + steps)
                return Ledger((*self.taken[:place], more, *self.taken[place + 1 :]))
        return Ledger((*self.taken, new))

    def epsilon(self, delta: float) -> float:
        """Return ε of all of them."""
        history = [(each.noise_multiplier, each.rate, each.steps) for each in self.taken]
        return epsilon_of(tuple(history), delta)


@dataclass(frozen=True)
class Budget:
    """What a client may spend, and where it writes what it has spent."""

    path: Path
    privacy: Privacy
    dp: DPSGD
    samples: int
    """It trains on so many."""

    @property
    def ledger(self) -> Ledger:
        """Read what was spent; one that cannot be read is not taken for an empty one."""
        if not self.path.is_file():
            return Ledger()
        try:
            return from_json(Ledger, parsed(self.path.read_bytes()))
        except ValueError as error:
            text = f"what this client has spent of its privacy cannot be read ({error})"
            raise MasqueradeError("E633", f"{text}; it trains no more in this run") from None

    @property
    def epsilon(self) -> float:
        """Return ε so far."""
        return self.ledger.epsilon(self.privacy.delta)

    def check(self, steps: int) -> None:
        """Refuse steps after which ε would be above its bound."""
        after, bound = self._after(steps), self.privacy.epsilon
        if bound and (found := after.epsilon(self.privacy.delta)) > bound:
            text = f"ε would be {found:.4g} after {steps} further steps, above the {bound:g} of "
            raise MasqueradeError("E633", f"{text}privacy.epsilon; this client trains no more")

    def spend(self, steps: int) -> None:
        """Count steps, on the disk."""
        self._write(self._after(steps))

    def spent_at_least(self, steps: int) -> None:
        """Count what the server knows of and this client does not: it has lost its files."""
        missing = steps - self.ledger.steps
        if missing > 0:
            self.spend(missing)

    def _after(self, steps: int) -> Ledger:
        rate = sampling_rate(self.dp, self.samples)
        return self.ledger.with_steps(self.dp.noise_multiplier, rate, steps)

    def _write(self, ledger: Ledger) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(self.path, json.dumps(to_json(ledger), indent=1).encode())
