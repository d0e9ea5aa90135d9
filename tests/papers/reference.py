"""DM-PFL, FedAvg and its kin once more, in plain PyTorch, from the papers' algorithm boxes.

Modules, autograd and loops; a mask is a tensor of zeros and ones that is multiplied, and names that
stay dense have ones. Nothing is taken from the library but who is sampled and the batches, so that
both sides see the same samples in the same order, and `DMPFL` as a record of settings.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from masquerade.methods import DMPFL
from tests.papers.replay import Weights, World, weights_of

Penalty = Callable[[Weights, Weights], Tensor]
"""From the weights being trained and those received to what is added to the loss."""


class Learner:
    """SGD by hand: w ← w − η · (momentum · past + (g + decay · w) ⊙ moves)."""

    def __init__(
        self, world: World, weights: Weights, lr: float, momentum: float, decay: float
    ) -> None:
        self.module = copy.deepcopy(world.network)
        self.module.load_state_dict(weights)
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.past = {name: torch.zeros_like(value) for name, value in weights.items()}

    def step(
        self, x: Tensor, y: Tensor, moves: Weights | None = None, penalty: Tensor | None = None
    ) -> Weights:
        """Take one step; return the whole gradient."""
        loss = cross_entropy(self.module(x), y)
        names, values = zip(*self.module.named_parameters(), strict=True)
        found = torch.autograd.grad(loss if penalty is None else loss + penalty, values)
        gradient = dict(zip(names, found, strict=True))
        for name, value in self.module.named_parameters():
            slope = gradient[name] + self.decay * value.data
            if moves is not None:
                slope = slope * moves[name]
            self.past[name] = self.momentum * self.past[name] + slope
            value.data = value.data - self.lr * self.past[name]
        return gradient

    def multiply(self, mask: Weights) -> None:
        """Apply a mask to the weights and to the momentum."""
        for name, value in self.module.named_parameters():
            value.data = value.data * mask[name]
            self.past[name] = self.past[name] * mask[name]


@dataclass(frozen=True)
class Plain:
    """FedAvg, FedProx and Local: what they share is local SGD."""

    world: World
    lr: float
    local_epochs: int
    momentum: float = 0.0
    decay: float = 0.0
    penalty: Penalty | None = None

    def train(self, weights: Weights, client: int, number: int, kind: str = "train") -> Weights:
        """Train one client from some weights."""
        speed = self.lr * self.world.lr_decay**number
        learner = Learner(self.world, weights, speed, self.momentum, self.decay)
        for epoch in range(self.local_epochs):
            for x, y in self.world.epoch(client, number, epoch, kind):
                here: Weights = {**dict(learner.module.named_parameters())}
                learner.step(x, y, penalty=self.penalty and self.penalty(here, weights))
        return weights_of(learner.module)

    def average(self, weights: Weights, number: int) -> Weights:
        """Do a round of FedAvg: the mean of the sampled clients, by the size of their data."""
        cohort = self.world.cohorts[number]
        trained = [self.train(weights, client, number) for client in cohort]
        total = sum(self.world.share(client) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client, found in zip(cohort, trained, strict=True):
            for name, value in found.items():
                mean[name] = mean[name] + self.world.share(client) / total * value
        return mean


class DualMasks:
    """DM-PFL by the letter of Eq. 4, Eq. 5 and Algorithms 1 to 4, with the choices of `DMPFL`."""

    def __init__(self, world: World, paper: DMPFL, rounds: int) -> None:
        self.world, self.paper, self.rounds = world, paper, rounds
        self.w_g = weights_of(world.network)
        self.sparse = list(self.w_g)
        if paper.biases_dense:
            self.sparse = [name for name in self.sparse if "bias" not in name]
        if paper.first_dense:
            self.sparse = [name for name in self.sparse if name != "0.weight"]
        sizes = {name: self.w_g[name].numel() for name in self.sparse}
        self.count = {name: int(n * (1 - paper.sparsity) + 1e-9) for name, n in sizes.items()}
        self.m_g = {name: torch.ones_like(value) for name, value in self.w_g.items()}
        for name in self.sparse:
            everywhere = list(range(sizes[name]))
            largest = by_size(self.w_g[name], everywhere)[: self.count[name]]
            self.m_g[name] = ones_at(largest, self.w_g[name])
        clients = range(world.federation.clients)
        self.m = [dict(self.m_g) for _ in clients]
        self.w = [product(self.w_g, self.m_g) for _ in clients]
        self.begun = [-1 for _ in clients]

    def compose(self, client: int) -> Weights:
        """Return θ_c (Eq. 4)."""
        return {
            name: self.w_g[name] * (self.m_g[name] * m_c)
            + self.w[client][name] * (m_c * (1 - self.m_g[name]))
            for name, m_c in self.m[client].items()
        }

    def learner(self, weights: Weights, number: int, factor: float = 1.0) -> Learner:
        """Start SGD from some weights."""
        speed = factor * self.paper.lr * self.world.lr_decay**number
        return Learner(self.world, weights, speed, self.paper.momentum, self.paper.weight_decay)

    def dual(self, number: int, readjust: bool) -> None:
        """Do a round of Algorithm 1."""
        cohort, epochs = self.world.cohorts[number], self.paper.local_epochs
        for client in cohort:
            if self.paper.mask_start == "global":
                self.m[client] = dict(self.m_g)
            learner = self.learner(self.compose(client), number)
            for epoch in range(epochs):
                for x, y in self.world.epoch(client, number, epoch):
                    gradient = learner.step(x, y, self.m[client])
                if readjust and epoch + 1 == max(1, epochs - self.paper.settle):
                    self.readjust(learner, client, gradient, number)
            self.w[client] = weights_of(learner.module)
        self.aggregate(
            [self.w[client] for client in cohort], [self.m[client] for client in cohort], cohort
        )
        for name in self.sparse:
            holders = sum(self.m[client][name] for client in cohort)
            assert isinstance(holders, Tensor)
            bar = self.paper.votes * len(cohort) + 1e-9
            able = [i for i, votes in enumerate(holders.flatten().tolist()) if votes > bar]
            largest = by_size(self.w_g[name], able)[: self.count[name]]
            self.m_g[name] = ones_at(largest, self.w_g[name])

    def readjust(self, learner: Learner, client: int, gradient: Weights, number: int) -> None:
        """Prune α_s of m_c by magnitude, regrow as many by gradient; the pruned may return."""
        ratio = self.paper.readjust
        if self.paper.anneal:
            ratio = ratio / 2 * (1 + math.cos(math.pi * number / self.rounds))
        weights = weights_of(learner.module)
        for name in self.sparse:
            inside = self.m[client][name].flatten().nonzero().flatten().tolist()
            moved = math.ceil(ratio * len(inside) - 1e-9)
            stay = by_size(weights[name], inside)[: len(inside) - moved]
            outside = [i for i in range(weights[name].numel()) if i not in stay]
            grown = by_size(gradient[name], outside)[:moved]
            self.m[client] |= {name: ones_at(stay + grown, weights[name])}
        learner.multiply(self.m[client])

    def aggregate(self, weights: list[Weights], masks: list[Weights], cohort: list[int]) -> None:
        """Average over the holders, by the size of their data (Eq. 5)."""
        for name, old in self.w_g.items():
            above, below = torch.zeros_like(old), torch.zeros_like(old)
            for w_c, m_c, client in zip(weights, masks, cohort, strict=True):
                above += self.world.share(client) * w_c[name] * m_c[name]
                below += self.world.share(client) * m_c[name]
            self.w_g[name] = torch.where(below > 0, above / below.clamp(min=1), old)

    def refine_global(self, number: int) -> None:
        """Do a round of Algorithm 2."""
        cohort, found = self.world.cohorts[number], []
        for client in cohort:
            learner = self.learner(product(self.w_g, self.m_g), number)
            for epoch in range(self.paper.local_epochs):
                for x, y in self.world.epoch(client, number, epoch):
                    learner.step(x, y, self.m_g)
            found.append(weights_of(learner.module))
        self.aggregate(found, [self.m_g] * len(cohort), cohort)

    def refine_personal(self, number: int, iteration: int) -> None:
        """Do a round of Algorithm 3, at the sampled clients."""
        for client in self.world.cohorts[number]:
            if self.paper.restart and self.begun[client] != iteration:
                self.w[client] = {name: 0 * value for name, value in self.w[client].items()}
            self.begun[client] = iteration
            own = {name: m_c * (1 - self.m_g[name]) for name, m_c in self.m[client].items()}
            learner = self.learner(self.compose(client), number, self.paper.refine_lr_scale)
            for epoch in range(self.paper.local_epochs):
                for x, y in self.world.epoch(client, number, epoch):
                    learner.step(x, y, own)
            self.w[client] = weights_of(learner.module)

    def base(self, client: int) -> tuple[float, float]:
        """Return BE(θ_c) and BE(θ_g): validation data, or training data where there is none."""
        data = self.world.federation
        chosen = data.validation[client] if len(data.validation[client]) else data.train[client]
        own, common = self.both(client, data.x[chosen])
        return sum(map(entropy, own)) / len(own), sum(map(entropy, common)) / len(common)

    def both(self, client: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of θ_c and of θ_g."""
        theta_g = product(self.w_g, self.m_g)
        return self.world.output(self.compose(client), x), self.world.output(theta_g, x)

    def answer(self, client: int, x: Tensor) -> tuple[Tensor, list[bool]]:
        """Return the outputs of Algorithm 4, and for each whether θ_c gave it."""
        be_c, be_g = self.base(client)
        rows, surer = [], []
        for own, common in zip(*self.both(client, x), strict=True):
            pair = (own, common)
            if self.paper.similarity == "probabilities":
                pair = (own.softmax(0), common.softmax(0))
            shift = 1 - float(cosine_similarity(*pair, dim=0))
            surer.append(entropy(own) - shift * be_c < entropy(common) - shift * be_g)
            rows.append(own if surer[-1] else common)
        return torch.stack(rows), surer


def product(weights: Weights, mask: Weights) -> Weights:
    """Return w ⊙ m."""
    return {name: value * mask[name] for name, value in weights.items()}


def by_size(values: Tensor, places: list[int]) -> list[int]:
    """Sort places by the magnitude of the values there, largest first; of equals the lower."""
    size = values.abs().flatten().tolist()
    return sorted(places, key=lambda place: (-size[place], place))


def ones_at(places: list[int], like: Tensor) -> Tensor:
    """Return a mask with ones at some places."""
    flat = torch.zeros(like.numel(), dtype=like.dtype)
    flat[places] = 1
    return flat.reshape(like.shape)


def entropy(output: Tensor) -> float:
    """Return −Σ p log p of one output."""
    shares: list[float] = output.softmax(0).tolist()
    return -sum(p * math.log(p) for p in shares)
