"""Preprocessing that clients' data decide: who is asked, what it costs, and that all agree."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import masquerade as mq
from masquerade.config.resolve import TrainingSpec
from masquerade.core import Task
from masquerade.core.preprocess import Normalize, Standardize
from masquerade.data import Federation
from masquerade.methods import FedAvg
from masquerade.results import Bytes
from masquerade.simulation.build import build
from masquerade.simulation.fitting import download, fit, upload
from masquerade.wire import Stamp, encode
from tests import support
from tests.support import METHOD_TABLE, federation, network, raises, simulate, specified

CHECKED = ("fedavg", "dmpfl", "fedmask", "pfedgate", "fedem", "heterofl", "fedselect")


def spec_of(data: Federation, novel: tuple[int, ...] = (), own: nn.Module | None = None):
    task = Task(network(torch.float32), preprocess=own or Standardize())
    method, rounds = FedAvg(local_epochs=1), {"rounds": 2, "batch_size": 4}
    return specified(method, task, data, seed=5, views=("global",), novel=novel, **rounds)


def constants(spec: TrainingSpec) -> list[list[float]]:
    found = fit(spec).preprocess
    assert isinstance(found, Normalize)
    return [found.mean.tolist(), found.std.tolist()]


def test_it_is_fitted_on_the_training_samples_of_all_clients() -> None:
    data = federation()
    own = data.x[torch.cat(data.train)].double()
    expected = [own.mean(0), own.std(0, correction=0)]
    assert constants(spec_of(data)) == [each.float().tolist() for each in expected]


def test_novel_clients_and_samples_not_for_training_do_not_matter() -> None:
    data, novel = federation(), (1, 4)
    apart = constants(spec_of(data, novel))
    assert apart != constants(spec_of(data))
    seen = torch.cat([index for id, index in enumerate(data.train) if id not in novel])
    others = torch.ones(len(data.x), dtype=torch.bool).index_fill(0, seen, value=False)
    changed = replace(data, x=torch.where(others[:, None], 1e6, data.x))
    assert constants(spec_of(changed, novel)) == apart


def test_bytes_are_those_of_the_encoded_messages() -> None:
    spec = spec_of(federation(), (1,))
    found = fit(spec)
    data, standard = spec.federation, Standardize()
    messages = {id: upload(standard, data.x[data.train[id]]) for id in (0, 2, 3, 4, 5)}
    sent = [len(encode(message, Stamp(client=id))) for id, message in messages.items()]
    assert found.up == sum(sent) / 5
    assert found.down == len(encode(download(found.preprocess), Stamp()))
    # A header of 24, a flag for the part, one for each tensor: then 8 bytes for 1 + 6 + 6 numbers
    # up, and 4 for 6 + 6 down.
    assert (found.up, found.down) == (24 + 1 + 3 + 8 * 13, 24 + 1 + 2 + 4 * 12)


def test_a_client_without_training_samples_sends_nothing_and_is_told() -> None:
    data = federation()
    empty = replace(data, train=(data.train[0][:0], *data.train[1:]))
    found, whole = fit(spec_of(empty)), fit(spec_of(data))
    assert found.up == whole.up * 5 / 6
    assert found.down == whole.down


def test_what_is_fitted_already_costs_nothing() -> None:
    found = fit(spec_of(federation(), own=Normalize(0.5, 0.5)))
    assert (found.down, found.up) == (0, 0)


def test_threads_change_no_bit() -> None:
    x = torch.rand(5000, 1, 20, 20, generator=torch.Generator().manual_seed(1))
    threads, found = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(upload(Standardize(), x)["statistics"].values)
    torch.set_num_threads(threads)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("name", CHECKED)
def test_loop_and_batched_agree_under_standardized_inputs(name: str) -> None:
    method = METHOD_TABLE[name]
    states, made = [], []
    for engine in ("loop", "batched"):
        task = Task(support.network_of(method), preprocess=Standardize())
        one, state = simulate(method, task=task, rounds=4, engine=engine)
        states.append(state.tensors())
        made.append(one)
    loop, batched = (one.fitting.preprocess for one in made)
    assert made[1].engine.name == "batched"
    assert torch.equal(loop.mean, batched.mean)
    for key, value in states[0].items():
        if key.startswith("session/version/"):
            continue
        if value.is_floating_point():
            torch.testing.assert_close(value, states[1][key], rtol=1e-9, atol=1e-9, msg=key)
        else:
            assert torch.equal(value, states[1][key]), key


def bytes_of_clients() -> Federation:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 200, (60, 3, 4, 4), generator=generator).to(torch.uint8)
    y = (x[:, 0].double().mean((1, 2)) > 100).long()
    return mq.partition(mq.from_arrays(x, y), 4, "iid", seed=1)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_standardizing_in_the_run_is_standardizing_before_it(engine: str) -> None:
    data = bytes_of_clients()
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
    own = data.x[torch.cat(data.train)].double() / 255
    by_hand = Normalize(own.mean((0, 2, 3)).tolist(), own.std((0, 2, 3), correction=0).tolist())
    answers = []
    for preprocess in (Standardize(), by_hand):
        task = Task(layers, preprocess=preprocess)
        result = mq.run(FedAvg(local_epochs=1), task, data, 3, compute=mq.Compute(engine=engine))
        answers.append(result.client(0).predict(data.x[:5]))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-9, atol=1e-9)


class Imputed(nn.Module):
    """Puts the mean of what is known in the place of −1."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, self.mean.to(x.dtype), x)


class Impute:
    """The same before it is known: what another use of the protocol looks like."""

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("not fitted")

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        known = x >= 0
        return {"count": known.double().sum(0), "sum": torch.where(known, x, 0).double().sum(0)}

    def fitted(self, total: dict[str, Tensor]) -> nn.Module:
        return Imputed(total["sum"] / total["count"])


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_whatever_sums_decide_can_be_fitted(engine: str) -> None:
    data = federation()
    task = Task(network(), preprocess=Impute())
    result = mq.run(FedAvg(local_epochs=1), task, data, 2, compute=mq.Compute(engine=engine))
    own = data.x[torch.cat(data.train)]
    means = [float(column[column >= 0].mean()) for column in own.T]
    assert result.task.preprocess.mean.tolist() == pytest.approx(means)
    assert result.summaries[0].preprocessing.text == "samples go through `Imputed`"


def test_a_summary_says_what_is_not_the_default() -> None:
    data, told = federation(), []
    for own in (None, Normalize(0.5, 0.25), Standardize()):
        result = mq.run(FedAvg(local_epochs=1), Task(network(), preprocess=own), data, 1)
        told.append(result.summaries[0].preprocessing)
    assert told[0] is None
    assert told[1].bytes == Bytes(0, 0)
    assert "mean 0.5 is subtracted" in told[1].text
    assert told[2].bytes == Bytes(24 + 1 + 2 + 8 * 12, 24 + 1 + 3 + 8 * 13)


def test_a_run_that_goes_on_is_fitted_to_the_same_bits(tmp_path: Path) -> None:
    data = federation()

    def go_on(rounds: int, where: Path | None, own: nn.Module) -> mq.Result:
        task = Task(network(), preprocess=own)
        compute = mq.Compute(engine="loop", commit_every=0.0)
        return mq.run(FedAvg(local_epochs=1), task, data, rounds, compute=compute, out=where)

    whole = go_on(3, None, Standardize()).client(0).parts["params"].values
    first = go_on(3, tmp_path / "run", Standardize())
    again = go_on(3, tmp_path / "run", Standardize())
    for result in (first, again):
        values = result.client(0).parts["params"].values
        assert all(torch.equal(values[name], whole[name]) for name in whole)
    with raises("E402", "preprocess"):
        go_on(3, tmp_path / "run", Normalize(0.5, 0.5))


def test_tokens_cannot_be_standardized() -> None:
    data = replace(federation(), x=torch.ones(104, 6, dtype=torch.int64))
    with raises("E202", "tokens"):
        build(spec_of(data))
