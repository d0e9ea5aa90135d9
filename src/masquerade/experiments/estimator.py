"""A federation as a scikit-learn classifier: `groups` are the clients, each has its own model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import nn

from masquerade.config.settings import Compute, Evaluate
from masquerade.core import tree
from masquerade.core.method import Method
from masquerade.core.preprocess import Scale, Standardize
from masquerade.core.task import Task
from masquerade.data import ByClient, Federation, from_arrays, partition
from masquerade.errors import MasqueradeError, listed, nearest, warn
from masquerade.experiments.from_python import run
from masquerade.experiments.personal import Personal
from masquerade.experiments.result import Result
from masquerade.methods import METHODS
from masquerade.models import build
from masquerade.tables.frame import is_frame, table_of

Array = npt.NDArray[Any]
SHARED = ("global", "full")
"""Views that are one model for everybody, and so serve groups that were not trained on."""
SEEDS = 2**31 - 1
WITHOUT_GROUPS = (
    "W206 samples without groups are answered by the shared model, not by a group's own: give"
    " `groups`. scikit-learn's scorers give none; scoring=mq.scorer(METRIC) does"
)
WITHOUT_ANY = (
    "W207 `fit` was given no groups, so all samples are those of one client: nothing is personal."
    " Give `groups`; cross-validation, searches and pipelines hand them on with"
    " enable_metadata_routing and set_fit_request(groups=True)"
)


class PersonalizedClassifier(ClassifierMixin, BaseEstimator):
    """Train a model for every group of samples by a method of personalized federated learning.

    `method` is a name of `masquerade methods`, or a method such as `mq.methods.Ditto(lam=0.5)`;
    `settings` are hyperparameters of a named one. `model` is a named network, or a function of the
    number of features and of classes that returns a `torch.nn.Module`. Features are numbers; with
    `standardize` they are normalized by mean and std, which groups' sums decide. With
    `verbose` the progress of training is shown.

    `fit` without groups takes all samples for those of one (W207). `predict`, `predict_proba` and
    `score` answer with the group's own model. Groups that were not trained on, and samples without
    a group where there were several (W206), get the shared model, where the method has one.
    `result_` has the figures of a run on the training samples, since all of them are trained on.

    Cross-validation, searches and pipelines hand `groups` on where scikit-learn's metadata routing
    is on and they are asked for: `set_fit_request(groups=True)`, `set_score_request(groups=True)`.
    Metrics beside accuracy need a scorer that hands groups on, `mq.scorer("roc_auc")`.
    """

    def __init__(
        self,
        method: str | Method = "ditto",
        *,
        model: str | Callable[[int, int], nn.Module] = "mlp",
        rounds: int = 30,
        batch_size: int = 10,
        settings: Mapping[str, Any] | None = None,
        standardize: bool = True,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.batch_size = batch_size
        self.settings = settings
        self.standardize = standardize
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on samples X [samples, features], labels y and, of each sample, its group."""
        _check_numbers(X)
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        federation = self._federation(X, labels, _groups(X, groups))
        seed = int(check_random_state(self.random_state).randint(SEEDS))
        preprocess = Standardize() if self.standardize else Scale()
        task = Task(self._network(seed), preprocess=preprocess)
        method, self._view = self._method()
        if groups is None:
            warn(WITHOUT_ANY)
        self.result_: Result = run(
            method,
            task,
            federation,
            self.rounds,
            batch_size=self.batch_size,
            seed=seed,
            views=tuple(dict.fromkeys((self._view, *_shared(method)))),
            # Nobody asks for these figures: `score` has samples of its own.
            evaluate=Evaluate(every=0, degrees=(0,)),
            compute=Compute(device="cpu"),
            progress=bool(self.verbose),
        )
        self.groups_ = np.array(federation.names)
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Return the label of every sample."""
        shares = self.predict_proba(X, groups)
        found: Array = self.classes_[shares.argmax(axis=1)]
        return found

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """Return the probability of every class for every sample [samples, classes]."""
        check_is_fitted(self)
        _check_numbers(X)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        owners = _groups(X, groups)
        shares = np.empty((len(X), len(self.classes_)))
        for model, rows in self._models(owners, given=groups is not None):
            shares[rows] = _probabilities(model, X[rows])
        return shares

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return the share of samples whose label is right; they are answered as by `predict`.

        So without groups it is the shared model that is scored, where there were several groups.
        """
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _models(self, owners: Array, given: bool) -> Iterator[tuple[Personal, Array]]:
        """Yield a model and the samples that it answers."""
        if not given and len(self.groups_) == 1:
            yield self.result_.client(0, self._view), np.arange(len(owners))
            return
        if not given:
            warn(WITHOUT_GROUPS)
        known = {name: place for place, name in enumerate(self.groups_.tolist())} if given else {}
        for owner in dict.fromkeys(owners.tolist()):
            place = known.get(owner)
            model = self._of_strangers() if place is None else self._of(place)
            yield model, np.flatnonzero(owners == owner)

    def _of(self, place: int) -> Personal:
        return self.result_.client(place, self._view)

    def _of_strangers(self) -> Personal:
        """Return the shared model, or say that there is none."""
        views = _shared(self.result_.method)
        if not views:
            name = type(self.result_.method).__name__
            text = f"{name} has no model for groups that it was not trained on"
            fitting = [each for each in METHODS if _shared(METHODS[each].method)]
            raise MasqueradeError(
                "E202", f"{text}; give `groups` that it knows, or take {listed(fitting)}"
            )
        return self.result_.client(0, views[0])

    def _federation(self, X: Array, labels: Array, owners: Array) -> Federation:
        dataset = from_arrays(X, labels, owners, name="samples", classes=len(self.classes_))
        names = dataset.names or tuple(map(str, np.unique(owners).tolist()))
        whole = partition(dataset, clients=None, by=ByClient(), split=(1.0, 0.0, 0.0))
        # A run evaluates; samples to hold out for that are the caller's to choose.
        return replace(whole, test=whole.train, names=names)

    def _network(self, seed: int) -> nn.Module:
        features, classes = self.n_features_in_, len(self.classes_)
        if isinstance(self.model, str):
            return build(self.model, (features,), classes, seed)
        if isinstance(self.model, nn.Module):
            text = "is a network, whose weights the next `fit` would begin with; give a function"
            how = "model=lambda features, classes: torch.nn.Linear(features, classes)"
            raise MasqueradeError("E201", f"`model` {text}: {how}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model(features, classes)

    def _method(self) -> tuple[Method, str]:
        """Return the method, and the view that answers for groups."""
        if isinstance(self.method, Method):
            if self.settings:
                text = "`settings` are for a method that is named; give them to the method itself"
                raise MasqueradeError("E201", text)
            return self.method, self.method.views[0]
        if self.method not in METHODS:
            known = f"{nearest(self.method, METHODS)}; known are {', '.join(METHODS)}"
            raise MasqueradeError("E201", f"unknown method `{self.method}`{known}")
        entry = METHODS[self.method]
        return entry.method(**dict(entry.settings) | dict(self.settings or {})), entry.view


def _check_numbers(X: Any) -> None:
    """Refuse a frame with columns of words, and name them."""
    if not is_frame(X):
        return
    words = [each.name for each in table_of(X, "X").columns if not _are_numbers(each.values)]
    if words:
        text = f"features are numbers, and these columns hold words: {listed(words)}"
        how = "leave them out, or encode them: make_pipeline(make_column_transformer("
        how += f"(OneHotEncoder(), {words!r}), remainder='passthrough'), PersonalizedClassifier())"
        raise MasqueradeError("E302", f"{text}; {how}")


def _are_numbers(values: Array) -> bool:
    try:
        values.astype(np.float64)
    except ValueError:
        return False
    return True


def _groups(X: Array, groups: Any) -> Array:
    """Return the group of every sample as a text; without any, all are of one."""
    if groups is None:
        return np.zeros(len(X), dtype=np.int64).astype(str)
    check_consistent_length(X, groups)
    given: Array = column_or_1d(np.asarray(groups), warn=True)
    if any(each is None or each != each for each in given.tolist()):
        raise ValueError("groups has missing values; give every sample a group")
    if given.dtype.kind == "f" and (given == np.floor(given)).all():
        # pandas makes floats of whole numbers beside a gap.
        given = given.astype(np.int64)
    return given.astype(str)


def _shared(method: Method | type[Method]) -> tuple[str, ...]:
    return tuple(view for view in SHARED if view in method.views)


def _probabilities(model: Personal, X: Array) -> Array:
    """Return probabilities that do not depend on which samples are asked for together."""
    own = tree.transform(_double, model.parts)
    with torch.no_grad():
        outputs = model.method.predict(model.task.double(), own, torch.from_numpy(X).double())
    shares: Array = torch.softmax(outputs, -1).numpy()
    return shares


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value
