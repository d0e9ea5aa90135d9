"""Gradients and the usual SGD step, written so that a mask freezes what it should."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Never

import torch
from torch import Tensor

from masquerade.core import tree
from masquerade.core.old_words import refuse_keywords
from masquerade.core.round import Batch, Round
from masquerade.core.tree import State, Tree
from masquerade.core.vmap import differentiating, mapped
from masquerade.errors import MasqueradeError, told

if TYPE_CHECKING:
    from masquerade.core.task import Task

Losses = tuple[Tensor, Tree] | tuple[Tensor | None, Tree, Tensor | float]
"""One value per sample [batch], the network's new buffers, and perhaps a penalty: a single number
that is added once. Values are None where the penalty is all."""
Loss = Callable[[State, Batch, Round], Losses]
"""From work, batch and round to `Losses`; the library averages values over the real samples."""
Objective = Callable[[State, Batch, Round], tuple[Tensor, Tree]]
"""From work, batch and round to (the number that a step lowers, the network's new buffers)."""


def gradient(
    function: Callable[[dict[str, Tree]], tuple[Tensor, Any]], trees: dict[str, Tree]
) -> tuple[dict[str, Tree], Tensor, Any]:
    """Return the gradients of `function(trees) -> (value, extra)`, the value, and the extra.

    Under a map over clients it is that of `torch.func.grad`; in the loop it is
    `torch.autograd.grad`, which costs about half as much on small networks.
    """
    if mapped():
        return _mapped(function, trees)
    tracked = {
        entry: {name: value.detach().requires_grad_() for name, value in part.items()}
        for entry, part in trees.items()
    }
    with torch.enable_grad():
        value, extra = function(tracked)
    if not value.requires_grad:  # A loss that none of the trees takes part in.
        return {entry: tree.zeros(part) for entry, part in trees.items()}, value, extra
    flat = [value for part in tracked.values() for value in part.values()]
    found = iter(torch.autograd.grad(value, flat, allow_unused=True, materialize_grads=True))
    grads = {entry: {name: next(found) for name in part} for entry, part in tracked.items()}
    return grads, value.detach(), tree.transform(torch.Tensor.detach, extra) if extra else extra


def _mapped(
    function: Callable[[dict[str, Tree]], tuple[Tensor, Any]], trees: dict[str, Tree]
) -> tuple[dict[str, Tree], Tensor, Any]:
    with differentiating() as inside:
        tracked = tree.transform(inside.enter, trees)
        value, extra = function(tracked)
        flat = tree.leaves(tracked)
        if value.requires_grad:
            found = torch.autograd.grad(value, flat, allow_unused=True, materialize_grads=True)
        else:
            found = tuple(torch.zeros_like(each) for each in flat)
        coming = iter(found)
        grads = tree.transform(lambda _: inside.leave(next(coming)), tracked)
        return grads, inside.leave(value), tree.transform(inside.leave, extra) if extra else extra


def loss_gradient(task: "Task", values: Tree, batch: Batch) -> tuple[Tree, Tree]:
    """Return the gradient of the task's loss, for what training moves, and the new buffers."""
    moving = {name: value for name, value in values.items() if task.trainable(name)}
    grads, _, buffers = gradient(
        lambda trees: task.loss({**values, **trees["moving"]}, batch), {"moving": moving}
    )
    return grads["moving"], buffers


def averaged(loss: Loss) -> Objective:
    """Return the mean of a loss over the real samples of a batch, and its penalty added once."""

    def objective(work: State, batch: Batch, round: Round) -> tuple[Tensor, Tree]:
        values, buffers, penalty = _three(loss(work, batch, round), len(batch.y))
        if values is None:
            return penalty, buffers
        mean = batch.mean(values)
        return mean if penalty is None else mean + penalty, buffers

    return objective


def _three(found: Any, samples: int) -> tuple[Tensor | None, Tree, Any]:
    """Return what a loss returned as (values, buffers, penalty); refuse what is nothing of it."""
    if not isinstance(found, tuple) or len(found) not in (2, 3) or type(found[1]) is not dict:
        text = f"a loss returned {told(found)}; return (values, buffers), or (values, buffers, "
        raise MasqueradeError("E205", f"{text}penalty), as `task.losses(values, batch)` does")
    values, buffers, penalty = (*found, None)[:3]
    if values is None and isinstance(penalty, Tensor):
        return None, buffers, penalty
    if not isinstance(values, Tensor) or values.shape != (samples,):
        raise MasqueradeError(
            "E205",
            f"a loss returned {told(values)} for {samples} samples; return one value per sample, "
            f'[{samples}] (reduction="none"): the library averages over the real ones, and padding '
            "is none of them",
        )
    number = isinstance(penalty, (int, float, Tensor)) and not getattr(penalty, "ndim", 0)
    if penalty is not None and not number:
        text = f"the penalty of a loss is {told(penalty)}; return a tensor with a single number"
        raise MasqueradeError("E205", text)
    return values, buffers, penalty


def in_chunks(
    function: Callable[[Tree, Tensor, Any], Tensor],
    shared: Tree,
    own: Tensor,
    given: Any,
    chunk: int,
) -> Tensor:
    """Return the sum of `function(shared, own, given)` over chunks of the rows of own and given.

    Its gradient is taken chunk by chunk on the way, so that no more than `chunk` rows are in memory
    at a time, and is the same as that of the whole.
    """
    still = {name: value.detach() for name, value in shared.items()}
    grads, rows, total = tree.zeros(still), [], own.new_zeros(())
    for start in range(0, len(own), chunk):
        part = tree.transform(lambda value, at=start: value[at : at + chunk], given)

        def some(trees: dict[str, Tree], part: Any = part) -> tuple[Tensor, Tree]:
            return function(trees["shared"], trees["own"]["rows"], part), {}

        here = own.detach()[start : start + chunk]
        found, value, _ = gradient(some, {"shared": still, "own": {"rows": here}})
        grads = tree.each(torch.add, grads, found["shared"])
        rows.append(found["own"]["rows"])
        total = total + value
    # Terms that are zero and carry the gradients found.
    for name, value in shared.items():
        total = total + ((value - still[name]) * grads[name]).sum()
    return total + ((own - own.detach()) * torch.cat(rows)).sum()


@dataclass(frozen=True)
class SGDStep:
    """One step of SGD on some trees of `work`; `sgd_step` makes it."""

    task: "Task"
    objective: Objective
    on: tuple[str, ...]
    lrs: tuple[float, ...]
    within: Callable[[State], Mapping[str, Tensor]] | None
    project: Callable[[State], State] | None
    momentum: float
    weight_decay: float
    clip: float
    gradient: bool
    proximal: float
    toward: str

    def prepare(self, work: State, round: Round) -> State:
        """Add the momentum and the last gradient to the work, where they are needed and missing."""
        wanted = [key for key in ("momentum", "gradient") if getattr(self, key)]
        for key in wanted:
            # An earlier stage may have made those of other trees.
            made = work.get(key, {})
            missing = [entry for entry in self.on if entry not in made]
            fresh = {entry: tree.zeros(self._moving(work[entry])) for entry in missing}
            work = {**work, key: {**made, **fresh}}
        return work

    def _moving(self, values: Tree) -> Tree:
        trainable = self.task.trainable
        return {name: value for name, value in values.items() if trainable(name)}

    def again(self, work: State, batch: Batch, round: Round) -> State:
        """Take another step in place: on work that a step just returned and nobody else holds."""
        # What a projection returned may be somebody else's.
        return self(work, batch, round, again=self.project is None)

    def __call__(self, work: State, batch: Batch, round: Round, again: bool = False) -> State:
        """Take the step; what was given stays as it is, but for `again`."""

        def objective(trees: dict[str, Tree], batch: Batch = batch) -> tuple[Tensor, Tree]:
            moved = {entry: {**work[entry], **part} for entry, part in trees.items()}
            return self.objective({**work, **moved}, batch, round)

        trees = {entry: self._moving(work[entry]) for entry in self.on}
        keep = self.within(work) if self.within else None
        if (private := self.task.dp) is None:
            grads, _, buffers = gradient(objective, trees)
        else:
            # A gradient that is wanted unmasked is clipped and noised unmasked.
            inside = None if self.gradient else keep
            grads, buffers = private.gradient(objective, trees, batch, inside), {}
        if self.proximal:
            grads = {
                entry: self._with_proximal(grads[entry], trees[entry], work) for entry in trees
            }
        result = {**work}
        if self.gradient:
            result["gradient"] = {**work["gradient"], **grads}
        if self.momentum:
            result["momentum"] = {**work["momentum"]}
        for entry, lr in zip(self.on, self.lrs, strict=True):
            old = trees[entry]
            if not old:  # Nothing of this tree moves in this network.
                continue
            update = self._masked_gradient(grads[entry], old, keep)
            if self.momentum:
                update = self._gathered(update, work["momentum"][entry], again)
                # A mask that moved leaves nothing behind in the optimizer's state.
                update = tree.only(keep, update) if keep is not None else update
                result["momentum"][entry] = update
            # Outside the mask the update is zero, so those values keep their bits.
            result[entry] = {**work[entry], **_move(old, update, lr, round, again)}
        for entry in self.on:
            # Buffers move with the tree that they belong to; those of a frozen tree stay.
            mine = {name: value for name, value in buffers.items() if name in work[entry]}
            result[entry] = {**result[entry], **mine} if mine else result[entry]
        return self.project(result) if self.project else result

    def _with_proximal(self, grads: Tree, values: Tree, work: State) -> Tree:
        """Return the gradient with that of the proximal term: λ (values − anchor)."""
        anchor = work[self.toward]
        return {
            name: (value - anchor[name]).mul_(self.proximal).add_(grads[name])
            for name, value in values.items()
        }

    def _gathered(self, update: Tree, past: Tree, again: bool) -> Tree:
        """Return momentum × past + update."""
        if again:
            return tree.each(lambda new, old: old.mul_(self.momentum).add_(new), update, past)
        return tree.each(lambda new, old: old * self.momentum + new, update, past)

    def _masked_gradient(
        self, grads: Tree, values: Tree, keep: Mapping[str, Tensor] | None
    ) -> Tree:
        """Return the gradient after mask, clipping and weight decay."""
        if keep is not None:
            grads = tree.only(keep, grads)
        if self.clip < math.inf:
            norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
            scale = (self.clip / norm.clamp(min=1e-12)).clamp(max=1)
            grads = {name: grad * scale for name, grad in grads.items()}
        if self.weight_decay:
            grads = tree.each(lambda grad, value: grad + self.weight_decay * value, grads, values)
        if keep is not None and (self.weight_decay or self.clip < math.inf):
            # Decay acts everywhere, and a norm that is not finite reaches everything.
            grads = tree.only(keep, grads)
        return grads


def _move(values: Tree, update: Tree, lr: float, round: Round, again: bool) -> Tree:
    """Return values − lr × decay × update; `again`, values are written where they lie."""
    if mapped():
        # The decay stays a tensor, so that a step that was captured serves every round.
        speed = lr * round.decay
        speeds = {dtype: speed.to(dtype) for dtype in {value.dtype for value in values.values()}}
        return {
            name: torch.addcmul(value, update[name], speeds[value.dtype], value=-1)
            for name, value in values.items()
        }
    old, new = list(values.values()), list(update.values())
    step = -lr * float(round.decay)
    if again:
        torch._foreach_add_(old, new, alpha=step)
        return values
    moved = torch._foreach_add(old, new, alpha=step)
    return dict(zip(values, moved, strict=True))


def sgd_step(
    task: "Task",
    loss: Loss | None = None,
    on: tuple[str, ...] = ("params",),
    *,
    lr: float | tuple[float, ...],
    model: Callable[[State], Tree] | None = None,
    within: Callable[[State], Mapping[str, Tensor]] | None = None,
    project: Callable[[State], State] | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float = math.inf,
    gradient: bool = False,
    proximal: float = 0.0,
    toward: str = "anchor",
    **unknown: Never,
) -> SGDStep:
    """Build the usual SGD step: the trees named by `on` follow the gradient of `loss`.

    `loss(work, batch, round) -> (values, buffers)` has one value per sample, which are averaged
    here over the real ones; a third, `penalty`, is a number that is added once. By default it is
    the task's own loss of the first of these trees, or of the network's values `model(work)`.
    `within(work)` is a mask outside of which values keep their bits and optimizer state is zero.
    `project(work) -> work` runs after the step. Several trees may have several learning
    rates; each is multiplied by `round.decay`. `gradient=True` leaves the last gradient, unmasked,
    in `work["gradient"]`. `proximal` μ adds the term μ/2 · ‖w − a‖² to the loss of every tree w, a
    being the tree `work[toward]`.

    After a stage's first step the loop writes into the work's own tensors: `loss`, `model` and
    `within` must not hold on to them.
    """
    if unknown:
        known = list(signature(sgd_step).parameters)[1:-1]
        refuse_keywords("sgd_step", "method", unknown, known)
    if loss and model:
        text = "`sgd_step` was given both a loss and a model, of which it would take the task's own"
        raise MasqueradeError("E202", f"{text}; leave out one")
    lrs = lr if isinstance(lr, tuple) else (lr,) * len(on)

    def plain(work: State, batch: Batch, round: Round) -> tuple[Tensor, Tree]:
        return task.loss(model(work) if model else work[on[0]], batch)

    objective = averaged(loss) if loss else plain
    how = (momentum, weight_decay, clip, gradient, proximal, toward)
    return SGDStep(task, objective, on, lrs, within, project, *how)


@dataclass(frozen=True)
class MetricStep:
    """A step that trains nothing: it adds up the metric of a tree, on validation data."""

    task: "Task"
    on: str = "params"

    def prepare(self, work: State, round: Round) -> State:
        """Begin the sums: `score` over the samples, and how many were `seen`."""
        zero = torch.zeros((), dtype=torch.float64, device=tree.leaves(work[self.on])[0].device)
        return {**work, "score": zero, "seen": zero}

    def __call__(self, work: State, batch: Batch, round: Round) -> State:
        """Add a batch."""
        output, _ = self.task(work[self.on], batch.x)
        found = batch.total(self.task.metric(output, batch.y)).to(torch.float64)
        seen = work["seen"] + batch.count().to(torch.float64)
        return {**work, "score": work["score"] + found, "seen": seen}

    def passes(self, work: State, bar: float) -> Tensor:
        """Tell whether the mean metric is better than the bar."""
        mean: Tensor = work["score"] / work["seen"].clamp(min=1)
        return mean > bar if self.task.better == "higher" else mean < bar
