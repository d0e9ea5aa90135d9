"""The classifier for scikit-learn's habits: its checks, groups as clients, and strangers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import sklearn
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    StratifiedKFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import masquerade as mq
from tests.messages import Golden
from tests.support import raises, warns


@pytest.mark.filterwarnings("ignore:W207")
@parametrize_with_checks([mq.PersonalizedClassifier(rounds=2)])
def test_it_passes_the_checks_of_scikit_learn(
    estimator: Any, check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without it scikit-learn skips the check of its array API.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def opposite_groups(samples: int = 40) -> tuple[Any, Any, Any]:
    """Return two groups with opposite labels for the same features: no one model serves both."""
    x = np.random.default_rng(0).normal(size=(2 * samples, 3))
    groups = np.repeat(["north", "south"], samples)
    y = np.where((x[:, 0] > 0) == (groups == "north"), "sick", "well")
    return x, y, groups


def fitted(method: Any = "ditto", **settings: Any) -> mq.PersonalizedClassifier:
    x, y, groups = opposite_groups()
    chosen = {"rounds": 20, "settings": {"lr": 0.2}} | settings
    return mq.PersonalizedClassifier(method, **chosen).fit(x, y, groups=groups)


def test_every_group_is_answered_by_its_own_model() -> None:
    x, y, groups = opposite_groups()
    found = fitted()
    assert found.score(x, y, groups=groups) > 0.9
    swapped = np.where(groups == "north", "south", "north")
    assert found.score(x, y, groups=swapped) < 0.1


def test_new_groups_are_answered_by_the_shared_model() -> None:
    x, _, groups = opposite_groups()
    found = fitted()
    asked = found.predict_proba(x[:5], groups=["east"] * 5)
    shared = found.result_.client("south", "global").predict(torch.from_numpy(x[:5]).float())
    assert np.allclose(asked, torch.softmax(shared, -1), atol=1e-6)
    with warns("W206"):
        assert np.array_equal(asked, found.predict_proba(x[:5]))
    assert not np.allclose(asked, found.predict_proba(x[:5], groups=groups[:5]), atol=1e-2)


def test_a_method_without_a_shared_model_refuses_new_groups() -> None:
    x, _, _ = opposite_groups()
    with raises("E202"):
        fitted("local", rounds=1).predict(x, groups=["east"] * len(x))


def test_a_method_and_a_network_may_be_objects() -> None:
    x, y, groups = opposite_groups()
    method = mq.methods.FedRep(lr=0.2, personal_layers=1)

    def network(features: int, classes: int) -> nn.Module:
        hidden = nn.Linear(features, 16)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(16, classes))

    found = mq.PersonalizedClassifier(method, model=network, rounds=10).fit(x, y, groups=groups)
    assert found.score(x, y, groups=groups) > 0.9


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "dito"},
        {"method": mq.methods.FedAvg(), "settings": {"lr": 0.1}},
        {"model": nn.Linear(3, 2)},
    ],
    ids=["unknown method", "settings of an object", "a network for a function"],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    x, y, _ = opposite_groups()
    with raises("E201"):
        mq.PersonalizedClassifier(**wrong).fit(x, y)


def test_without_groups_score_and_predict_are_the_shared_model_with_a_warning(
    golden: Golden,
) -> None:
    x, y, _ = opposite_groups()
    found = fitted()
    strangers = found.predict(x, groups=["east"] * len(x))
    with warns("W206", "mq.scorer") as heard:
        assert np.array_equal(found.predict(x), strangers)
    golden(heard[0].message)
    with warns("W206"):
        assert found.score(x, y) == np.mean(strangers == y)


@pytest.fixture
def routing() -> Iterator[mq.PersonalizedClassifier]:
    """A classifier that asks for groups wherever scikit-learn can hand them on."""
    model = mq.PersonalizedClassifier(rounds=8, settings={"lr": 0.3})
    with config_context(enable_metadata_routing=True):
        asking = model.set_fit_request(groups=True).set_score_request(groups=True)
        yield asking.set_predict_request(groups=True)


FOLDS = StratifiedKFold(2, shuffle=True, random_state=0)


def test_cross_validation_hands_groups_on(routing: mq.PersonalizedClassifier) -> None:
    x, y, groups = opposite_groups()
    # Held-out samples of known groups are answered by their own models.
    found = cross_val_score(routing, x, y, params={"groups": groups}, cv=FOLDS)
    assert found.min() > 0.8
    # Where whole groups are held out, the shared model knows the opposite alone.
    found = cross_val_score(routing, x, y, params={"groups": groups}, cv=GroupKFold(2))
    assert found.max() < 0.2


def test_scikit_learns_scorers_give_no_groups_and_ours_do(
    routing: mq.PersonalizedClassifier,
) -> None:
    x, y, groups = opposite_groups()
    given: dict[str, Any] = {"params": {"groups": groups}, "cv": FOLDS}
    with warns("W206"):
        assert cross_val_score(routing, x, y, scoring="accuracy", **given).max() < 0.7
    ours = cross_val_score(routing, x, y, scoring=mq.scorer("accuracy"), **given)
    assert np.array_equal(ours, cross_val_score(routing, x, y, **given))
    scorers = {name: mq.scorer(name) for name in ("accuracy", "roc_auc")}
    both = cross_validate(routing, x, y, scoring=scorers, **given)
    assert np.array_equal(both["test_accuracy"], ours)
    assert both["test_roc_auc"].min() > 0.8


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "roc_auc", "neg_log_loss"])
def test_a_scorer_says_what_scikit_learn_says_of_the_groups_answers(name: str) -> None:
    x, y, groups = opposite_groups()
    found = fitted(rounds=5)
    shares, labels = found.predict_proba(x, groups), found.predict(x, groups)
    expected = {
        "accuracy": lambda: accuracy_score(y, labels),
        "balanced_accuracy": lambda: balanced_accuracy_score(y, labels),
        "roc_auc": lambda: roc_auc_score(y == "well", shares[:, 1]),
        "neg_log_loss": lambda: -log_loss(y, shares),
    }
    assert mq.scorer(name)(found, x, y, groups=groups) == expected[name]()


def test_an_unknown_metric_is_refused() -> None:
    with raises("E201", "`roc_auc`"):
        mq.scorer("roc_uac")


def test_a_search_hands_groups_on(routing: mq.PersonalizedClassifier) -> None:
    x, y, groups = opposite_groups()
    scoring = mq.scorer("balanced_accuracy")
    search = GridSearchCV(routing, {"method": ["fedavg", "ditto"]}, cv=FOLDS, scoring=scoring)
    search.fit(x, y, groups=groups)
    assert search.best_params_ == {"method": "ditto"}
    assert search.best_estimator_.groups_.tolist() == ["north", "south"]
    assert search.score(x, y, groups=groups) > 0.8


def test_a_pipeline_hands_groups_on(routing: mq.PersonalizedClassifier) -> None:
    x, y, groups = opposite_groups()
    asking = clone(routing).set_predict_proba_request(groups=True)
    model = make_pipeline(StandardScaler(), asking).fit(x, y, groups=groups)
    assert mq.scorer("roc_auc")(model, x, y, groups=groups) > 0.8
    assert model.score(x, y, groups=groups) > 0.8
    with warns("W206"):
        assert model.score(x, y) < 0.8
    assert np.mean(model.predict(x, groups=groups) == y) > 0.8
    assert model.classes_.tolist() == ["sick", "well"]


@sklearn.config_context(enable_metadata_routing=False)
def test_without_routing_a_pipeline_takes_groups_by_the_name_of_its_step() -> None:
    x, y, groups = opposite_groups()
    model = make_pipeline(StandardScaler(), mq.PersonalizedClassifier("fedavg", rounds=1))
    model.fit(x, y, personalizedclassifier__groups=groups)
    assert model[-1].groups_.tolist() == ["north", "south"]


@sklearn.config_context(enable_metadata_routing=False)
def test_fit_without_groups_is_warned_of(golden: Golden) -> None:
    x, y, groups = opposite_groups()
    model = mq.PersonalizedClassifier("fedavg", rounds=1)
    # Groups divide the folds here, and reach no estimator.
    with warns("W207") as heard:
        assert cross_val_score(model, x, y, groups=groups, cv=GroupKFold(2)).shape == (2,)
    golden(heard[0].message)


def test_names_of_columns_are_kept_and_checked() -> None:
    x, y, groups = opposite_groups()
    frame = pandas.DataFrame(x, columns=["age", "pulse", "weight"])
    model = mq.PersonalizedClassifier("fedavg", rounds=1).fit(frame, y, groups=groups)
    assert model.feature_names_in_.tolist() == ["age", "pulse", "weight"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["pulse", "age", "weight"]], groups=groups)


def test_columns_of_words_are_named(golden: Golden) -> None:
    frame = pandas.DataFrame({"age": [1, 2], "ward": ["east", "west"], "dose": ["1", "2"]})
    with raises("E302", "ward") as refusal:
        mq.PersonalizedClassifier().fit(frame, [0, 1])
    golden(refusal.value)
    model = mq.PersonalizedClassifier("fedavg", rounds=1).fit(
        frame[["age", "dose"]], [0, 1], ["a", "b"]
    )
    with raises("E302", "age"):
        model.predict(frame[["age", "dose"]].assign(age="old"))


def test_groups_of_whole_numbers_are_the_same_as_floats_and_none_may_be_missing() -> None:
    x, y, groups = opposite_groups()
    numbers = (groups == "south").astype(int)
    model = mq.PersonalizedClassifier(rounds=2).fit(x, y, groups=numbers)
    assert np.array_equal(model.predict(x, numbers), model.predict(x, numbers.astype(float)))
    with pytest.warns(DataConversionWarning):
        column = model.predict(x, numbers[:, None])
    assert np.array_equal(column, model.predict(x, numbers))
    for missing in ([None] + ["north"] * 4, [np.nan, 1, 1, 1, 1]):
        with pytest.raises(ValueError, match="groups"):
            model.predict(x[:5], groups=missing)
