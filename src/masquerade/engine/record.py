"""Steps as plain operations: recorded once for a stage and shapes, and repeated after that.

A step of a small network on a CPU is mostly what Python, maps and gradients do between its
operations, and they come to the same operations every time. It is what a captured graph is on CUDA,
under the same rule: what moves from round to round reaches a step through `round`.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from operator import getitem
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from masquerade.core import tree
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.engine.capture import RowStep

OFTEN = 8
"""Steps of a form that are taken before it is recorded, which takes as long as a few of them."""


class _Unrecordable(Exception):
    """A step asked for the value of a tensor, which may be another the next time."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done, below maps and gradients."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        """Operation, arguments and outcome; all are held, so that no two tensors share an id."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = operation(*args, **(kwargs or {}))
        if not all(each is None or isinstance(each, Tensor) for each in _listed(found)):
            raise _Unrecordable(str(operation))
        self.done.append((operation, args, kwargs or {}, found))
        return found


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


@dataclass
class _Call:
    """A call, by places in a list of values: where it reads and where it writes."""

    function: Callable[..., Any]
    reads: list[int]
    writes: int
    needed: bool = False
    """It changes what it is given, and is not to be left out though nobody reads what it makes."""


@dataclass
class _Recording:
    """A recorded step."""

    values: list[Any] = field(default_factory=list)
    """Constants at their places, None at those of what is given and made."""
    calls: list[_Call] = field(default_factory=list)
    program: list[tuple[Callable[..., Any], list[int], int, list[int]]] = field(
        default_factory=list
    )
    """The calls that matter: function, where it reads and writes, what nobody reads after it."""
    returned: list[int] = field(default_factory=list)
    form: State = field(default_factory=dict)
    """What it returns, with empty tensors."""
    _known: dict[int, int] = field(default_factory=dict)
    """Where tensors are, by their ids."""

    @classmethod
    def of(
        cls, step: RowStep, work: State, row: Tensor, round: Round
    ) -> tuple["_Recording", State]:
        """Take a step and record it."""
        # Entries may hold one tensor, now and not always: here each is an object of its own.
        work = tree.transform(Tensor.detach, work)
        with _Operations() as operations:
            new = step(work, row, round)
        made = cls()
        for value in _given(work, row, round):
            made._known[id(value)] = made._place()
        for done in operations.done:
            made._add(*done)
        try:
            made.returned = [made._known[id(value)] for value in tree.leaves(new)]
        except KeyError:
            raise _Unrecordable("it returns what it did not make") from None
        made._known.clear()
        made._prune()
        made.form = tree.transform(lambda value: value.new_empty(0), new)
        return made, new

    def _place(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _add(self, operation: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Write down an operation, and where what comes out of it is."""
        if any(isinstance(each, Tensor) for value in kwargs.values() for each in _listed(value)):
            raise _Unrecordable(str(operation))
        # What torch puts around an operation costs as much as a small one.
        function = partial(operation._op, **kwargs) if kwargs else operation._op
        needed, place = operation._schema.is_mutable, self._place()
        reads = [self._read(value) for value in args]
        self.calls.append(_Call(function, reads, place, needed))
        if not isinstance(found, tuple | list):
            self._known[id(found)] = place
            return
        for number, each in enumerate(found):
            self._known[id(each)] = self._place()
            reads = [place, self._place(number)]
            self.calls.append(_Call(getitem, reads, self._known[id(each)]))

    def _read(self, value: Any) -> int:
        """Return where an argument is; what the step did not make or get is a constant."""
        if isinstance(value, Tensor) and id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value):
            reads = [self._read(each) for each in value]
            self.calls.append(_Call(lambda *each: list(each), reads, self._place()))
            return self.calls[-1].writes
        return self._place(value)

    def _prune(self) -> None:
        """Leave out what nobody reads, and note what can be let go of."""
        read = set(self.returned)
        for call in reversed(self.calls):
            if call.needed or call.writes in read:
                last = [*{*call.reads, call.writes} - read]
                self.program.append((call.function, call.reads, call.writes, last))
                read |= set(call.reads)
        self.program.reverse()
        self.calls.clear()

    def run(self, work: State, row: Tensor, round: Round) -> State:
        """Repeat the step."""
        values = self.values.copy()
        given = _given(work, row, round)
        values[: len(given)] = given
        at = values.__getitem__
        for function, reads, writes, last in self.program:
            values[writes] = function(*map(at, reads))
            for place in last:
                values[place] = None
        made = map(at, self.returned)
        taken: State = tree.transform(lambda _: next(made), self.form)
        return taken


def _given(work: State, row: Tensor, round: Round) -> list[Tensor]:
    return [*tree.leaves(work), row, round.number, round.rounds, round.decay]


def _form(state: Any) -> Hashable:
    """Return what a recording of a state depends on."""
    if isinstance(state, Tensor):
        return state.shape, state.stride(), state.dtype
    if isinstance(state, dict):
        return tuple((name, _form(value)) for name, value in state.items())
    return type(state), tuple(map(_form, tree.leaves(state)))


@dataclass
class Recordings:
    """The recorded steps of a run."""

    few: ClassVar[bool] = False
    often: float = OFTEN
    _made: dict[Hashable, _Recording | None] = field(default_factory=dict)
    """None is what cannot be recorded."""
    _taken: Counter[Hashable] = field(default_factory=Counter)

    def run(self, key: Hashable, step: RowStep, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows."""
        for row in rows:
            full = key, _form(work), row.shape
            made = self._made.get(full)
            self._taken[full] += 1
            if made is not None:
                work = made.run(work, row, round)
            elif full in self._made or self._taken[full] <= self.often:
                work = step(work, row, round)
            else:
                work = self._record(full, step, work, row, round)
        return work

    def _record(
        self, full: Hashable, step: RowStep, work: State, row: Tensor, round: Round
    ) -> State:
        try:
            self._made[full], work = _Recording.of(step, work, row, round)
            return work
        except _Unrecordable:
            self._made[full] = None
            return step(work, row, round)

    def clear(self) -> None:
        """Let go of all recordings."""
        self._made.clear()
