"""Metrics of whole test sets: by hand, against scikit-learn, and which data they are for."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
)
from torch import Tensor

from masquerade.config.metrics import metrics_for
from masquerade.core.random import normal
from masquerade.core.regression import mae, squared_error
from masquerade.data import Federation
from masquerade.metrics import METRICS
from masquerade.metrics.registry import recall_of
from tests.support import federation, raises


def measured(name: str, outputs: Tensor, y: Tensor) -> float:
    found = METRICS[name].function(outputs, y)
    assert found is not None
    return found


def outputs_for(answers: list[int], classes: int) -> Tensor:
    """Outputs whose largest entries are the answers."""
    return torch.nn.functional.one_hot(torch.tensor(answers), classes).double() * 3


def test_set_metrics_by_hand() -> None:
    y, outputs = torch.tensor([0, 0, 0, 1, 1, 2]), outputs_for([0, 0, 1, 1, 2, 2], 3)
    # Recall is 2/3, 1/2 and 1, precision 1, 1/2 and 1/2; F1 is 2PR / (P + R): 4/5, 1/2 and 2/3.
    balanced, f1 = METRICS["balanced_accuracy"].function, METRICS["macro_f1"].function
    assert balanced(outputs, y) == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert f1(outputs, y) == pytest.approx(100 * (4 / 5 + 1 / 2 + 2 / 3) / 3)
    # Class 2 is answered and never there: it has no recall, and an F1 of 0; the others' is 2/3, 1.
    y, outputs = torch.tensor([0, 0, 1]), outputs_for([0, 2, 1], 3)
    assert balanced(outputs, y) == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert f1(outputs, y) == pytest.approx(100 * (2 / 3 + 1 + 0) / 3)
    # Of four pairs of a 1 and a 0, the 1 is ahead in three.
    auroc = METRICS["auroc"].function
    ahead = torch.tensor([0.1, 0.4, 0.35, 0.8])
    two = torch.stack([torch.zeros(4), ahead], 1)
    assert auroc(two, torch.tensor([0, 0, 1, 1])) == pytest.approx(75)
    assert auroc(two, torch.tensor([1, 1, 1, 1])) is None


def test_a_test_set_of_one_class_has_no_balanced_accuracy() -> None:
    # Answering 0, whatever is asked, would have 100 here.
    always = outputs_for([0, 0, 0], 3)
    assert METRICS["balanced_accuracy"].function(always, torch.tensor([0, 0, 0])) is None
    assert measured("balanced_accuracy", always, torch.tensor([0, 0, 1])) == pytest.approx(50)


def test_set_metrics_are_those_of_scikit_learn() -> None:
    outputs, y = normal(1, (60, 4)), torch.arange(60) % 4
    answers, shares = outputs.argmax(-1).numpy(), torch.softmax(outputs, -1).numpy()
    expected = {
        "balanced_accuracy": 100 * balanced_accuracy_score(y.numpy(), answers),
        "macro_f1": 100 * f1_score(y.numpy(), answers, average="macro"),
        "auroc": 100 * roc_auc_score(y.numpy(), shares, multi_class="ovr"),
        "log_loss": log_loss(y.numpy(), shares),
    }
    for name, figure in expected.items():
        assert METRICS[name].function(outputs, y) == pytest.approx(figure), name
    recalls = recall_score(y.numpy(), answers, average=None)
    found = [recall_of(label)(outputs, y) for label in range(4)]
    assert found == pytest.approx(100 * recalls)


def test_recall_of_a_class_that_is_not_there_is_not_defined() -> None:
    assert recall_of(1)(torch.eye(2), torch.tensor([0, 0])) is None


def logits(probabilities: list[list[float]]) -> Tensor:
    return torch.tensor(probabilities).log()


def test_calibration_error_by_hand() -> None:
    # Of 15 bins 0.95 and 0.98 fall into the last, and 0.62 into that from 0.6 to 0.667.
    outputs = logits([[0.95, 0.05], [0.02, 0.98], [0.62, 0.38]])
    # The first is right, the second wrong, the third wrong: |1 - 0.95 + 0 - 0.98| + |0 - 0.62|.
    found = measured("calibration_error", outputs, torch.tensor([0, 0, 1]))
    assert found == pytest.approx(100 * (0.93 + 0.62) / 3, abs=1e-4)
    # Sure and always right is calibrated; sure and always wrong is as far off as can be.
    sure = torch.eye(3) * 100
    assert measured("calibration_error", sure, torch.arange(3)) == pytest.approx(0)
    assert measured("calibration_error", sure, (torch.arange(3) + 1) % 3) == pytest.approx(100)


@pytest.mark.parametrize(("key", "samples", "classes"), [(1, 1, 2), (2, 40, 2), (3, 200, 6)])
def test_calibration_error_is_the_mean_gap_of_bins(key: int, samples: int, classes: int) -> None:
    outputs, y = 3 * normal(key, (samples, classes)), torch.arange(samples) % classes
    total, shares = 0.0, torch.softmax(outputs.double(), -1)
    for place in range(15):
        sure, answers = shares.max(-1)
        inside = (sure > place / 15) & (sure <= (place + 1) / 15)
        if inside.any():
            right = (answers == y)[inside].double().mean()
            total += float(inside.sum()) / samples * abs(float(right - sure[inside].mean()))
    assert measured("calibration_error", outputs, y) == pytest.approx(100 * total, abs=1e-9)


def test_perplexity_of_one_answer_in_so_many_is_so_many() -> None:
    assert measured("perplexity", torch.zeros(5, 7), torch.arange(5)) == pytest.approx(7)
    # Sequences: [samples, classes, tokens]; half of the tokens are certain, half one in four.
    outputs = torch.zeros(2, 4, 6)
    outputs[:, 0, :3] = 1000
    found = measured("perplexity", outputs, torch.zeros(2, 6, dtype=torch.int64))
    assert found == pytest.approx(math.sqrt(4))


def test_errors_of_numbers_are_those_of_scikit_learn_and_of_the_task() -> None:
    outputs, y = normal(1, (30, 1)), normal(2, (30,))
    expected = mean_absolute_error(y.numpy(), outputs[:, 0].numpy())
    assert measured("mae", outputs, y) == pytest.approx(expected)
    assert float(mae(outputs, y).mean()) == pytest.approx(expected)
    expected = root_mean_squared_error(y.numpy(), outputs[:, 0].numpy())
    assert measured("rmse", outputs, y) == pytest.approx(expected)
    assert float(squared_error(outputs, y).mean().sqrt()) == pytest.approx(expected)
    # Several numbers of a sample count alike, and the loss is one value per sample.
    both, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert squared_error(both, targets).tolist() == [2.5, 8.0]
    assert mae(both, targets).tolist() == [1.5, 2.0]


CLASSES = ["balanced_accuracy", "macro_f1", "auroc", "log_loss", "calibration_error"]


def of_numbers() -> Federation:
    data = federation()
    return replace(data, y=data.y.float(), classes=None)


def of_text() -> Federation:
    data = federation()
    return replace(data, x=torch.zeros(len(data.y), 5, dtype=torch.int64))


def test_all_are_those_that_fit_the_data() -> None:
    data = replace(federation(), class_names=("cat", "dog", "cow"))
    recalls = ["recall:cat", "recall:dog", "recall:cow"]
    assert list(metrics_for(["all"], data)) == ["accuracy", *CLASSES, *recalls]
    assert list(metrics_for(["all"], data, "accuracy")) == [*CLASSES, *recalls]
    assert list(metrics_for(["all"], of_text(), "accuracy")) == [
        *(*CLASSES, "perplexity", "recall:0", "recall:1", "recall:2")
    ]
    assert list(metrics_for(["all"], of_numbers())) == ["mae", "rmse"]
    # The task's own metric has its column already, also where it is asked for by name.
    assert list(metrics_for(["all"], of_numbers(), "mae")) == ["rmse"]
    assert list(metrics_for(["mae"], of_numbers(), "mae")) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("auroc", of_numbers()),
        ("recall", of_numbers()),
        ("mae", federation()),
        ("perplexity", federation()),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(name: str, data: Federation) -> None:
    with raises("E202"):
        metrics_for([name], data)
