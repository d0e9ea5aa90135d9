"""What a newcomer may get wrong in `mq.run` and beside it is refused with a code."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import masquerade as mq
from tests.support import federation, network, raises, warns

pytestmark = pytest.mark.usefixtures("plain_pages")
METHOD = mq.methods.FedAvg(local_epochs=1)
X, Y = torch.linspace(0, 1, 120).reshape(40, 3), torch.arange(40) % 2
DATASET = mq.from_arrays(X, Y)


class Net(nn.Linear):
    """A class that is given where an instance is wanted."""


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("fedavg", network(), federation()), "mq.methods.FedAvg()"),
        (("DMPFL", network(), federation()), "mq.methods.DMPFL()"),
        (("fedagv", network(), federation()), "`fedavg`"),
        ((mq.methods.FedAvg, network(), federation()), "FedAvg()"),
        ((3, network(), federation()), "mq.methods"),
        ((network(), METHOD, federation()), "mq.methods"),
        ((METHOD, federation(), network()), "swapped"),
        ((METHOD, DATASET, network()), "swapped"),
        ((METHOD, Net, federation()), "Net(...)"),
        ((METHOD, "mlp", federation()), "mq.models.build"),
        ((METHOD, None, federation()), "nn.Module"),
        ((METHOD, network(), DATASET), "mq.partition"),
        ((METHOD, network(), "digits"), "mq.load"),
        ((METHOD, network(), DataLoader(TensorDataset(X, Y))), "mq.from_arrays"),
        ((METHOD, network(), [X, Y]), "mq.from_arrays"),
    ],
)
def test_another_kind_of_argument_is_refused_with_what_to_write(
    given: tuple[Any, Any, Any], wanted: str
) -> None:
    with raises("E201", wanted):
        mq.run(*given, rounds=1)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda **key: mq.run(METHOD, network(), federation(), **key), {"round": "rounds"}),
        (lambda **key: mq.run(METHOD, network(), federation(), **key), {"lr": "FedAvg"}),
        (mq.Compute, {"width": "clients_per_chunk"}),
        (mq.Compute, {"process": "processes"}),
        (mq.Evaluate, {"foo": "degrees"}),
        (mq.Stage, {"keep": "masks"}),
        (mq.Stage, {"epoch_": "epochs"}),
        (mq.methods.FedAvg, {"lrr": "lr"}),
        (mq.methods.FedAvg, {"foo": "local_epochs"}),
        (mq.methods.FedAvg, {"learning_rate": "`lr`"}),
        (mq.methods.FedAvg, {"num_rounds": "`mq.run(rounds=...)`"}),
        (mq.methods.FedAvg, {"num_clients": "`mq.partition(clients=...)`"}),
        (mq.Compute, {"learning_rate": "`mq.methods.FedAvg(lr=...)`"}),
        (partial(METHOD.sgd_step, mq.Task(network())), {"learning_rate": "`lr`"}),
        (partial(mq.sgd_step, mq.Task(network()), lr=0.1), {"wihtin": "within"}),
    ],
)
def test_an_unknown_key_is_refused_with_those_there_are(make: Any, wanted: dict[str, str]) -> None:
    ((key, known),) = wanted.items()
    with raises("E201", f"`{key}`", known):
        make(**{key: 1})


def test_an_old_value_is_refused_with_what_it_is_called() -> None:
    with raises("E201", "'full'", "'same'"):
        mq.run(METHOD, network(), federation(), 1, message_dtype="full")


@pytest.mark.parametrize(
    "split", [(0.8, 0.2), (1.0,), (0.8, 0.1, 0.05, 0.05), (0.5, 0.2, 0.2), (0.0, 0.5, 0.5)]
)
def test_shares_that_are_not_three_that_sum_to_one_are_refused(split: Any) -> None:
    with raises("E201", "`split`"):
        mq.partition(DATASET, clients=2, by=mq.IID(), split=split)


@pytest.fixture(scope="module")
def personal() -> mq.Personal:
    data = mq.partition(DATASET, clients=2, by=mq.IID())
    return mq.run(METHOD, nn.Linear(3, 2), data, rounds=1).client(0)


@pytest.mark.parametrize("make", [np.asarray, torch.Tensor.tolist, torch.Tensor.double], ids=str)
def test_a_model_answers_whatever_torch_makes_a_tensor_of(personal: mq.Personal, make: Any) -> None:
    expected = personal.predict(X[:5])
    found = personal.predict(make(X[:5]))
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected)


def test_whole_numbers_are_numbers_where_a_network_reads_numbers(personal: mq.Personal) -> None:
    expected = personal.predict(torch.tensor([[0.0, 1.0, 2.0]]))
    assert torch.equal(personal.predict([[0, 1, 2]]), expected)
    assert torch.equal(personal.predict(np.array([[0, 1, 2]])), expected)


@pytest.mark.parametrize("x", [X[0], X[:, :2], X[None], "text", None, 3.0], ids=str)
def test_samples_of_another_shape_are_refused_with_the_shape_wanted(
    personal: mq.Personal, x: Any
) -> None:
    with raises("E202", "`x`", "[n, 3]"):
        personal.predict(x)


def test_pixels_may_come_as_bytes_or_as_whole_numbers_of_a_list() -> None:
    x = (torch.arange(24).reshape(8, 3) * 10).to(torch.uint8)
    data = mq.partition(mq.from_arrays(x, torch.arange(8) % 2), clients=2, by=mq.IID())
    personal = mq.run(
        mq.methods.FedAvg(local_epochs=1), nn.Linear(3, 2), data, 1, batch_size=2
    ).client(0)
    expected = personal.predict(x[:2])
    for given in (x[:2].tolist(), x[:2].numpy().astype("int64")):
        assert torch.equal(personal.predict(given), expected)
    # Floats are taken as the network reads them.
    torch.testing.assert_close(personal.predict(x[:2] / 255), expected)


@pytest.mark.parametrize(
    "given",
    [
        {"methods": ["fedavg"]},
        {"methods": [mq.methods.FedAvg]},
        {"methods": mq.methods.FedAvg()},
        {"model": "mlp"},
        {"federation": "digits"},
        {"seeds": 2},
        {"seed": 2},
        {"views": ["global"]},
        {"evaluate": {"every": 1}},
        {"rules": [print]},
        {"callbacks": [print]},
        {"callbacks": mq.Callback()},
    ],
    ids=lambda given: "-".join(given),
)
def test_what_compare_does_not_take_is_refused_before_any_work(given: dict[str, Any]) -> None:
    usual = {"methods": [METHOD], "model": network(), "federation": federation(), "rounds": 1}
    with raises("E201"):
        mq.compare(**usual | given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mq.run(METHOD, network(), federation(), 1, views=3),  # type: ignore[arg-type]
        lambda: mq.run(METHOD, network(), federation(), 1, budgets=3),  # type: ignore[arg-type]
        lambda: mq.run(METHOD, network(), federation(), 1, rules={"a": 3}),  # type: ignore[dict-item]
        lambda: mq.Task(nn.Linear),  # type: ignore[arg-type]
        lambda: mq.Task("mlp"),  # type: ignore[arg-type]
        lambda: mq.partition(X, 2, mq.IID()),  # type: ignore[arg-type]
        lambda: mq.partition(DATASET, "2", mq.IID()),  # type: ignore[arg-type]
        lambda: mq.partition(DATASET, 2.0, mq.IID()),  # type: ignore[arg-type]
        lambda: mq.partition(DATASET, 2, mq.IID(), split=0.8),  # type: ignore[arg-type]
        lambda: mq.partition(DATASET, 2, mq.IID(), split=None),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_another_kind_is_refused_with_a_code(make: Any) -> None:
    with raises("E201"):
        make()


def test_a_metric_that_returns_one_number_is_refused() -> None:
    task = mq.Task(nn.Linear(3, 2), metric=lambda output, y: 3.0)  # type: ignore[arg-type,return-value]
    with raises("E202", "`metric`"):
        mq.run(METHOD, task, mq.partition(DATASET, 2, mq.IID()), 1)


def test_rows_of_one_name_are_refused() -> None:
    methods = {"A": METHOD, "A (tuned)": mq.methods.FedAvg(lr=0.2)}
    with raises("E202", "A (tuned)"):
        mq.compare(methods, network(), federation(), 1)


def test_a_program_that_trains_something_else_does_not_go_on(tmp_path: Any) -> None:
    def go(**more: Any) -> None:
        model = more.pop("model", network())
        mq.run(METHOD, model, federation(), 1, batch_size=4, out=tmp_path / "run", **more)

    def tripled(output: Any, y: Any) -> Any:
        return 3 * nn.functional.cross_entropy(output, y, reduction="none")

    go()
    for other in ({"novel": [0]}, {"model": mq.Task(network(), tripled)}):
        with raises("E402"):
            go(**other)
    go()


def test_data_that_name_their_clients_are_partitioned_by_them() -> None:
    named = mq.from_arrays(X, Y, ["ann", "bob", "cid", "dot"] * 10)
    for federation_ in (mq.partition(named), mq.partition(named, by="client", seed=3)):
        assert federation_.names == ("ann", "bob", "cid", "dot")
    with raises("E202", "`iid`"):
        mq.partition(DATASET)


def test_a_warning_points_at_the_line_that_called() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    data = mq.partition(DATASET, 2, mq.IID())
    compute = mq.Compute(engine="batched")
    with warns("W501") as heard:
        mq.run(METHOD, model, data, 1, compute=compute)
    (found,) = [each for each in heard if "W501" in str(each.message)]
    assert found.filename == __file__
