"""FedMask: by hand, against a second text of Algorithm 1, and beside versions with known errors."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from masquerade.core import (
    Batch,
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    Task,
    client_round,
)
from masquerade.core.random import draw, fold
from masquerade.core.tree import State, Tree, named, stack
from masquerade.cost.flops import Meter, shares
from masquerade.methods import FedAvg, FedMask
from masquerade.methods.fedmask import group_norms
from masquerade.models import CharLSTM, DigitsCNN, MnistCNN, RowLSTM, build
from masquerade.wire import decode, encode, nbytes
from tests.papers import reference, replay
from tests.support import advance, final, raises, simulate

WHO = ClientInfo(0, 1, 0)


def at(kind: str = "train") -> Round:
    phase = ("personal", False) if kind == "adapt" else kind
    return Round(kind, phase, torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1.0))


def two_weights(**settings: Any) -> tuple[FedMask, Task]:
    """Make a model of one output and two inputs, W = (2, −1), with the loss (y − target)²."""
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    task = Task(model, loss=lambda output, y: ((output - y) ** 2).flatten())
    plain = {
        "weights": "drawn",
        "scores": "equal",
        "scale": 0.001,
        "group_lasso": 0.0,
        "pruned_layers": 0,
        "lr": 1.0,
        "local_epochs": 1,
    }
    return FedMask(**plain | settings), task


def step(method: FedMask, task: Task, bits: list[bool], x: list[float], y: float) -> Tensor:
    """Take one step from some bits; return the scores."""
    message = {"params": Part({}), "bits": Part({"weight": torch.tensor([bits])})}
    work = method.start(task, message, method.client_init(task, WHO), at())
    (stage,) = method.plan(task, at())
    target = torch.tensor([[y]], dtype=torch.float64)
    batch = Batch(torch.tensor([x], dtype=torch.float64), target, None, torch.tensor(0))
    scores: Tensor = stage.step(stage.prepare(work, at()), batch, at())["scores"]["weight"]
    return scores


def assert_the_forward_pass_is_hard(method: FedMask, task: Task) -> None:
    # Bits (1, 0), c = 0, x = (1, 1), target 1. Hard: y = 2·1 + (−1)·0 = 2, so ∂L/∂y = 2(2 − 1) = 2.
    # ∂L/∂m = ∂L/∂y · x ⊙ W = (4, −2)              (Eq. 4)
    # Ψ = σ(c)(1 − σ(c)) = 1/4 up to 1e-6 at c = 0.001, and the step is −(1, −1/2)    (Eq. 7, 8)
    scores = step(method, task, [True, False], [1.0, 1.0], 1.0)
    torch.testing.assert_close(
        scores[0], torch.tensor([0.001 - 1.0, -0.001 + 0.5]).double(), rtol=0, atol=1e-5
    )


def test_a_step_by_hand() -> None:
    # The zero bit gets a gradient too, and comes back: after the step the bits are (0, 1).
    assert_the_forward_pass_is_hard(*two_weights())


def test_a_soft_forward_pass_is_another_step() -> None:
    with pytest.raises(AssertionError):
        assert_the_forward_pass_is_hard(*two_weights(forward="soft"))
    # Soft: y = 2·½ − 1·½ = ½, ∂L/∂y = −1, ∂L/∂m = (−2, 1), a quarter of it is (−½, ¼).
    scores = step(*two_weights(forward="soft"), [True, False], [1.0, 1.0], 1.0)
    expected = torch.tensor([0.001 + 0.5, -0.001 - 0.25]).double()
    torch.testing.assert_close(scores[0], expected, rtol=0, atol=1e-3)


def test_rate_over_scale_decides_when_a_bit_flips() -> None:
    # From +c, against a slope of 1/4 · 4 = 1: it takes one step once rate · 1 > c.
    for lr, flips in ((0.0009, False), (0.0011, True)):
        scores = step(*two_weights(lr=lr), [True, False], [1.0, 1.0], 1.0)
        assert bool(scores[0, 0] < 0) is flips


SPREAD = {"scores": "spread", "scale": 0.6, "weights": "scaled", "lr_schedule": "cosine"}


def test_scores_are_spread_by_hand() -> None:
    # |w| / mean − 1 of the sizes 1, 2, 3, 6, whose mean is 3: −⅔, −⅓, 0, 1. The bits of the last
    # two are on. Four entries share the scale 0.6: each size is 0.6 / √4 = 0.3 of it.
    model = nn.Linear(2, 2).double()
    model.weight.data = torch.tensor([[1.0, -2.0], [-3.0, 6.0]], dtype=torch.float64)
    task, method = Task(model), FedMask(pruned_layers=0, **SPREAD)
    message = method.download(task, method.server_init(task), method.row_init(task, WHO), at())
    assert message["bits"].values["weight"].tolist() == [[False, False], [True, True]]
    assert message["bits"].values["bias"].all()
    work = method.start(task, message, method.client_init(task, WHO), at())
    expected = torch.tensor([[-0.2, -0.1], [0.0, 0.3]]).double()
    torch.testing.assert_close(work["scores"]["weight"], expected)
    torch.testing.assert_close(work["scores"]["bias"], torch.full((2,), 0.6 / 2**0.5).double())
    # A bit that the server turned keeps its distance, on the other side.
    turned = {name: ~bits for name, bits in message["bits"].values.items()}
    anew = replace(method, keep_scores=False)
    work = anew.start(task, {**message, "bits": Part(turned)}, {"structure": {}}, at())
    torch.testing.assert_close(work["scores"]["weight"], -expected)


def test_a_client_keeps_its_scores_where_it_receives_the_bits_that_it_had() -> None:
    # Its bits are (1, 1, 0, 0), it receives (1, 0, 1, 0), and c = 0.1: two begin anew.
    model = nn.Linear(4, 1, bias=False).double()
    task = Task(model)
    method = FedMask(pruned_layers=0, scores="equal", scale=0.1)
    bits = torch.tensor([[True, False, True, False]])
    message = {"params": Part({}), "bits": Part({"weight": bits})}
    own = {"weight": torch.tensor([[0.7, 0.02, -0.3, -0.01]]).double()}
    client = {"structure": {}, "scores": own}
    work = method.start(task, message, client, at())
    expected = torch.tensor([[0.7, -0.1, 0.1, -0.01]]).double()
    torch.testing.assert_close(work["scores"]["weight"], expected)
    # Of a fraction the side counts that its bit would be on: a half is a one.
    shares = {"weight": torch.tensor([[0.5, 0.25, 0.75, 0.0]]).double()}
    fractions = replace(method, round_mean=False)
    work = fractions.start(task, {**message, "bits": Part(shares)}, client, at())
    expected = torch.tensor([[0.7, -0.05, 0.05, -0.01]]).double()
    torch.testing.assert_close(work["scores"]["weight"], expected)


def test_weights_make_up_for_the_inputs_that_are_off() -> None:
    # Half of eight inputs are on at first, and a quarter of those is kept: ±√(2 / 1).
    task = Task(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    method = FedMask(pruned_layers=1, density=0.25, **SPREAD)
    sizes = {name: float(value.abs().mean()) for name, value in method.frozen(task).items()}
    assert sizes["0.weight"] == pytest.approx((2 / 4) ** 0.5)
    assert sizes["1.weight"] == pytest.approx(2**0.5)
    signed = replace(method, weights="signed").frozen(task)
    assert float(signed["1.weight"].abs().mean()) == pytest.approx((2 / 8) ** 0.5)


def test_the_learning_rate_of_scores_falls_over_a_round_and_that_of_real_weights_does_not() -> None:
    task = Task(nn.Linear(2, 2))
    stages = FedMask(pruned_layers=0, lr=0.4, local_epochs=4, **SPREAD).plan(task, at())
    lrs = [stage.step.lrs for stage in stages]
    # ½ (1 + cos(π e / 4)) for e = 0, 1, 2, 3.
    expected = [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]
    assert [scores for scores, _ in lrs] == pytest.approx([0.4 * share for share in expected])
    assert {real for _, real in lrs} == {0.4}
    assert [stage.epoch for stage in stages] == [0, 1, 2, 3]


def rest(method: Method, task: Task, bits: Tree) -> Tree:
    """Send bits to a client that takes no step; return what it sends back."""
    message = {"params": Part(method.server_init(task)["params"]), "bits": Part(bits)}
    client = method.client_init(task, WHO)
    upload, _ = client_round(method, task, message, client, lambda stage: (), at())
    return upload["bits"].values


def assert_bits_survive_a_round_without_a_step(method: FedMask) -> None:
    task = Task(DigitsCNN())
    bits = {name: task.initial[name] > 0 for name in method.masked(task)}
    back = rest(method, task, bits)
    assert all(torch.equal(bits[name], back[name]) for name in bits)


@dataclass(frozen=True, kw_only=True)
class Copied(FedMask):
    """Bits 0 and 1 become the scores 0 and 1."""

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        work = super().start(task, message, client, round)
        bits = message["bits"].values
        return {**work, "scores": {name: value.to(task.dtype) for name, value in bits.items()}}


def test_zeros_are_not_copied_into_scores() -> None:
    assert_bits_survive_a_round_without_a_step(FedMask())
    with pytest.raises(AssertionError):
        assert_bits_survive_a_round_without_a_step(Copied())


def assert_every_layer_has_bits(method: FedMask) -> None:
    task = Task(DigitsCNN())
    sent = method.download(task, method.server_init(task), method.row_init(task, WHO), at())
    assert sent["bits"].values.keys() == task.initial.keys()


@dataclass(frozen=True, kw_only=True)
class Trailing(FedMask):
    """Only dense layers have bits."""

    def masked(self, task: Task) -> list[str]:
        return [name for name in super().masked(task) if name.startswith("fc")]


def test_convolutions_are_masked_too() -> None:
    assert_every_layer_has_bits(FedMask())
    with pytest.raises(AssertionError):
        assert_every_layer_has_bits(Trailing())


def structure(
    method: FedMask, scores: list[float], first: tuple[float, ...] = (0.5, 0.5, 0.5)
) -> list[bool]:
    """Prune three weights 1, −4, 2 with some scores, which began as others, to two of them."""
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = torch.tensor([[1.0, -4.0, 2.0]], dtype=torch.float64)
    task = Task(model)
    (stage,) = method.setup(task, at("setup"))
    work = {"scores": scores, "first": list(first)}
    trees = {key: {"weight": torch.tensor([row]).double()} for key, row in work.items()}
    found = stage.then(trees, at("setup"))
    kept: list[bool] = found["structure"]["weight"][0].tolist()
    return kept


def pruner(cls: type[FedMask] = FedMask, prune_by: str = "size") -> FedMask:
    return cls(
        density=0.7, pruned_layers=1, prune_by=prune_by, weights="drawn", scores="equal", scale=0.5
    )


def assert_weights_take_part_in_pruning(method: FedMask) -> None:
    # W · m^r = (3, −2, 1): the two largest in size are the first and the second.
    assert structure(method, [3.0, 0.5, 0.5]) == [True, True, False]
    # W · m^r = (1, −4, 2), the scores being equal.
    assert structure(method, [1.0, 1.0, 1.0]) == [False, True, True]


@dataclass(frozen=True, kw_only=True)
class ByScore(FedMask):
    """Pruning looks at scores and not at the weights they stand for."""

    def _worth(self, weight: Tensor, scores: Tensor, first: Tensor) -> Tensor:
        return scores


def test_pruning_is_by_weight_times_score() -> None:
    assert_weights_take_part_in_pruning(pruner())
    with pytest.raises(AssertionError):
        assert_weights_take_part_in_pruning(pruner(ByScore))


def test_the_papers_other_readings_of_pruning() -> None:
    # Change from c = ½: W · (m^r − ½) = (2.5, 0, 0.2).
    assert structure(pruner(prune_by="change"), [3.0, 0.5, 0.6]) == [True, False, True]
    # A client that comes late begins with zeros of the aggregate, at −½: what did not move from
    # there has not changed. W · change = (0.1, 0, 0.2).
    late = structure(pruner(prune_by="change"), [0.6, -0.5, 0.6], (0.5, -0.5, 0.5))
    assert late == [True, False, True]
    # Value: W · m^r = (3, −2, 1).
    assert structure(pruner(prune_by="value"), [3.0, 0.5, 0.5]) == [True, False, True]


EQUAL = {
    "scores": "equal",
    "weights": "signed",
    "lr_schedule": "constant",
    "keep_scores": False,
    "keep_off": False,
}
SMALL = {"local_epochs": 2, "lr": 0.1, "scale": 1e-4, "momentum": 0.5, "weight_decay": 1e-3}
SMALL |= EQUAL  # With spread scores nothing of so small a network grows back.


def assert_pruned_entries_stay_out(method: FedMask) -> None:
    _, progress = simulate(method, rounds=4)
    rows = progress.rows.state
    for name, keep in rows["structure"].items():
        assert keep.flatten(1).sum(1).tolist() == [int(0.2 * keep[0].numel() + 1e-9)] * 6
        assert not (rows["bits"][name] & ~keep).any()


@dataclass(frozen=True, kw_only=True)
class Regrown(FedMask):
    """What was pruned is trained on, and comes back."""

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        whole = {name: torch.ones_like(keep) for name, keep in client["structure"].items()}
        return {**super().start(task, message, client, round), "structure": whole}

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        server, new = super().aggregate(task, server, rows, uploads, cohort, round)
        return server, {**new, "bits": uploads["bits"].values}


def test_what_is_pruned_neither_passes_nor_grows_back() -> None:
    # Momentum and weight decay are on: they leak through masks that only zero a gradient.
    assert_pruned_entries_stay_out(FedMask(**SMALL))
    with pytest.raises(AssertionError):
        assert_pruned_entries_stay_out(Regrown(**SMALL))


def one_tensor(count: int) -> tuple[Task, State]:
    """Make a task of one row of weights and a server that has defined nothing; all bits are on."""
    task = Task(nn.Linear(count, 1, bias=False))
    return task, FedMask(pruned_layers=1, scores="equal").server_init(task)


def aggregated(
    method: FedMask, bits: list[list[int]], held: list[list[int]], samples: list[int]
) -> tuple[State, State, Task]:
    task, server = one_tensor(len(bits[0]))
    # Structures of any size: those over their budget would have no say.
    method = replace(method, density=1.0, pruned_layers=1)
    masks = [{"weight": torch.tensor([row]).bool()} for row in held]
    sent = [{"weight": torch.tensor([row]).bool()} for row in bits]
    rows = stack([{"structure": one, "bits": own} for one, own in zip(masks, sent, strict=True)])
    uploads = {"params": Part({}), "bits": Part(stack(sent))}
    cohort = Cohort(torch.arange(len(bits)), torch.tensor(samples), len(bits), len(bits))
    server, rows = method.aggregate(task, server, rows, uploads, cohort, at())
    return server, rows, task


def assert_bits_are_averaged_over_structures(method: FedMask) -> None:
    # Five clients hold the position, two of them with a one: 2/5 rounds to 0.
    server, _, _ = aggregated(method, [[1], [1], [0], [0], [0]], [[1]] * 5, [1] * 5)
    assert server["bits"]["weight"].tolist() == [[False]]


@dataclass(frozen=True, kw_only=True)
class OfOnes(FedMask):
    """The server averages ones where at least two clients have a one."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        ones = {**rows, "structure": uploads["bits"].values}
        return super().aggregate(task, server, ones, uploads, cohort, round)


def test_overlap_is_of_structures_and_not_of_ones() -> None:
    assert_bits_are_averaged_over_structures(FedMask())
    with pytest.raises(AssertionError):
        assert_bits_are_averaged_over_structures(OfOnes())


def test_aggregation_by_hand() -> None:
    # Three clients with 1, 1 and 2 samples; columns are positions.
    #   structure     bits          mean                        aggregate
    #   1 1 1 0 0     1 1 0 0 0     position 0: (1+0+2)/4 = ¾   1
    #   1 1 0 1 0     0 1 0 1 0     position 1: (1+1)/2 = 1     1   the third does not hold it
    #   1 0 1 0 0     1 0 1 0 0     position 2: (0+2)/3 = ⅔     1   by samples: unweighted, a tie
    #                               position 3: one holder      untouched, undefined
    #                               position 4: no holder       untouched, undefined
    held = [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 0]]
    bits = [[1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [1, 0, 1, 0, 0]]
    server, rows, _ = aggregated(FedMask(), bits, held, [1, 1, 2])
    assert server["defined"]["weight"].int().tolist() == [[1, 1, 1, 0, 0]]
    assert server["bits"]["weight"][0, :3].int().tolist() == [1, 1, 1]
    after = rows["bits"]["weight"][:, 0].int().tolist()
    assert after == [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 0]]


def test_half_is_a_one_and_the_larger_client_decides() -> None:
    tie, _, _ = aggregated(FedMask(), [[1], [0]], [[1], [1]], [1, 1])
    assert bool(tie["bits"]["weight"])
    larger, _, _ = aggregated(FedMask(), [[1], [0]], [[1], [1]], [1, 3])
    assert not bool(larger["bits"]["weight"])


def assert_clients_get_masks_of_their_own(method: FedMask) -> None:
    held, bits = [[1, 1, 0], [1, 0, 1]], [[0, 1, 0], [0, 0, 1]]
    server, rows, task = aggregated(method, bits, held, [1, 1])
    got = []
    for id in range(2):
        row = {key: {"weight": rows[key]["weight"][id]} for key in ("structure", "bits")}
        message = method.download(task, server, row, at())
        got.append(message["bits"].values["weight"].int().tolist())
    # Position 0 is shared; the others belong to one client each and keep its bits.
    assert got == [[[0, 1, 0]], [[0, 0, 1]]]


@dataclass(frozen=True, kw_only=True)
class Same(FedMask):
    """Everybody is handed the server's mask."""

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        return {"params": Part(server["params"]), "bits": Part(server["bits"])}


def test_everybody_gets_a_mask_of_their_own() -> None:
    assert_clients_get_masks_of_their_own(FedMask())
    with pytest.raises(AssertionError):
        assert_clients_get_masks_of_their_own(Same())


@pytest.mark.parametrize(("receive", "expected"), [("current", [1, 1]), ("last", [0, 1])])
def test_a_client_that_was_away_gets(receive: str, expected: list[int]) -> None:
    """The aggregate of today, or the mask that it left with; what is undefined stays its own."""
    task, server = one_tensor(2)
    server = {**server, "defined": {"weight": torch.tensor([[True, False]])}}
    row = {"structure": {}, "bits": {"weight": torch.tensor([[False, True]])}}
    message = FedMask(receive=receive).download(task, server, row, at())
    assert message["bits"].values["weight"].int().tolist() == [expected]


def dead_inputs_keep_bits(group_lasso: float) -> bool:
    """Train on data whose second input is always zero; tell whether its column keeps a bit."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    task = Task(model)
    plain = {"pruned_layers": 0, "scale": 1e-4, "local_epochs": 1, **EQUAL}
    method = FedMask(group_lasso=group_lasso, **plain)
    x = torch.randn(40, 10, 3, generator=generator) * torch.tensor([1.0, 0.0, 1.0])
    key = torch.tensor(0)
    batches = [Batch(part, (part[:, 0] > 0).long(), None, key) for part in x]
    row, client = method.row_init(task, WHO), method.client_init(task, WHO)
    message = method.download(task, method.server_init(task), row, at())
    upload, _ = client_round(method, task, message, client, lambda stage: batches, at())
    bits = upload["bits"].values["0.weight"]
    assert bits[:, 0].any()
    return bool(bits[:, 1].any())


def test_the_group_lasso_empties_columns_that_nothing_needs() -> None:
    assert not dead_inputs_keep_bits(2e-4)
    # Without it their bits have no reason to move.
    assert dead_inputs_keep_bits(0.0)


def test_the_group_lasso_by_hand() -> None:
    # σ(0) = ½ everywhere in a 2 × 3 matrix: two rows of norm ½√3, three columns of norm ½√2.
    half = torch.full((2, 3), 0.5)
    assert float(group_norms({"weight": half})) == pytest.approx(3**0.5 + 1.5 * 2**0.5)
    # Filters and channels: two of norm ½√12 and three of norm ½√8; a bias has no groups.
    assert float(
        group_norms({"weight": half[..., None, None].expand(2, 3, 2, 2)})
    ) == pytest.approx(12**0.5 + 1.5 * 8**0.5)
    assert group_norms({"bias": torch.ones(5)}) == 0


def messages(method: Method, task: Task) -> tuple[Message, Message]:
    """Return what travels down and up in a round, without training."""
    server, row = method.server_init(task), method.row_init(task, WHO)
    down = method.download(task, server, row, at())
    client = method.client_init(task, WHO)
    up, _ = client_round(method, task, down, client, lambda stage: (), at())
    return down, up


def test_a_round_costs_a_thirty_second_of_fedavgs_both_ways() -> None:
    task = Task(build("cifar_cnn", (3, 32, 32), 10, seed=1))
    assert task.parameters == 797_962
    pairs = zip(messages(FedMask(), task), messages(FedAvg(), task), strict=True)
    for ours, theirs in pairs:
        # Bits of which half are ones, anywhere, are those that cannot be coded any shorter.
        drawn = {
            name: (draw(fold(1, name), bits.numel()) > 0).reshape(bits.shape)
            for name, bits in ours["bits"].values.items()
        }
        ours = {**ours, "bits": Part(drawn)}
        assert nbytes(ours) <= nbytes(theirs) / 31
        assert nbytes(ours) >= task.parameters / 8


def test_the_structure_crosses_once_at_the_hello_and_is_counted_apart() -> None:
    made, progress = simulate(FedMask(**SMALL), rounds=3)
    assert progress.costs["setup"]["up"] > 0
    task, exchanges = made.server.task, 3 * len(made.server.participation.cohort(0))
    # Bits per tensor: 48, 8, 48, 6, 18, 3; packed to bytes they are the most that is sent. Two
    # parts have a header and flags, each of six tensors two flags and its number of ones.
    most = (6 + 1 + 6 + 1 + 3 + 1) + 24 + 2 + 6 * 3
    assert 0 < progress.costs["train"]["up"] <= exchanges * most
    # The setup carries the structure of the last two layers and the kept bits alone.
    kept = FedMask().counts(task)
    assert kept == {"2.weight": 9, "4.weight": 3}
    # Bits: 48, 8, 9 of 48, 6, 3 of 18, 3; structures: 48 and 18, each with its number of ones.
    setup = (6 + 1 + 2 + 1 + 1 + 1) + (6 + 3) + 24 + 1 + 6 * 3 + 2
    assert progress.costs["setup"]["up"] <= 6 * setup


def test_partial_masks_send_the_output_gate_as_numbers() -> None:
    task = Task(RowLSTM(28, hidden=16))
    gate = {"lstm.output.weight", "lstm.output.bias"}
    for message in messages(FedMask(), task):
        assert message["params"].values.keys() == gate
        assert message["bits"].values.keys() == task.initial.keys() - gate
    bits, floats = 3 * (16 * 44 + 16) + 170, 16 * 44 + 16
    down = int(nbytes(messages(FedMask(), task)[0]))
    # Bits that are mostly ones cost less than packed ones; the rest are flags and counts of ones.
    assert 4 * floats <= down <= bits / 8 + 4 * floats + 24 + 2 + 2 + 8 * 4
    # Which gates stay real is a choice, and two layers have two output gates.
    none = messages(FedMask(real=()), task)[0]
    assert not none["params"].values
    both = messages(FedMask(), Task(CharLSTM(5, hidden=4, dense=(6, 5))))[0]["params"].values
    assert set(both) == {f"lstm{n}.output.{kind}" for n in (1, 2) for kind in ("weight", "bias")}


def test_an_ordinary_layer_called_output_is_masked() -> None:
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(2, 3))
    model.add_module("output", nn.Linear(3, 2))
    assert len(FedMask().masked(Task(model))) == 4


def test_norms_and_their_statistics_are_numbers() -> None:
    task = Task(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert FedMask().masked(task) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    numbers = FedMask().server_init(task)["params"]
    assert "1.running_mean" in numbers
    assert "1.weight" in numbers


def test_a_personal_model_loads_from_a_seed_and_its_bits(tmp_path: Path) -> None:
    def fresh() -> Task:
        return Task(build("mnist_cnn", (1, 28, 28), 10, seed=7))

    method, task = FedMask(), fresh()
    generator = torch.Generator().manual_seed(1)
    row = method.row_init(task, WHO)
    row["bits"] = {
        name: torch.rand(ones.shape, generator=generator) < 0.7
        for name, ones in row["bits"].items()
    }
    message = method.download(task, method.server_init(task), row, at())
    personal = method.personalize(task, message, method.client_init(task, WHO), "received")
    whole = {**personal, "bits": Part(personal["bits"].values)}
    (tmp_path / "bits").write_bytes(encode(whole))
    # A bit per weight and a few flags, where the weights are 6.65 MB.
    assert (tmp_path / "bits").stat().st_size < task.parameters / 8 + 64
    again = fresh()
    form = messages(method, again)[0]
    loaded = decode((tmp_path / "bits").read_bytes(), form)
    x = torch.randn(3, 1, 28, 28, generator=generator)
    assert torch.equal(method.predict(again, loaded, x), method.predict(task, personal, x))
    other = Task(build("mnist_cnn", (1, 28, 28), 10, seed=8))
    assert not torch.equal(method.predict(other, loaded, x), method.predict(task, personal, x))


def test_density_counts_the_ones() -> None:
    made, progress = simulate(FedMask(**SMALL), rounds=3)
    summaries, models = final(made, progress)
    assert {summary.view for summary in summaries} == {"personal", "received"}
    for summary in summaries:
        bits = [model["bits"].values for model in models[summary.view]]
        ones = sum(int(value.sum()) for one in bits for value in one.values())
        assert summary.model.density == pytest.approx(ones / 6 / made.server.task.parameters)
        assert 0 < summary.model.density < 1


def test_a_client_uses_what_it_trained_or_what_it_would_receive() -> None:
    made, progress = simulate(FedMask(**SMALL), rounds=3)
    _, models = final(made, progress)
    for id in range(6):
        sent = {name: value[id] for name, value in progress.rows.state["structure"].items()}
        for view in made.server.method.views:
            assert named(models[view][id]["bits"].keep).keys() == sent.keys()
        trained = models["personal"][id]["bits"].values
        held = progress.clients.state["bits"]
        assert all(torch.equal(trained[name], held[name][id]) for name in held)
    # Aggregation changed some bits of the clients that took part in the last round.
    last = made.server.participation.cohort(2).tolist()
    views = [models[view][last[0]]["bits"].values for view in ("personal", "received")]
    assert any(not torch.equal(views[0][name], views[1][name]) for name in views[0])


@pytest.mark.parametrize(
    "reading",
    [
        {"prune_by": "size"},
        {"prune_by": "change"},
        {"prune_by": "change", "keep_off": True},
        {"prune_by": "change", "round_mean": False},
        {"scores": "spread", "weights": "scaled", "lr_schedule": "cosine", "scale": 0.2},
        {"scores": "spread", "lr_schedule": "cosine", "round_mean": False, "scale": 0.2},
        {"keep_scores": True},
        {"scores": "spread", "scale": 0.2, "keep_scores": True, "keep_off": True},
        {"scores": "spread", "scale": 0.2, "keep_scores": True, "round_mean": False},
    ],
    ids=lambda reading: " ".join(map(str, reading.values())),
)
def test_three_rounds_equal_a_second_text_of_algorithm_1(reading: dict[str, Any]) -> None:
    """Plain PyTorch: loops, autograd on σ(m^r) and a bit that is put in by hand."""
    plain = {
        "lr": 0.5,
        "local_epochs": 2,
        "scores": "equal",
        "scale": 0.01,
        "keep_scores": False,
        "keep_off": False,
        "lr_schedule": "constant",
        "group_lasso": 0.01,
        "pruned_layers": 2,
        "density": 0.5,
        "weights": "drawn",
    }
    paper = FedMask(**plain | reading)
    made, world = replay.stage(paper, 3)
    drawn = weights = replay.weights_of(world.network)
    clients = range(world.federation.clients)
    pruned = ["2.weight", "4.weight"]
    shape = {name: torch.ones_like(value) for name, value in weights.items()}
    used = {name: v.numel() // (2 if name in pruned else 1) for name, v in drawn.items()}
    size = {name: torch.full_like(value, paper.scale) for name, value in drawn.items()}
    at_first = shape
    if paper.scores == "spread":
        # |w| / mean |w| − 1 says which bits are on at first, and how far each is from flipping.
        off = {name: value.abs() / value.abs().mean() - 1 for name, value in drawn.items()}
        off |= {name: shape[name] for name, value in drawn.items() if value.ndim == 1}
        size = {name: paper.scale * value.abs() / used[name] ** 0.5 for name, value in off.items()}
        at_first = {name: (value >= 0).double() for name, value in off.items()}
    if paper.weights == "scaled":
        # Half of the inputs are on at first, in pruned layers half of the half that is kept.
        for name, value in drawn.items():
            if value.ndim == 2:
                share = 0.25 if name in pruned else 0.5
                weights = {**weights, name: value.sign() * (2 / (share * value.shape[1])) ** 0.5}

    held: dict[int, Tree] = {}

    def update(bits: Tree, inside: Tree, client: int, number: int, epochs: int, kind: str) -> Tree:
        scores = {name: (2 * bit - 1) * size[name] for name, bit in bits.items()}
        if paper.keep_scores and client in held:
            scores = {
                name: torch.where((mine >= 0) == (scores[name] >= 0), mine, scores[name])
                for name, mine in held[client].items()
            }
        for epoch in range(epochs):
            # Of two epochs a cosine gives the second half of the rate; the setup has one.
            slower = 0.5 if paper.lr_schedule == "cosine" and epoch == 1 else 1.0
            for x, y in world.epoch(client, number, epoch, kind):
                scores = {name: value.detach().requires_grad_() for name, value in scores.items()}
                soft = {name: value.sigmoid() * inside[name] for name, value in scores.items()}
                hard = {name: (value >= 0.5).double() for name, value in soft.items()}
                module = copy.deepcopy(world.network)
                gates = {name: (hard[name] - soft[name]).detach() + soft[name] for name in soft}
                masked = {name: weights[name] * gate for name, gate in gates.items()}
                loss = cross_entropy(torch.func.functional_call(module, masked, (x,)), y)
                for gate in soft.values():
                    if gate.ndim == 2:
                        for line in [*gate, *gate.T]:
                            if line.any():
                                loss = loss + paper.group_lasso * (line**2).sum().sqrt()
                loss.backward()
                speed = slower * paper.lr * world.lr_decay**number
                for name, value in scores.items():
                    assert value.grad is not None
                    scores[name] = value.detach() - speed * value.grad * inside[name]
        held[client] = scores
        return scores

    own, inside = [], []
    for client in clients:
        scores = update(at_first, shape, client, 0, 1, "setup")
        first = {name: (2 * bit - 1) * size[name] for name, bit in at_first.items()}
        worth = {
            name: (
                weights[name] * (scores[name] - (paper.prune_by == "change") * first[name])
            ).abs()
            for name in pruned
        }
        half = {name: value.numel() // 2 for name, value in worth.items()}
        kept = {
            n: reference.ones_at(reference.by_size(worth[n], list(range(worth[n].numel())))[:k], w)
            for (n, k), w in zip(half.items(), worth.values(), strict=True)
        }
        if paper.keep_off:
            kept = {name: keep * (scores[name] >= 0).double() for name, keep in kept.items()}
        inside.append({**shape, **kept})
        own.append({name: (scores[name] >= 0).double() * inside[-1][name] for name in scores})
    server: Tree = {name: torch.full_like(value, -1) for name, value in weights.items()}
    progress = made.begin()
    # Bits are equal; fractions are, up to the order in which they are added.
    close = partial(torch.testing.assert_close, rtol=0, atol=0 if paper.round_mean else 1e-15)
    for number in range(3):
        advance(made, progress)
        cohort = world.cohorts[number]
        sent = {}
        for client in cohort:
            given = {
                name: torch.where(server[name] >= 0, server[name], bits) * inside[client][name]
                for name, bits in own[client].items()
            }
            scores = update(given, inside[client], client, number, 2, "train")
            sent[client] = {n: (s >= 0).double() * inside[client][n] for n, s in scores.items()}
        for name in weights:
            holders = sum(inside[client][name] for client in cohort)
            mass = sum(world.share(client) * inside[client][name] for client in cohort)
            ones = sum(world.share(client) * sent[client][name] for client in cohort)
            mean = (2 * ones >= mass).double() if paper.round_mean else ones / mass
            fresh = holders >= 2
            server[name] = torch.where(fresh, mean, server[name])
            for client in cohort:
                bits = torch.where(fresh, mean, sent[client][name]) * inside[client][name]
                own[client] = {**own[client], name: bits}
        found = named(progress.server)
        for name in weights:
            expected = server[name]
            assert torch.equal(found[f"defined/{name}"], expected >= 0)
            defined = expected >= 0
            close(found[f"bits/{name}"][defined].double(), expected[defined])
            rows = progress.rows.state["bits"][name]
            for id in clients:
                close(rows[id].double(), own[id][name])
    zeros = sum(int((value == 0).sum()) for value in server.values())
    assert zeros > 5


def test_a_network_of_fewer_layers_than_are_pruned_is_refused() -> None:
    task = Task(MnistCNN())
    with raises("E202", "9"):
        FedMask(pruned_layers=9).row_init(task, WHO)


def test_an_empty_pattern_is_refused() -> None:
    assert FedMask(real=("",)).problems()
    assert not FedMask(real=()).problems()


def test_flops_follow_the_bits_forward_and_the_structure_backward() -> None:
    # A layer 4 → 2 of 8 weights. Forward 2 · 8 FLOPs a sample; the first layer has no input
    # gradient, so the dense step is 16 + 16. Bits keep 2 of 8, the structure 4 of 8:
    # masked is 16 · 2/8 + 16 · 4/8 = 12.
    task = Task(nn.Linear(4, 2, bias=False).double())
    method = FedMask(density=0.5, pruned_layers=1, group_lasso=0.0, local_epochs=1)
    (stage,) = method.plan(task, at("train"))
    keep = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    scores = torch.tensor([[1.0, 1, -1, -1], [1, 1, 1, 1]]).double()
    tree_ = {"structure": {"weight": keep}, "scores": {"weight": scores}}
    work = {**tree_, "first": {"weight": scores}, "params": {}}
    x, y = torch.ones(1, 4).double(), torch.tensor([0])
    meter = Meter(task)
    per_sample = meter.step(stage, work, x, y, at("train"))
    one = torch.ones(1, dtype=torch.float64)
    found = meter.stage(stage, per_sample, one, shares(stage, work, lead=0), x).summed()
    assert (float(found.dense), float(found.masked)) == (32, 12)
