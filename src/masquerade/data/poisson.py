"""Poisson batches: every sample is in every batch by chance, alone, which DP-SGD's ε asks for.

Who guesses the batches knows more than ε allows. So they are drawn by the operating system, unless
nothing is guaranteed: then by the run's seed, and runs can be repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from masquerade.core.dp import secret
from masquerade.core.random import Label, draw, fold, uniform
from masquerade.core.round import Batch, Round, Stage
from masquerade.data.loader import BatchLoader, ShuffledIndices, StackedBatches


@dataclass(frozen=True)
class PoissonBatches(ShuffledIndices):
    """The batches of clients in a stage; `indices` are [clients, steps, width], those drawn first.

    `keys` are [clients, 1, steps].
    """

    drawn_counts: Tensor
    """[clients, steps]: how many samples each batch has."""
    lengths: Tensor
    """[clients]: steps."""
    epochs: int
    expected: Tensor | None
    """[clients]: samples that are expected in an epoch; None where it is no secret who was drawn.
    """

    @cached_property
    def drawn(self) -> Tensor:
        """Return the mean number of samples of an epoch: [clients, 1].

        Operations are counted by it and are told. ε holds while nobody learns how many were drawn,
        so these are as many as are expected.
        """
        if self.expected is not None:
            return self.expected[:, None]
        return self.drawn_counts.sum(1, keepdim=True).double() / self.epochs


@dataclass(frozen=True)
class PoissonLoader(BatchLoader):
    """Where the batches of DP-SGD come from; those of evaluation are as ever."""

    secret: bool = True
    """Whether the operating system draws them."""

    def shuffle(self, ids: Tensor, stage: Stage, round: Round, number: int) -> ShuffledIndices:
        """Draw the batches of some clients for all epochs of a stage."""
        if round.kind == "adapt" or stage.data != "train" or stage.draws > 1:
            return super().shuffle(ids, stage, round, number)
        counts = self.counts(ids)
        lengths = -(-counts // self.size) * stage.epochs
        steps, most = max(int(lengths.max()), 1), max(int(counts.max()), 1)
        base = fold(self.seed, round.label, number, Label.BATCHES)
        keys = draw(torch.as_tensor(fold(base, ids.cpu(), stage.stream, stage.epoch)), steps)
        chance = (self.size / counts.clamp(min=1)).clamp(max=1)
        expected = (-(-counts // self.size) * counts.clamp(max=self.size)).double()
        taken = self._uniform(keys, most) < chance[:, None, None]
        taken &= (torch.arange(most) < counts[:, None])[:, None]
        taken &= (torch.arange(steps) < lengths[:, None])[..., None]
        drawn = taken.sum(-1)
        width = max(int(drawn.max()), 1)
        # A stable sort puts those that were drawn first, in the order of the samples.
        places = (~taken).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
        device = self.federation.x.device
        own = self._training[0][ids.to(device)][:, :most].cpu()
        indices = own[:, None].expand(-1, steps, -1).gather(-1, places)
        return PoissonBatches(
            *(indices.to(device), counts.tolist(), keys[:, None].to(device), width, 1),
            *(drawn, lengths, stage.epochs, expected if self.secret else None),
        )

    def _uniform(self, keys: Tensor, most: int) -> Tensor:
        """Draw a number of every sample for every step: [clients, steps, samples]."""
        if not self.secret:
            return uniform(keys, (most,), torch.float64)
        return secret((*keys.shape, most))

    def batches(self, shuffled: ShuffledIndices, row: int) -> Iterator[Batch | tuple[Batch, ...]]:
        """Yield one client's batches; one without a sample is a step too, of noise alone."""
        if not isinstance(shuffled, PoissonBatches):
            yield from super().batches(shuffled, row)
            return
        if not shuffled.counts[row]:
            return
        for step in range(int(shuffled.lengths[row])):
            count = int(shuffled.drawn_counts[row, step])
            chosen = shuffled.indices[row, step, : max(count, 1)]
            valid = None if count else torch.zeros(1, dtype=torch.bool, device=chosen.device)
            x, y = self.in_layout(self.federation.x[chosen]), self.federation.y[chosen]
            yield Batch(x, y, valid, shuffled.keys[row, 0, step])

    def stack(self, shuffled: ShuffledIndices) -> StackedBatches:
        """Lay out the batches of stacked clients."""
        if not isinstance(shuffled, PoissonBatches):
            return super().stack(shuffled)
        device = shuffled.indices.device
        drawn = shuffled.drawn_counts.T
        columns = drawn.to(device)[..., None], shuffled.keys[:, 0].T[..., None]
        rows = torch.cat([shuffled.indices.transpose(0, 1), *columns], dim=-1)
        here = (torch.tensor(shuffled.counts) > 0) * shuffled.lengths
        return StackedBatches(rows, drawn, here.tolist(), 1)
