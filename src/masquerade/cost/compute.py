"""Floating-point operations: measured once per stage, scaled by samples and by what masks allow."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from masquerade.core.round import Batch, Round, Stage
from masquerade.core.task import Task
from masquerade.core.tree import State, Tree
from masquerade.errors import MasqueradeWarning

PROBE = 2
"""Samples in the batch that a stage is measured with; layers that normalize need two."""


Shares = tuple[dict[str, Tensor], dict[str, Tensor], bool]
"""Densities by weight name, forward and gradient, and whether there is a gradient at all."""


@dataclass(frozen=True)
class Step:
    """Operations of one sample in one step, dense: all of them, and the network's forward ones."""

    total: float
    forward: float


@dataclass(frozen=True)
class Flops:
    """Operations per client [clients]: dense, as masks allow, and as 3 × the forward pass."""

    dense: Tensor
    masked: Tensor
    paper: Tensor

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.dense + other.dense, self.masked + other.masked, self.paper + other.paper)


def nothing(clients: int) -> Flops:
    """Return no operations for some clients."""
    zero = torch.zeros(clients, dtype=torch.float64)
    return Flops(zero, zero, zero)


def _measured(module: nn.Module, function: Callable[[], Any]) -> tuple[dict[str, int], int]:
    """Count the operations of a call by module, "Global" having all; and those in `module` forward.

    The call may draw random numbers (dropout); those that training draws stay the same.
    """
    spent: list[int] = []
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        # The counter also gives a module some of the operations that follow it.
        hooks = (
            module.register_forward_pre_hook(lambda *_: spent.append(-counter.get_total_flops())),
            module.register_forward_hook(lambda *_: spent.append(counter.get_total_flops())),
        )
        try:
            function()
        finally:
            for hook in hooks:
                hook.remove()
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return counts, sum(spent)


@dataclass
class Meter:
    """Counts what stages cost; every count is measured once and kept."""

    task: Task
    _steps: dict[Any, Step] = field(default_factory=dict)
    _layers: dict[torch.Size, dict[str, float]] = field(default_factory=dict)

    def forward(self, x: Tensor) -> dict[str, float]:
        """Return the operations of one sample's forward pass by weight name; "" has the rest."""
        shape = x.shape[1:]
        if shape not in self._layers:
            sample = _twice(x)
            key = torch.tensor(0, device=x.device)
            # In training mode: what only predicts may run fused, where nothing is counted.
            counts, _ = _measured(
                self.task.module, lambda: self.task(self.task.initial, sample, True, key)
            )
            self._warn_of_uncounted(counts)
            root = type(self.task.module).__name__
            found = {
                layer.weight: counts.get(".".join(filter(None, (root, layer.name))), 0) / PROBE
                for layer in self.task.layers
                if layer.weight is not None and layer.kind in ("linear", "conv")
            }
            total = counts.get("Global", 0) / PROBE
            self._layers[shape] = found | {"": total - sum(found.values())}
        return self._layers[shape]

    def _warn_of_uncounted(self, counts: dict[str, int]) -> None:
        """Say which layers torch's counter knows nothing of."""
        root = type(self.task.module).__name__
        unknown = [
            layer.name or root
            for layer in self.task.layers
            if layer.kind in ("lstm", "gru", "other")
            and not counts.get(".".join(filter(None, (root, layer.name))))
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
            counts, forward = _measured(self.task.module, lambda: stage.step(work, given, round))
            samples = PROBE * stage.draws
            self._steps[key] = Step(counts.get("Global", 0) / samples, forward / samples)
        return self._steps[key]

    def stage(
        self, stage: Stage, per_sample: Step, samples: Tensor, keep: Shares | None, x: Tensor
    ) -> Flops:
        """Return what a stage costs clients that saw `samples` [clients] in it."""
        layers = self.forward(x)
        spent = per_sample.total * samples
        if keep is None:
            return Flops(spent, spent, 3 * sum(layers.values()) * samples)
        forward, gradient, trains = keep
        first, one = next(iter(layers)), torch.ones_like(samples)
        dense, masked, paper = (torch.zeros_like(samples) for _ in range(3))
        for name, flops in layers.items():
            density = forward.get(name, one)
            # Nobody asks for the gradient of the data, so the first layer has no input gradient.
            backward = (0 if name == first else 1) if trains else 0
            weights = gradient.get(name, one) if trains else 0 * one
            dense += flops * (1 + trains + backward)
            masked += flops * (density * (1 + backward) + weights)
            paper += flops * density * (3 if trains else 1)
        # Masks are masks of the network, as often as it runs; what runs beside it costs its all.
        passes = per_sample.forward / max(sum(layers.values()), 1e-30)
        beside = (per_sample.total - passes * dense).clamp(min=0)
        used = (passes * masked).clamp(max=per_sample.total) + beside
        return Flops(spent, used * samples, paper * samples)


def probe(x: Tensor, y: Tensor) -> Batch:
    """Return a batch of the first sample alone, which a stage can be measured with."""
    return Batch(_twice(x), _twice(y), None, torch.tensor(0, device=x.device))


def _twice(samples: Tensor) -> Tensor:
    return samples[:1].repeat(PROBE, *[1] * (samples.ndim - 1))


def shares(stage: Stage, work: State, lead: int) -> Shares | None:
    """Read the densities of a stage's masks off its work: (forward, gradient, trains) or None."""
    if stage.keep is None:
        return None
    forward, gradient = stage.keep(work)
    return _means(forward, lead), _means(gradient or {}, lead), gradient is not None


def _means(masks: Tree, lead: int) -> dict[str, Tensor]:
    return {
        name: mask.to(torch.float64).flatten(lead).mean(-1).cpu() for name, mask in masks.items()
    }
