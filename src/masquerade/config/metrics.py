"""The setting `evaluate.metrics`: which metrics it names, for some data."""

from collections.abc import Sequence

import torch

from masquerade.core.metric import SetMetric
from masquerade.data import Federation
from masquerade.errors import MasqueradeError
from masquerade.metrics import METRICS, PER_CLASS

WORDS = ("all", *METRICS, *PER_CLASS)
"""What the setting may say."""


def metrics_for(
    names: Sequence[str], federation: Federation, own: str = ""
) -> dict[str, SetMetric]:
    """Return the metrics that names mean for some data; refuse those that do not fit.

    "all" are all that fit, but for the task's `own`, which is always measured. A metric of one
    class is there for every class, as `recall:NAME`.
    """
    kinds = target_kinds(federation)
    known = {name: metric.targets for name, metric in METRICS.items()}
    known |= dict.fromkeys(PER_CLASS, "classes")
    fitting = [name for name, targets in known.items() if targets in kinds]
    asked = [each for name in names for each in (fitting if name == "all" else [name])]
    found: dict[str, SetMetric] = {}
    for name in asked:
        if name == own:
            continue
        if name not in fitting:
            text = f"the metric `{name}` is of {known[name]}, and the targets of"
            text += f" `{federation.name}` are {' of '.join(kinds) or 'neither'}"
            raise MasqueradeError("E202", f"{text}; choose from {', '.join(fitting) or 'none'}")
        found |= _of_classes(name, federation) if name in PER_CLASS else {name: METRICS[name]}
    return found


def leading(names: Sequence[str], own: str) -> str:
    """Return the metric that reports put first; "" is the task's own.

    It is the first that is named, unless "all" are, or those of every class.
    """
    first = names[0] if names else ""
    return first if first in METRICS and first != own else ""


def class_titles(federation: Federation) -> tuple[str, ...]:
    """Return the names of classes, or their numbers where they have none."""
    return federation.class_names or tuple(map(str, range(federation.classes or 0)))


def _of_classes(name: str, federation: Federation) -> dict[str, SetMetric]:
    """Return a metric of one class for every class, by its name."""
    return {
        f"{name}:{title}": SetMetric(PER_CLASS[name](label), targets="classes")
        for label, title in enumerate(class_titles(federation))
    }


def target_kinds(federation: Federation) -> tuple[str, ...]:
    """Say what the targets of some data are: "classes", "tokens", both, or "numbers"."""
    if federation.classes is None:
        return ("numbers",)
    one = ("classes",) if federation.y.ndim == 1 else ()
    samples = federation.x
    tokens = not samples.is_floating_point() and samples.dtype is not torch.uint8
    return (*one, "tokens") if tokens else one
