"""Tables in a run: fitted from sums or by each client, the same in both engines, and counted."""

from dataclasses import replace
from functools import reduce

import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.config.normalize import preprocess_for
from masquerade.config.settings import Data
from masquerade.core import Task
from masquerade.core.preprocess import Scale, Standardize, Unfitted, fitted_on, moved
from masquerade.core.table import FittedTabular, Tabular
from masquerade.methods import DMPFL, FedAvg
from masquerade.simulation.fitting import download, fit, fitted_alone, upload
from masquerade.wire import Stamp, encode
from tests.messages import Golden
from tests.simulation.test_fitting import spec_of
from tests.support import federation as toy
from tests.support import raises, warns
from tests.tables.example import COLUMNS, federation, linear, own_rows

# Clients' models are asked about rows of others too.
pytestmark = pytest.mark.filterwarnings("ignore:W308")

OWN = Tabular(COLUMNS, "median", per_client=True)


def trained(task: nn.Module | Task, engine: str = "loop", data=None, **settings) -> mq.Result:
    compute = mq.Compute(engine=engine)
    own = mq.Evaluate(every=0, degrees=(0,))
    given = {"evaluate": own, "compute": compute} | settings
    return mq.run(FedAvg(local_epochs=1), task, data or federation(), 3, **given)


def test_bytes_of_a_table_are_those_of_the_encoded_messages() -> None:
    data = federation()
    task = Task(linear(), preprocess=Tabular(COLUMNS, "median"))
    spec = replace(spec_of(toy()), federation=data, task=task)
    found = fit(spec)
    step, up, down = spec.task.preprocess, 0, 0
    while isinstance(step, Unfitted):
        messages = [upload(step, own_rows(data, id)) for id in range(3)]
        up += sum(len(encode(each, Stamp(client=id))) for id, each in enumerate(messages))
        sums = [each["statistics"].values for each in messages]
        step = moved(step.fitted(reduce(step.merged, sums)), torch.float32)
        down += len(encode(download(step), Stamp()))
    assert found.up == pytest.approx(up / 3)
    assert found.down == down
    # Histograms are sparse: no more than a count and some bits of a mask for each known value.
    assert found.up < 24 + 8 * 6 + 4 * 5 + 8 * sum(len(own) for own in data.train) * 2 / 3
    sent = ("count", "sum", "deviations", "categories", "histogram", "fractions")
    assert found.sent == sent


def test_a_run_fits_on_all_training_samples_and_no_other() -> None:
    data = federation()
    seen = torch.cat(data.train)
    others = torch.ones(len(data.x), dtype=torch.bool).index_fill(0, seen, value=False)
    changed = replace(data, x=torch.where(others[:, None], 0.0, data.x))
    made = [trained(linear(), data=each).task.preprocess for each in (data, changed)]
    whole = moved(fitted_on(Tabular(COLUMNS, "median"), data.x[seen]), torch.float32)
    assert isinstance(whole, FittedTabular)
    for each in made:
        assert isinstance(each, FittedTabular)
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(each.state_dict()[name], value)


@pytest.mark.parametrize("own", [Tabular(COLUMNS, "median"), OWN], ids=["sums", "own"])
@pytest.mark.parametrize(
    "method", [FedAvg(local_epochs=1), DMPFL(local_epochs=1, first_dense=False)]
)
def test_loop_and_batched_agree_on_tables(method: mq.Method, own: Tabular) -> None:
    data, answers = federation(), []
    for engine in ("loop", "batched"):
        task = Task(linear().double(), preprocess=own)
        settings = {"evaluate": mq.Evaluate(every=0, degrees=(0,)), "batch_size": 5}
        compute = mq.Compute(engine=engine)
        result = mq.run(method, task, data, 3, compute=compute, **settings)
        answers.append(torch.cat([result.client(id).predict(data.x) for id in range(3)]))
    assert answers[0].isfinite().all()
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-9, atol=1e-9)


def test_each_client_fits_on_its_own_samples_and_sends_nothing() -> None:
    data = federation()
    result = trained(Task(linear(), preprocess=OWN))
    for id in range(3):
        alone = moved(fitted_alone(OWN, own_rows(data, id)), torch.float32)
        assert isinstance(alone, FittedTabular)
        mine = result.client(id).task.preprocess
        assert isinstance(mine, FittedTabular)
        assert torch.equal(mine.mean, alone.mean)
        # What a client is used with is what it was evaluated with.
        right = result.client(id).predict(data.x[data.test[id]]).argmax(1) == data.y[data.test[id]]
        (summary, *_) = result.summaries
        assert summary.per_client is not None
        assert summary.per_client.own[id] == pytest.approx(float(right.double().mean()) * 100)
    said = result.summaries[0].preprocessing
    assert said is not None
    assert (said.bytes.down, said.bytes.up, said.sent, said.per_client) == (0, 0, (), True)
    means = {float(result.client(id).task.preprocess.mean[0]) for id in range(3)}
    assert len(means) == 3


def test_novel_clients_fit_on_their_own_samples_too() -> None:
    data = federation()
    # A novel client whose numbers are on another scale is as easy as before, fitted by itself.
    moved = replace(data, x=data.x.clone())
    own = torch.cat([part[2] for part in (data.train, data.validation, data.test)])
    moved.x[own, 0] = 4 * data.x[own, 0] - 64
    found = [
        trained(Task(linear(), preprocess=OWN), data=each, novel=(2,)) for each in (data, moved)
    ]
    one, other = (each.summaries[0].novel for each in found)
    assert one is not None
    assert other is not None
    assert one.accuracy.own.mean == other.accuracy.own.mean


def test_shift_is_left_out_with_a_warning_where_clients_fit_their_own(golden: Golden) -> None:
    task = Task(linear(), preprocess=OWN)
    with warns("W309") as heard:
        result = trained(task, evaluate=mq.Evaluate(every=0))
    golden(next(each.message for each in heard if str(each.message).startswith("W309")))
    assert set(result.summaries[0].accuracy.shift) <= {"0", "averaged"}


def test_images_may_be_standardized_per_client_too() -> None:
    data = toy()
    spec = spec_of(data, own=Standardize(per_client=True))
    empty = replace(spec.federation, train=(data.train[0][:0], *data.train[1:]))
    found = fit(replace(spec, federation=empty))
    own = data.x[data.train[1]].double()
    assert found.own[1].mean.tolist() == own.mean(0).float().tolist()
    assert found.own[0].std.tolist() == [1] * data.x.shape[1]
    assert (found.down, found.up) == (0, 0)


def test_tables_are_standardized_and_encoded_by_default_and_a_task_may_say_otherwise() -> None:
    assert isinstance(trained(linear()).task.preprocess, FittedTabular)
    assert isinstance(trained(Task(linear())).task.preprocess, FittedTabular)
    complete = replace(federation(), x=federation().x.nan_to_num(), impute="")
    given = Task(nn.Linear(4, 2), preprocess=Scale())
    assert type(trained(given, data=complete).task.preprocess) is Scale


def test_a_first_layer_of_another_width_is_refused_with_both() -> None:
    with raises("E202"):
        trained(nn.Linear(4, 2))


def test_missing_values_need_a_table_that_imputes() -> None:
    data = federation()
    with raises("E302"):
        trained(linear(), data=replace(data, impute=""))
    with raises("E302"):
        preprocess_for(Data(normalize="standard"), data)


def test_what_is_not_fitted_cannot_be_fitted_per_client() -> None:
    for text in ("auto", "unit", "0.5:0.5"):
        with raises("E202"):
            preprocess_for(Data(normalize=text, normalize_per_client=True), toy())
    made = preprocess_for(Data(normalize_per_client=True), federation())
    assert isinstance(made, Tabular)
    assert made.per_client
    with raises("E202"):
        preprocess_for(Data(normalize="table"), toy())
