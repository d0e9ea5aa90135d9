"""Steps as CUDA graphs: captured once for a stage, a width and shapes, and replayed after that."""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.round import Round
from masquerade.core.tree import State
from masquerade.engine.replay.eager import Key, RowStep
from masquerade.errors import MasqueradeWarning

WARM = 2
"""Eager steps before a capture: libraries set themselves up in the first ones."""


_stream: Callable[[], Any] = torch.cuda.Stream


@dataclass
class Graph:
    """One captured step, and the places that it reads and writes."""

    work: State
    row: Tensor
    round: Round
    graph: torch.cuda.CUDAGraph
    step: RowStep
    """Held because the graph reads the tensors that it closes over, as long as it is replayed."""

    @classmethod
    def of(cls, step: RowStep, work: State, row: Tensor, round: Round, pool: Any) -> "Graph":
        held = tree.transform(torch.clone, work)
        numbers = {name: getattr(round, name).clone() for name in ("number", "rounds", "decay")}
        made = cls(held, row.clone(), replace(round, **numbers), torch.cuda.CUDAGraph(), step)
        beside = _stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM):
                made.once()
        torch.cuda.current_stream().wait_stream(beside)
        with _uncollected(), torch.cuda.graph(made.graph, pool=pool):
            made.once()
        return made

    def once(self) -> None:
        """Take the step on the places of the graph."""
        new = self.step(self.work, self.row, self.round)
        held = {_memory(value) for value in tree.leaves(self.work)}

        def apart(place: Tensor, value: Tensor) -> Tensor:
            """Copy what lies in another place, before that is written."""
            moved = _memory(value) in held and not same_place(place, value)
            return value.clone() if moved else value

        tree.transform(_write, self.work, tree.transform(apart, self.work, new))

    def run(self, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows."""
        tree.transform(lambda place, value: place.copy_(value), self.work, work)
        for name in ("number", "rounds", "decay"):
            getattr(self.round, name).copy_(getattr(round, name))
        for row in rows:
            self.row.copy_(row)
            self.graph.replay()
        taken: State = tree.transform(torch.clone, self.work)
        return taken


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect nothing: a graph of another run that goes while one is captured spoils it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _write(place: Tensor, value: Tensor) -> Tensor:
    return place if same_place(place, value) else place.copy_(value)


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def same_place(left: Tensor, right: Tensor) -> bool:
    """Tell whether two tensors of a shape are the same memory: what a step handed on as it was."""
    return left.data_ptr() == right.data_ptr() and left.stride() == right.stride()


@dataclass
class CudaGraphs:
    """The captured steps of a run."""

    few: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True
    captured: dict[Hashable, Graph] = field(default_factory=dict)
    _pool: Any = None
    failed: set[Key] = field(default_factory=set)

    def run(self, key: Key, step: RowStep, work: State, rows: Tensor, round: Round) -> State:
        """Take the steps of some rows, from a graph if they can be captured."""
        forms = tuple((value.shape, value.dtype) for value in tree.leaves(work))
        full = (key, rows.shape[1:], forms)
        if key not in self.failed and full not in self.captured:
            self._capture(key, full, step, work, rows[0], round)
        if key in self.failed:
            for row in rows:
                work = step(work, row, round)
            return work
        return self.captured[full].run(work, rows, round)

    def _capture(
        self, key: Key, full: Hashable, step: RowStep, work: State, row: Tensor, round: Round
    ) -> None:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            self.captured[full] = Graph.of(step, work, row, round, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.failed.add(key)
            named, reason = ", ".join(map(str, key[:3])), str(error).splitlines()[0][:200]
            warnings.warn(
                f"W507 a step ({named}) cannot be captured as a graph and is run one operation "
                f"after another: {reason}",
                MasqueradeWarning,
                stacklevel=2,
            )

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        self.captured.clear()
        self._pool = None
