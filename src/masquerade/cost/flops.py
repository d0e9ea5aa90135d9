"""Floating-point operations: measured once per stage, scaled by samples and by what masks allow.

They are counted three ways, layer by layer. Dense: as if nothing were masked. Masked: the least
that the masks allow. Executed: what the engine ran, padding and masked weights included.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from masquerade.core import slicing as slice
from masquerade.core.dispatch import uncompiled
from masquerade.core.round import Batch, Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.errors import MasqueradeWarning

PROBE = 2
"""Samples in the batch that a stage is measured with; layers that normalize need two."""


Shares = tuple[dict[str, Tensor], dict[str, Tensor], bool]
"""Densities by weight name, forward and gradient, and whether there is a gradient at all."""


REST = ""
"""The name under which operations stand that belong to no weighted layer."""


@dataclass(frozen=True)
class Step:
    """Operations of one sample in one step, dense: all of them, and the network's forward ones."""

    total: float
    forward: float
    layers: dict[str, float] = field(default_factory=dict, compare=False)
    """All of them by weight name."""
    draws: tuple[float, ...] = (1.0,)
    """What a sample of each draw costs, by that of the mean one."""

    def samples(self, drawn: Tensor) -> Tensor:
        """Return how many mean samples cost as much as those of every draw, [clients, draws]."""
        return drawn.double() @ torch.tensor(self.draws, dtype=torch.float64)


@dataclass(frozen=True)
class Flops:
    """Operations [clients, layers]: dense, as masks allow, as run, and as papers count.

    Papers count three times the forward pass inside the masks, and once for a layer that no
    gradient reaches.
    """

    dense: Tensor
    masked: Tensor
    executed: Tensor
    paper: Tensor

    def __add__(self, other: "Flops") -> "Flops":
        pairs = zip(self.columns(), other.columns(), strict=True)
        return Flops(*(mine + theirs for mine, theirs in pairs))

    def columns(self) -> tuple[Tensor, ...]:
        """Return the four counts."""
        return self.dense, self.masked, self.executed, self.paper

    def summed(self) -> "Flops":
        """Return the same over all layers: [clients]."""
        return Flops(*(column.sum(-1) for column in self.columns()))


def nothing(clients: int) -> Flops:
    """Return no operations for some clients; the one column adds to any number of layers."""
    zero = torch.zeros(clients, 1, dtype=torch.float64)
    return Flops(zero, zero, zero, zero)


@uncompiled
class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts as torch's own counter does; that one also follows every module, which takes long."""

    total = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            found = operation.decompose(*args, **kwargs)
        if found is NotImplemented:
            found = operation(*args, **kwargs)
            count = flop_registry.get(operation._overloadpacket)
            self.total += count(*args, **kwargs, out_val=found) if count else 0
        return found


@dataclass(frozen=True)
class _Counted:
    total: int
    modules: dict[str, int]
    """In the forward passes of the network, "", and of its layers, with all that is in them."""
    layers: dict[str, int]
    """By weight name, forward and backward; the rest under `REST`."""


def _measured(task: Task, function: Callable[[], Any]) -> _Counted:
    """Count the operations of a call.

    The call may draw random numbers (dropout); those that training draws stay the same.
    """
    modules = dict.fromkeys(("", *(layer.name for layer in task.layers)), 0)
    layers = dict.fromkeys((*_weighted(task).values(), REST), 0)
    counter = _Operations()  # type: ignore[no-untyped-call]
    at, before = REST, 0

    def turn(to: str) -> None:
        """Charge what was counted since the last turn, and charge `to` from now on."""
        nonlocal at, before
        layers[at] += counter.total - before
        at, before = to, counter.total

    def bound(sign: int, name: str) -> None:
        """Begin or end what is counted inside a module."""
        modules[name] += sign * counter.total

    hooks = []
    for path, name in _weighted(task).items():
        hooks += _watch(task.module.get_submodule(path), name, turn)
    for path in modules:
        module = task.module.get_submodule(path)
        hooks += [
            module.register_forward_pre_hook(lambda *_, path=path: bound(-1, path)),
            module.register_forward_hook(lambda *_, path=path: bound(1, path)),
        ]
    try:
        with torch.random.fork_rng(devices=[]), counter:
            function()
    finally:
        for hook in hooks:
            hook.remove()
    turn(REST)
    return _Counted(counter.total, modules, layers)


def _watch(module: nn.Module, name: str, turn: Callable[[str], None]) -> list[Any]:
    """Tell when a layer begins and ends, forward, and when its backward pass begins."""

    def ended(module: nn.Module, given: Any, output: Tensor) -> None:
        turn(REST)
        if output.grad_fn is not None:
            # Called just before the layer's own gradients, which end where another's begin.
            output.grad_fn.register_prehook(lambda *_: turn(name))

    return [
        module.register_forward_pre_hook(lambda *_: turn(name)),
        module.register_forward_hook(ended),
    ]


def _weighted(task: Task) -> dict[str, str]:
    """Return the layers whose operations are counted one by one: module name → weight name."""
    return {
        layer.name: layer.weight
        for layer in task.layers
        if layer.weight is not None and layer.kind in ("linear", "conv")
    }


@dataclass
class Meter:
    """Counts what stages cost; every count is measured once and kept."""

    task: Task
    _steps: dict[Any, Step] = field(default_factory=dict)
    _layers: dict[torch.Size, dict[str, float]] = field(default_factory=dict)
    _known: dict[Any, tuple[Step, tuple[Tensor, Tensor, Tensor]]] = field(default_factory=dict)

    def forward(self, x: Tensor) -> dict[str, float]:
        """Return the operations of one sample's forward pass by weight name; "" has the rest."""
        shape = x.shape[1:]
        if shape not in self._layers:
            sample = _twice(x)
            key = torch.tensor(0, device=x.device)
            # In training mode: what only predicts may run fused, where nothing is counted.
            found = _measured(self.task, lambda: self.task(self.task.initial, sample, True, key))
            self._warn_of_uncounted(found.modules)
            self._layers[shape] = {name: count / PROBE for name, count in found.layers.items()}
        return self._layers[shape]

    def _warn_of_uncounted(self, counts: dict[str, int]) -> None:
        """Say which layers torch's counter knows nothing of."""
        root = type(self.task.module).__name__
        unknown = [
            layer.name or root
            for layer in self.task.layers
            if layer.kind in ("lstm", "gru", "other") and not counts[layer.name]
        ]
        if unknown:
            warnings.warn(
                f"W504 FLOPs of {', '.join(unknown)} are not counted: torch's counter does not "
                "know them",
                MasqueradeWarning,
                stacklevel=2,
            )

    def step(self, stage: Stage, work: State, x: Tensor, y: Tensor, round: Round) -> Step:
        """Return the operations of one sample in one step of a stage."""
        key = (round.kind, round.phase, stage.name)
        if key not in self._steps:
            batch = probe(x, y)
            given = batch if stage.draws == 1 else (batch,) * stage.draws
            found = _measured(self.task, lambda: stage.step(work, given, round))
            samples = PROBE * stage.draws
            self._steps[key] = Step(
                found.total / samples,
                found.modules[""] / samples,
                {name: count / samples for name, count in found.layers.items()},
                self._draws(
                    stage, found.total, lambda given: stage.step(work, given, round), batch
                ),
            )
        return self._steps[key]

    def _draws(
        self, stage: Stage, total: int, step: Callable[[Any], Any], batch: Batch
    ) -> tuple[float, ...]:
        """Measure what each draw costs, by what its samples add when there are twice as many."""
        if stage.draws == 1 or not total:
            return (1.0,) * stage.draws
        twice = replace(batch, x=torch.cat([batch.x] * 2), y=torch.cat([batch.y] * 2))
        added = []
        for place in range(stage.draws):
            given = tuple(twice if at == place else batch for at in range(stage.draws))
            counted = _measured(self.task, partial(step, given))
            added.append(counted.total - total)
        return tuple(each * stage.draws / sum(added) for each in added)

    def stage(
        self,
        stage: Stage,
        per_sample: Step,
        samples: Tensor,
        keep: Shares | None,
        x: Tensor,
        ran: Tensor | None = None,
        slices: Mapping[str, float] | None = None,
    ) -> Flops:
        """Return what a stage costs clients that saw `samples` [clients] of the mean cost in it.

        `ran` are the samples that the engine ran for each, padding included, where it padded;
        `slices` the shares of weights that it ran, where it ran a slice.
        """
        layers = self.forward(x)
        seen = samples[:, None]
        run = seen if ran is None else ran[:, None]
        each, times, paper = self._columns(per_sample, x)
        if keep is None:
            whole = each * seen
            return Flops(whole, whole, each * run, paper * seen)
        inside, weights, trains = keep
        density, share = _by_layer(inside, layers, seen), _by_layer(weights, layers, seen)
        back = torch.full_like(times, float(trains))
        # Nobody asks for the gradient of the data, so the first layer has no input gradient.
        back[0] = 0
        total = per_sample.total
        dense = _at_most(total, times * (1 + trains + back))
        masked = _at_most(total, times * (density * (1 + back) + share * trains))
        sliced = dense * torch.tensor([(slices or {}).get(name, 1.0) for name in layers])
        beside = torch.zeros_like(times)
        beside[-1] = total - dense.sum()
        return Flops(
            (dense + beside) * seen,
            (masked + beside) * seen,
            (sliced + beside) * run,
            times * density * (3 if trains else 1) * seen,
        )

    def _columns(self, per_sample: Step, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a sample's operations by layer: all, forward, and as papers count them."""
        key = (id(per_sample), x.shape[1:])
        # A process that was given this meter may have another step where one was before.
        if key not in self._known or self._known[key][0] is not per_sample:
            layers = self.forward(x)
            forward = torch.tensor(list(layers.values()), dtype=torch.float64)
            # Masks are masks of the network, as often as it runs; what runs beside costs its all.
            times = per_sample.forward / max(float(forward.sum()), 1e-30) * forward
            # Where masks decide, nothing need be known of single layers.
            counts = [per_sample.layers[n] if per_sample.layers else 0.0 for n in layers]
            each = torch.tensor(counts, dtype=torch.float64)
            trained = each > times * (1 + 1e-9)
            self._known[key] = per_sample, (each, times, times * (1 + 2 * trained))
        return self._known[key][1]


def _by_layer(shares: Mapping[str, Tensor], layers: Mapping[str, float], like: Tensor) -> Tensor:
    """Put densities by weight name into columns [clients, layers]; a layer without one is whole."""
    whole = torch.ones_like(like[:, 0])
    return torch.stack([shares.get(name, whole).expand_as(whole) for name in layers], -1)


def _at_most(total: float, layers: Tensor) -> Tensor:
    """Scale operations [..., layers] down to a sum of at most `total`: some may not have run."""
    sums = layers.sum(-1, keepdim=True)
    return layers * (total / sums.clamp(min=1e-30)).clamp(max=1)


def probe(x: Tensor, y: Tensor) -> Batch:
    """Return a batch of the first sample alone, which a stage can be measured with."""
    return Batch(_twice(x), _twice(y), None, torch.tensor(0, device=x.device))


def _twice(samples: Tensor) -> Tensor:
    return samples[:1].repeat(PROBE, *[1] * (samples.ndim - 1))


def shares(stage: Stage, work: State, lead: int) -> Shares | None:
    """Read the densities of a stage's masks off its work: (forward, gradient, trains) or None."""
    (found,) = fetched([densities(stage, work, lead)])
    return found


def densities(stage: Stage, work: State, lead: int) -> Shares | None:
    """Return the same where the work lies: nobody waits for the device."""
    if stage.masks is None:
        return None
    forward, gradient = stage.masks(work)
    return _means(forward, lead), _means(gradient or {}, lead), gradient is not None


def _means(masks: Tree, lead: int) -> dict[str, Tensor]:
    return {name: mask.to(torch.float64).flatten(lead).mean(-1) for name, mask in masks.items()}


def fetched(several: Sequence[Shares | None]) -> list[Shares | None]:
    """Bring the densities of several stages of the same clients into host memory, in one copy."""
    known = [keep for keep in several if keep is not None]
    lying = [value for keep in known for masks in keep[:2] for value in masks.values()]
    coming = iter(torch.stack(lying).cpu() if lying else ())

    def here(keep: Shares) -> Shares:
        forward, gradient = ({name: next(coming) for name in masks} for masks in keep[:2])
        return forward, gradient, keep[2]

    return [None if keep is None else here(keep) for keep in several]


def slices(stage: Stage, work: State) -> dict[str, float]:
    """Return the shares of weights that are left where a stage's steps are taken on the slice."""
    if not stage.sliceable or stage.masks is None:
        return {}
    forward, _ = stage.masks(work)
    cut = slice.cut_of(forward)
    return {name: slice.count(cut, {name: mask}) / mask.numel() for name, mask in forward.items()}
