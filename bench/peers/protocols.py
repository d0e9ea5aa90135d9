"""The protocols: who trains what on what, and which bars hold; and their data, built once."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from protocol import Work, write

from masquerade.data import Dirichlet, from_arrays, load, partition
from masquerade.data.dataset import Dataset
from masquerade.methods import DMPFL
from masquerade.models import build

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
GPU_BARS = (("ours", "pfl", 8.0),)
ALL = ("ours", "bare", "pfl", "fedlab", "flower:2")


@dataclass(frozen=True)
class Protocol:
    """What every framework does, and how much faster we are to be."""

    name: str
    title: str
    data: str
    network: str
    clients: int
    size: int
    """Training samples of a client; under Dirichlet, of all clients together."""
    cohort: int
    rate: float
    warm: int
    rounds: int
    every: int
    apart: float
    """How many points of accuracy frameworks may lie apart."""
    runs: tuple[str, ...]
    bars: tuple[tuple[str, str, float], ...]
    """(ours, other, how many times as fast at least), by medians."""
    method: str = "fedavg"
    batch: int = 10
    real: bool = True
    steps: int | None = None
    """Local steps of all rounds, where clients' sizes say so."""

    def on(self, device: str) -> "Protocol":
        """Return the protocol with the runs, rounds and bars of a device."""
        if device == "cpu":
            return self
        bars = tuple(bar for bar in GPU_BARS if bar[0] in self.runs and bar[1] in self.runs)
        runs = tuple(run for run in self.runs if run in ("ours", "bare", "pfl", "fedlab"))
        # The first round captures, and what a GPU does in seconds would be over too soon.
        rounds = 40 if self.every else self.rounds
        return replace(self, runs=runs, bars=bars, rounds=rounds)

    def sized(self, rounds: int | None, quick: bool, data: str) -> "Protocol":
        """Return the protocol with other rounds or data, or so small that it takes seconds."""
        sized = replace(self, rounds=rounds or self.rounds, real=data == "real" and not quick)
        if quick:
            few = {"clients": 4, "cohort": 4 if self.every == 0 else 2, "rounds": 2, "every": 1}
            few["every"] = min(1, self.every)
            sized = replace(sized, **few, size=20 if self.every else 80, warm=1)
        total = sized.warm + sized.rounds
        steps = total * sized.cohort * -(-sized.size // sized.batch) if sized.every else None
        return replace(sized, steps=steps)

    @property
    def evaluations(self) -> int:
        """Central evaluations within the time."""
        return self.rounds // self.every if self.every else 0

    def work(self, folder: str, device: str, precision: str) -> Work:
        """Return what a framework is told."""
        total = self.warm + self.rounds
        phases = [str(DMPFL().schedule(number, total)[0]) for number in range(total)]
        return Work(
            folder,
            self.network,
            self.method,
            self.cohort,
            self.batch,
            self.rate,
            self.warm,
            self.rounds,
            self.every,
            device,
            1,
            precision,
            phases if self.method == "dmpfl" else [],
        )


def _logistic(name: str, cohort: int, pfl: float, flower: float) -> Protocol:
    return Protocol(
        name,
        f"Logistic regression on MNIST, 1000 clients of 60 samples, {cohort} in a round",
        "mnist",
        "logistic",
        1000,
        60,
        cohort,
        0.03,
        5,
        100,
        20,
        3.0,
        ALL,
        (("ours", "pfl", pfl), ("ours", "flower:2", flower)),
    )


def _personal(method: str, title: str) -> Protocol:
    return Protocol(
        f"s4-{method}",
        f"{title} on MNIST, 20 clients by Dirichlet 0.1, all of them in every round",
        "mnist",
        "mnist_cnn",
        20,
        1400,
        20,
        0.005,
        1,
        5,
        0,
        8.0,
        ("ours", "ours:2", "bare"),
        (("ours", "bare", 1.0), ("ours:2", "bare", 1.6)),
        method,
    )


_IMAGES = Protocol(
    "s2",
    "A CNN of 1,626,442 weights on CIFAR-10, 1000 clients of 50 samples, 50 in a round "
    "(pfl-research's benchmark)",
    "cifar10",
    "dropout_cnn",
    1000,
    50,
    50,
    0.1,
    1,
    10,
    10,
    8.0,
    ("ours", "ours:2", "bare", "pfl", "fedlab", "flower:2"),
    (("ours", "bare", 1.0), ("ours:2", "bare", 1.6)),
)

PROTOCOLS = {
    each.name: each
    for each in (
        _logistic("s1", 10, 3.0, 15.0),
        _logistic("s1-50", 50, 8.0, 20.0),
        _IMAGES,
        _personal("ditto", "Ditto"),
        _personal("apfl", "APFL"),
        _personal("fedrep", "FedRep"),
        _personal("dmpfl", "DM-PFL"),
    )
}


def samples(protocol: Protocol) -> Dataset:
    """Load the named data, or draw noisy patterns in their shape."""
    if protocol.real:
        return load(protocol.data)
    shape = SHAPES[protocol.data]
    rng = np.random.default_rng(1)
    tested = min(10_000, 10 * protocol.clients)
    count = (protocol.clients * protocol.size if protocol.every else 2 * protocol.size) + tested
    y = rng.integers(0, 10, count)
    patterns = rng.integers(0, 128, (10, *shape))
    x = patterns[y] + rng.integers(0, 128, (count, *shape))
    return from_arrays(
        x.astype(np.uint8), y, train=np.arange(count) < count - tested, classes=10, copy=False
    )


def arrange(protocol: Protocol, folder: Path) -> None:
    """Write a protocol's data: every client's samples in a row, normalized, and the weights."""
    found = samples(protocol)
    rng = np.random.default_rng(2)
    if protocol.every:
        assert found.train is not None
        order = rng.permutation(np.flatnonzero(found.train.numpy()))
        trained = order[: protocol.clients * protocol.size]
        tested = np.flatnonzero(~found.train.numpy())
        parts = np.split(trained, protocol.clients)
        tests = np.array_split(tested, protocol.clients)
    else:
        # Three quarters of a client's samples are for training, as in PFLlib's quick start.
        some = found.take(torch.from_numpy(rng.permutation(len(found.y))[: protocol.size * 4 // 3]))
        parted = partition(some, protocol.clients, Dirichlet(0.1, least=8), 1, (0.75, 0.0, 0.25))
        found = some
        parts = [part.numpy() for part in parted.train]
        tests = [part.numpy() for part in parted.test]
    x, test_x = (normalized(found.x[np.concatenate(some)]) for some in (parts, tests))
    arrays = {
        "x": x,
        "y": found.y.numpy()[np.concatenate(parts)],
        "ends": np.cumsum([len(part) for part in parts]),
        "test_x": test_x,
        "test_y": found.y.numpy()[np.concatenate(tests)],
        "test_ends": np.cumsum([len(part) for part in tests]),
    }
    model = build(protocol.network, SHAPES[protocol.data], 10, seed=1)
    write(folder, arrays, [value.detach() for value in model.parameters()])


def normalized(pixels: torch.Tensor) -> np.ndarray:
    """Return pixels from −1 to 1."""
    return (pixels.numpy().astype(np.float32) / 127.5 - 1).astype(np.float32)
