"""FedDST (AAAI 2022): worked by hand, and the mistakes of public versions, each shown to fail."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import Cohort, Message, Part, Round, State, Task, mask, tree
from masquerade.core.random import draw, fold
from masquerade.methods import FedDST
from masquerade.simulation.participation import Drawn
from tests.papers.small import at, averaged, bits, layer, play, rows, units

EIGHT = FedDST(sparsity=0.5, readjust=0.5, local_epochs=1, lr=1.0)
"""One layer of eight weights, four of them kept, half of those readjusted."""
READJUST = at("readjust")

Readjust = Callable[[State, Tensor], State]


def test_the_server_begins_with_the_largest_initial_weights() -> None:
    server = EIGHT.server_init(layer(rows([8, -1, 7, 2], [-6, 3, 4, 5])))
    assert torch.equal(server["keep"]["weight"], bits("1010", "1001"))
    assert torch.equal(server["params"]["weight"], rows([8, 0, 7, 0], [-6, 0, 0, 5]))


def test_masks_move_in_some_rounds_of_the_first_half() -> None:
    phases = [FedDST().schedule(number, 50) for number in range(50)]
    assert [n for n, phase in enumerate(phases) if phase == "readjust"] == [0, 10, 20]
    assert "readjust" not in {FedDST(readjust=0.0).schedule(n, 50) for n in range(50)}


def test_a_round_by_hand() -> None:
    # Two outputs, four inputs; x is e₃ and its class 0; the mask is 1100 1100 and rate 1.
    # Inside the mask nothing is fed by e₃, so the logits are (0, 0) and no kept weight moves.
    # The slope of the loss is (1/2 − 1, 1/2) at the column of e₃: −1/2 and 1/2, elsewhere 0.
    # Readjust 1/2 of four at the start of the run: the two smallest, −1 and 2, go; the two largest
    # slopes among the others, both in the last column, come, and start at 0.
    task = layer(rows([4, -1, 9, 9], [2, 3, 9, 9]))
    keep = bits("1100", "1100")
    message = {"params": Part(tree.only({"weight": keep}, task.initial), {"weight": keep})}
    sent = play(EIGHT, task, message, units(4, [0] * 4, [3], []), READJUST)["params"]
    assert torch.equal(sent.keep["weight"], bits("1001", "0101"))
    assert torch.equal(sent.values["weight"], rows([4, 0, 0, 0], [0, 3, 0, 0]))


def test_settling_trains_what_has_grown() -> None:
    task = layer(rows([4, -1, 9, 9], [2, 3, 9, 9]))
    keep = bits("1100", "1100")
    message = {"params": Part(tree.only({"weight": keep}, task.initial), {"weight": keep})}
    two = FedDST(sparsity=0.5, readjust=0.5, local_epochs=2, lr=1.0)
    sent = play(two, task, message, units(4, [0] * 4, [3], []), READJUST)["params"]
    # The second epoch has the same sample and the same slopes, now inside the mask.
    assert torch.equal(sent.values["weight"], rows([4, 0, 0, 0.5], [0, 3, 0, -0.5]))


def test_the_server_keeps_the_largest_weights_that_somebody_holds() -> None:
    # Weights 1 and 3 of the samples. Position 0: (1·2 + 3·6) / 4 = 5; position 1: A alone, −4;
    # position 2: A alone, 1; positions 4 and 5: B alone, 3 and 0.5; position 3: both, 0.
    # Of six that are held, four remain: 5, −4, 3, 1.
    nan = math.nan
    parts = [
        Part({"weight": rows([2, -4, 1, 0], [nan] * 4)}, {"weight": bits("1111", "0000")}),
        Part(
            {"weight": rows([6, nan, nan, 0], [3, 0.5, nan, nan])}, {"weight": bits("1001", "1100")}
        ),
    ]
    task = layer(rows([1, 1, 1, 1], [9, 9, 9, 9]))
    server = {"params": task.initial, "keep": {"weight": bits("1111", "0000")}}
    new = averaged(EIGHT, task, server, parts, [1, 3], READJUST)
    assert torch.equal(new["keep"]["weight"], bits("1110", "1000"))
    assert torch.equal(new["params"]["weight"], rows([5, -4, 1, 0], [3, 0, 0, 0]))


def test_between_readjustments_the_mask_stays() -> None:
    keep = bits("1111", "0000")
    part = Part({"weight": rows([0, 0, 0, 0], [9, 9, 9, 9])}, {"weight": keep})
    task = layer(rows([1, 1, 1, 1], [9, 9, 9, 9]))
    server = {"params": task.initial, "keep": {"weight": keep}}
    new = averaged(EIGHT, task, server, [part], [1], at("train"))
    assert torch.equal(new["keep"]["weight"], keep)


# Usual mistakes


def assert_grows_among_the_inactive(readjust: Readjust) -> None:
    """Two kept weights go and two others come; what stays keeps its value."""
    work = {
        "params": {"w": torch.tensor([4.0, 3.0, 2.0, 1.0, 0, 0, 0, 0])},
        "keep": {"w": bits("11110000")[0]},
        # The kept ones have the largest slopes, as they often do.
        "gradient": {"params": {"w": torch.tensor([9.0, 9.0, 0, 0, 1.0, 2.0, 3.0, 4.0])}},
    }
    new = readjust(work, torch.tensor(0.5))
    assert torch.equal(new["keep"]["w"], bits("11000011")[0])
    assert torch.equal(new["params"]["w"], torch.tensor([4.0, 3.0, 0, 0, 0, 0, 0, 0]))


def grow_anywhere(work: State, ratio: Tensor) -> State:
    """Take the largest gradients over all positions, and start those at zero."""
    keep, slope = work["keep"]["w"], work["gradient"]["params"]["w"].abs()
    count = int(ratio * keep.sum())
    left = mask.prune(keep, work["params"]["w"].abs(), count)
    grown = mask.top(slope, count)
    weight = torch.where(left & ~grown, work["params"]["w"], 0)
    return {**work, "keep": {"w": left | grown}, "params": {"w": weight}}


def test_weights_grow_among_inactive_positions_only() -> None:
    assert_grows_among_the_inactive(mask.readjust)
    with pytest.raises(AssertionError):
        assert_grows_among_the_inactive(grow_anywhere)


class Raw(FedDST):
    """Computes no annealed ratio: what the release's clients do."""

    def _move(self, work: State, round: Round) -> State:
        return mask.readjust(work, torch.tensor(self.readjust))


def assert_anneals(cls: type[FedDST]) -> None:
    """Of 40 kept weights 20, 10, 0 move: cos 0 = 1, cos π/2 = 0, cos π = −1."""
    method = cls(sparsity=0.5, readjust=0.5, local_epochs=1)
    weight = torch.arange(1, 81, dtype=torch.float64).reshape(2, 40)
    keep = weight > 40
    work = {
        "params": {"weight": torch.where(keep, weight, 0)},
        "keep": {"weight": keep},
        "gradient": {"params": {"weight": torch.where(keep, 0, 1.0)}},
    }
    then = method.plan(layer(weight), READJUST)[0].then
    # Ten rounds are half of the run, where annealing ends.
    kept = [then(work, at("readjust", number))["keep"]["weight"] for number in (0, 5, 10)]
    assert [int((keep & ~new).sum()) for new in kept] == [20, 10, 0]


def test_the_readjustment_ratio_is_really_annealed() -> None:
    assert_anneals(FedDST)
    with pytest.raises(AssertionError):
        assert_anneals(Raw)


def assert_densities_fit(densities: Callable[[Mapping[str, torch.Size], float], Any]) -> None:
    """No layer is denser than 1 or emptier than 0, and together they have the density."""
    sizes = [(64, 3, 5, 5), (64, 64, 5, 5), (384, 1600), (192, 384), (10, 192)]
    shapes = {str(place): torch.Size(size) for place, size in enumerate(sizes)}
    for density in (0.5, 0.2, 0.05):
        found = densities(shapes, density)
        assert all(0 < share <= 1 for share in found.values())
        kept = sum(found[name] * shapes[name].numel() for name in shapes)
        assert kept == pytest.approx(density * sum(shape.numel() for shape in shapes.values()))


def uncapped(shapes: Mapping[str, torch.Size], density: float) -> dict[str, float]:
    """Scale the raw shares to the budget and leave it at that."""
    raw = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    budget = density * sum(shape.numel() for shape in shapes.values())
    scale = budget / sum(raw[name] * shapes[name].numel() for name in shapes)
    return {name: scale * share for name, share in raw.items()}


def test_erk_densities_are_capped_at_one() -> None:
    assert_densities_fit(mask.erk_densities)
    with pytest.raises(AssertionError):
        assert_densities_fit(uncapped)


class Shrinking(FedDST):
    """Divides the sum over clients by a mask of zeros and ones."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        part, share = uploads["params"], cohort.samples / cohort.samples.sum()
        total = torch.einsum(
            "c,cij->ij", share.double(), part.values["weight"] * part.keep["weight"]
        )
        held = part.keep["weight"].any(0)
        return {**server, "params": {"weight": torch.where(held, total / held, 0)}}, rows


def assert_a_lone_holder_decides(cls: type[FedDST]) -> None:
    """What one of two equal clients holds is its value, not half of it."""
    task = layer(rows([1, 1], [1, 1]))
    parts = [
        Part({"weight": rows([2, 4], [0, 0])}, {"weight": bits("11", "00")}),
        Part({"weight": rows([2, 0], [6, 0])}, {"weight": bits("10", "10")}),
    ]
    server = {"params": task.initial, "keep": {"weight": bits("11", "10")}}
    new = averaged(cls(), task, server, parts, [5, 5], at("train"))
    assert torch.equal(new["params"]["weight"], rows([2, 4], [6, 0]))


def test_averages_are_taken_over_holders_and_do_not_shrink() -> None:
    assert_a_lone_holder_decides(FedDST)
    with pytest.raises(AssertionError):
        assert_a_lone_holder_decides(Shrinking)


def assert_learns_from_logits(task: Task) -> None:
    """From zero weights, rate 1, x = e₀ of class 0 of two: slopes −1/2 and 1/2, no less."""
    name = next(iter(task.initial))
    method = FedDST(sparsity=0.0, readjust=0.0, local_epochs=1, lr=1.0)
    server = method.server_init(task)
    sent = play(method, task, method.download(task, server, {}, at()), units(2, [0, 1], [0], []))
    assert torch.equal(sent["params"].values[name], rows([0.5, 0], [-0.5, 0]))


def test_softmax_is_taken_once() -> None:
    assert_learns_from_logits(layer(torch.zeros(2, 2)))
    inner = nn.Linear(2, 2, bias=False).double()
    inner.weight.data.zero_()
    with pytest.raises(AssertionError):
        assert_learns_from_logits(Task(nn.Sequential(inner, nn.Softmax(dim=1))))


class ByBatches(FedDST):
    """Weighs a client by its number of batches (of 4), not of samples."""

    def aggregate(self, task, server, rows, uploads, cohort, round):
        batches = replace(cohort, samples=-(-cohort.samples // 4))
        return super().aggregate(task, server, rows, uploads, batches, round)


def assert_samples_weigh(cls: type[FedDST]) -> None:
    """One sample with 0 and four with 5 make 4; both clients have one batch of 4."""
    task = layer(rows([1, 1], [1, 1]))
    full = {"weight": bits("11", "11")}
    parts = [Part({"weight": rows([v, v], [v, v])}, full) for v in (0.0, 5.0)]
    server = {"params": task.initial, "keep": full}
    new = averaged(cls(sparsity=0.0), task, server, parts, [1, 4], at("train"))
    assert torch.equal(new["params"]["weight"], rows([4, 4], [4, 4]))


def test_clients_weigh_by_samples_not_by_batches() -> None:
    assert_samples_weigh(FedDST)
    with pytest.raises(AssertionError):
        assert_samples_weigh(ByBatches)


def drawn_with_replacement(number: int) -> list[int]:
    return [int(value) % 10 for value in draw(fold(1, "cohort", number), 6)]


def drawn_without(number: int) -> list[int]:
    return Drawn(torch.arange(10), 6, "always", 0.0, 1).cohort(number).tolist()


def assert_nobody_is_asked_twice(cohort: Callable[[int], list[int]]) -> None:
    assert all(len(set(cohort(number))) == 6 for number in range(40))


def test_clients_are_sampled_without_replacement() -> None:
    assert_nobody_is_asked_twice(drawn_without)
    with pytest.raises(AssertionError):
        assert_nobody_is_asked_twice(drawn_with_replacement)
