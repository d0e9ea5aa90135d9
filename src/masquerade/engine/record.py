"""Steps as plain operations: recorded once for a stage and shapes, and repeated after that.

A step of a small network on a CPU is mostly what Python, maps and gradients do between its
operations, and they come to the same operations every time. It is what a captured graph is on CUDA,
under the same rule: what moves from round to round reaches a step through `round`.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
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
class _Line:
    """One operation as text: `makes = call`, where the call names what it `reads`."""

    makes: list[str]
    call: str
    reads: set[str]
    several: bool
    writes: bool
    """It changes what it is given, and is not to be left out though nobody reads what it makes."""

    def __str__(self) -> str:
        return f"{', '.join(self.makes)}{',' * self.several} = {self.call}"


@dataclass
class _Text:
    """The text of a function that repeats what was recorded."""

    names: dict[int, str]
    """What tensors are called, by their id."""
    constants: dict[str, Any] = field(default_factory=dict)
    """What the text names and does not make; it is held as long as the text."""
    lines: list[_Line] = field(default_factory=list)

    def add(self, operation: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Write an operation, and name what comes out of it."""
        reads: set[str] = set()
        given = [self._term(value, reads) for value in args]
        given += [f"{name}={self._term(value, reads)}" for name, value in kwargs.items()]
        # What torch puts around an operation costs as much as a small one.
        call = f"{self._term(operation._op, set())}({', '.join(given)})"
        outputs = _listed(found)
        makes = [f"made{len(self.lines)}_{place}" for place in range(len(outputs))]
        self.names |= {id(value): name for value, name in zip(outputs, makes, strict=True)}
        several, writes = isinstance(found, tuple | list), operation._schema.is_mutable
        self.lines.append(_Line(makes, call, reads, several, writes))

    def _term(self, value: Any, reads: set[str]) -> str:
        if isinstance(value, Tensor) and id(value) in self.names:
            reads.add(self.names[id(value)])
            return self.names[id(value)]
        if isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value):
            return f"[{', '.join(self._term(each, reads) for each in value)}]"
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def function(self, given: list[str], returned: list[str]) -> Callable[..., list[Tensor]]:
        """Compile it, without what nobody reads; tensors are let go as soon as they were read."""
        body = [f"return [{', '.join(returned)}]"]
        read = set(returned)
        for line in reversed(self.lines):
            if line.writes or not read.isdisjoint(line.makes):
                last = sorted((line.reads | set(line.makes)) - read)
                body += [f"del {', '.join(last)}"] * bool(last) + [str(line)]
                read |= line.reads
        text = "\n    ".join([f"def repeat({', '.join(given)}):", *reversed(body)])
        space = dict(self.constants)
        exec(compile(text, "<recorded step>", "exec"), space)
        made: Callable[..., list[Tensor]] = space["repeat"]
        return made


@dataclass(frozen=True)
class _Recording:
    """A recorded step."""

    repeat: Callable[..., list[Tensor]]
    form: State
    """What it returns, with empty tensors."""

    @classmethod
    def of(
        cls, step: RowStep, work: State, row: Tensor, round: Round
    ) -> tuple["_Recording", State]:
        """Take a step and record it."""
        # Entries may hold one tensor, now and not always: here each is an object of its own.
        work = tree.transform(Tensor.detach, work)
        given = _given(work, row, round)
        with _Operations() as operations:
            new = step(work, row, round)
        names = [f"given{place}" for place in range(len(given))]
        text = _Text({id(value): name for value, name in zip(given, names, strict=True)})
        for done in operations.done:
            text.add(*done)
        try:
            returned = [text.names[id(value)] for value in tree.leaves(new)]
        except KeyError:
            raise _Unrecordable("it returns what it did not make") from None
        form = tree.transform(lambda value: value.new_empty(0), new)
        return cls(text.function(names, returned), form), new

    def run(self, work: State, row: Tensor, round: Round) -> State:
        made = iter(self.repeat(*_given(work, row, round)))
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
