"""Masks as 64-bit words, on any device: a bit per entry, counted without being taken apart."""

import torch
from torch import Tensor
from torch.nn.functional import pad

_GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1 it puts byte i into bit i of the highest byte."""
_PAIRS, _FOURS, _EIGHTS, _SUM = (byte * 0x0101010101010101 for byte in (0x55, 0x33, 0x0F, 0x01))


def is_expanded(tensor: Tensor, lead: int) -> bool:
    """Tell whether a stacked tensor is one version, expanded over clients without being copied."""
    return bool(lead) and tensor.stride(0) == 0


def words_for(count: int) -> int:
    """Return how many words hold so many bits."""
    return max(1, -(-count // 64))


def packed(bits: Tensor, lead: int = 0) -> Tensor:
    """Pack bools [clients, …] or […] into int64 words [clients, words], filled up with zeros."""
    if is_expanded(bits, lead):
        return packed(bits[0]).expand(bits.shape[0], -1)
    flat = bits.reshape(*bits.shape[:lead], bits.shape[lead:].numel()).view(torch.uint8)
    count = flat.shape[-1]
    eights = pad(flat, (0, -count % 64 if count else 64)).view(torch.int64)
    return ((eights * _GATHER >> 56) & 0xFF).to(torch.uint8).view(torch.int64)


def ones(words: Tensor) -> Tensor:
    """Count the ones of packed bits, over the last axis."""
    # Shifts copy the sign; the masks cut that off.
    pairs = words - (words >> 1 & _PAIRS)
    fours = (pairs & _FOURS) + (pairs >> 2 & _FOURS)
    eights = fours + (fours >> 4) & _EIGHTS
    return (eights * _SUM >> 56).sum(-1)
