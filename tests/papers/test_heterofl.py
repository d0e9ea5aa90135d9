"""HeteroFL (ICLR 2021): by hand, replayed with small modules, and usual mistakes shown to fail."""

import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import (
    Batch,
    ClientInfo,
    Message,
    Part,
    Round,
    Stage,
    State,
    Task,
    slicing,
)
from masquerade.core.random import draw, order
from masquerade.core.sgd import Losses
from masquerade.data import Federation
from masquerade.methods import HeteroFL
from masquerade.models import CifarCNN
from tests.papers import reference
from tests.papers.replay import Weights, assert_same, stage
from tests.papers.small import at, averaged, bits, layer, play, rows, units
from tests.support import advance, measure, raises

NARROW = HeteroFL(levels=(0.5,), local_epochs=1, lr=1.0)


def chain(*sizes: int) -> Task:
    """Return the task of a network of linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return Task(nn.Sequential(*layers[:-1]).double())


def begun(method: HeteroFL, task: Task) -> tuple[Message, State]:
    """Return what a client is sent at first, and what it holds."""
    info = ClientInfo(0, 1, 0)
    message = method.download(task, method.server_init(task), method.row_init(task, info), at())
    return message, method.client_init(task, info)


def test_a_step_by_hand() -> None:
    # 1 → 2 → 2 with all weights 1 and no bias; the client has the first hidden unit, r = 1/2.
    # In training the hidden output is (1 · 1) / (1/2) = 2, so both logits are 2 and p = (1/2, 1/2).
    # Slope of the output weights: (p − y) · h = (−1/2, 1/2) · 2 = (−1, 1).
    # Slope of the hidden weight: (−1/2 · 1 + 1/2 · 1) · 2 = 0.
    # At rate 1 the output weights become 2 and 0; without the scaler they would be 1.5 and 0.5.
    task = Task(nn.Sequential(nn.Linear(1, 2, False), nn.ReLU(), nn.Linear(2, 2, False)).double())
    task.initial = {name: torch.ones_like(value) for name, value in task.initial.items()}
    data = Federation(
        "hand",
        torch.ones(2, 1).double(),
        torch.tensor([0, 1]),
        2,
        (torch.tensor([0]),),
        (torch.tensor([], dtype=torch.int64),),
        (torch.tensor([1]),),
    )
    method = replace(NARROW, mask_labels=False)
    message, client = begun(method, task)
    sent = play(method, task, message, data, client=client)["params"]
    assert torch.equal(sent.keep["0.weight"], bits("1", "0"))
    assert torch.equal(sent.keep["2.weight"], bits("10", "10"))
    assert torch.equal(sent.values["0.weight"], rows([1], [0]))
    assert torch.equal(sent.values["2.weight"], rows([2, 0], [0, 0]))


def test_budgets_choose_among_the_levels_that_fit() -> None:
    task = chain(8, 40, 40, 4)
    method = HeteroFL(levels=(1.0, 0.5, 0.25))
    for budget, allowed in ((1.0, {1.0, 0.5, 0.25}), (0.5, {0.5, 0.25}), (0.01, {0.25})):
        drawn = [method.width(task, ClientInfo(id, 1, id, budget)) for id in range(300)]
        assert set(drawn) == allowed
        # Uniformly: each level has its share, to four standard deviations.
        share = 300 / len(allowed)
        assert all(abs(drawn.count(level) - share) < 4 * share**0.5 for level in allowed)


def test_each_client_uses_its_width_and_the_view_full_uses_all() -> None:
    made, _ = stage(replace(NARROW, local_epochs=2), 2)
    progress = made.begin()
    advance(made, progress)
    samples = list(made.federation.test)
    narrow = measure(made, progress, "global", samples).models[0]["params"]
    whole = measure(made, progress, "full", samples).models[0]["params"]
    assert narrow.kept() < whole.kept() == made.server.task.parameters
    assert_same(whole.values, progress.server["params"])


def test_a_task_without_classes_is_refused() -> None:
    square = Task(nn.Linear(2, 1), loss=lambda output, y: (output - y).square().flatten())
    with raises("E202", "`mask_labels`", "method.mask_labels"):
        HeteroFL().server_init(square)
    HeteroFL(mask_labels=False).server_init(square)


@pytest.mark.parametrize("levels", [(), (0.0,), (1.5, 0.5)])
def test_levels_are_widths(levels: tuple[float, ...]) -> None:
    assert HeteroFL(levels=levels).problems()


# Three rounds with modules that are really small


class Small(nn.Module):
    """The leading rows and columns of the reference network, with scalers, in plain PyTorch."""

    def __init__(self, weights: Weights, rate: float) -> None:
        super().__init__()
        sizes = [3, *(len(weights[f"{place}.weight"]) for place in (0, 2, 4))]
        kept = [3, *(-int(-rate * size // 1) for size in sizes[1:-1]), sizes[-1]]
        self.rate, self.layers = rate, nn.ModuleList()
        for place, (before, after) in enumerate(pairwise(kept)):
            linear = nn.Linear(before, after).double()
            linear.weight.data = weights[f"{2 * place}.weight"][:after, :before].clone()
            linear.bias.data = weights[f"{2 * place}.bias"][:after].clone()
            self.layers.append(linear)

    def forward(self, x: Tensor) -> Tensor:
        for linear in list(self.layers)[:-1]:
            x = torch.tanh(linear(x) / self.rate)
        logits: Tensor = self.layers[-1](x)
        return logits


def test_three_rounds_equal_small_modules_in_plain_pytorch() -> None:
    method = HeteroFL(lr=0.3, local_epochs=2, levels=(0.5, 1.0))
    made, world = stage(method, 3)
    rates = [method.width(made.server.task, info) for info in made.server.clients]
    assert len(set(rates)) == 2
    progress, weights = made.begin(), reference.weights_of(world.network)
    for number, cohort in enumerate(world.cohorts):
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        count = copy.deepcopy(total)
        for client in cohort:
            held = world.federation.y[world.federation.train[client]].unique()
            model = Small(weights, rates[client])
            sgd = torch.optim.SGD(model.parameters(), lr=0.3 * world.lr_decay**number)
            for x, y in (pair for epoch in range(2) for pair in world.epoch(client, number, epoch)):
                logits, known = model(x), torch.zeros(3).double()
                known[held] = 1
                sgd.zero_grad()
                cross_entropy(logits * known, y).backward()
                sgd.step()
            for place, linear in enumerate(model.layers):
                lines = held if place == 2 else torch.arange(linear.out_features)
                for kind, value in linear.named_parameters():
                    name = f"{2 * place}.{kind}"
                    for line in lines.tolist():
                        size = value[line].numel()
                        total[name][line].flatten()[:size] += world.share(client) * value.data[line]
                        count[name][line].flatten()[:size] += world.share(client)
        weights = {
            name: torch.where(count[name] > 0, total[name] / count[name].clamp(min=1), old)
            for name, old in weights.items()
        }
        advance(made, progress)
        assert_same(progress.server["params"], weights)


# Usual mistakes


class ShareOfWeights(HeteroFL):
    """Takes a level for the share of the weights."""

    def cut(self, task: Task, width: float) -> slicing.Cut:
        return super().cut(task, width**0.5)


def assert_half_the_width_is_a_quarter(cls: type[HeteroFL]) -> None:
    task = Task(CifarCNN())
    kept = slicing.count(cls().cut(task, 0.5), task.initial)
    assert kept / task.parameters == pytest.approx(0.25, abs=0.01)


def test_a_level_is_a_width_not_a_share_of_the_weights() -> None:
    assert_half_the_width_is_a_quarter(HeteroFL)
    with pytest.raises(AssertionError):
        assert_half_the_width_is_a_quarter(ShareOfWeights)


class ScaledInUse(HeteroFL):
    """Divides the outputs of hidden layers when the model is used, too."""

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        values = personal["params"].values
        scaled = {name: value / 0.5 for name, value in values.items() if name.startswith("0.")}
        return task({**values, **scaled}, x)[0]


def assert_used_as_it_is(cls: type[HeteroFL]) -> None:
    task, x = chain(3, 4, 2), torch.eye(3).double()
    method = cls(levels=(0.5,))
    message, client = begun(method, task)
    personal = method.personalize(task, message, client, "global")
    small = slicing.shrink(task.initial, slicing.widths(task, 0.5))
    torch.testing.assert_close(method.predict(task, personal, x), task(small, x)[0])


def test_the_scaler_is_for_training_only() -> None:
    assert_used_as_it_is(HeteroFL)
    with pytest.raises(AssertionError):
        assert_used_as_it_is(ScaledInUse)


@dataclass(frozen=True, kw_only=True)
class Absent(HeteroFL):
    """Gives the logits of absent classes a value of its own, or leaves them as they are."""

    value: float | None = None

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        look, train = super().plan(task, round)

        def loss(work: State, batch: Batch, round: Round) -> Losses:
            logits, buffers = task(work["params"], batch.x, True, batch.key)
            if self.value is not None:
                logits = torch.where(work["classes"], logits, self.value)
            return cross_entropy(logits, batch.y, reduction="none"), buffers

        return look, replace(train, step=self.sgd_step(task, loss))


def assert_absent_logits_are_zero(method: HeteroFL) -> None:
    """One sample, e₀ of class 0 of three, alone; the rows of the others answer 0 and 5."""
    # Masked to 0, the logits are (0, 0, 0), so p₀ = 1/3 and the first row becomes 2/3. Left out
    # or −∞: p₀ = 1 and nothing moves. As they are: p₀ ≈ 0.007.
    task = layer(rows([0, 0, 0], [0, 0, 0], [5, 0, 0]))
    message, client = begun(method, task)
    sent = play(method, task, message, units(3, [0, 1, 2], [0], []), client=client)["params"]
    torch.testing.assert_close(sent.values["weight"][0], rows([2 / 3, 0, 0])[0])


def test_logits_of_absent_classes_are_zero_in_training() -> None:
    wide = {"levels": (1.0,), "local_epochs": 1, "lr": 1.0}
    assert_absent_logits_are_zero(HeteroFL(**wide))
    assert_absent_logits_are_zero(Absent(**wide, value=0.0))
    for wrong in (-torch.inf, None):
        with pytest.raises(AssertionError):
            assert_absent_logits_are_zero(Absent(**wide, value=wrong))


class EveryRow(HeteroFL):
    """Sends all rows of the output layer."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        return {"params": Part(work["params"], work["keep"])}, client


def assert_rows_come_from_owners(cls: type[HeteroFL]) -> None:
    """Two clients with classes {0} and {1} of three; each row is averaged over its owners."""
    task = layer(torch.zeros(3, 3).double())
    method = cls(levels=(1.0,), local_epochs=1, lr=1.0)
    message, client = begun(method, task)
    uploads = [
        play(method, task, message, units(3, [0, 1, 2], [id], []), client=client)["params"]
        for id in (0, 1)
    ]
    new = averaged(method, task, {"params": task.initial}, uploads, [1, 1], at())
    # Each owner's own row gets 2/3 at its own input; the other client has no say, and nobody has
    # one in the third row.
    third = 2 / 3
    expected = rows([third, 0, 0], [0, third, 0], [0, 0, 0])
    torch.testing.assert_close(new["params"]["weight"], expected)


def test_output_rows_are_averaged_over_the_owners_of_the_class() -> None:
    assert_rows_come_from_owners(HeteroFL)
    with pytest.raises(AssertionError):
        assert_rows_come_from_owners(EveryRow)


class AnyChannels(HeteroFL):
    """Draws a client's channels at random."""

    def cut(self, task: Task, width: float) -> slicing.Cut:
        kept = {}
        for name, value in slicing.units(task, task.initial).items():
            ranks = order(int(draw(int(1000 * width), 1)), len(value))
            kept[name] = ranks < width * len(value)
        return slicing.cut_of(slicing.expand(task, kept))


def assert_levels_are_nested(cls: type[HeteroFL]) -> None:
    task, method = chain(6, 32, 32, 3), cls(levels=(1.0, 0.5, 0.25))
    wide, half, quarter = (
        slicing.keep(slicing.widths(task, 1.0) | method.cut(task, level), task.initial)
        for level in method.levels
    )
    for name in wide:
        assert not (half[name] & ~wide[name]).any()
        assert not (quarter[name] & ~half[name]).any()
    assert half["0.bias"].tolist() == [True] * 16 + [False] * 16


def test_widths_are_nested_leading_channels() -> None:
    assert_levels_are_nested(HeteroFL)
    with pytest.raises(AssertionError):
        assert_levels_are_nested(AnyChannels)
