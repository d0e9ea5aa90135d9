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
    from masquerade import methods, models, trackers
    from masquerade.config.settings import Compute, Evaluate, Privacy
    from masquerade.core import (
        Axis,
        Batch,
        Blocks,
        ClientInfo,
        Cohort,
        Method,
        Normalize,
        OutputRule,
        Part,
        Raw,
        Round,
        RuleClient,
        SetMetric,
        Stage,
        Standardize,
        Tabular,
        Task,
        average,
        gradient,
        sgd_step,
    )
    from masquerade.core.dropout import Dropout
    from masquerade.data import (
        IID,
        ByClient,
        Dataset,
        Dirichlet,
        Federation,
        Pathological,
        from_arrays,
        from_frame,
        load,
        partition,
    )
    from masquerade.errors import MasqueradeError, MasqueradeWarning
    from masquerade.experiments.callbacks import Callback
    from masquerade.experiments.estimator import PersonalizedClassifier
    from masquerade.experiments.from_python import compare, run
    from masquerade.experiments.load import load_result
    from masquerade.experiments.personal import Personal
    from masquerade.experiments.result import Comparison, Result
    from masquerade.experiments.scorer import scorer
    from masquerade.laws.check import check
    from masquerade.results import Accuracy, Costs, EvaluationRecord, RoundRecord, Summary

__version__ = "0.2.0.dev0"

_HOMES = {
    "masquerade.config.settings": ("Compute", "Evaluate", "Privacy"),
    "masquerade.core": (
        "Axis",
        "Batch",
        "Blocks",
        "Cohort",
        "Method",
        "Normalize",
        "OutputRule",
        "Part",
        "Raw",
        "Round",
        "RuleClient",
        "SetMetric",
        "Stage",
        "Standardize",
        "Tabular",
        "Task",
        "ClientInfo",
        "average",
        "sgd_step",
        "gradient",
    ),
    "masquerade.core.dropout": ("Dropout",),
    "masquerade.data": (
        "IID",
        "ByClient",
        "Dataset",
        "Dirichlet",
        "Federation",
        "Pathological",
        "from_arrays",
        "from_frame",
        "load",
        "partition",
    ),
    "masquerade.errors": ("MasqueradeError", "MasqueradeWarning"),
    "masquerade.experiments.callbacks": ("Callback",),
    "masquerade.experiments.estimator": ("PersonalizedClassifier",),
    "masquerade.experiments.from_python": ("compare", "run"),
    "masquerade.experiments.load": ("load_result",),
    "masquerade.experiments.personal": ("Personal",),
    "masquerade.experiments.result": ("Comparison", "Result"),
    "masquerade.experiments.scorer": ("scorer",),
    "masquerade.results": ("Accuracy", "Costs", "EvaluationRecord", "RoundRecord", "Summary"),
    "masquerade.laws.check": ("check",),
}
_MODULES = ("methods", "models", "trackers")
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "IID",
    "Accuracy",
    "Axis",
    "Batch",
    "Blocks",
    "ByClient",
    "Callback",
    "ClientInfo",
    "Cohort",
    "Comparison",
    "Compute",
    "Costs",
    "Dataset",
    "Dirichlet",
    "Dropout",
    "Evaluate",
    "EvaluationRecord",
    "Federation",
    "MasqueradeError",
    "MasqueradeWarning",
    "Method",
    "Normalize",
    "OutputRule",
    "Part",
    "Pathological",
    "Personal",
    "PersonalizedClassifier",
    "Privacy",
    "Raw",
    "Result",
    "Round",
    "RoundRecord",
    "RuleClient",
    "SetMetric",
    "Stage",
    "Standardize",
    "Summary",
    "Tabular",
    "Task",
    "average",
    "check",
    "compare",
    "from_arrays",
    "from_frame",
    "gradient",
    "load",
    "load_result",
    "methods",
    "models",
    "partition",
    "run",
    "scorer",
    "sgd_step",
    "trackers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"masquerade.{name}")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module `masquerade` has no name `{name}`")


def __dir__() -> list[str]:
    return __all__
