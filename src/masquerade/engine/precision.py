"""How exactly a run computes, and that it does so in the same way every time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def numbers(precision: str) -> Iterator[None]:
    """Set the precision of products; let CUDA use only what gives the same bits every time.

    Weights, sums and losses keep the network's own type. A CPU gives the same bits by itself, and
    has no TF32: that is float32 there.
    """
    with ExitStack() as stack:
        if precision == "bfloat16":
            for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
                # Without a cache: what it held would be of another step in a replayed graph.
                stack.enter_context(torch.autocast(device, torch.bfloat16, cache_enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(_same_bits(precision != "float32"))
        yield


@contextmanager
def _same_bits(tf32: bool) -> Iterator[None]:
    # cuBLAS reads this when it is first used; with it, its sums have one order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings = [
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cudnn, "benchmark", False),
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
    ]
    before = [getattr(owner, name) for owner, name, _ in settings]
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)
