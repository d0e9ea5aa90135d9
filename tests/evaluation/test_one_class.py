"""Models that answer with one class: who is counted, and what is said of it."""

import warnings
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import masquerade as mq
from masquerade.core.regression import mae, squared_error
from masquerade.evaluation.one_class import may_be_one_class, one_number
from tests.messages import Golden
from tests.support import federation, warns


def constant() -> nn.Module:
    """A network that answers class 1, whatever it is asked."""
    net = nn.Linear(6, 3, dtype=torch.float64)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    return net


def trained(
    model: nn.Module | mq.Task, data: mq.Federation, novel: tuple[int, ...] = ()
) -> mq.Result:
    evaluate = mq.Evaluate(every=0, degrees=(0,))
    compute = mq.Compute(engine="loop")
    method = mq.methods.FedAvg(lr=1e-9, local_epochs=1)
    return mq.run(method, model, data, 1, novel=novel, evaluate=evaluate, compute=compute)


def differing(data: mq.Federation) -> tuple[int, ...]:
    return tuple(id for id, own in enumerate(data.test) if len(set(data.y[own].tolist())) > 1)


def test_clients_whose_labels_differ_are_counted_and_told_of() -> None:
    data = federation()
    # Client 4 is tested on one class alone: one answer may be all there is to say.
    data = replace(data, test=(*data.test[:4], data.test[4][:1], data.test[5]))
    expected = differing(data)
    assert 4 not in expected
    with warns("W310", f"{len(expected)} of 6"):
        found = trained(constant(), data)
    assert [each.per_client.one_class for each in found.summaries] == [expected] * 2


def test_novel_clients_are_counted_too() -> None:
    with warns("W310"):
        found = trained(constant(), federation(), novel=(4,)).summaries[0]
    assert found.novel.clients.one_class == (4,)
    assert 4 not in found.per_client.one_class


def test_a_model_that_tells_classes_apart_is_not_counted() -> None:
    data = federation()
    # The label is the first feature.
    x = nn.functional.one_hot(data.y, 6).to(data.x.dtype)
    net = nn.Linear(6, 3, dtype=data.x.dtype)
    with torch.no_grad():
        net.weight.copy_(9 * torch.eye(3, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trained(net, replace(data, x=x))
    assert [each.per_client.one_class for each in found.summaries] == [(), ()]


class OneNumber(nn.Module):
    """A linear network of which the bias alone is left."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(6, 1, dtype=torch.float64), weight

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.linear(x) + self.linear.bias


def regression(weight: float) -> mq.Task:
    return mq.Task(OneNumber(weight), squared_error, mae, better="lower")


def numbers() -> mq.Federation:
    data = federation()
    return replace(data, y=data.x[:, 0].clone() + 100, classes=None)


def test_a_regression_that_answers_one_number_is_counted_and_told_of(golden: Golden) -> None:
    data = numbers()
    with warns("W310", "6 of 6") as heard:
        found = trained(regression(0.0), data)
    assert [each.per_client.one_class for each in found.summaries] == [tuple(range(6))] * 2
    golden(heard[0].message)
    # Where the targets of a client do not differ, one number is right.
    y = data.y.clone()
    y[data.test[2]] = 7.0
    with warns("W310", "5 of 6"):
        found = trained(regression(0.0), replace(data, y=y))
    assert 2 not in found.summaries[0].per_client.one_class


def test_a_regression_that_tells_samples_apart_is_not_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trained(regression(1e-2), numbers())
    assert found.summaries[0].per_client.one_class == ()


def test_numbers_that_differ_by_rounding_alone_are_alike() -> None:
    assert one_number(torch.tensor([[1.0], [1.0 + 1e-7]], dtype=torch.float64))
    assert not one_number(torch.tensor([[1.0], [1.001]]))
    assert not one_number(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
    assert not one_number(torch.tensor([[1.0], [float("nan")]]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6))
def test_outputs_are_asked_for_wherever_one_answer_is_possible(
    pairs: list[tuple[int, int]],
) -> None:
    y, answers = torch.tensor(pairs).T
    if len(set(answers.tolist())) == 1:
        assert may_be_one_class(y, y == answers)
    right = y == answers
    possible = any(torch.equal(y == label, right) for label in range(4))
    assert may_be_one_class(y, right) == possible
