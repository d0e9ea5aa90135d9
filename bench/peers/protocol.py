"""What every framework is given, and what it reports; read with torch and numpy alone.

The data are written once, as arrays in a folder, and every framework reads the same files. A round
ends with a mark; evaluations lie inside rounds, every so many of them. What comes before the last
round of the warm-up is start-up and is reported apart.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

EVALUATED = {"cpu": 200, "cuda": 10_000}
"""Samples that every framework evaluates at a time; more would leave a processor's cache."""


@dataclass(frozen=True)
class Work:
    """All that decides how much there is to do."""

    folder: str
    network: str
    method: str
    cohort: int
    batch: int
    rate: float
    warm: int
    rounds: int
    every: int
    """Rounds between central evaluations; 0 evaluates at the end alone, outside of the time."""
    device: str
    processes: int
    precision: str
    phases: list[str] = field(default_factory=list)
    """The phases of DM-PFL's rounds."""
    begun: float = 0.0
    """When the framework's process was started."""
    commits: bool = False
    """Whether ours commits its state beside the rounds, as a run does."""

    @property
    def total(self) -> int:
        """All rounds, those of the warm-up too."""
        return self.warm + self.rounds


@dataclass(frozen=True)
class Data:
    """The clients' samples, one client after another, and what models are evaluated on."""

    x: torch.Tensor
    y: torch.Tensor
    ends: list[int]
    test_x: torch.Tensor
    test_y: torch.Tensor
    test_ends: list[int]
    initial: list[torch.Tensor]

    @classmethod
    def read(cls, folder: str, device: str = "cpu") -> "Data":
        """Map the arrays; on a device of its own they are copied there."""
        found = {path.stem: np.load(path, mmap_mode="c") for path in Path(folder).glob("*.npy")}
        named = {name: torch.from_numpy(array).to(device) for name, array in found.items()}
        weights = sorted(name for name in named if name.startswith("weight"))
        return cls(
            named["x"],
            named["y"],
            [0, *found["ends"].tolist()],
            named["test_x"],
            named["test_y"],
            [0, *found["test_ends"].tolist()],
            [named[name] for name in weights],
        )

    @property
    def clients(self) -> int:
        """Count the clients."""
        return len(self.ends) - 1

    def client(self, id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a client's training samples."""
        own = slice(self.ends[id], self.ends[id + 1])
        return self.x[own], self.y[own]

    def tests(self, id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a client's test samples."""
        own = slice(self.test_ends[id], self.test_ends[id + 1])
        return self.test_x[own], self.test_y[own]


def write(folder: Path, arrays: dict[str, np.ndarray], initial: list[torch.Tensor]) -> None:
    """Write what `Data.read` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    for place, value in enumerate(initial):
        np.save(folder / f"weight{place:02d}.npy", value.numpy())


def _logistic() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(784, 10)]


def _dropout_cnn() -> list[nn.Module]:
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU()]
    return [*layers, nn.Dropout(0.5), nn.Linear(128, 10)]


def _mnist_cnn() -> list[nn.Module]:
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return [*layers, nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10)]


NETWORKS = {"logistic": _logistic, "dropout_cnn": _dropout_cnn, "mnist_cnn": _mnist_cnn}
"""Our networks of these names, in plain PyTorch."""


def network(name: str, data: Data) -> nn.Module:
    """Build a network of plain layers, with the weights that everybody begins with."""
    model = nn.Sequential(*NETWORKS[name]()).to(data.x)
    with torch.no_grad():
        for value, start in zip(model.parameters(), data.initial, strict=True):
            value.copy_(start)
    return model


def shuffled(x: torch.Tensor, y: torch.Tensor, size: int):
    """Yield the batches of one epoch, the last as small as it is."""
    for chosen in torch.randperm(len(y), device=y.device).split(size):
        yield x[chosen], y[chosen]


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return mean loss and accuracy in percent."""
    model.eval()
    loss = right = 0.0
    size = EVALUATED[x.device.type]
    with torch.no_grad():
        for some, labels in zip(x.split(size), y.split(size), strict=True):
            output = model(some)
            loss += float(nn.functional.cross_entropy(output, labels, reduction="sum"))
            right += int((output.argmax(1) == labels).sum())
    model.train()
    return loss / len(y), 100 * right / len(y)


class Ledger:
    """The report of one framework: when rounds ended, how many steps, how good the model is."""

    def __init__(self, work: Work) -> None:
        self.work, self.done, self.evaluations = work, 0, 0
        self.before = self.first = self.last = self.spent = 0.0
        self.steps: int | None = 0
        self.loss: float | None = None
        """The mean loss on the central test set, where there is one."""
        self.accuracy = 0.0
        """In percent: of the shared model, or the mean over clients of their own models."""
        self.version = ""
        self.flops: float | None = None
        """Operations of a round, where they were counted."""

    def due(self) -> bool:
        """Tell whether the round that was just done has an evaluation."""
        return bool(self.work.every) and (self.done + 1) % self.work.every == 0

    def evaluated(self) -> None:
        """Note a central evaluation within the time."""
        self.evaluations += self.done >= self.work.warm

    def mark(self) -> None:
        """End a round."""
        self.done += 1
        if self.done not in (self.work.warm, self.work.total):
            return
        if self.work.device == "cuda":
            torch.cuda.synchronize()
        self.last, self.spent = time.perf_counter(), time.process_time() - self.spent
        if self.done == self.work.warm:
            self.first, self.before = self.last, time.time() - self.work.begun

    def write(self, path: str | Path) -> None:
        """Write the report where the command reads it."""
        assert self.done == self.work.total, f"{self.done} rounds instead of {self.work.total}"
        kept = ("before", "steps", "evaluations", "loss", "accuracy", "version", "flops")
        found = {name: getattr(self, name) for name in kept}
        found["seconds"] = (self.last - self.first) / self.work.rounds
        found["processor"] = self.spent / self.work.rounds
        Path(path).write_text(json.dumps(found), encoding="utf-8")


def read(path: str) -> tuple[Work, Data, nn.Module]:
    """Read the work, the data and the network."""
    torch.set_num_threads(1)
    work = Work(**json.loads(Path(path).read_text(encoding="utf-8")))
    # Torch's own default is one precision for matrices and another for convolutions.
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.allow_tf32 = work.precision == "tf32"
    data = Data.read(work.folder, work.device)
    torch.manual_seed(1)
    return work, data, network(work.network, data)


given = lru_cache(maxsize=1)(read)
"""The same, once in every process, however often a framework asks."""


def save(work: Work, path: Path) -> None:
    """Write the work for a framework's process."""
    path.write_text(json.dumps(asdict(work)), encoding="utf-8")
