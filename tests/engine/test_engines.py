"""Engines in trouble: errors, dropout, BatchNorm, plain PyTorch, regression, empty clients."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import masquerade as mq
from masquerade.config.settings import Compute, Evaluate
from masquerade.core import (
    Batch,
    ClientInfo,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    tree,
)
from masquerade.core.random import normal
from masquerade.data import Federation
from masquerade.engine.base import Job
from masquerade.errors import MasqueradeWarning
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import DMPFL, FedAvg
from masquerade.results import Summary
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.state import RunState
from tests import support
from tests.messages import Golden
from tests.support import (
    SIZES,
    advance,
    built,
    federation,
    final,
    network,
    raises,
    toy,
    warns,
)

EMPTY = torch.empty(0, dtype=torch.int64)
each_engine = pytest.mark.parametrize("engine", ["loop", "batched"])
simulate: Callable[..., tuple[Simulation, RunState]] = support.simulate
simulation: Callable[..., Simulation] = support.simulation


def world(
    method: Method, task: Task, data: Federation, rounds: int = 3, **compute: Any
) -> Simulation:
    """A simulation of any data, with batches of 4."""
    return built(
        method,
        task,
        data,
        rounds=rounds,
        batch_size=4,
        lr_decay=0.97,
        evaluate=Evaluate(every=0, draws=2),
        compute=Compute(**compute),
        seed=5,
    )


def own_of(summary: Summary) -> tuple[float | None, ...]:
    """Every client's figure on its own data."""
    assert summary.per_client is not None
    return summary.per_client.own


def finish(made: Simulation) -> RunState:
    progress = made.begin()
    while progress.number < made.spec.train.rounds:
        advance(made, progress)
    made.close()
    return progress


def assert_same(left: RunState, right: RunState) -> None:
    """Bit for bit."""
    one, two = left.tensors(), right.tensors()
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    assert left.costs == right.costs


def assert_close(left: RunState, right: RunState) -> None:
    """Equal to rounding."""
    one, two = left.tensors(), right.tensors()
    assert one.keys() == two.keys()
    for name, value in one.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, two[name], rtol=1e-9, atol=1e-9, msg=name)
    for kind, sums in support.owed(left.costs).items():
        assert support.owed(right.costs)[kind] == pytest.approx(sums, rel=1e-12)


class Broken(Exception):
    """What a user's own code raises."""


@dataclass(frozen=True, kw_only=True)
class Breaking(Method):
    """FedAvg in two stages that breaks at client 3, at a place of choice."""

    local_epochs: int = 1
    place: str = "step"

    def client_init(self, task: Task, info: ClientInfo) -> State:
        return {"id": torch.tensor(info.id)}

    def check(self, place: str, work: State) -> State:
        if place == self.place and int(work["id"]) == 3:
            raise Broken(place)
        return work

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        work = super().start(task, message, client, round)
        return self.check("start", {**work, "id": client["id"], "count": torch.tensor(0)})

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        descent = self.sgd_step(task)

        def step(work: State, batch: Batch, round: Round) -> State:
            if int(work["count"]) == 4:
                self.check("step", work)
            return {**descent(work, batch, round), "count": work["count"] + 1}

        return (
            Stage("first", step),
            Stage(
                "second",
                step,
                begin=lambda work, round: self.check("begin", work),
                then=lambda work, round: self.check("then", work),
            ),
        )

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        # More than the trial before the first round has.
        if self.place == "predict" and len(x) > 5:
            raise Broken("predict")
        return super().predict(task, personal, x)


# Client 3 has 9 samples, three steps an epoch: its fifth step is step 1 of the second stage.
@pytest.mark.parametrize(
    ("place", "note"),
    [
        ("start", "in client 3, stage `start`, step 0"),
        ("step", "in client 3, stage `second`, step 1"),
        ("then", "in client 3, stage `second`, step 2"),
        ("begin", "in client 3, stage `second`, step 0"),
    ],
)
def test_an_error_names_client_stage_and_step(place: str, note: str) -> None:
    made = simulation(Breaking(place=place), participation=1.0)
    with pytest.raises(Broken) as caught:
        finish(made)
    assert caught.value.__notes__ == [note]


def test_an_error_names_its_client_from_another_process() -> None:
    broken = toy(Breaking(), participation=1.0, processes=2)
    with pytest.raises(Broken) as caught, simulating(broken) as made:
        finish(made)
    assert "in client 3, stage `second`, step 1" in caught.value.__notes__


def test_a_broken_step_is_found_by_the_trial_and_shown_by_the_loop() -> None:
    with warns("W501"):
        made = simulation(Breaking(), participation=1.0, engine="batched")
    with pytest.raises(Broken) as caught:
        finish(made)
    assert caught.value.__notes__ == ["in client 3, stage `second`, step 1"]


def test_an_error_in_use_names_the_client() -> None:
    made = simulation(Breaking(place="predict"), rounds=1)
    progress = finish(made)
    with pytest.raises(Broken) as caught:
        final(made, progress)
    assert any("client 0" in note for note in getattr(caught.value, "__notes__", []))


DROPPY = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


@dataclass(frozen=True, kw_only=True)
class Twice(Method):
    """FedAvg in two stages, so that something may happen between them."""

    local_epochs: int = 1

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        step = self.sgd_step(task)
        return Stage("first", step), Stage("second", step, epoch=1)


each_dropout = pytest.mark.parametrize(
    "method", [FedAvg(local_epochs=2), Twice()], ids=["one", "two"]
)


@each_dropout
@pytest.mark.parametrize("processes", [2, 5])
def test_dropout_gives_the_same_bits_for_any_number_of_processes(
    method: Method, processes: int
) -> None:
    _, alone = simulate(method, task=Task(DROPPY), rounds=2)
    _, together = simulate(method, task=Task(DROPPY), rounds=2, processes=processes)
    assert_same(alone, together)


@each_dropout
def test_dropout_gives_the_same_bits_in_any_order_of_clients(method: Method) -> None:
    found = []
    for order in ([0, 1, 3, 4], [4, 0, 3, 1]):
        made = simulation(method, task=Task(DROPPY))
        progress, ids = made.begin(), torch.tensor(order)
        job = Job(
            progress.server,
            progress.rows.take(ids),
            progress.clients.take(ids),
            progress.session.take(ids),
            ids,
            made.context.round("train", "train", 0),
            0,
        )
        outcome = made.engine.work(job)
        found.append(tree.take(outcome.uploads, ids.argsort()))
    for left, right in zip(*map(tree.leaves, found), strict=True):
        assert torch.equal(left, right)


def test_dropout_drops() -> None:
    """Otherwise the tests of its bits would say nothing."""
    quiet = nn.Sequential(DROPPY[0], nn.Dropout(0.0), DROPPY[2])
    _, dropped = simulate(FedAvg(local_epochs=1), task=Task(DROPPY), rounds=1)
    _, kept = simulate(FedAvg(local_epochs=1), task=Task(quiet), rounds=1)
    assert not torch.equal(dropped.server["params"]["0.weight"], kept.server["params"]["0.weight"])


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """A step as PyTorch is usually written: numbers on the host, boolean indexing."""

    local_epochs: int = 1

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        descent = self.sgd_step(task)

        def step(work: State, batch: Batch, round: Round) -> State:
            losses, _ = task.losses(work["params"], batch)
            hard = losses > losses.mean().item()
            chosen = Batch(batch.x[hard], batch.y[hard], None, batch.key)
            return descent(work, chosen, round) if len(chosen.y) else work

        return (Stage("hard", step, self.local_epochs),)


UNBATCHABLE: dict[str, tuple[Method, nn.Module]] = {
    "dropout": (FedAvg(local_epochs=1), DROPPY),
    "plain PyTorch": (Plain(), network()),
    "ragged BatchNorm": (
        FedAvg(local_epochs=1),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double(),
    ),
}


def data_of(method: Method) -> Federation:
    """The toy federation, but no batch of one sample, which BatchNorm refuses."""
    data = federation()
    train = tuple(part[: len(part) - (len(part) % 4 == 1)] for part in data.train)
    return replace(data, train=train)


@pytest.mark.parametrize("name", UNBATCHABLE)
def test_a_run_that_cannot_be_batched_is_looped_with_one_warning(name: str) -> None:
    method, model = UNBATCHABLE[name]
    data = data_of(method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = mq.run(method, model, data, 2, batch_size=4, compute=Compute(engine="batched"))
    # So short a training may answer all alike, or change nothing: W310 and W311 warn of that.
    heard = [(one.category, str(one.message)[:4]) for one in caught]
    told = [each for each in heard if each[1] not in ("W310", "W311")]
    assert told == [(MasqueradeWarning, "W501")]
    looped = mq.run(method, model, data, 2, batch_size=4, compute=Compute(engine="loop"))
    for left, right in zip(tree.leaves(found.personal), tree.leaves(looped.personal), strict=True):
        assert torch.equal(left, right)


def test_a_network_with_torch_s_dropout_is_told_of_ours(golden: Golden) -> None:
    batched, method = Compute(engine="batched"), FedAvg(local_epochs=1)
    with warns("W501", "mq.Dropout") as heard:
        mq.run(method, DROPPY, data_of(method), 1, batch_size=4, compute=batched)
    golden(next(each.message for each in heard if str(each.message).startswith("W501")))
    ours = nn.Sequential(nn.Linear(6, 8), mq.Dropout(0.5), nn.Linear(8, 3)).double()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "W501")
        warnings.filterwarnings("ignore", "W31")
        mq.run(method, ours, data_of(method), 1, batch_size=4, compute=batched)


def test_batchnorm_with_full_batches_is_batched_and_equals_the_loop() -> None:
    everything = torch.arange(6 * 8)
    data = replace(federation(), train=tuple(everything.reshape(6, 8)))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    method = FedAvg(local_epochs=2, momentum=0.5, tune_epochs=1)
    made = [world(method, Task(model), data, engine=name) for name in ("loop", "batched")]
    assert [one.engine.name for one in made] == ["loop", "batched"]
    loop, batched = map(finish, made)
    assert_close(loop, batched)
    server = batched.server["params"]
    # Two batches an epoch, two epochs, three rounds; counters are averaged like everything else.
    assert int(server["1.num_batches_tracked"]) == 2 * 2 * 3
    assert server["1.running_mean"].any()
    summaries = [
        final(one, progress)[0] for one, progress in zip(made, (loop, batched), strict=True)
    ]
    for left, right in zip(*summaries, strict=True):
        assert left.accuracy == right.accuracy
        assert left.global_view == right.global_view


@pytest.mark.parametrize("width", [1, 4, 64])
def test_the_width_of_a_chunk_changes_nothing(width: int) -> None:
    method = support.METHOD_TABLE["dmpfl"]
    _, reference = simulate(
        method, rounds=3, participation=1.0, engine="batched", clients_per_chunk=6
    )
    _, other = simulate(
        method, rounds=3, participation=1.0, engine="batched", clients_per_chunk=width
    )
    assert_close(reference, other)


@each_engine
def test_evaluating_in_pieces_changes_no_figure(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = simulation(FedAvg(local_epochs=1, tune_epochs=1), rounds=1, engine=engine)
    progress = finish(made)
    whole, _ = final(made, progress)
    monkeypatch.setattr(f"masquerade.engine.{engine}.EVALUATED", 12)
    pieces, _ = final(made, progress)
    assert [one.per_client for one in pieces] == [one.per_client for one in whole]
    assert [one.accuracy for one in pieces] == [one.accuracy for one in whole]
    assert [one.global_view for one in pieces] == [one.global_view for one in whole]


def test_host_memory_changes_no_bit() -> None:
    method = support.METHOD_TABLE["dmpfl"]
    _, device = simulate(method, rounds=3)
    _, host = simulate(method, rounds=3, store="host")
    assert_same(device, host)


def squared(output: Tensor, y: Tensor) -> Tensor:
    """Squared error of every sample."""
    return (output[:, 0] - y).square()


def absolute(output: Tensor, y: Tensor) -> Tensor:
    """Absolute error of every sample."""
    return (output[:, 0] - y).abs()


@each_engine
def test_a_regression_from_end_to_end(engine: str) -> None:
    x = normal(1, (240, 5))
    y = x @ normal(2, (5,)) + 0.1 * normal(3, (240,))
    data = mq.partition(mq.from_arrays(x, y), clients=12, by=mq.IID(), seed=1)
    assert data.classes is None
    task = mq.Task(nn.Linear(5, 1), loss=squared, metric=absolute, better="lower")
    compute = Compute(engine=engine)
    first, last = (
        mq.run(
            FedAvg(lr=lr, local_epochs=1),
            task,
            data,
            15,
            batch_size=4,
            views=["global"],
            compute=compute,
        )
        for lr in (0.0, 0.05)
    )
    before, after = (result.summaries[0].accuracy.own for result in (first, last))
    # Noise of 0.1 leaves an absolute error of 0.08.
    assert after.mean < 0.15 < before.mean
    summary = last.summaries[0]
    assert (summary.metric, summary.better) == ("absolute", "lower")
    # The bottom decile is the worst end: of twelve clients the one with the second largest error.
    errors = sorted((own for own in own_of(summary) if own is not None), reverse=True)
    assert after.bottom_decile == pytest.approx(errors[1])
    assert errors[1] > after.mean
    own = data.test[3]
    by_hand = (last.client(3).predict(data.x[own])[:, 0] - data.y[own]).abs().double().mean()
    # A batch of clients adds up in another order than one model does.
    assert own_of(summary)[3] == pytest.approx(float(by_hand), rel=1e-5)


def test_the_bottom_decile_of_an_accuracy_is_its_low_end() -> None:
    made = simulation(FedAvg())
    over = Evaluator.of(made).over_clients
    figures = over.describe([50.0, 10.0, 90.0, 80.0, 70.0, 60.0], range(6))
    assert figures.bottom_decile == 10.0
    assert figures.mean == 60.0
    # Weighted by test samples, the larger halves of 7, 12, 3, 9, 16, 5: it is the share of all.
    total = 4 * 50 + 6 * 10 + 2 * 90 + 5 * 80 + 8 * 70 + 3 * 60
    assert figures.weighted == pytest.approx(total / 28)
    # Deviations −10, −50, 30, 20, 10, 0: squares 100 + 2500 + 900 + 400 + 100 = 4000.
    assert figures.std == pytest.approx(math.sqrt(4000 / 6))


def without(split: str, *ids: int, of: Federation | None = None) -> Federation:
    """A federation, the toy unless given, some of whose clients have nothing in one split."""
    data = of or federation()
    parts = [EMPTY if id in ids else part for id, part in enumerate(getattr(data, split))]
    changes: dict[str, Any] = {split: tuple(parts)}
    return replace(data, **changes)


@each_engine
def test_a_client_without_training_data_is_never_sampled(engine: str) -> None:
    made = world(FedAvg(local_epochs=1), Task(network()), without("train", 0, 3), 4, engine=engine)
    assert {
        id for number in range(50) for id in made.server.participation.cohort(number).tolist()
    } == {1, 2, 4, 5}
    progress = made.begin()
    for _ in range(4):
        assert advance(made, progress).clients == (1, 2, 4, 5)
    assert all(value.isfinite().all() for value in tree.leaves(progress.server))


@each_engine
def test_a_client_without_training_data_uses_the_shared_model_untuned(engine: str) -> None:
    method = FedAvg(local_epochs=1, momentum=0.5, weight_decay=0.1, tune_epochs=2)
    made = world(method, Task(network()), without("train", 0, 3), engine=engine)
    progress = finish(made)
    summaries, personal = final(made, progress)
    for id, model in enumerate(personal["tuned"]):
        same = [
            torch.equal(value, progress.server["params"][name])
            for name, value in model["params"].values.items()
        ]
        assert all(same) if id in (0, 3) else not any(same)
    # 6 → 8 → 6 → 3: a step costs 3 · 228 − 96 = 588 for each sample of each of two epochs.
    tuned = sum(SIZES[id] for id in (1, 2, 4, 5))
    adapt = summaries[1].costs.adapt.flops
    assert adapt.dense == adapt.masked == pytest.approx(588 * 2 * tuned / 6)
    assert summaries[0].per_client.samples == (0, 12, 3, 0, 16, 5)


@pytest.mark.parametrize("name", ["fedavg", "dmpfl", "pfedgate"])
def test_engines_agree_about_clients_with_an_empty_split(name: str) -> None:
    method = support.METHOD_TABLE[name]
    data = without("train", 0, of=without("validation", 3, of=without("test", 1)))
    made = [world(method, Task(network()), data, 4, engine=one) for one in ("loop", "batched")]
    assert [one.engine.name for one in made] == ["loop", "batched"]
    loop, batched = map(finish, made)
    assert_close(loop, batched)
    (left, models), (right, others) = (
        final(one, progress) for one, progress in zip(made, (loop, batched), strict=True)
    )
    for one, two in zip(left, right, strict=True):
        assert one.accuracy == two.accuracy
        assert one.global_view == two.global_view
        assert support.owed(one.costs.adapt) == support.owed(two.costs.adapt)
    for value, other in zip(tree.leaves(models), tree.leaves(others), strict=True):
        assert value.isfinite().all()
        torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-9)


@each_engine
def test_a_client_without_test_data_has_no_figure(engine: str) -> None:
    made = world(FedAvg(local_epochs=1), Task(network()), without("test", 1, 5), 2, engine=engine)
    progress = finish(made)
    for summary in final(made, progress)[0]:
        own = own_of(summary)
        assert [id for id, figure in enumerate(own) if figure is None] == [1, 5]
        present = [figure for figure in own if figure is not None]
        assert summary.accuracy.own.mean == pytest.approx(sum(present) / 4)
        assert all(
            math.isfinite(entry.mean) for entry in list(summary.accuracy.shift.values())[:-1]
        )
    assert Evaluator.of(made).on_own_data(progress).views["global"].mean == pytest.approx(
        final(made, progress)[0][0].accuracy.own.mean
    )


def test_a_federation_without_training_data_is_refused() -> None:
    with raises("E303"):
        world(FedAvg(), Task(network()), without("train", *range(6)))


def test_a_federation_without_test_data_is_refused_before_any_work(golden: Golden) -> None:
    with raises("E304") as refusal:
        world(FedAvg(local_epochs=1), Task(network()), without("test", *range(6)), rounds=1)
    golden(refusal.value)


def test_a_loss_that_is_not_one_number_per_sample_is_refused_before_any_work() -> None:
    def square(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (output[:, :1] - y).square()

    for task in (Task(network(), loss=square), Task(network(), metric=square)):
        with raises("E202", "[3, 3]", "3"):
            world(FedAvg(local_epochs=1), task, federation(), rounds=1)


def test_training_whose_updates_leave_the_finite_numbers_is_said_and_counted() -> None:
    made = world(FedAvg(local_epochs=1, lr=1e300), Task(network()), federation(), rounds=2)
    # In round 0 some updates are finite, huge ones; in round 1 none is.
    with warns("W604") as seen:
        progress = finish(made)
    ignored, lost = (str(each.message) for each in seen)
    assert "round 1: values that are not finite; its update is ignored" in ignored
    assert "round 2: no update is finite" in lost
    assert final(made, progress)[0][0].refused == progress.refused > 0


def test_a_state_that_leaves_the_finite_numbers_is_said_and_marked(golden: Golden) -> None:
    """Only a method's own arithmetic can do that: what is not finite is not taken."""

    class Overflowing(FedAvg):
        def aggregate(self, *given: Any) -> Any:
            server, rows = super().aggregate(*given)
            return tree.transform(lambda value: value * math.inf, server), rows

    made = world(Overflowing(local_epochs=1), Task(network()), federation(), rounds=1)
    with warns("W604", "1") as warned:
        progress = finish(made)
    golden(warned[-1].message)
    assert final(made, progress)[0][0].diverged == 0
    fine = world(FedAvg(local_epochs=1), Task(network()), federation(), rounds=1)
    assert final(fine, finish(fine))[0][0].diverged is None


def test_a_method_that_writes_into_what_it_was_given_is_refused() -> None:
    class Careless(FedAvg):
        def start(self, task: Task, message: Message, client: State, round: Round) -> State:
            for value in message["params"].values.values():
                value.mul_(0.5)
            return super().start(task, message, client, round)

    made = support.simulation(Careless(local_epochs=1), rounds=1)
    with pytest.raises(RuntimeError, match="wrote in place"):
        finish(made)


def test_a_round_knows_its_decay() -> None:
    made = simulation(FedAvg(), rounds=8)
    round = made.context.round("train", "train", 3)
    assert float(round.decay) == pytest.approx(0.97**3)
    assert (float(round.number), float(round.rounds)) == (3, 8)
    assert round.decay.dtype is torch.float64


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@each_engine
@pytest.mark.usefixtures("two_threads")
def test_a_run_leaves_torch_as_it_was(engine: str) -> None:
    model, data = network(), federation()
    state = torch.random.get_rng_state()
    mq.run(FedAvg(local_epochs=1), model, data, 1, batch_size=4, compute=Compute(engine=engine))
    with pytest.raises(Broken):
        mq.run(Breaking(), model, data, 1, batch_size=4, compute=Compute(engine="loop"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == 2


def test_a_user_module_and_its_data_are_untouched_by_a_run() -> None:
    model, data = network(torch.float32), federation()
    before = [value.clone() for value in (*model.state_dict().values(), data.x, data.y)]
    mq.run(DMPFL(local_epochs=2), model, data, 4, batch_size=4)
    after = [*model.state_dict().values(), data.x, data.y]
    assert all(map(torch.equal, before, after))


@dataclass(frozen=True, kw_only=True)
class Odd(Method):
    """FedAvg that also sends bits and whole rows of one layer up, and an empty part down."""

    local_epochs: int = 1
    empty: bool = False

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        extra = {"none": Part({})} if self.empty else {}
        return super().download(task, server, row, round) | extra

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        upload, client = super().finish(task, work, message, client, round)
        weight = work["params"]["0.weight"]
        rows = Part({"w": weight}, {"w": weight.sum(1) > 0}, {"w": mq.Axis(0)})
        return upload | {"bits": Part({"b": weight > 0}), "rows": rows}, client


@pytest.mark.parametrize("empty", [False, True])
def test_odd_messages_pass_through_both_engines(empty: bool) -> None:
    made = [
        world(Odd(empty=empty), Task(network()), federation(), engine=one)
        for one in ("loop", "batched")
    ]
    assert made[1].engine.name == "batched"
    loop, batched = map(finish, made)
    assert_close(loop, batched)
    # 48 bits are six bytes beside two flags, 18 times; rows cost at least their flags and a byte.
    plain = finish(world(FedAvg(local_epochs=1), Task(network()), federation(), engine="loop"))
    extra = loop.costs["train"]["up"] - plain.costs["train"]["up"]
    assert extra >= 18 * (6 + 2 + 3)
    assert loop.costs["train"]["down"] - plain.costs["train"]["down"] == 18 * empty


@each_engine
@pytest.mark.parametrize("method", [FedAvg(local_epochs=2), DMPFL(local_epochs=2)], ids=str)
def test_pixels_that_stay_bytes_train_to_the_same_bits(method: Method, engine: str) -> None:
    toy = federation()
    pixels = (toy.x * 40 + 128).clamp(0, 255).to(torch.uint8)
    scaled = torch.from_numpy(pixels.numpy().astype("float32") / 255)
    task = Task(network(torch.float32))
    assert_same(
        *(finish(world(method, task, replace(toy, x=x), engine=engine)) for x in (pixels, scaled))
    )


@each_engine
def test_tokens_that_stay_narrow_train_to_the_same_bits(engine: str) -> None:
    toy = federation()
    tokens = (toy.x * 2).round().clamp(-3, 3).long() + 3
    task = Task(nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(18, 3)).double())
    narrow = replace(toy, x=tokens.to(torch.int8))
    method = FedAvg(local_epochs=2)
    assert_same(
        *(
            finish(world(method, task, each, engine=engine))
            for each in (narrow, replace(toy, x=tokens))
        )
    )
