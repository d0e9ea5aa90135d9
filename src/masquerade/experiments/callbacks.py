"""Callbacks: objects that are told what happens in a run; progress, commits and files are some."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from masquerade.errors import MasqueradeError, told
from masquerade.results import EvaluationRecord, RoundRecord
from masquerade.simulation.state import RunState

if TYPE_CHECKING:
    from masquerade.experiments.result import Result


@dataclass(frozen=True, eq=False)
class Run:
    """The run that callbacks are told of."""

    name: str
    """The name of its method."""
    seed: int
    rounds: int
    state: RunState
    """To be read, and never changed."""
    place: int = 0
    """Its place among `of` trainings."""
    of: int = 1
    metric: str = ""
    """What evaluations measure: the metric of the task."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By section: those of the method, and of train, evaluate, compute; of data where a
    configuration names them."""

    @property
    def share(self) -> float:
        """Return how much of the rounds of all trainings is done, from 0 to 1."""
        return (self.place + self.state.number / self.rounds) / self.of


class Callback:
    """An object that is told of the events of a run; a subclass has the methods that it wants."""

    def on_evaluation(self, run: Run, record: EvaluationRecord) -> None:
        """Models were measured on own data, before `on_round` of the same round."""

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """A round is done."""

    def on_commit(self, run: Run, rounds: int) -> None:
        """The state after so many rounds is on the disk; commits are written beside the work."""

    def on_end(self, run: Run, result: "Result") -> None:
        """All rounds are done and every view is evaluated."""

    def on_error(self, run: Run, error: BaseException) -> None:
        """The training ends here, in an error or because it was stopped; nothing else follows."""


def check_callbacks(callbacks: object) -> None:
    """Refuse what are no callbacks."""
    wanted = "callbacks=[...] of objects of subclasses of mq.Callback"
    if not isinstance(callbacks, (list, tuple)):
        raise MasqueradeError("E201", f"`callbacks` is {told(callbacks)}; write {wanted}")
    for each in callbacks:
        if not isinstance(each, Callback):
            raise MasqueradeError("E201", f"a callback is {told(each)}; write {wanted}")


class Callbacks(Callback):
    """Several callbacks as one: each is told, in their order."""

    def __init__(self, told: Sequence[Callback]) -> None:
        self.told = tuple(told)

    def on_evaluation(self, run: Run, record: EvaluationRecord) -> None:
        """Tell all of an evaluation."""
        for each in self.told:
            each.on_evaluation(run, record)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Tell all of a round."""
        for each in self.told:
            each.on_round(run, record)

    def on_commit(self, run: Run, rounds: int) -> None:
        """Tell all of a commit."""
        for each in self.told:
            each.on_commit(run, rounds)

    def on_end(self, run: Run, result: "Result") -> None:
        """Tell all of the end."""
        for each in self.told:
            each.on_end(run, result)

    def on_error(self, run: Run, error: BaseException) -> None:
        """Tell all of an error; what goes wrong with that is noted of it, and hides nothing."""
        for each in self.told:
            try:
                each.on_error(run, error)
            except Exception as further:
                name = type(each).__name__
                error.add_note(f"and {name} failed, when told: {type(further).__name__}: {further}")

    @contextmanager
    def told_of_errors(self, run: Run) -> Iterator[None]:
        """Tell all if what is done inside ends in an error, or is stopped."""
        try:
            yield
        except BaseException as error:
            self.on_error(run, error)
            raise
