"""Personalized methods as bare loops: dense tensors, one module, one optimizer for each training.

Every function does the rounds and returns what puts a client's personal model into the module.
"""

import copy
import math
from collections.abc import Callable
from itertools import pairwise

import torch
from protocol import Data, Ledger, Work, shuffled
from torch import nn

Weights = dict[str, torch.Tensor]
Personal = Callable[[int], nn.Module]
PULL = 0.1
"""Ditto's pull toward the shared model, as our default is."""
SPARSITY, READJUST, READJUST_EVERY, VOTES = 0.5, 0.3, 3, 0.3
"""DM-PFL's settings, as our defaults are."""


def descend(model, parameters, data: Data, id: int, work: Work, ledger: Ledger, change=None):
    """Train some parameters for an epoch; `change` runs between the backward pass and the step."""
    optimizer = torch.optim.SGD(parameters, lr=work.rate)
    for x, y in shuffled(*data.client(id), work.batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if change is not None:
            change()
        optimizer.step()
        ledger.steps += 1


def shares(data: Data) -> list[float]:
    """Return the clients' shares of all samples."""
    return [(last - first) / data.ends[-1] for first, last in pairwise(data.ends)]


def snapshot(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def put(model: nn.Module, weights: Weights) -> nn.Module:
    """Write weights into the module."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in weights:
                value.copy_(weights[name])
    return model


def ditto(work: Work, data: Data, model: nn.Module, ledger: Ledger) -> Personal:
    """FedAvg, and a model of every client's own that is pulled toward the shared one."""
    shared = snapshot(model)
    own = [snapshot(model) for _ in range(data.clients)]
    weights = shares(data)
    for _ in range(work.total):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for id in range(data.clients):
            put(model, shared)
            descend(model, model.parameters(), data, id, work, ledger)
            for name, value in model.named_parameters():
                total[name].add_(value.detach(), alpha=weights[id])
            put(model, own[id])

            def pull(anchor=shared) -> None:
                for name, value in model.named_parameters():
                    value.grad.add_(value.detach() - anchor[name], alpha=PULL)

            descend(model, model.parameters(), data, id, work, ledger, pull)
            own[id] = snapshot(model)
        shared = total
        ledger.mark()
    return lambda id: put(model, own[id])


def apfl(work: Work, data: Data, model: nn.Module, ledger: Ledger) -> Personal:
    """FedAvg, and for every client a mixture of the shared model with its own; α moves once."""
    shared, weights = snapshot(model), shares(data)
    own = [snapshot(model) for _ in range(data.clients)]
    mixture = [0.5] * data.clients
    mixed = copy.deepcopy(model)
    for _ in range(work.total):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for id in range(data.clients):
            put(model, shared)
            first = True
            mine, alpha = own[id], mixture[id]
            optimizer = torch.optim.SGD(model.parameters(), lr=work.rate)
            for x, y in shuffled(*data.client(id), work.batch):
                now = dict(model.named_parameters())
                put(mixed, {n: torch.lerp(now[n].detach(), mine[n], alpha) for n in mine})
                mixed.zero_grad()
                nn.functional.cross_entropy(mixed(x), y).backward()
                slopes = {name: value.grad for name, value in mixed.named_parameters()}
                old = alpha
                if first:
                    slope = sum(((mine[n] - now[n].detach()) * slopes[n]).sum() for n in mine)
                    alpha, first = min(1.0, max(0.0, alpha - work.rate * float(slope))), False
                for name, value in mine.items():
                    value.sub_(slopes[name], alpha=work.rate * old)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                ledger.steps += 1
            mixture[id] = alpha
            for name, value in model.named_parameters():
                total[name].add_(value.detach(), alpha=weights[id])
        shared = total
        ledger.mark()
    return lambda id: put(
        model, {name: torch.lerp(shared[name], own[id][name], mixture[id]) for name in shared}
    )


def fedrep(work: Work, data: Data, model: nn.Module, ledger: Ledger) -> Personal:
    """A shared body under personal heads: the head is trained first, then the body."""
    named = dict(model.named_parameters())
    top = list(named)[-2:]
    head, body = [named[name] for name in top], [named[n] for n in named if n not in top]
    shared, weights = snapshot(model), shares(data)
    heads = [{name: shared[name] for name in top} for _ in range(data.clients)]
    for _ in range(work.total):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for id in range(data.clients):
            put(model, {**shared, **heads[id]})
            for trained, frozen in ((head, body), (body, head)):
                for value in frozen:
                    value.requires_grad_(False)
                descend(model, trained, data, id, work, ledger)
                for value in frozen:
                    value.requires_grad_(True)
            heads[id] = {name: named[name].detach().clone() for name in top}
            for name, value in named.items():
                total[name].add_(value.detach(), alpha=weights[id])
        shared = total
        ledger.mark()
    return lambda id: put(model, {**shared, **heads[id]})


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Mark the largest of some scores."""
    keep = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    keep[scores.flatten().topk(count).indices] = True
    return keep.reshape(scores.shape)


def dmpfl(work: Work, data: Data, model: nn.Module, ledger: Ledger) -> Personal:
    """Two masks over half of the weights: one shared, one of every client's own."""
    named = dict(model.named_parameters())
    masked = [name for name in list(named)[2:] if name.endswith("weight")]
    counts = {name: round((1 - SPARSITY) * named[name].numel()) for name in masked}
    shared, weights = snapshot(model), shares(data)
    ours = {name: top(shared[name].abs(), counts[name]) for name in masked}
    begun = {**shared, **{name: shared[name] * ours[name] for name in masked}}
    clients = [(begun, ours)] * data.clients

    def inside(moves: dict[str, torch.Tensor], alone: bool) -> None:
        """Keep gradients to a mask, and where it moves alone, away from all that has none."""
        for name, value in named.items():
            if name in moves:
                value.grad.mul_(moves[name])
            elif alone:
                value.grad.zero_()

    for number, phase in enumerate(work.phases):
        uploads, grows = [], phase == "dual" and number % READJUST_EVERY == 0
        sent = {**shared, **{name: shared[name] * ours[name] for name in masked}}
        for id in range(data.clients):
            own, mine = clients[id]
            if phase == "global":
                start, keep, moves = sent, ours, ours
            else:
                both = {n: torch.where(ours[n], sent[n], own[n]) * mine[n] for n in masked}
                start, keep, moves = {**sent, **both}, mine, mine
            if phase == "personal":
                moves = {name: mine[name] & ~ours[name] for name in masked}
            put(model, start)
            dense: Weights = {}

            def change(moves=moves, dense=dense, grows=grows, alone=phase == "personal") -> None:
                # Regrowth asks for the whole gradient of the last batch.
                if grows:
                    dense.update({name: named[name].grad.clone() for name in masked})
                inside(moves, alone)

            descend(model, named.values(), data, id, work, ledger, change)
            if dense:
                share = READJUST / 2 * (1 + math.cos(math.pi * number / work.total))
                keep = {
                    name: readjust(named[name], dense[name], keep[name], share) for name in masked
                }
            trained = snapshot(model)
            if phase != "global":
                clients[id] = trained, keep
            uploads.append((trained, keep))
        if phase != "personal":
            shared = held_mean(uploads, weights, shared, masked)
        if phase == "dual":
            ours = voted(uploads, shared, counts)
        ledger.mark()
    return lambda id: put(model, clients[id][0])


def readjust(
    value: torch.Tensor, slope: torch.Tensor, keep: torch.Tensor, share: float
) -> torch.Tensor:
    """Prune a share of a mask by magnitude and regrow as many by gradient, the pruned ones too."""
    count = int(keep.sum())
    moved = math.ceil(share * count - 1e-9)
    left = top(torch.where(keep, value.detach().abs(), -1), count - moved)
    keep = left | top(torch.where(left, -1, slope.abs()), moved)
    with torch.no_grad():
        value.mul_(keep)
    return keep


def held_mean(uploads, weights: list[float], shared: Weights, masked: list[str]) -> Weights:
    """Average over the clients that hold a weight; what nobody holds stays."""
    result = {}
    for name, old in shared.items():
        total, mass = torch.zeros_like(old), torch.zeros_like(old)
        for (values, keep), weight in zip(uploads, weights, strict=True):
            if name in masked:
                total.add_(values[name] * keep[name], alpha=weight)
                mass.add_(keep[name], alpha=weight)
            else:
                total.add_(values[name], alpha=weight)
                mass.add_(weight)
        result[name] = torch.where(mass > 0, total / mass.clamp(min=1e-12), old)
    return result


def voted(uploads, shared: Weights, counts: dict[str, int]) -> dict[str, torch.Tensor]:
    """Take the largest weights that enough clients hold."""
    keep = {}
    for name, count in counts.items():
        wanted = sum(mask[name].int() for _, mask in uploads) > VOTES * len(uploads)
        keep[name] = wanted & top(torch.where(wanted, shared[name].abs(), -1), count)
    return keep
