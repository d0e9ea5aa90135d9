"""A client's model in Python: probabilities, labels, and an export with all that is known."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.export import predict, sparse
from tests.support import raises

X = torch.linspace(-1, 1, 120).reshape(40, 3)
METHOD = mq.methods.Local(local_epochs=1)
WORDS = ("no", "yes")


def trained(task: nn.Module | mq.Task, classes: tuple[str, ...] = WORDS) -> mq.Personal:
    data = mq.partition(mq.from_arrays(X, torch.arange(40) % 2), 2, mq.IID())
    return mq.run(METHOD, task, replace(data, class_names=classes), 1).client(1)


@pytest.fixture(scope="module")
def mine() -> mq.Personal:
    return trained(nn.Linear(3, 2))


def test_probabilities_and_labels_are_those_of_the_outputs(mine: mq.Personal) -> None:
    outputs = mine.predict(X)
    assert torch.equal(mine.predict_proba(X), outputs.softmax(-1))
    assert mine.predict_label(X).tolist() == [WORDS[best] for best in outputs.argmax(-1).tolist()]
    numbered = trained(nn.Linear(3, 2), ())
    assert set(numbered.predict_label(X)) <= {0, 1}


LABELS = {
    "numbers": np.arange(40) % 2,
    "other numbers": 3 + 4 * (np.arange(40) % 2),
    "floats": np.arange(40) % 2 + 1.0,
    "booleans": np.arange(40) % 2 == 0,
    "words": np.array(WORDS * 20),
    "words of digits": np.array(["0", "1"] * 20),
}


@pytest.mark.filterwarnings("ignore:W305", "ignore:W308", "ignore:W310")
@pytest.mark.parametrize("source", ["frame", "arrays"])
@pytest.mark.parametrize("kind", LABELS)
def test_labels_can_be_compared_with_those_that_were_given(
    kind: str, source: str, tmp_path: Path
) -> None:
    y = LABELS[kind]
    if source == "frame":
        dataset = mq.from_frame(pandas.DataFrame(X.numpy()).assign(y=y), label="y")
    elif kind == "other numbers":
        pytest.skip("classes of arrays are counted from 0")
    else:
        dataset = mq.from_arrays(X, y)
    model = nn.Linear(3, 2)
    result = mq.run(METHOD, model, mq.partition(dataset, 2, mq.IID()), 1)
    result.save(tmp_path / "saved")
    loaded = mq.load_result(tmp_path / "saved", method=METHOD, model=model)
    assert isinstance(loaded, mq.Result)
    for found in (result, loaded):
        labels = found.client(1).predict_label(X)
        right = (
            found.client(1).predict(X).argmax(-1).numpy() == np.unique(y, return_inverse=True)[1]
        )
        # Whatever the model learned, comparing labels says how often it is right.
        assert np.array_equal(labels == y, right)
        assert set(labels.tolist()) <= set(y.tolist())


def test_an_output_that_is_no_class_of_the_data_has_its_number() -> None:
    wide = nn.Linear(3, 4)
    with torch.no_grad():
        wide.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 50.0]))
    assert set(trained(wide).predict_label(X)) == {"3"}
    assert set(trained(wide, ()).predict_label(X)) == {3}


def test_a_model_with_a_loss_of_its_own_has_no_labels() -> None:
    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, y, reduction="none")

    own = trained(mq.Task(nn.Linear(3, 2), loss=loss))
    for ask in (own.predict_proba, own.predict_label):
        with raises("E202"):
            ask(X)


def test_a_bundle_has_labels_and_a_card_without_being_told(
    mine: mq.Personal, tmp_path: Path
) -> None:
    mine.export(tmp_path / "bundle")
    bundle = predict.open_bundle(tmp_path / "bundle")
    assert bundle.manifest["labels"] == list(WORDS)
    outputs = predict.predict(bundle, X.numpy())
    answered = [each["label"] for each in predict.answers(bundle, outputs)]
    assert answered == mine.predict_label(X).tolist()
    card = (tmp_path / "bundle" / "card.md").read_text()
    assert "IID() over 2 clients, seed 0, split 0.6, 0.2, 0.2" in card
    assert re.search(r"client \| 1, with \d+ training samples", card)


def test_other_formats_are_files_as_the_command_writes_them(
    mine: mq.Personal, tmp_path: Path
) -> None:
    mine.export(tmp_path / "dense.safetensors", format="dense")
    (read,) = sparse.read(tmp_path / "dense.safetensors")
    params = mine.parts["params"].values
    assert all(torch.equal(read[name], params[name]) for name in params)
    for format, code in (("sliced_", "E201"), ("seeded", "E202")):
        with raises(code):
            mine.export(tmp_path / "other", format=format)
    with raises("E201"):
        mine.export(tmp_path / "other", format="dense", compare=True)
    assert not (tmp_path / "other").exists()


def test_reprs_are_short_and_say_whose_it_is(mine: mq.Personal) -> None:
    found = [mine, mine.models.task, mine.models.federation, mine.summary]
    assert all(len(repr(each)) < 120 and "tensor" not in repr(each) for each in found)
    assert "client 1" in repr(mine)
    assert "Linear, 8 parameters" in repr(mine.models.task)
    assert "Local" in repr(mine.summary)


def test_a_lambda_lends_its_name_to_no_table() -> None:
    metric = trained(mq.Task(nn.Linear(3, 2), metric=lambda output, y: output[:, 0])).summary.metric
    assert metric == "metric"


def test_samples_may_be_a_frame_without_names_or_an_array_that_is_read_only(
    mine: mq.Personal,
) -> None:
    frame = pandas.DataFrame(np.asarray(X))
    assert torch.equal(mine.predict(frame), mine.predict(X))
    array = X.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(mine.predict(array), mine.predict(X))
