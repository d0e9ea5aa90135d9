"""What messages weigh and how fast they are made and read, against the bars that we set ourselves.

    python bench/wire.py            # exit status 1 when a bar is missed
    python bench/wire.py --sizes    # without the speeds

Sizes are lengths of encoded messages. Speeds are megabytes of float32 parameters per second of one
core's time, the best of several repetitions; the message has a million parameters and their mask.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from masquerade.core import ClientInfo, Message, Part, Round, Task
from masquerade.core.random import fold, normal, order
from masquerade.methods import DMPFL, FedAvg, FedMask
from masquerade.models import build
from masquerade.wire import Session, count, decode, encode, nbytes
from masquerade.wire.session import moved

MILLION = 1_000_000
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Bar:
    """A figure, and the most or the least that it may be."""

    name: str
    figure: float
    bar: float
    most: bool = True

    @property
    def holds(self) -> bool:
        """Tell whether the figure keeps to its bar."""
        return self.figure <= self.bar if self.most else self.figure >= self.bar


def entropy(keep: Tensor) -> float:
    """Bytes that a mask needs at least, knowing its density alone."""
    share = float(keep.double().mean())
    bits = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return bits * keep.numel() / 8


def some(name: str, shape: tuple[int, ...], share: float) -> Tensor:
    """Exactly a share of the entries, at random, the same every time."""
    entries = torch.Size(shape).numel()
    keep = torch.zeros(entries, dtype=torch.bool)
    keep[order(fold(1, name), entries)[: round(share * entries)]] = True
    return keep.reshape(shape)


def masked(keep: Tensor) -> Message:
    """Values under a mask."""
    return {"params": Part({"w": normal(2, tuple(keep.shape))}, {"w": keep})}


def overhead(message: Message, session: Session) -> int:
    """Bytes of a message that are not values."""
    found = count(message, session)
    size = len(encode(message, session=session))
    assert size == found.bytes
    return size - int(found.values)


def acknowledged(message: Message) -> Session:
    """A session in which the masks of a message came down last."""
    return moved({}, "down", count(message, {}).masks)


def masks() -> Iterator[Bar]:
    """Masks of a million parameters against their entropy."""
    for density in DENSITIES:
        keep = some("keep", (MILLION,), density)
        excess = overhead(masked(keep), {}) / entropy(keep)
        yield Bar(f"mask of density {density}, over its entropy", excess, 1.02)
    keep, changed = some("keep", (MILLION,), 0.5), some("changed", (MILLION,), 0.01)
    bits = 8 * overhead(masked(keep ^ changed), acknowledged(masked(keep))) / MILLION
    yield Bar("mask of which 1 % changed, bits per parameter", bits, 0.083)


def changed(message: Message, share: float) -> Message:
    """The same values under masks of which a share of the bits is another."""
    part = message["params"]
    keep = {name: bits ^ some(name, bits.shape, share) for name, bits in part.keep.items()}
    return {"params": replace(part, keep=keep)}


def first_download(method: FedAvg | DMPFL | FedMask, task: Task) -> Message:
    """What a client is sent in a training round."""
    phase = method.schedule(0, 10)
    round = Round("train", phase, *(torch.tensor(value) for value in (0.0, 10.0, 1.0)))
    row = method.row_init(task, ClientInfo(0, 1, 0))
    return method.download(task, method.server_init(task), row, round)


def messages() -> Iterator[Bar]:
    """Messages of the CNN of 797,962 parameters against FedAvg's."""
    task = Task(build("cifar_cnn", (3, 32, 32), 10, seed=1))
    assert task.parameters == 797_962
    fedavg = len(encode(first_download(FedAvg(), task)))
    dmpfl = first_download(DMPFL(sparsity=0.5), task)
    dmpfl = {"params": dmpfl["params"].to("bfloat16", 1)}
    sessions = {
        "a new mask": ({}, 28.4),
        "a mask of which 1 % changed": (acknowledged(changed(dmpfl, 0.01)), 25.6),
        "a known mask": (acknowledged(dmpfl), 25.3),
    }
    for name, (session, bar) in sessions.items():
        size = len(encode(dmpfl, session=session))
        yield Bar(f"DM-PFL in bfloat16 with {name}, % of FedAvg", 100 * size / fedavg, bar)
    fedmask = first_download(FedMask(), task)
    # Half of all bits are ones, anywhere: no others cost more.
    bits = {name: some(name, value.shape, 0.5) for name, value in fedmask["bits"].values.items()}
    size = len(encode({**fedmask, "bits": Part(bits)}))
    yield Bar("FedMask in the steady state, % of FedAvg", 100 * size / fedavg, 100 / 31)


def best(action: Callable[[], object], repetitions: int) -> float:
    """Seconds of processor time that an action takes, whatever else the machine does."""
    taken = []
    for _ in range(repetitions):
        begun = time.process_time()
        action()
        taken.append(time.process_time() - begun)
    return min(taken)


def speeds(repetitions: int) -> Iterator[Bar]:
    """Encoding and decoding of a million parameters with their mask."""
    half = some("keep", (MILLION,), 0.5)
    cases: dict[str, tuple[Message, Session]] = {
        "no mask": ({"params": Part({"w": normal(2, (MILLION,))})}, {}),
        "half kept": (masked(half), {}),
        "a third kept": (masked(some("keep", (MILLION,), 0.33)), {}),
        "1 % changed": (
            masked(half ^ some("changed", (MILLION,), 0.01)),
            acknowledged(masked(half)),
        ),
    }
    rounded = {"params": cases["a third kept"][0]["params"].to("bfloat16", 1)}
    cases["a third kept, bfloat16"] = rounded, {}
    cases["bits"] = {"params": Part({"w": some("bits", (MILLION,), 0.4)})}, {}
    for name, (message, session) in cases.items():
        data = encode(message, session=session)
        assert len(data) == int(nbytes(message, session))
        made = best(lambda m=message, s=session: encode(m, session=s), repetitions)
        read = best(lambda m=message, s=session, d=data: decode(d, m, session=s), repetitions)
        for action, seconds in (("encode", made), ("decode", read)):
            yield Bar(f"{action}, {name}, MB/s", 4 * MILLION / seconds / 1e6, 200, most=False)


def main() -> int:
    """Print one table; return whether a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bars = [*masks(), *messages()]
    bars += [] if options.sizes else speeds(options.repetitions)
    for bar in bars:
        sign, word = ("≤" if bar.most else "≥"), ("" if bar.holds else "  MISSED")
        print(f"{bar.name:58} {bar.figure:9.4g}  {sign} {bar.bar:.4g}{word}")
    missed = sum(not bar.holds for bar in bars)
    print("all bars hold" if not missed else f"{missed} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
