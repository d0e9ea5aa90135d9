"""A round as methods see it, and `client_round`, the one function that plays a client's side."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import torch
from torch import Tensor

from masquerade.core.aggregation import PLAIN, Aggregation
from masquerade.core.old_words import refuse_unknown
from masquerade.core.part import Message, Part
from masquerade.core.random import Label
from masquerade.core.tree import State, Tree, onto, register
from masquerade.errors import MasqueradeError

if TYPE_CHECKING:
    from masquerade.core.task import Task


class _Unknown:
    """A number of a round where stages are planned: they serve many rounds, and it would be old."""

    def __getattr__(self, name: str) -> Any:
        raise _refusal()

    @classmethod
    def __torch_function__(cls, *given: Any, **more: Any) -> Any:
        raise _refusal()


def _refusal() -> MasqueradeError:
    return MasqueradeError(
        "E204",
        "`plan`, or a step that holds on to its round, asks for a number of the round, of which a "
        "plan may see `kind` and `phase` only; name a phase in `schedule`, or ask the round that a "
        "loss, a step, `begin` or `then` is given",
    )


def _refuse(*given: Any) -> Any:
    raise _refusal()


# What Python does with a number without asking for an attribute.
for _name in (
    *("float", "int", "index", "bool", "complex", "array", "len", "iter", "getitem", "format"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "divmod"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rdivmod"),
    *("neg", "pos", "abs", "round", "trunc", "floor", "ceil", "eq", "ne", "lt", "le", "gt", "ge"),
):
    setattr(_Unknown, f"__{_name}__", _refuse)
_UNKNOWN: Any = _Unknown()


@dataclass(frozen=True)
class Round:
    """Where a run stands.

    `kind` is "train", "setup" (once per client before its first round) or "adapt" (every
    evaluation, on a copy). `kind` and `phase` are static, a phase is anything hashable; every
    number that changes is a 0-d tensor, so that nothing is compiled or captured twice.
    """

    kind: str
    phase: Any
    number: Tensor
    rounds: Tensor
    decay: Tensor
    """What the learning rates of this round are multiplied by."""

    @classmethod
    def of(
        cls,
        kind: str,
        phase: Hashable,
        number: int,
        rounds: int,
        lr_decay: float,
        device: torch.device,
    ) -> "Round":
        """Make a round; its numbers come to a device in one copy."""
        scalars = torch.tensor([number, rounds, lr_decay**number], dtype=torch.float64)
        return cls(kind, phase, *onto(scalars, device).unbind())

    @property
    def static(self) -> "Round":
        """Return the round as `plan` sees it: reading one of its numbers is refused."""
        return Round(self.kind, self.phase, _UNKNOWN, _UNKNOWN, _UNKNOWN)

    @property
    def endless(self) -> "Round":
        """Return the round as it is for any number of rounds: reading that number is refused."""
        return replace(self, rounds=_UNKNOWN)

    @property
    def label(self) -> Label:
        """Return what this kind of round is called in random keys."""
        return Label[self.kind.upper()]

    @property
    def progress(self) -> Tensor:
        """Return how much of the run lies behind, from 0 to 1."""
        return self.number / self.rounds


@dataclass(frozen=True)
class Batch:
    """Samples of one client: x [batch, …], y [batch, …], and a key for whatever is random.

    `valid` marks the real samples of a padded batch; None means that all are real.
    """

    x: Tensor
    y: Tensor
    valid: Tensor | None
    key: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Average one value per sample over the real samples."""
        if self.valid is None:
            return values.mean()
        real = self.valid.to(values.dtype)
        # Padding is selected away, not multiplied: what a network makes of it may be infinite.
        return torch.where(self.valid, values, 0).sum() / real.sum().clamp(min=1)

    def total(self, values: Tensor) -> Tensor:
        """Sum one value per sample over the real samples."""
        return values.sum() if self.valid is None else torch.where(self.valid, values, 0).sum()

    def count(self) -> Tensor:
        """Count the real samples."""
        if self.valid is None:
            return torch.tensor(len(self.y), device=self.y.device)
        return self.valid.sum()


def _flatten(batch: Batch) -> tuple[list[Tensor], bool]:
    tensors = [batch.x, batch.y, batch.key]
    return (tensors, False) if batch.valid is None else ([*tensors, batch.valid], True)


def _unflatten(tensors: Any, padded: Any) -> Batch:
    x, y, key, *valid = tensors
    return Batch(x, y, valid[0] if padded else None, key)


register(Batch, _flatten, _unflatten)


@dataclass(frozen=True)
class Cohort:
    """The clients whose uploads are accepted: `ids` and `samples` [clients], in ascending order."""

    ids: Tensor
    samples: Tensor
    asked: int
    """How many clients were sampled; votes are shares of it."""
    clients: int
    """How many clients with data the federation has."""
    aggregation: Aggregation = PLAIN
    """How their values become one."""

    def average(
        self,
        part: Part,
        otherwise: Mapping[str, Tensor],
        weights: Tensor | None = None,
        absent: Literal["skip", "zero"] = "skip",
        least: int = 1,
    ) -> Tree:
        """Average a stacked part [clients, …] over those who hold each coordinate, by samples.

        It is `mq.average`, or the rule that the settings name in its place; `weights` are others
        than samples.
        """
        mass = self.samples if weights is None else weights
        return self.aggregation.reduce(part, mass, otherwise, absent, least)


@dataclass(frozen=True)
class ClientInfo:
    """What a client knows of itself before training."""

    id: int
    samples: int
    key: int
    budget: float = 1.0
    """The share of the parameters that its device can hold."""


def _same(work: State, round: Round) -> State:
    return work


@dataclass(frozen=True)
class Stage:
    """A stretch of local work: `begin`, then `step` over batches, then `then`.

    Batches are keyed by (seed, kind, round, client, stream, epoch + i): stages that are to see the
    same batches do, and alternating one-epoch stages do not replay the first.
    """

    name: str
    step: Callable[[State, Any, Round], State]
    epochs: int = 1
    begin: Callable[[State, Round], State] = _same
    then: Callable[[State, Round], State] = _same
    data: str = "train"
    """"train", or "validation" for a pass that measures only (training data if there are none)."""
    stream: int = 0
    epoch: int = 0
    draws: int = 1
    """How many disjoint batches one step gets; more than one arrive as a tuple."""
    masks: Callable[[State], tuple[Tree, Tree | None]] | None = None
    """The masks (forward, gradient) that FLOPs are counted by; no gradient where none is taken."""
    sliceable: bool = False
    """The forward mask is made of rows and columns that fit together from layer to layer, so that
    an engine may train the smaller network instead of the masked one."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Refuse fields that it does not have; `__init__` takes those that it has."""
        refuse_unknown(cls, "stage", settings)
        return super().__new__(cls)

    def prepare(self, work: State, round: Round) -> State:
        """Run `begin`, and before it what the step itself needs in `work` (momentum, gradient)."""
        ready = getattr(self.step, "prepare", _same)
        return self.begin(ready(work, round), round)


class ClientSide(Protocol):
    """The functions of a method that run at a client; for one client, or mapped over many."""

    def start(self, task: "Task", message: Message, client: State, round: Round) -> State:
        """Return the work of a round."""
        ...

    def stages(self, task: "Task", round: Round) -> tuple[Stage, ...]:
        """List the stages of the work."""
        ...

    def finish(
        self, task: "Task", work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        """Return the upload and what the client holds."""
        ...


def round_name(kind: str, number: int) -> str:
    """Name a round as people count them: `metrics.jsonl` and progress begin with 1."""
    return f"round {number + 1}" if kind == "train" else f"the {kind}"


def steps(stage: Stage, work: State, batches: Iterable[Any], round: Round) -> State:
    """Take the steps of a stage, one after another.

    The first makes new tensors, because others hold those that it is given. A step that has
    `again` may then write into them.
    """
    step = stage.step
    for batch in batches:
        work = step(work, batch, round)
        step = getattr(stage.step, "again", stage.step)
    return work


def client_round(
    method: ClientSide,
    task: "Task",
    message: Message,
    client: State,
    batches: Callable[[Stage], Any],
    round: Round,
    observe: Callable[[Stage, State], None] = lambda stage, work: None,
    steps: Callable[[Stage, State, Any, Round], State] = steps,
) -> tuple[Message, State]:
    """Do one client's round: the function that every engine runs.

    `observe` sees the work of a stage before `then`; costs are read there. `steps` takes the steps
    of a stage over what `batches` gives. The loop gives one that may train a smaller network; the
    batched engine gives one that goes on with fewer clients once some are done.
    """
    work = method.start(task, message, client, round)
    for stage in method.stages(task, round):
        given = batches(stage)
        work = stage.prepare(work, round)
        work = steps(stage, work, given, round)
        observe(stage, work)
        work = stage.then(work, round)
    return method.finish(task, work, message, client, round)
