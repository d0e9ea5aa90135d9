"""Metrics of a whole test set, by name: each a function of all outputs and targets of a client.

They go by scikit-learn and scipy, which are imported where one is asked for: machines that only
train have none. All are in percent, as accuracy is.
"""

import torch
from torch import Tensor

from masquerade.core.metric import SetMetric


def balanced_accuracy(outputs: Tensor, y: Tensor) -> float:
    """Return the mean over the classes of a set of the share of each that is right."""
    from sklearn.metrics import recall_score

    return 100 * float(
        recall_score(
            y, outputs.argmax(-1), average="macro", labels=torch.unique(y), zero_division=0
        )
    )


def macro_f1(outputs: Tensor, y: Tensor) -> float:
    """Return F1 averaged over the classes that a set or its predictions have."""
    from sklearn.metrics import f1_score

    return 100 * float(f1_score(y, outputs.argmax(-1), average="macro", zero_division=0))


def auroc(outputs: Tensor, y: Tensor) -> float | None:
    """Return the area under the ROC curve, each class against the rest; None where all are alike.

    It is averaged over the classes that a set has.
    """
    from scipy.stats import rankdata

    classes = torch.unique(y)
    if len(classes) < 2:
        return None
    shares = torch.softmax(outputs.double(), -1)
    # Mann and Whitney's count of pairs in the right order, of all classes at once: scikit-learn's
    # own, class by class, takes a hundred times as long.
    ranks = torch.from_numpy(rankdata(shares[:, classes].numpy(), axis=0))
    member = (y[:, None] == classes).double()
    own, others = member.sum(0), len(y) - member.sum(0)
    areas = ((ranks * member).sum(0) - own * (own + 1) / 2) / (own * others)
    return 100 * float(areas.mean())


METRICS: dict[str, SetMetric] = {
    "balanced_accuracy": SetMetric(balanced_accuracy),
    "macro_f1": SetMetric(macro_f1),
    "auroc": SetMetric(auroc),
}
"""What `evaluate.metrics` may name."""
