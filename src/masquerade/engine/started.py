"""Whether torchrun started this process as one of several: asked before torch is imported."""

import os

_TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and others like it, tell the processes that they start."""


def started() -> bool:
    """Tell whether this process was started as one of several, or as the only one of a group."""
    return all(name in os.environ for name in _TOLD)


def number_started() -> int:
    """Return the rank of this process among those so started; 0 where it is alone."""
    return int(os.environ["RANK"]) if started() else 0
