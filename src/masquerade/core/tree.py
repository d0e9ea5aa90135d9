"""Trees: flat dicts, name → tensor. States: nested dicts of tensors, trees and parts."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from masquerade.core.vmap import mapped

PINNED = 1 << 24
"""Bytes up to which memory is pinned on its way to a GPU: what is pinned is not given back."""
Tree = dict[str, Tensor]
State = dict[str, Any]
"""What a server, a row, a client or a round's work holds: dicts of tensors, trees and parts."""


def each(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    """Apply a function name by name: `each(torch.add, a, b)`."""
    first, *others = trees
    return {
        name: function(value, *(tree[name] for tree in others)) for name, value in first.items()
    }


_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def select(keep: Tensor, chosen: Tensor, otherwise: Tensor | float = 0) -> Tensor:
    """Take `chosen` where `keep` is true, `otherwise` elsewhere: `torch.where`, and its bits.

    On a CPU, bits are masked: that takes a tenth of the time where a mask has no pattern.
    """
    other = scalar(otherwise, chosen.device, chosen.dtype)
    tracked = chosen.requires_grad or other.requires_grad
    bits = chosen.device.type == "cpu" and chosen.is_floating_point() and not tracked
    alike = keep.shape == chosen.shape and other.shape in ((), chosen.shape)
    word = _WORDS.get(chosen.element_size())
    plain = not mapped() and torch._C._functorch.maybe_current_level() is None
    if not (plain and bits and alike) or other.dtype != chosen.dtype or word is None:
        return torch.where(keep, chosen, other)
    mask = keep.to(word).neg_()
    if not isinstance(otherwise, Tensor) and otherwise == 0:
        return mask.bitwise_and_(chosen.view(word)).view(chosen.dtype)
    rest = other.view(word)
    return mask.bitwise_and_(chosen.view(word) ^ rest).bitwise_xor_(rest).view(chosen.dtype)


def where(keep: Mapping[str, Tensor], chosen: Tree, otherwise: Tree) -> Tree:
    """Take `chosen` where `keep` is true, `otherwise` elsewhere.

    Names absent from `keep` are chosen whole. It selects and never multiplies, so that a NaN
    that is not chosen cannot leak.
    """
    return {
        name: select(keep[name], value, otherwise[name]) if name in keep else value
        for name, value in chosen.items()
    }


def pick(condition: Tensor, chosen: Mapping[str, Tensor], otherwise: Mapping[str, Tensor]) -> Tree:
    """Take the whole of `chosen` if a condition holds, else the whole of `otherwise`."""
    return each(lambda new, old: torch.where(condition, new, old), chosen, otherwise)


def only(keep: Mapping[str, Tensor], tree: Tree) -> Tree:
    """Set everything outside `keep` to zero; names absent from `keep` stay whole."""
    return {
        name: select(keep[name], value) if name in keep else value for name, value in tree.items()
    }


def split(tree: Mapping[str, Tensor], names: Container[str]) -> tuple[Tree, Tree]:
    """Divide a tree into what bears one of some names and the rest, both in its order."""
    inside = {name: value for name, value in tree.items() if name in names}
    return inside, {name: value for name, value in tree.items() if name not in names}


def zeros(tree: Mapping[str, Tensor]) -> Tree:
    """Return zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in tree.items()}


def blend(
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    share: float | Tensor,
    blended: Callable[[str], bool],
) -> Tree:
    """Go a share of the way: (1 − share) · old + share · new; a share of 1 gives the bits of `new`.

    Names that are not `blended` are taken from `new`: counters of a network cannot be averaged.
    """

    def go(start: Tensor, end: Tensor) -> Tensor:
        return torch.lerp(start, end, share.to(end) if isinstance(share, Tensor) else share)

    return {n: go(old[n], value) if blended(n) else value for n, value in new.items()}


def squared_distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """Return ‖left − right‖² over the floating-point entries."""
    terms = [
        (value - right[name]).square().sum()
        for name, value in left.items()
        if value.is_floating_point()
    ]
    return torch.stack(terms).sum()


def dot(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """Return ⟨left, right⟩ over the names of `left`; its gradient in one of them is the other."""
    return torch.stack([(value * right[name]).sum() for name, value in left.items()]).sum()


def size(tree: Mapping[str, Tensor]) -> int:
    """Count the numbers in a tree."""
    return sum(value.numel() for value in tree.values())


def transform(function: Callable[..., Any], *states: Any) -> Any:
    """Apply a function to every tensor of states that have the same structure."""
    first, *others = states
    if isinstance(first, Tensor):
        return function(*states)
    # For what states are made of, torch's general way costs several times as much.
    kind = type(first)
    if kind is dict and all(type(o) is dict and o.keys() == first.keys() for o in others):
        return {
            key: transform(function, value, *(other[key] for other in others))
            for key, value in first.items()
        }
    if kind in _PARTED and all(type(other) is kind for other in others):
        parts, remade = _PARTED[kind]
        pieces, rest = zip(*map(parts, states), strict=True)
        if len({len(each) for each in pieces}) == 1 and all(one == rest[0] for one in rest):
            made = [transform(function, *each) for each in zip(*pieces, strict=True)]
            return remade(made, rest[0])
    return pytree.tree_map(function, *states)


_PARTED: dict[type, tuple[Callable[[Any], tuple[list[Any], Any]], Callable[..., Any]]] = {
    tuple: (lambda state: (list(state), None), lambda pieces, _: tuple(pieces)),
    list: (lambda state: (state, None), lambda pieces, _: pieces),
}
"""What takes a state of a kind apart, into pieces and what is no tensor, and makes it again."""


def register(
    kind: type,
    parts: Callable[[Any], tuple[list[Any], Any]],
    remade: Callable[..., Any],
    with_keys: Callable[[Any], Any] | None = None,
) -> None:
    """Let states contain objects of a kind, for torch's functions on states and for these."""
    _PARTED[kind] = parts, remade
    name = f"{kind.__module__}.{kind.__name__}"
    pytree.register_pytree_node(
        kind, parts, remade, serialized_type_name=name, flatten_with_keys_fn=with_keys
    )


def parts(state: Any) -> tuple[list[Any], Any] | None:
    """Take a state apart, into pieces and what is no tensor; None where it is no list or record."""
    known = _PARTED.get(type(state))
    return known and known[0](state)


def leaves(state: Any) -> list[Tensor]:
    """List the tensors of a state, in a fixed order."""
    if isinstance(state, Tensor):
        return [state]
    if type(state) is dict:
        return [leaf for value in state.values() for leaf in leaves(value)]
    parted = parts(state)
    if parted is not None:
        return [leaf for piece in parted[0] for leaf in leaves(piece)]
    return pytree.tree_leaves(state)


def stack(states: Sequence[Any]) -> Any:
    """Stack the states of clients on a new leading axis: [clients, …]."""
    return transform(lambda *values: torch.stack(values), *states)


def take(state: Any, index: int | Tensor) -> Any:
    """Take one client, or several, out of a stacked state, which may lie on several devices."""
    if isinstance(index, int):
        return transform(lambda value: value[index], state)
    places: dict[torch.device, Tensor] = {}

    def taken(value: Tensor) -> Tensor:
        if value.device not in places:
            places[value.device] = onto(index, value.device)
        return value[places[value.device]]

    return transform(taken, state)


def put(state: Any, places: Tensor, new: Any) -> None:
    """Write some clients into a stacked state, in place; all others keep their bits."""
    there: dict[torch.device, Tensor] = {}

    def write(old: Tensor, value: Tensor) -> Tensor:
        if old.device not in there:
            there[old.device] = onto(places, old.device)
        return old.index_copy_(0, there[old.device], value.to(old.device, old.dtype))

    transform(write, state, new)


def scalar(value: float | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a number as a tensor on a device; a tensor is returned as it is."""
    if isinstance(value, Tensor):
        return value
    return torch.full((), value, dtype=dtype, device=device)


def onto(value: Tensor, device: torch.device) -> Tensor:
    """Take a tensor to a device; from host memory to a GPU without waiting for its work."""
    ahead = device.type == "cuda" and value.device.type == "cpu" and value.nbytes <= PINNED
    return (value.pin_memory() if ahead else value).to(device, non_blocking=ahead)


def named(state: Any) -> dict[str, Tensor]:
    """Flatten a state to tensors by path, `"params/fc.weight"`, for files."""
    found: dict[str, Tensor] = {}
    for path, value in pytree.tree_flatten_with_path(state)[0]:
        found["/".join(_word(step) for step in path)] = value
    return found


def _word(step: Any) -> str:
    if isinstance(step, pytree.MappingKey):
        return str(step.key)
    return step.name if isinstance(step, pytree.GetAttrKey) else str(step.idx)


def rebuild(template: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Fill a state of known structure with the tensors that `named` listed."""
    spec = pytree.tree_flatten(template)[1]
    return pytree.tree_unflatten([tensors[name] for name in named(template)], spec)
