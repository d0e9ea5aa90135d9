"""Twenty small messages that have everything in them, as files under `golden`.

    python -m tests.wire.samples    # write them anew, after a change of the format

Files of a released version stay: a later one must still refuse or read them as it did.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from masquerade.core.part import Axis, Blocks, Message, Part
from masquerade.core.random import fold, normal, order
from masquerade.wire import Same, Session, Stamp, count, decode, encode
from masquerade.wire.session import moved

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Sample:
    """A message, and what both ends hold when it is sent."""

    message: Message
    stamp: Stamp = field(default_factory=Stamp)
    session: Session = field(default_factory=dict)
    same: Same = field(default_factory=dict)
    held: Message | None = None

    def encode(self, message: Message | None = None) -> bytes:
        """Write this message, or another in its place."""
        return encode(message or self.message, self.stamp, self.session, self.same)

    def decode(self, data: bytes) -> Message:
        """Read bytes as its receiver would."""
        return decode(data, self.message, self.stamp, self.session, self.held)


def numbers(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Some numbers that are exact in every type."""
    return (normal(fold(5, count), (count,)) * 8).round().to(dtype) / 4


def bits(count: int, ones: int, key: int = 1) -> Tensor:
    """So many ones, anywhere."""
    found = torch.zeros(count, dtype=torch.bool)
    found[order(fold(6, key), count)[:ones]] = True
    return found


def part(keep: Tensor, dtype: torch.dtype = torch.float32) -> Part:
    """Numbers under a mask."""
    return Part({"w": numbers(keep.numel(), dtype).reshape(keep.shape)}, {"w": keep})


def since(direction: str, message: Message) -> Session:
    """A session in which a message was the last to go in a direction."""
    return moved({}, direction, count(message, {}).masks)


def wired(dtype: str, given: Part) -> Message:
    """A message that is rounded."""
    return {"p": given.to(dtype, 3)}


FLOATS = Part({"w": numbers(4), "b": numbers(2)})
HALF, FEW = bits(200, 100), bits(200, 3, 2)
ROWS = Part({"w": numbers(12).reshape(3, 4)}, {"w": bits(3, 2)}, {"w": Axis(0)})
BLOCKS = Part({"w": numbers(9)}, {"w": bits(3, 1)}, {"w": Blocks((2, 3, 4))})
TWO = {"a": FLOATS, "b": Part({"n": torch.tensor([3, 9])})}
BITS = {"p": Part({"w": HALF})}
INSIDE = {"p": Part({"w": HALF}, {"w": bits(200, 120, 4)})}

SAMPLES = {
    "floats": Sample({"p": FLOATS}),
    "stamped": Sample({"p": FLOATS}, Stamp(12, 7, 0x0123456789ABCDEF)),
    "doubles": Sample({"p": Part({"w": numbers(3, torch.float64)})}),
    "integers": Sample({"p": Part({"n": torch.tensor(5), "m": torch.tensor([1, -2])})}),
    "two-parts": Sample(TWO),
    "unchanged": Sample(TWO, same={"a": True}, held={"a": FLOATS}),
    "packed": Sample({"p": part(bits(24, 12))}),
    "coded": Sample({"p": part(bits(300, 40))}),
    "listed": Sample({"p": part(bits(300, 2))}),
    "nothing-kept": Sample({"p": part(bits(40, 0))}),
    "everything-kept": Sample({"p": part(bits(20, 20))}),
    "rows": Sample({"p": ROWS}),
    "blocks": Sample({"p": BLOCKS}),
    "bits": Sample(BITS),
    "bits-inside": Sample(INSIDE),
    "changed-download": Sample({"p": part(HALF ^ FEW)}, session=since("down", {"p": part(HALF)})),
    "changed-bits": Sample(
        {"p": Part({"w": HALF ^ FEW}, {"w": bits(200, 120, 4)})}, session=since("up", INSIDE)
    ),
    "float16": Sample(wired("float16", part(bits(24, 12)))),
    "bfloat16": Sample(wired("bfloat16", FLOATS)),
    "int8": Sample(wired("int8", Part({"w": numbers(20), "z": torch.zeros(3)}))),
}


def main() -> None:
    """Write every sample to its file."""
    GOLDEN.mkdir(exist_ok=True)
    for name, sample in SAMPLES.items():
        (GOLDEN / f"{name}.bin").write_bytes(sample.encode())


if __name__ == "__main__":
    main()
