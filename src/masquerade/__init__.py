"""Masquerade: mask-based personalized federated learning.

>>> import masquerade as mq
>>> federation = mq.partition(mq.load("digits"), clients=20, by=mq.Dirichlet(0.3), seed=1)
>>> model = mq.models.build("digits_cnn", (1, 8, 8), classes=10, seed=1)
>>> result = mq.run(mq.methods.DMPFL(sparsity=0.5), model, federation, rounds=1)

Names are found when they are asked for, so that a command that needs no torch starts without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from masquerade import methods, models
    from masquerade.config.settings import Compute, Evaluate
    from masquerade.core import (
        Axis,
        Batch,
        Blocks,
        ClientInfo,
        Cohort,
        Method,
        Part,
        Round,
        Stage,
        Task,
        average,
        gradient,
        sgd_step,
    )
    from masquerade.data import (
        IID,
        ByClient,
        Dataset,
        Dirichlet,
        Federation,
        Pathological,
        from_arrays,
        load,
        partition,
    )
    from masquerade.errors import MasqueradeError, MasqueradeWarning
    from masquerade.experiments.result import Personal, Result
    from masquerade.experiments.run import run

__version__ = "0.2.0.dev0"

_HOMES = {
    "masquerade.config.settings": ("Compute", "Evaluate"),
    "masquerade.core": (
        "Axis",
        "Batch",
        "Blocks",
        "Cohort",
        "Method",
        "Part",
        "Round",
        "Stage",
        "Task",
        "ClientInfo",
        "average",
        "sgd_step",
        "gradient",
    ),
    "masquerade.data": (
        "IID",
        "ByClient",
        "Dataset",
        "Dirichlet",
        "Federation",
        "Pathological",
        "from_arrays",
        "load",
        "partition",
    ),
    "masquerade.errors": ("MasqueradeError", "MasqueradeWarning"),
    "masquerade.experiments.run": ("run",),
    "masquerade.experiments.result": ("Personal", "Result"),
}
_MODULES = ("methods", "models")
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "IID",
    "Axis",
    "Batch",
    "Blocks",
    "ByClient",
    "ClientInfo",
    "Cohort",
    "Compute",
    "Dataset",
    "Dirichlet",
    "Evaluate",
    "Federation",
    "MasqueradeError",
    "MasqueradeWarning",
    "Method",
    "Part",
    "Pathological",
    "Personal",
    "Result",
    "Round",
    "Stage",
    "Task",
    "average",
    "from_arrays",
    "gradient",
    "load",
    "methods",
    "models",
    "partition",
    "run",
    "sgd_step",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"masquerade.{name}")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module `masquerade` has no name `{name}`")


def __dir__() -> list[str]:
    return __all__
