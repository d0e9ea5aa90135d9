"""FedBN (Li et al., 2021): norm layers stay at home. And FedAvg, whose norm layers do not."""

import pytest
import torch

from masquerade.config import toml as config
from masquerade.config.resolve import resolve, trainings
from masquerade.core import ClientInfo, Cohort, Message, Method, Part, Round, State, Task
from masquerade.core.tree import split
from masquerade.methods import FedAvg, FedBN
from masquerade.models import MLP, ChannelBatchNorm, DigitsCNN
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers.chain import BODY, models, play
from tests.support import SIZES, advance, raises, restored, simulate, simulation

MEAN, SPREAD = "1.running_mean", "1.running_var"
STATISTICS = [[(0.0, 0.0), (2.0, 0.0)], [(4.0, 0.0), (4.0, 0.0), (4.0, 0.0), (8.0, 0.0)]]
"""Two clients whose inputs have means 1 and 5, unbiased variances 2 and 4."""


def statistics(method: Method) -> tuple[Simulation, RunState, list[tuple[float, float]]]:
    """Play a round that moves nothing but statistics; return also (mean, variance) in use."""
    made, progress = play(method, 1, STATISTICS, ChannelBatchNorm(1))
    values = [model["params"].values for model in models(made, progress)]
    return made, progress, [(float(value[MEAN]), float(value[SPREAD])) for value in values]


def assert_statistics_are_each_clients_own(method: Method) -> None:
    # One batch, w = 1, momentum 0.1: the mean becomes 0.9 · 0 + 0.1 · mean, the variance
    # 0.9 · 1 + 0.1 · variance. A: 0.1 and 1.1. B: 0.5 and 1.3.
    _, _, found = statistics(method)
    for pair, expected in zip(found, [(0.1, 1.1), (0.5, 1.3)], strict=True):
        assert pair == pytest.approx(expected)


def test_fedbn_by_hand() -> None:
    assert_statistics_are_each_clients_own(FedBN(lr=0.0, local_epochs=1))
    _, progress, _ = statistics(FedBN(lr=0.0, local_epochs=1))
    assert set(progress.server["params"]) == {BODY}


class StatisticsAveraged(FedBN):
    """Keeps scales and shifts at home, and averages running statistics."""

    def _own(self, task: Task) -> set[str]:
        return set(task.norms) & set(task.parameter_names)

    def server_init(self, task: Task) -> State:
        return {"params": split(task.initial, self._own(task))[1]}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        return {"norms": split(task.initial, self._own(task))[0]}


@pytest.mark.parametrize("wrong", [StatisticsAveraged, FedAvg])
def test_mistake_statistics_are_averaged(wrong: type[Method]) -> None:
    with pytest.raises(AssertionError):
        assert_statistics_are_each_clients_own(wrong(lr=0.0, local_epochs=1))


def assert_statistics_travel(method: Method) -> None:
    """Everybody uses the mean of the statistics, by samples (2 and 4)."""
    # Mean (2 · 0.1 + 4 · 0.5) / 6, variance (2 · 1.1 + 4 · 1.3) / 6.
    _, _, found = statistics(method)
    for pair in found:
        assert pair == pytest.approx((2.2 / 6, 7.4 / 6))


def test_fedavg_averages_and_sends_running_statistics() -> None:
    assert_statistics_travel(FedAvg(lr=0.0, local_epochs=1))


class FirstUploaders(FedAvg):
    """Averages parameters alone; the server's statistics are those of the first upload."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        new, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        _, sent = split(uploads["params"].values, task.parameter_names)
        first = {name: value[0] for name, value in sent.items()}
        return {"params": {**new["params"], **first}}, rows


class NeverSent(FedAvg):
    """Sends parameters alone; the server's statistics are the initial ones."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        up, held = super().finish(task, work, message, client, round)
        if round.kind == "adapt":
            return up, held
        return {"params": Part(split(work["params"], task.parameter_names)[0])}, held

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        new, rows = super().aggregate(task, server, rows, uploads, cohort, round)
        return {"params": {**server["params"], **new["params"]}}, rows


@pytest.mark.parametrize("wrong", [FirstUploaders, NeverSent])
def test_mistake_fedavg_forgets_running_statistics(wrong: type[FedAvg]) -> None:
    with pytest.raises(AssertionError):
        assert_statistics_travel(wrong(lr=0.0, local_epochs=1))


def normed() -> Task:
    """A network for the toy, whose clients of 9 and 5 samples have a last batch of one."""
    assert {size % 4 for size in SIZES} >= {1}
    return Task(MLP(6, (8, 4), 3, norm="batch").double())


def test_scales_and_statistics_of_clients_differ_and_all_else_is_shared() -> None:
    made, progress = simulate(FedBN(local_epochs=1), task=normed(), rounds=3)
    assert not set(made.server.task.norms) & set(progress.server["params"])
    values = [model["params"].values for model in models(made, progress)]
    for name in made.server.task.initial:
        pairs = [torch.equal(values[0][name], other[name]) for other in values[1:]]
        if name not in made.server.task.norms:
            assert all(pairs)
        elif "tracked" not in name:
            assert not any(pairs), name


def test_a_last_batch_of_one_sample_is_trained_on() -> None:
    made = simulation(FedBN(local_epochs=1), task=normed(), participation=1.0)
    progress = made.begin()
    advance(made, progress)
    batches = [-(-size // 4) - (size % 4 == 1) for size in SIZES]
    # Statistics count the batches that had a variance; a single sample moves weights alone.
    name = next(name for name in made.server.task.norms if "tracked" in name)
    assert progress.clients.state["norms"][name].tolist() == batches


def test_a_stopped_run_goes_on_with_the_same_norm_layers() -> None:
    made, whole = simulate(FedBN(local_epochs=1), task=normed(), rounds=4)
    part = made.begin()
    for _ in range(2):
        advance(made, part)
    resumed = restored(made, part.number, part.tensors(), part.facts())
    for _ in range(2):
        advance(made, resumed)
    assert all(torch.equal(value, resumed.tensors()[n]) for n, value in whole.tensors().items())


@pytest.mark.parametrize("given", ["auto", "digits_cnn", "digits_cnn_bn"])
def test_a_configured_run_takes_the_network_with_batch_norm(given: str) -> None:
    tables = {"methods": ["fedbn"], "train": {"model": given}, "data": {"clients": 2}}
    chosen = config.parse(tables)
    made = resolve(chosen, trainings(chosen)[0])
    assert made.train.model == "digits_cnn_bn"
    assert isinstance(made.task.module, DigitsCNN)
    assert made.task.couples_batch


def test_a_network_without_such_a_variant_is_refused() -> None:
    chosen = config.parse({"methods": ["fedbn"], "train": {"model": "logistic"}})
    with raises("E202", "FedBN", "mlp_bn"):
        resolve(chosen, trainings(chosen)[0])
