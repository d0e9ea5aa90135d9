"""Scorers for scikit-learn that let every group be answered by its own model."""

from dataclasses import dataclass
from typing import Any

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils.metadata_routing import MetadataRequest

from masquerade.errors import MasqueradeError, nearest


def scorer(metric: str) -> "GroupScorer":
    """Make a scorer of a metric of scikit-learn's, such as "balanced_accuracy" or "roc_auc".

    Scikit-learn's own scorers hand no groups to `predict`. This one does: with metadata routing on,
    it asks for `groups` by itself, so that `cross_val_score(…, scoring=mq.scorer("roc_auc"),
    params={"groups": …})` scores the groups' own models. It is called as all scorers are:
    `scorer(estimator, X, y, groups=…)`.
    """
    known = get_scorer_names()
    if metric not in known:
        text = f"scikit-learn has no scorer {metric!r}{nearest(str(metric), known)}"
        raise MasqueradeError("E201", f"{text}; sklearn.metrics.get_scorer_names() lists them")
    return GroupScorer(metric)


@dataclass(frozen=True)
class GroupScorer:
    """A scorer that asks for the groups of samples and hands them to the estimator."""

    metric: str
    """As scikit-learn names it; higher is better."""

    def __call__(self, estimator: Any, X: Any, y: Any, groups: Any = None) -> float:
        """Score an estimator on samples whose groups are known."""
        return float(get_scorer(self.metric)(_Answering(estimator, groups), X, y))

    def get_metadata_routing(self) -> MetadataRequest:
        """Tell scikit-learn that groups are wanted."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="groups", alias=True)
        return request


class _Answering(ClassifierMixin, BaseEstimator):
    """A fitted estimator that answers samples of known groups, as scorers ask: without any."""

    def __init__(self, estimator: Any, groups: Any) -> None:
        self.estimator = estimator
        self.groups = groups

    @property
    def classes_(self) -> Any:
        return self.estimator.classes_

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:
        return self.estimator.predict(X, groups=self.groups)

    def predict_proba(self, X: Any) -> Any:
        return self.estimator.predict_proba(X, groups=self.groups)
