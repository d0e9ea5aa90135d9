"""Test-time shift: part of a client's test samples is replaced by those of other clients."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from masquerade.data.partition.federation import Federation
from masquerade.errors import MasqueradeError

Integers = npt.NDArray[np.int64]

# These keep the random streams apart from each other and from that of the partition.
_PARTNERS, _SAMPLES = 2, 3

MANY = 50_000
"""Number of foreign samples above which only the needed ones are drawn. Fewer are shuffled whole,
for every client anew, which with thousands of clients would be slow."""


def partners(clients: int, seed: int, draws: int) -> Integers:
    """Draw other clients for each client [draws, clients], none twice before all were drawn.

    A client's partners depend on the seed, its number and the number of clients alone.
    """
    if clients < 2:
        raise MasqueradeError("E202", f"shift needs at least 2 clients, but there is {clients}")
    columns = []
    for client in range(clients):
        rng = np.random.default_rng([seed, _PARTNERS, client])
        others = (client + 1 + rng.permutation(clients - 1)) % clients
        # Taken, not resized: that would keep the whole order of every client in memory.
        columns.append(others[np.arange(draws) % len(others)])
    return np.stack(columns, axis=1)


def shift_sets(
    federation: Federation,
    degrees: Sequence[int] = (0, 20, 40, 60, 80, 100),
    draws: int = 1,
    seed: int = 0,
    pooled: bool = False,
    split: str = "test",
) -> dict[int, list[list[Tensor]]]:
    """Return the samples that clients are evaluated on: degree -> draw -> client -> sample indices.

    A degree is the percentage of a client's samples that is replaced, by samples of one other
    client or, `pooled`, of all others; sizes stay. What a client keeps at one degree contains what
    it keeps at any higher one, and what it is given grows likewise. Degree 0 has one draw, the
    client's own samples.
    """
    _check(degrees, draws, seed, split)
    own = federation.test if split == "test" else federation.validation
    queues: list[list[Tensor]] = []
    if any(degrees):
        parts = [part.cpu().numpy() for part in own]
        choices = _pools(parts) if pooled else _partner_parts(parts, seed, draws)
        queues = [
            [
                torch.from_numpy(_queue(client, parts[client], choice, seed, draw)).to(
                    own[0].device
                )
                for draw in range(draws)
            ]
            for client, choice in enumerate(choices)
        ]
    return {
        degree: [[_window(queue[draw], degree) for queue in queues] for draw in range(draws)]
        if degree
        else [list(own)]
        for degree in degrees
    }


def _check(degrees: Sequence[int], draws: int, seed: int, split: str) -> None:
    inside = all(0 <= degree <= 100 for degree in degrees)
    if not (inside and draws >= 1 and seed >= 0 and split in ("test", "validation")):
        raise MasqueradeError(
            "E201",
            f"shift cannot be drawn with degrees {tuple(degrees)} (from 0 to 100), draws {draws} "
            f"(at least 1), seed {seed} (at least 0), split `{split}` (`test` or `validation`)",
        )


def _pools(parts: list[Integers]) -> Iterator[list[Integers]]:
    """Yield for each client the samples of all others, as its only choice."""
    samples = np.concatenate(parts)
    sizes = [len(part) for part in parts]
    if len(samples) > MANY:
        # Twice round the circle of all samples, those of all others lie in one piece.
        circle = np.concatenate([samples, samples])
        for size, end in zip(sizes, np.cumsum(sizes), strict=True):
            yield [circle[end : end + len(samples) - size]]
        return
    owner = np.repeat(np.arange(len(parts)), sizes)
    for client in range(len(parts)):
        yield [samples[owner != client]]


def _partner_parts(parts: list[Integers], seed: int, draws: int) -> Iterator[list[Integers]]:
    """Yield for each client the samples of its partners that have any, one per draw."""
    empty = sum(len(part) == 0 for part in parts)
    ranked = partners(len(parts), seed, min(len(parts) - 1, draws + empty))
    for column in ranked.T:
        yield [parts[other] for other in column if len(parts[other])]


def _queue(client: int, own: Integers, choices: list[Integers], seed: int, draw: int) -> Integers:
    """Return a client's own samples, then as many of others'; degrees are windows on this."""
    if not len(own):
        return own
    if not any(map(len, choices)):
        raise MasqueradeError(
            "E202", f"shift needs two clients with samples, but only client {client} has any"
        )
    rng = np.random.default_rng([seed, _SAMPLES, client, draw])
    given = _some(rng, choices[draw % len(choices)], len(own))
    return np.concatenate([rng.permutation(own), np.resize(given, len(own))])


def _some(rng: np.random.Generator, samples: Integers, count: int) -> Integers:
    """Return at least so many samples, or all there are, in random order and none twice."""
    if len(samples) > MANY:
        return rng.choice(samples, min(count, len(samples)), replace=False)
    return rng.permutation(samples)


def _window(queue: Tensor, degree: int) -> Tensor:
    size = len(queue) // 2
    start = round(size * degree / 100)
    return queue[start : start + size]
