"""Batches as index tensors, keyed by (seed, kind, round, client, stream, epoch)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from masquerade.core.random import Label, draw, fold
from masquerade.core.round import Batch, Round, Stage
from masquerade.core.tree import onto
from masquerade.data.partition.federation import Federation

LARGE = 256
"""Samples in a batch of a stage that trains nothing."""


def _table(indices: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the clients' sample indices [clients, most] padded with 0, and their counts."""
    counts = torch.tensor([len(index) for index in indices])
    most = max(int(counts.max()), 1)
    table = torch.zeros(len(indices), most, dtype=torch.int64)
    for row, index in zip(table, indices, strict=True):
        row[: len(index)] = index
    return table.to(device), counts


def _validated_on(validation: tuple[Tensor, ...], train: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Take every client's validation samples, or its training samples where it has none."""
    pairs = zip(validation, train, strict=True)
    return tuple(own if len(own) else trained for own, trained in pairs)


def _rows(samples: Tensor, chosen: Tensor) -> Tensor:
    """Return samples[chosen]; taken as a list of rows that costs a fifth on a CPU."""
    taken = samples.index_select(0, chosen.flatten())
    return taken.reshape(*chosen.shape, *samples.shape[1:])


@dataclass(frozen=True)
class ShuffledIndices:
    """The order in which clients see their samples in every epoch of a stage."""

    indices: Tensor
    """[clients, epochs, most]: sample indices, each client's own first."""
    counts: list[int]
    keys: Tensor
    """[clients, epochs, steps]: one key per batch."""
    size: int
    draws: int

    @property
    def steps(self) -> int:
        """Count the steps of an epoch for the largest client."""
        return self.keys.shape[-1]

    @cached_property
    def drawn(self) -> Tensor:
        """Count the samples of an epoch in every draw of its steps: [clients, draws]."""
        draw, counts = torch.arange(self.draws), torch.tensor(self.counts)[:, None]
        stride = self.size * self.draws
        # What is left over is dealt out in turn, if there is one sample for every draw.
        rest = counts % stride
        dealt = (rest - draw + self.draws - 1) // self.draws
        return counts // stride * self.size + torch.where(rest < self.draws, 0, dealt)


@dataclass(frozen=True)
class BatchLoader:
    """Where batches come from: a federation, a seed, a batch size."""

    federation: Federation
    seed: int
    size: int
    layout: torch.memory_format = torch.preserve_format
    """How the samples of one client lie in memory."""

    @cached_property
    def _training(self) -> tuple[Tensor, Tensor]:
        return _table(self.federation.train, self.federation.x.device)

    @cached_property
    def _validation(self) -> tuple[Tensor, Tensor]:
        seen = _validated_on(self.federation.validation, self.federation.train)
        return _table(seen, self.federation.x.device)

    def counts(self, ids: Tensor) -> Tensor:
        """Return the number of training samples of some clients, in host memory."""
        return self._training[1][ids.cpu()]

    def shuffle(self, ids: Tensor, stage: Stage, round: Round, number: int) -> ShuffledIndices:
        """Shuffle the samples of some clients for all epochs of a stage."""
        device = self.federation.x.device
        validates = stage.data != "train"
        table, every = self._validation if validates else self._training
        counts = every[ids.cpu()].tolist()
        most = max(*counts, 1)
        own = onto(ids, device)
        rows = table[own, :most]
        size = LARGE if validates else self.size
        steps = -(-most // (size * stage.draws))
        base = fold(self.seed, round.label, number, Label.BATCHES)
        client = torch.as_tensor(fold(base, own, stage.stream))
        epochs = torch.arange(stage.epoch, stage.epoch + stage.epochs, device=device)
        keys = torch.as_tensor(fold(client[:, None], epochs))
        if validates:
            indices = rows[:, None].expand(-1, stage.epochs, -1)
        else:
            ranks = draw(keys, most)
            known = onto(torch.tensor(counts), device)
            beyond = torch.arange(most, device=device) >= known[:, None]
            ranks = ranks.masked_fill(beyond[:, None], torch.iinfo(torch.int64).max)
            places = ranks.argsort(dim=-1, stable=True)
            indices = rows[:, None].expand(-1, stage.epochs, -1).gather(-1, places)
        return ShuffledIndices(
            indices, counts, draw(fold(keys, Label.STEP), steps), size, stage.draws
        )

    def in_layout(self, x: Tensor) -> Tensor:
        """Return samples of one client as its network reads them fastest."""
        return x.to(memory_format=self.layout)

    def batches(self, shuffled: ShuffledIndices, row: int) -> Iterator[Batch | tuple[Batch, ...]]:
        """Yield one client's batches, the last of an epoch as small as it is."""
        count, stride = shuffled.counts[row], shuffled.size * shuffled.draws
        if not count:
            return
        for indices, keys in zip(shuffled.indices[row], shuffled.keys[row].unbind(0), strict=True):
            chosen = indices[:count]
            xs = torch.split(self.in_layout(self.federation.x[chosen]), stride)
            ys = torch.split(self.federation.y[chosen], stride)
            for x, y, key in zip(xs, ys, keys.unbind(0), strict=False):
                if shuffled.draws == 1:
                    yield Batch(x, y, None, key)
                elif len(y) >= shuffled.draws:
                    yield tuple(
                        Batch(
                            x[draw :: shuffled.draws], y[draw :: shuffled.draws], None, key + draw
                        )
                        for draw in range(shuffled.draws)
                    )

    def stack(self, shuffled: ShuffledIndices) -> "StackedBatches":
        """Lay out the batches of stacked clients; nobody waits for the epochs of others."""
        device = shuffled.indices.device
        stride, most, epochs = shuffled.size * shuffled.draws, *_sizes(shuffled)
        # A short epoch is one short batch for everybody: padding it would only cost time.
        width = min(stride, -(-most // shuffled.draws) * shuffled.draws)
        counts = torch.tensor(shuffled.counts)
        # A step needs one sample for each of its draws.
        own = torch.where(counts < shuffled.draws, 0, (counts - shuffled.draws) // stride + 1)
        lengths = own * epochs
        # What lies with the CPU decides what is done; the rest is worked out on the device.
        time = torch.arange(max(int(lengths.max()), 0))[:, None]
        step = time % own.clamp(min=1)
        meant = (counts - step * stride).clamp(0, width).where(time < lengths, 0)
        epoch = (time // own.clamp(min=1)).clamp(max=epochs - 1)
        epoch, step, some = onto(torch.stack([epoch, step, meant]), device).unbind()
        places = (step * stride)[..., None] + torch.arange(width, device=device)
        client = torch.arange(len(counts), device=device)
        order = shuffled.indices[client[:, None], epoch[..., None], places.clamp(max=most - 1)]
        keys = shuffled.keys[client, epoch, step]
        rows = torch.cat([order, some[..., None], keys[..., None]], dim=-1)
        return StackedBatches(rows, meant, lengths.tolist(), shuffled.draws)

    def batch(self, row: Tensor, draws: int, whole: bool) -> Batch | tuple[Batch, ...]:
        """Make the batch [clients, …] of a row of a pack; whole batches need no mask."""
        chosen, meant, key = row[:, :-2], row[:, -2:-1], row[:, -1]
        valid = None
        if not whole:
            valid = torch.arange(chosen.shape[1], device=row.device) < meant
        batches = tuple(
            Batch(
                _rows(self.federation.x, chosen[:, draw::draws]),
                _rows(self.federation.y, chosen[:, draw::draws]),
                None if valid is None else valid[:, draw::draws],
                key + draw,
            )
            for draw in range(draws)
        )
        return batches[0] if draws == 1 else batches


def _sizes(shuffled: ShuffledIndices) -> tuple[int, int]:
    return shuffled.indices.shape[2], shuffled.indices.shape[1]


@dataclass(frozen=True)
class StackedBatches:
    """The batches of a stage for stacked clients, each of whom goes through its own epochs."""

    rows: Tensor
    """[steps, clients, samples + 2]: sample indices, how many of them are meant, the key."""
    meant: Tensor
    """[steps, clients]: the same counts, in host memory."""
    lengths: list[int]
    """Steps of every client."""
    draws: int

    def take(self, places: Tensor) -> "StackedBatches":
        """Return the batches of some of the clients."""
        rows = self.rows[:, onto(places, self.rows.device)]
        lengths = [self.lengths[place] for place in places.tolist()]
        return StackedBatches(rows, self.meant[:, places], lengths, self.draws)

    def alike(self, width: int, first: int, last: int) -> Iterator[tuple[bool, int, int]]:
        """Divide steps of the first clients into (whether all batches are whole, first, last)."""
        whole = (self.meant[first:last, :width] == self.rows.shape[-1] - 2).all(1)
        for alike, steps in groupby(whole.tolist()):
            count = len(list(steps))
            yield alike, first, first + count
            first += count
