"""Metrics of a whole test set, by name: each a function of all outputs and targets of a client.

They are scikit-learn's, which is imported where one is asked for: machines that only train have
none. All are in percent, as accuracy is.
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
    from sklearn.metrics import roc_auc_score

    classes, shares = torch.unique(y), torch.softmax(outputs.double(), -1)
    if len(classes) < 2:
        return None
    if outputs.shape[-1] == 2:
        return 100 * float(roc_auc_score(y, shares[:, 1]))
    areas = [float(roc_auc_score(y == one, shares[:, one])) for one in classes.tolist()]
    return 100 * sum(areas) / len(areas)


METRICS: dict[str, SetMetric] = {
    "balanced_accuracy": SetMetric(balanced_accuracy),
    "macro_f1": SetMetric(macro_f1),
    "auroc": SetMetric(auroc),
}
"""What `evaluate.metrics` may name."""
