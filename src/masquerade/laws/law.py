"""What a law is, and how its breach is told: which law, where, and how far apart."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from masquerade.errors import MasqueradeError
from masquerade.laws.problem import Problem


@dataclass(frozen=True)
class Where:
    """The place of a breach, as far as it is known."""

    kind: str = ""
    """Of the round: "train", "setup" or "adapt"."""
    phase: Hashable = None
    number: int | None = None
    """Of the round."""
    stage: str = ""
    client: int | None = None
    tensor: str = ""
    apart: float | None = None
    """The largest difference between two numbers that should agree."""

    def within(self, place: dict[str, Any]) -> "Where":
        """Return this place, with what is known of the place around it where it says nothing."""
        known = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        return replace(self, **{name: value for name, value in place.items() if name not in known})

    def __str__(self) -> str:
        words = {
            "": f"{self.kind} round" if self.kind else "",
            "number": self.number,
            "phase": self.phase,
            "stage": f"`{self.stage}`" if self.stage else None,
            "client": self.client,
            "tensor": f"`{self.tensor}`" if self.tensor else None,
        }
        known = [f"{name} {word}".strip() for name, word in words.items() if word not in (None, "")]
        return ", ".join(known + ([] if self.apart is None else [f"{self.apart:.2g} apart"]))


class LawBroken(MasqueradeError):
    """A method breaks a law; `law` says which, `where` the place, `text` what was seen there."""

    def __init__(self, text: str, where: Where | None = None) -> None:
        super().__init__("E207", text)
        self.text = text
        self.where = where or Where()
        self.law: Law | None = None

    def __str__(self) -> str:
        number = "a law" if self.law is None else f"law {self.law.number}"
        place = "" if self.where == Where() else f" at {self.where}"
        advice = "" if self.law is None else f"; {self.law.advice}"
        return f"{self.code} {number} is broken{place}: {self.text}{advice}"


class DoesNotApply(Exception):
    """A law has nothing to say of a method, and why."""


@dataclass(frozen=True)
class Law:
    """One law: called with a problem it returns, or raises `LawBroken` or `DoesNotApply`."""

    number: int
    sentence: str
    advice: str
    """What the author of a method that breaks it should do."""
    check: Callable[[Problem], None]

    @property
    def name(self) -> str:
        """Return what its function is called."""
        return self.check.__name__

    def __call__(self, problem: Problem) -> None:
        """Hold a method to this law; whatever a method raises meanwhile breaks it."""
        try:
            with at():
                self.check(problem)
        except LawBroken as broken:
            broken.law = self
            raise


def law(number: int, sentence: str, advice: str) -> Callable[[Callable[[Problem], None]], Law]:
    """Make a law of a function."""
    return lambda check: Law(number, sentence, advice, check)


def summary(error: Exception) -> str:
    """Say in a line what an error was, and what was noted of it."""
    first = next(iter(str(error).strip().splitlines()), "")
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {first}{notes}"


@contextmanager
def at(**place: Any) -> Iterator[None]:
    """Add to a breach found inside where it is; keywords are those of `Where`."""
    try:
        yield
    except LawBroken as broken:
        broken.where = broken.where.within(place)
        raise
    except DoesNotApply:
        raise
    except Exception as error:
        raise LawBroken(summary(error), Where(**place)) from error
