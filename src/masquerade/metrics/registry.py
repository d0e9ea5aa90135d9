"""Metrics of a whole test set, by name: each a function of all outputs and targets of a client.

Outputs of a classifier are logits. Some metrics go by scikit-learn and scipy, which are imported
where one is asked for: machines that only train have none.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from masquerade.core.metric import SetMetric

Function = Callable[[Tensor, Tensor], float | None]
"""From all outputs and targets of a test set to a figure; None where it is not defined."""

BINS = 15
"""Bins of the calibration error, of equal width from 0 to 1."""


def accuracy(outputs: Tensor, y: Tensor) -> float:
    """Return the share of samples that is right."""
    return 100 * float((outputs.argmax(-1) == y).double().mean())


def balanced_accuracy(outputs: Tensor, y: Tensor) -> float | None:
    """Return the mean over the classes of a set of the share of each that is right.

    None where a set has one class: answering that one, whatever is asked, would be perfect.
    """
    from sklearn.metrics import recall_score

    if len(torch.unique(y)) < 2:
        return None
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


def log_loss(outputs: Tensor, y: Tensor) -> float:
    """Return the mean cross entropy in nats."""
    return float(cross_entropy(outputs.double(), y))


def calibration_error(outputs: Tensor, y: Tensor) -> float:
    """Return the expected calibration error (ECE).

    Samples are put into bins by the probability of the class that is answered. It is the mean over
    samples of how far the accuracy of a bin is from its mean probability.
    """
    sure, answer = torch.softmax(outputs.double(), -1).max(-1)
    gap = (answer == y).double() - sure
    bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    sums = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, gap)
    return 100 * float(sums.abs().sum()) / len(y)


def recall_of(label: int) -> Function:
    """Return what measures the share of a class that is right; None where a set has none of it."""

    def recall(outputs: Tensor, y: Tensor) -> float | None:
        right = outputs.argmax(-1)[y == label] == label
        return 100 * float(right.double().mean()) if len(right) else None

    return recall


def perplexity(outputs: Tensor, y: Tensor) -> float:
    """Return the exponential of the mean cross entropy of all tokens.

    Outputs are [samples, classes], or [samples, classes, tokens] where targets are
    [samples, tokens].
    """
    return float(cross_entropy(outputs.double(), y).exp())


def mae(outputs: Tensor, y: Tensor) -> float:
    """Return the mean absolute error."""
    return float((outputs.double().reshape(y.shape) - y).abs().mean())


def rmse(outputs: Tensor, y: Tensor) -> float:
    """Return the root of the mean squared error."""
    return float((outputs.double().reshape(y.shape) - y).square().mean().sqrt())


METRICS: dict[str, SetMetric] = {
    "accuracy": SetMetric(accuracy, targets="classes"),
    "balanced_accuracy": SetMetric(balanced_accuracy, targets="classes"),
    "macro_f1": SetMetric(macro_f1, targets="classes"),
    "auroc": SetMetric(auroc, targets="classes"),
    "log_loss": SetMetric(log_loss, "lower", "classes", percent=False),
    "calibration_error": SetMetric(calibration_error, "lower", "classes"),
    "mae": SetMetric(mae, "lower", "numbers", percent=False),
    "rmse": SetMetric(rmse, "lower", "numbers", percent=False),
    "perplexity": SetMetric(perplexity, "lower", "tokens", percent=False),
}
"""What `evaluate.metrics` may name, beside metrics of each class."""
PER_CLASS: dict[str, Callable[[int], Function]] = {"recall": recall_of}
"""Metrics of one class, given its number: each is a metric for every class of the data."""
