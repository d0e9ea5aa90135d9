"""Steps as plain operations: recorded once for a stage and shapes, and repeated after that.

A step of a small network on a CPU is mostly what Python, maps and gradients do between its
operations, and they come to the same operations every time. It is what a captured graph is on CUDA,
under the same rule: what moves from round to round reaches a step through `round`. A recording is
held against the step itself before it is trusted.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from operator import getitem
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from masquerade.core import tree
from masquerade.core.dispatch import uncompiled
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.engine.replay.eager import Key, RowStep

OFTEN = 8
"""Steps of a form that are taken before it is recorded, which takes as long as a few of them."""
MOST = 256
"""How many forms are kept at a time."""

Form = tuple[Key, Hashable, torch.Size]
"""What a recording serves for: a step, the form of the work, and the shape of a row."""


@uncompiled
class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done, below maps and gradients: calls that read and write a list."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Any] = []
        """Constants at their places, None at those of what is given and made."""
        self.calls: list[tuple[Callable[..., Any], list[int], int, bool]] = []
        """Function, where it reads, where it writes, and whether it changes what it reads."""
        self.places: Any = WeakTensorKeyDictionary()
        """Where tensors are; they are not held, so that memory is freed as it is in the step."""
        self.refused = ""
        """What asked for the value of a tensor, which may be another the next time."""
        for value in given:
            self.places[value] = self._place()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation is torch.ops.aten.lift_fresh.default:
            # A number as a tensor, which is made anew in every step and may be written into.
            operation, args = torch.ops.aten.clone.default, (args[0].clone(),)
        reads = [self._read(value) for value in args]
        found = operation(*args, **kwargs)
        held = [each for value in kwargs.values() for each in _listed(value)]
        valued = [each for each in _listed(found) if each is not None]
        if any(isinstance(each, Tensor) for each in held) or not _tensors(valued):
            self.refused = str(operation)
            return found
        place = self._place()
        # What torch puts around an operation costs as much as a small one.
        function = partial(operation._op, **kwargs) if kwargs else operation._op
        self.calls.append((function, reads, place, operation._schema.is_mutable))
        if isinstance(found, Tensor):
            self.places[found] = place
        elif found is not None:
            for number, each in enumerate(found):
                own, index = self._place(), self._place(number)
                self.calls.append((getitem, [place, index], own, False))
                if each is not None:
                    self.places[each] = own
        return found

    def _place(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _read(self, value: Any) -> int:
        """Return where an argument is; what the step did not make or get is a constant."""
        if isinstance(value, Tensor) and value in self.places:
            place: int = self.places[value]
            return place
        if isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value):
            reads, place = [self._read(each) for each in value], self._place()
            self.calls.append((_gathered, reads, place, False))
            return place
        return self._place(value)


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _tensors(found: list[Any]) -> bool:
    return all(isinstance(each, Tensor) for each in found)


def _gathered(*values: Any) -> list[Any]:
    return list(values)


@dataclass
class _Recording:
    """A recorded step."""

    values: list[Any]
    program: list[tuple[Callable[..., Any], list[int], int, list[int]]]
    """Function, where it reads and writes, what nobody reads after it."""
    returned: list[int]
    template: State
    """What it returns, with empty tensors."""
    after: Hashable
    """The form of what it returns."""
    trusted: bool = False
    agreed: float | None = None
    """The round in which it was last held against the step."""

    @classmethod
    def of(cls, step: RowStep, work: State, row: Tensor, round: Round) -> "_Recording | None":
        """Record a step, if that can be done."""
        # Entries may hold one tensor, now and not always: here each is an object of its own.
        work = tree.transform(Tensor.detach, work)
        with _Operations(_given(work, row, round)) as seen:
            new = step(work, row, round)
        leaves = tree.leaves(new)
        if seen.refused or not all(value in seen.places for value in leaves):
            return None
        returned = [seen.places[value] for value in leaves]
        program, read = [], set(returned)
        # Backwards, what nobody reads is left out, and it is seen who reads what last.
        for function, reads, writes, changes in reversed(seen.calls):
            if changes or writes in read:
                program.append((function, reads, writes, [*{*reads, writes} - read]))
                read |= set(reads)
        template = tree.transform(lambda value: value.new_empty(0), new)
        return cls(seen.values, program[::-1], returned, template, form(new))

    def run(self, work: State, row: Tensor, round: Round) -> State:
        """Repeat the step."""
        values = self.values.copy()
        given = _given(work, row, round)
        values[: len(given)] = given
        at = values.__getitem__
        # What was recorded below gradients and autocast is not for them to act on again.
        with torch.no_grad(), torch.autocast(row.device.type, enabled=False):
            for function, reads, writes, last in self.program:
                values[writes] = function(*map(at, reads))
                for place in last:
                    values[place] = None
        made = map(at, self.returned)
        taken: State = tree.transform(lambda _: next(made), self.template)
        return taken

    def settled(self, round: Round) -> bool:
        """Tell whether it needs not be held against the step: it was in this round, or in two."""
        return self.trusted or self.agreed == float(round.number)

    def agrees(self, found: State, work: State, row: Tensor, round: Round) -> bool:
        """Hold it against what the step found."""
        pairs = zip(tree.leaves(found), tree.leaves(self.run(work, row, round)), strict=True)
        return all(torch.equal(left, right) for left, right in pairs)

    def agreed_in(self, round: Round) -> None:
        """Note that it did so on another row than its own."""
        self.trusted, self.agreed = self.agreed is not None, float(round.number)


def _given(work: State, row: Tensor, round: Round) -> list[Tensor]:
    return [*tree.leaves(work), row, round.number, round.rounds, round.decay]


def form(state: Any) -> Hashable:
    """Return what a recording of a state depends on: all but its numbers."""
    if isinstance(state, Tensor):
        return state.shape, state.stride(), state.storage_offset(), state.dtype
    if isinstance(state, dict):
        return tuple((name, form(value)) for name, value in state.items())
    parted = tree.parts(state)
    return (type(state), parted[1], *map(form, parted[0])) if parted else state


@dataclass
class Recordings:
    """The recorded steps of a run."""

    few: ClassVar[bool] = False
    rewrites: ClassVar[bool] = True
    often: float = OFTEN
    recorded: dict[Form, _Recording | None] = field(default_factory=dict)
    """By form; None where a step cannot be recorded."""
    seen: Counter[Form] = field(default_factory=Counter)

    def run(self, key: Key, step: RowStep, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows."""
        known = form(work)
        for row in rows:
            full = key, known, row.shape
            made = self.recorded.get(full)
            if made is not None and made.settled(round):
                work, known = made.run(work, row, round), made.after
            else:
                work = self._step(full, step, work, row, round)
                known = form(work)
        return work

    def _step(self, full: Form, step: RowStep, work: State, row: Tensor, round: Round) -> State:
        """Take a step, and record it or hold a recording against it."""
        new, known = step(work, row, round), full in self.recorded
        if not known:
            if len(self.seen) > MOST:
                self.clear()
            self.seen[full] += 1
            if self.seen[full] <= self.often:
                return new
            self.recorded[full] = _Recording.of(step, work, row, round)
        made = self.recorded[full]
        if made is not None and not made.agrees(new, work, row, round):
            made = self.recorded[full] = None
        if made is not None and known:
            made.agreed_in(round)
        return new

    @property
    def made(self) -> int:
        """Count the forms of steps that are recorded, or were tried to be."""
        return len(self.recorded)

    @property
    def unfit(self) -> list[Key]:
        """List the steps that cannot be recorded."""
        return [key for (key, *_), made in self.recorded.items() if made is None]

    def clear(self) -> None:
        """Let go of all recordings."""
        self.recorded.clear()
        self.seen.clear()
