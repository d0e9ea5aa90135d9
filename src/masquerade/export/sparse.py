"""Weights as safetensors: dense, as values and a packed mask, or as a seed and bits.

All three are read back by `read`, to the same numbers, and `read_preprocess` reads what is done to
inputs before the network. A file may hold several networks: DM-PFL+ has two, FedEM several; then
every name begins with the network's number.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from masquerade.config.normalize import parse, spelled
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.part import Message
from masquerade.core.preprocess import Preprocess, Scale
from masquerade.core.task import Task
from masquerade.core.tree import Tree
from masquerade.errors import MasqueradeError
from masquerade.methods.fedmask import FedMask
from masquerade.models import build

KEEP, VALUES, BITS = "/keep", "/values", "/bits"
UNIT = Scale()
DRAWING = ("weights", "scores", "density", "pruned_layers", "real")
"""The settings of FedMask that decide what its frozen weights are."""
PLACES = 2 ** torch.arange(8, dtype=torch.uint8)


@dataclass(frozen=True)
class Origin:
    """Where initial weights come from: a network of `MODELS`, and the seed it is drawn from."""

    network: str
    shape: tuple[int, ...]
    classes: int
    seed: int

    def task(self) -> Task:
        """Draw the initial weights again."""
        return Task(build(self.network, tuple(self.shape), self.classes, self.seed))


def networks(method: Method, task: Task, parts: Message, x: Tensor) -> list[Tree]:
    """Return the weights with which `predict` really runs the network, once for each time."""
    home = task.to("cpu")
    seen: list[Tree] = []

    def note(module: nn.Module, given: Any) -> None:
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        seen.append({name: held[name] for name in home.initial})

    hook = home.module.register_forward_pre_hook(note)
    try:
        with torch.no_grad():
            here = tree.transform(lambda value: value.detach().cpu(), parts)
            method.predict(home, here, x[:1].cpu())
    finally:
        hook.remove()
    if any(torch._C._functorch.is_batchedtensor(each) for each in tree.leaves(seen)):
        text = "this model has other weights for every sample; a bundle or ONNX can hold it"
        raise MasqueradeError("E202", text)
    return seen


def density(trees: Sequence[Tree], task: Task) -> float:
    """Return the share of a network's parameters that are not zero, over all of its versions."""
    kept = sum(int(each[name].count_nonzero()) for each in trees for name in task.parameter_names)
    return kept / len(trees) / task.parameters


def dense(trees: Sequence[Tree], preprocess: Preprocess = UNIT) -> bytes:
    """Write every weight."""
    return _save(_named(trees), {"form": "dense"} | _normalize(preprocess))


def packed(trees: Sequence[Tree], preprocess: Preprocess = UNIT) -> bytes:
    """Write the weights that are not zero, and a bit for each that says whether it is."""
    found: Tree = {}
    shapes = {}
    for name, value in _named(trees).items():
        # A zero times a negative weight is a negative zero, which is read back as a plain one.
        keep = value.reshape(-1) != 0
        if keep.sum() * value.itemsize + math.ceil(len(keep) / 8) >= value.nbytes:
            found[name] = value
            continue
        shapes[name] = list(value.shape)
        found |= {name + VALUES: value.reshape(-1)[keep], name + KEEP: pack(keep)}
    facts = {"form": "packed", "shapes": json.dumps(shapes)}
    return _save(found, facts | _normalize(preprocess))


def seeded(method: Method, task: Task, parts: Message, origin: Origin) -> bytes:
    """Write the bits of FedMask, which with a seed are the whole model."""
    if not isinstance(method, FedMask):
        text = f"only FedMask's models are a seed and bits, and this is {type(method).__name__}'s"
        raise MasqueradeError("E202", f"{text}; take `packed`")
    found: Tree = dict(parts["params"].values)
    shapes = {}
    for name, bits in parts["bits"].values.items():
        shapes[name] = list(bits.shape)
        found[name + BITS] = pack(bits.reshape(-1))
    facts = {"form": "seeded", "origin": json.dumps(asdict(origin))}
    facts["drawing"] = json.dumps({name: getattr(method, name) for name in DRAWING})
    (whole,) = networks(method, task, parts, task.sample)
    facts |= {"shapes": json.dumps(shapes), "sha256": _digest(whole)}
    return _save(found, facts | _normalize(task.preprocess))


def read(path: Path) -> list[Tree]:
    """Read the weights of every network of a file, whichever of the three forms it has."""
    held, facts = _opened(path)
    return _numbered(FORMS[facts["form"]](held, facts))


def read_preprocess(path: Path) -> Preprocess:
    """Read what is done to inputs before the network of a file: `Task(model, preprocess=…)`."""
    return parse(_opened(path)[1].get("normalize", "unit"))


def _normalize(preprocess: Preprocess) -> dict[str, str]:
    """Say what is done to inputs, where it is not the default."""
    return {} if type(preprocess) is Scale else {"normalize": spelled(preprocess)}


def _opened(path: Path) -> tuple[Tree, dict[str, str]]:
    """Read what a file holds, and what it says of itself."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            facts = dict(file.metadata() or {})
            names = file.keys()
            held = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as fault:
        text = f"{path} cannot be read as safetensors: {fault}"
        raise MasqueradeError("E403", text) from None
    if facts.get("form") not in FORMS:
        text = f"{path} holds no exported weights; `masquerade export` writes such"
        raise MasqueradeError("E403", text)
    return held, facts


def pack(bits: Tensor) -> Tensor:
    """Put eight bools into a byte, the first one lowest."""
    whole = torch.zeros(math.ceil(len(bits) / 8) * 8, dtype=torch.uint8)
    whole[: len(bits)] = bits
    return (whole.reshape(-1, 8) * PLACES).sum(1, dtype=torch.uint8)


def unpack(data: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the bools that `pack` put together."""
    bits = (data[:, None] & PLACES) != 0
    return bits.flatten()[: math.prod(shape)].reshape(tuple(shape))


def _unpacked(held: Tree, facts: Mapping[str, str]) -> Tree:
    found = {name: value for name, value in held.items() if not name.endswith((KEEP, VALUES))}
    for name, shape in json.loads(facts["shapes"]).items():
        values = held[name + VALUES]
        whole = torch.zeros(math.prod(shape), dtype=values.dtype)
        found[name] = whole.masked_scatter(unpack(held[name + KEEP], [len(whole)]), values).reshape(
            shape
        )
    return found


def _drawn(held: Tree, facts: Mapping[str, str]) -> Tree:
    task = Origin(**json.loads(facts["origin"])).task()
    # Version 0.1 wrote `weights` alone, when nothing else decided.
    drawing = json.loads(facts.get("drawing", "{}")) or {"weights": facts["weights"], "real": ()}
    frozen = FedMask(**drawing).frozen(task)
    shapes = json.loads(facts["shapes"])
    bits = {name: unpack(held[name + BITS], shape) for name, shape in shapes.items()}
    numbers = {name: value for name, value in held.items() if not name.endswith(BITS)}
    chosen = tree.only(bits, {name: frozen[name] for name in bits})
    found = task.join(chosen, numbers)
    if _digest(found) != facts["sha256"]:
        text = "the seed gives other weights here than where the file was written"
        raise MasqueradeError("E402", f"{text}; read it with the same version of torch")
    return found


FORMS: dict[str, Callable[[Tree, Mapping[str, str]], Tree]] = {
    "dense": lambda held, facts: held,
    "packed": _unpacked,
    "seeded": _drawn,
}


def _named(trees: Sequence[Tree]) -> Tree:
    if len(trees) == 1:
        return trees[0]
    return {
        f"{place}/{name}": value for place, each in enumerate(trees) for name, value in each.items()
    }


def _numbered(held: Tree) -> list[Tree]:
    trees: dict[str, Tree] = {}
    for name, value in held.items():
        place, _, rest = name.rpartition("/")
        trees.setdefault(place, {})[rest] = value
    return [trees[place] for place in sorted(trees, key=lambda each: int(each or 0))]


def _digest(weights: Tree) -> str:
    found = hashlib.sha256()
    for value in weights.values():
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _save(tensors: Tree, facts: dict[str, str]) -> bytes:
    from safetensors.torch import save

    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    data: bytes = save(copies, metadata=facts)
    return data
