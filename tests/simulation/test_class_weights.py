"""Class weights that clients' labels decide: by hand, what they cost, and the same everywhere."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import masquerade as mq
from masquerade.core.round import Batch
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.results import Bytes
from masquerade.simulation.class_weights import balanced, download, upload, weigh
from masquerade.wire import Stamp, encode
from tests.support import METHOD_TABLE, federation, network, raises, specified


def spec_of(data: Federation, novel: tuple[int, ...] = (), weights: str = "balanced"):
    method = mq.methods.FedAvg(local_epochs=1)
    train = {"rounds": 2, "batch_size": 4, "class_weights": weights}
    return specified(method, Task(network()), data, seed=5, views=("global",), novel=novel, **train)


def test_balanced_weights_by_hand() -> None:
    # Of 8 labels in 3 classes: 8 / (3 · 6), 8 / (3 · 2), and one that is not there counts as one.
    assert balanced(torch.tensor([6, 2, 0])).tolist() == pytest.approx([8 / 18, 8 / 6, 8 / 3])


def test_every_class_has_the_same_share_in_the_loss() -> None:
    counts = torch.tensor([70, 20, 10])
    shares = balanced(counts) * counts
    assert shares.tolist() == pytest.approx([100 / 3] * 3)


def test_they_come_from_the_training_labels_of_those_who_can_take_part() -> None:
    data, novel = federation(), (1, 4)
    own = torch.cat([index for id, index in enumerate(data.train) if id not in novel])
    expected = balanced(torch.bincount(data.y[own], minlength=3))
    assert weigh(spec_of(data, novel)).weights.tolist() == expected.tolist()
    assert weigh(spec_of(data)).weights.tolist() != expected.tolist()
    assert weigh(spec_of(data, weights="none")).weights is None


def test_bytes_are_those_of_the_encoded_messages() -> None:
    spec = spec_of(federation(), (1,))
    found, data = weigh(spec), spec.federation
    messages = {id: upload(data.y[data.train[id]], 3) for id in (0, 2, 3, 4, 5)}
    sent = [len(encode(message, Stamp(client=id))) for id, message in messages.items()]
    assert found.up == sum(sent) / 5
    assert found.down == len(encode(download(found.weights), Stamp()))


def test_the_loss_of_a_sample_is_weighed_in_training_alone() -> None:
    weights = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    data, plain = federation(), Task(network())
    task = plain.with_class_weights(weights)
    batch = Batch(data.x[:9], data.y[:9], None, torch.tensor(0))
    outputs, _ = plain(plain.initial, batch.x)
    expected = cross_entropy(outputs, batch.y, reduction="none")
    weighed = expected * weights[batch.y]
    torch.testing.assert_close(task.losses(task.initial, batch)[0], weighed)
    torch.testing.assert_close(task.loss(task.initial, batch)[0], weighed.mean())
    torch.testing.assert_close(task.losses(task.initial, batch, train=False)[0], expected)
    # Without weights nothing changes, to the bit.
    assert torch.equal(plain.loss(plain.initial, batch)[0], cross_entropy(outputs, batch.y))


def trained(name: str, engine: str, weights: str) -> mq.Result:
    return mq.run(
        METHOD_TABLE[name],
        network(),
        federation(),
        2,
        batch_size=4,
        class_weights=weights,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        compute=mq.Compute(engine=engine),
    )


@pytest.mark.parametrize("name", ["fedavg", "heterofl"])
def test_engines_weigh_alike(name: str) -> None:
    found = [trained(name, engine, "balanced") for engine in ("loop", "batched")]
    plain = trained(name, "loop", "none")
    x, view = federation().x[:20], plain.summaries[0].view
    one, two, other = (each.client(0, view).predict(x) for each in (*found, plain))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(one, other, rtol=1e-3)


def test_a_summary_says_what_they_were_and_cost() -> None:
    summary = trained("fedavg", "loop", "balanced").summaries[0]
    spec = spec_of(federation())
    found = weigh(spec)
    assert summary.class_weights.weights == tuple(found.weights.tolist())
    assert summary.class_weights.bytes == Bytes(found.down, found.up)
    assert trained("fedavg", "loop", "none").summaries[0].class_weights is None


def test_targets_that_are_no_classes_are_refused() -> None:
    data = federation()
    numbers = replace(data, y=data.y.double(), classes=None)
    with raises("E202", "class_weights"):
        spec_of(numbers)
    with raises("E201", "class_weights"):
        trained("fedavg", "loop", "equal")
