"""DM-PFL and DM-PFL+ (KDD 2023): worked by hand, and against a second text of the paper."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from masquerade.core import (
    ClientInfo,
    Cohort,
    Message,
    Part,
    Round,
    Stage,
    State,
    Task,
    client_round,
)
from masquerade.core.tree import stack
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.methods import DMPFL
from tests.papers import replay
from tests.papers.reference import DualMasks
from tests.papers.replay import assert_same, stage
from tests.support import advance, measure

EIGHT = DMPFL(sparsity=0.5, first_dense=False, lr=1.0, local_epochs=1)
"""The method of the examples by hand: one layer of eight weights, four of them kept."""


def eight(*values: float) -> Tensor:
    """Return eight numbers as the weight of the layer: two outputs, four inputs."""
    return torch.tensor(values, dtype=torch.float64).reshape(2, 4)


def bits(text: str) -> Tensor:
    """Return the mask that a text of eight zeros and ones shows."""
    return torch.tensor([letter == "1" for letter in text.replace(" ", "")]).reshape(2, 4)


def layer(weight: Tensor) -> Task:
    """Return the task whose network is one layer without a bias."""
    module = nn.Linear(4, 2, bias=False).double()
    module.weight.data = weight
    return Task(module)


def at(kind: str, phase: Any, number: float = 0, rounds: float = 12) -> Round:
    """Return a round whose learning rates are not decayed."""
    number_of, rounds_of = torch.tensor([number, rounds], dtype=torch.float64)
    return Round(kind, phase, number_of, rounds_of, torch.ones((), dtype=torch.float64))


DUAL, ANEW = at("train", ("dual", False)), at("train", ("dual", True))
GLOBAL, PERSONAL = at("train", ("global",)), at("train", ("personal", 0))

W_G, M_G = eight(1, 2, 3, 4, 5, 6, 7, 8), bits("1111 0000")
W_C, M_C = eight(-1, -2, 0, 0, -5, -6, 0, 0), bits("1100 1100")
# θ_g = w_g ⊙ m_g; θ_c = w_g ⊙ (m_g ∩ m_c) + w_c ⊙ (m_c − m_g), where m_g ∩ m_c = 1100 0000 and
# m_c − m_g = 0000 1100.
THETA_G = eight(1, 2, 3, 4, 0, 0, 0, 0)
THETA_C = eight(1, 2, 0, 0, -5, -6, 0, 0)
TASK = layer(W_G)


def server() -> State:
    """Return the server of the examples."""
    return {"params": {"weight": W_G}, "keep": {"weight": M_G}}


def holder(weight: Tensor = W_C, keep: Tensor = M_C, begun: int = -1) -> State:
    """Return a client of the examples."""
    return {"params": {"weight": weight}, "keep": {"weight": keep}, "begun": torch.tensor(begun)}


def received(weight: Tensor = W_G, keep: Tensor = M_G, round: Round = DUAL) -> Message:
    """Return what a client is sent."""
    sent = {"params": {"weight": weight}, "keep": {"weight": keep}}
    return EIGHT.download(TASK, sent, {}, round)


def play(
    method: DMPFL, message: Message, client: State, round: Round, data: Federation, id: int = 0
) -> tuple[Message, State]:
    """Do one client's round of the one-layer task."""
    loader = BatchLoader(data, 1, 4)

    def batches(stage: Stage) -> Any:
        return loader.batches(loader.shuffle(torch.tensor([id]), stage, round, 0), 0)

    return client_round(method, TASK, message, client, batches, round)


def units(*clients: tuple[list[int], list[int]]) -> Federation:
    """Return clients whose (training, validation) samples are unit vectors, all of class 0."""
    train, validation = (
        tuple(torch.tensor(pair[split], dtype=torch.int64) for pair in clients) for split in (0, 1)
    )
    x, y = torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    return Federation("hand", x, y, 2, train, validation, train)


# Equation 4


def test_a_client_is_sent_the_global_mask_and_the_weights_inside_it() -> None:
    sent = received()["params"]
    assert torch.equal(sent.values["weight"], THETA_G)
    assert torch.equal(sent.keep["weight"], M_G)


@pytest.mark.parametrize(
    ("round", "params", "keep", "update_mask"),
    [
        (DUAL, THETA_C, M_C, M_C),
        (ANEW, THETA_C, M_C, M_C),
        (GLOBAL, THETA_G, M_G, M_G),
        (PERSONAL, THETA_C, M_C, bits("0000 1100")),
    ],
)
def test_training_starts_from_equation_4(
    round: Round, params: Tensor, keep: Tensor, update_mask: Tensor
) -> None:
    work = EIGHT.start(TASK, received(), holder(), round)
    assert torch.equal(work["params"]["weight"], params)
    assert torch.equal(work["keep"]["weight"], keep)
    assert torch.equal(work["update_mask"]["weight"], update_mask)


def test_dual_rounds_may_start_from_the_global_model() -> None:
    method = replace(EIGHT, mask_start="global")
    work = method.start(TASK, received(), holder(), DUAL)
    assert torch.equal(work["params"]["weight"], THETA_G)
    assert torch.equal(work["keep"]["weight"], M_G)
    # What is personal is refined and used as before.
    for round in (PERSONAL, at("adapt", ("personal", False))):
        work = method.start(TASK, received(), holder(), round)
        assert torch.equal(work["params"]["weight"], THETA_C)


@pytest.mark.parametrize(
    ("view", "weight", "keep"), [("personal", THETA_C, M_C), ("global", THETA_G, M_G)]
)
def test_each_view_uses_its_model_of_equation_4(view: str, weight: Tensor, keep: Tensor) -> None:
    round = at("adapt", (view, False))
    _, client = play(EIGHT, received(), holder(), round, units(([0], [])))
    model = EIGHT.personalize(TASK, received(), client, view)
    assert model.keys() == {"params"}
    assert torch.equal(model["params"].values["weight"], weight)
    assert torch.equal(model["params"].keep["weight"], keep)
    inputs = torch.eye(4, dtype=torch.float64)
    assert torch.equal(EIGHT.predict(TASK, model, inputs), weight.T)


def test_the_adaptive_view_holds_shared_weights_once() -> None:
    client = {**holder(THETA_C), "base": torch.zeros(2)}
    model = EIGHT.personalize(TASK, received(), client, "adaptive")
    # Together m_c and m_g cover 1111 1100: four weights of θ_c, and two more of θ_g.
    assert (model["params"].kept(), model["rest"].kept()) == (4, 2)
    assert model["shared"].kept() == 0


# Equation 5, the vote rule, the global mask


def uploads(*clients: tuple[str, list[float]]) -> Message:
    """Stack uploads; weights outside a mask are not a number, so that reading one shows."""
    parts = []
    for text, values in clients:
        keep, weight = bits(text), torch.full((2, 4), math.nan, dtype=torch.float64)
        weight[keep] = torch.tensor(values, dtype=torch.float64)
        parts.append({"params": Part({"weight": weight}, {"weight": keep})})
    stacked: Message = stack(parts)
    return stacked


def aggregated(
    message: Message, samples: list[int], round: Round, asked: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the server's new w_g and m_g."""
    cohort = Cohort(torch.arange(len(samples)), torch.tensor(samples), asked or len(samples), 9)
    new, rows = EIGHT.aggregate(TASK, server(), {}, message, cohort, round)
    assert rows == {}
    return new["params"]["weight"], new["keep"]["weight"]


def test_weights_are_averaged_over_their_holders_by_the_size_of_their_data() -> None:
    # Client A has 10 samples, B has 30.
    # Position 0: (10 · 1 + 30 · 5) / 40 = 4; position 1: (10 · 2 + 30 · 6) / 40 = 5.
    # Positions 2 and 3: A alone, 3 and 4; positions 4 and 5: B alone, 7 and 8.
    # Positions 6 and 7: nobody, so w_g keeps 7 and 8.
    message = uploads(("1111 0000", [1, 2, 3, 4]), ("1100 1100", [5, 6, 7, 8]))
    weight, _ = aggregated(message, [10, 30], DUAL)
    assert torch.equal(weight, eight(4, 5, 3, 4, 7, 8, 7, 8))


def test_uncovered_positions_keep_their_bits() -> None:
    odd = eight(0.1, 1 / 3, -0.0, 1e-310, math.pi, -0.7, 0.1 + 0.2, 1e300)
    old = {"params": {"weight": odd}, "keep": {"weight": M_G}}
    message = uploads(("1000 0000", [2.0]), ("1000 0000", [4.0]))
    cohort = Cohort(torch.arange(2), torch.tensor([1, 1]), 2, 2)
    new, _ = EIGHT.aggregate(TASK, old, {}, message, cohort, DUAL)
    weight = new["params"]["weight"]
    assert weight[0, 0] == 3
    assert (
        weight.view(torch.int64).flatten()[1:].tolist()
        == odd.view(torch.int64).flatten()[1:].tolist()
    )


def test_global_refine_averages_inside_a_fixed_mask() -> None:
    # (1 · 3 + 2 · 0) / 3 = 1 at all four; the negative, small and zero ones stay in m_g.
    message = uploads(("1111 0000", [3, -3, 0.03, 0]), ("1111 0000", [0, 0, 0, 0]))
    # Nobody votes here: that two of twenty answered does not thin m_g out.
    weight, keep = aggregated(message, [1, 2], GLOBAL, asked=20)
    torch.testing.assert_close(weight, eight(1, -1, 0.01, 0, 5, 6, 7, 8), rtol=0, atol=1e-15)
    assert torch.equal(keep, M_G)


def ten_votes(votes: list[int], weights: list[float]) -> Message:
    """Return ten uploads in which position i is held by the first `votes[i]` clients."""
    clients = []
    for client in range(10):
        held = [client < count for count in votes]
        text = "".join("01"[flag] for flag in held)
        chosen = [weight for weight, flag in zip(weights, held, strict=True) if flag]
        clients.append((text, chosen))
    return uploads(*clients)


def test_of_ten_sampled_clients_three_votes_are_not_enough_and_four_are() -> None:
    # Positions 2 and 6 have the largest weights but 3 votes, no more than 30 % of 10.
    message = ten_votes([10, 4, 3, 4, 2, 5, 3, 0], [1, -2, 90, 3, 50, -4, -80, 0])
    weight, keep = aggregated(message, [1] * 10, DUAL)
    assert torch.equal(keep, bits("1101 0100"))
    # The rule chooses the mask alone: w_g stays dense, with every average in it.
    assert torch.equal(weight, eight(1, -2, 90, 3, 50, -4, -80, 8))


def test_votes_are_shares_of_the_clients_sampled_not_of_those_that_answered() -> None:
    message = ten_votes([10, 6, 7, 4, 6, 5, 3, 0], [1, -2, 90, 3, 50, -4, -80, 0])
    # Of 20 sampled, 6 votes are 30 % and not enough, 7 are; 10 answered.
    weight, keep = aggregated(message, [1] * 10, DUAL, asked=20)
    # Two candidates for four places: m_g is sparser, and w_g dense.
    assert torch.equal(keep, bits("1010 0000"))
    assert torch.equal(weight, eight(1, -2, 90, 3, 50, -4, -80, 8))


@pytest.mark.parametrize("asked", range(1, 41))
def test_the_bar_is_exact_for_every_number_of_clients(asked: int) -> None:
    most = 3 * asked // 10
    held = torch.zeros(asked, 2, 4, dtype=torch.bool)
    held[:most, 0, 0] = True
    held[: most + 1, 0, 1] = True
    part = Part({"weight": torch.ones(asked, 2, 4, dtype=torch.float64)}, {"weight": held})
    _, keep = aggregated({"params": part}, [1] * asked, DUAL)
    assert torch.equal(keep, bits("0100 0000"))


def test_the_global_mask_takes_the_largest_averages_among_the_candidates() -> None:
    # Both hold everything; the averages are 3, −7, 1, 5, 0, −6, 2, 4: the largest four by
    # magnitude are −7, −6, 5, 4, while the largest of A's own would be the first four.
    first = [9.0, -9, 9, 9, 0, -3, 1, 1]
    second = [-3.0, -5, -7, 1, 0, -9, 3, 7]
    weight, keep = aggregated(uploads(("1111 1111", first), ("1111 1111", second)), [5, 5], DUAL)
    assert torch.equal(weight, eight(3, -7, 1, 5, 0, -6, 2, 4))
    assert torch.equal(keep, bits("0101 0101"))


def test_the_global_mask_is_taken_layer_by_layer() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 2)).double()
    task, method = Task(module), DMPFL(sparsity=0.5)
    large = {name: value * 0 + 100 for name, value in task.initial.items()}
    params = large | {"2.weight": torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64)}
    keep = {
        name: torch.ones_like(value, dtype=torch.bool)
        for name, value in params.items()
        if name in ("1.weight", "2.weight")
    }
    message: Message = stack([{"params": Part(params, keep)}] * 2)
    cohort = Cohort(torch.arange(2), torch.tensor([1, 1]), 2, 2)
    new, _ = method.aggregate(task, method.server_init(task), {}, message, cohort, DUAL)
    # The first layer and the biases have no mask; of equal weights the first are taken.
    assert new["keep"].keys() == {"1.weight", "2.weight"}
    assert torch.equal(new["keep"]["1.weight"], bits("1111 0000"))
    assert new["keep"]["2.weight"].tolist() == [[False, False], [True, True]]


def test_everybody_starts_from_the_largest_initial_weights() -> None:
    task = layer(eight(0.1, -0.9, 0.3, 0.2, -0.4, 0.05, 0.8, -0.2))
    first, client = EIGHT.server_init(task), EIGHT.client_init(task, ClientInfo(0, 1, 0))
    # By magnitude 0.9, 0.8, 0.4, 0.3 are the four largest.
    assert torch.equal(first["keep"]["weight"], bits("0110 1010"))
    assert torch.equal(client["keep"]["weight"], bits("0110 1010"))
    assert torch.equal(client["params"]["weight"], eight(0, -0.9, 0.3, 0, -0.4, 0, 0.8, 0))
    assert torch.equal(first["params"]["weight"], task.initial["weight"])


# Readjustment


def readjusted(weight: Tensor, gradient: Tensor, number: float = 0) -> State:
    """Prune and regrow half of the mask 1111 0000 as the search stage does at its end."""
    method = replace(EIGHT, readjust=0.5, local_epochs=5, momentum=0.9)
    round = at("train", ("dual", True), number, 12)
    search, settle = method.plan(TASK, round)
    # Of five epochs, four search; the last one trains the readjusted mask.
    assert (search.epochs, settle.epochs, settle.epoch) == (4, 1, 4)
    work = {
        "params": {"weight": weight},
        "keep": {"weight": M_G},
        "update_mask": {"weight": M_G},
        "gradient": {"params": {"weight": gradient}},
        "momentum": {"params": {"weight": eight(1, 2, 3, 4, 0, 0, 0, 0)}},
    }
    return search.then(work, round)


LIGHT = eight(4, -1, 3, 2, 0, 0, 0, 0)


def test_the_smallest_weights_are_pruned_and_the_largest_gradients_regrow() -> None:
    # α_s = 0.5 of four: two go, −1 and 2 (positions 1 and 3). Of the positions then off, 1 3 4 5 6
    # and 7 with gradients 0.5 0.1 0.9 −0.7 0.2 0, the largest two by magnitude are 4 and 5.
    # The large gradients of 0 and 2, which stay, count for nothing.
    work = readjusted(LIGHT, eight(100, 0.5, -100, 0.1, 0.9, -0.7, 0.2, 0))
    assert torch.equal(work["keep"]["weight"], bits("1010 1100"))
    assert torch.equal(work["update_mask"]["weight"], bits("1010 1100"))
    # New weights start at 0, and what is pruned leaves nothing behind.
    assert torch.equal(work["params"]["weight"], eight(4, 0, 3, 0, 0, 0, 0, 0))
    assert torch.equal(work["momentum"]["params"]["weight"], eight(1, 0, 3, 0, 0, 0, 0, 0))


def test_a_pruned_position_may_come_back_at_once() -> None:
    # As before, but the gradient at 1 is the largest of those off: 1 and 4 regrow.
    work = readjusted(LIGHT, eight(0, 2, 0, 0.1, 0.9, -0.7, 0.2, 0))
    assert torch.equal(work["keep"]["weight"], bits("1110 1000"))
    assert torch.equal(work["params"]["weight"], eight(4, -1, 3, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("number", "moved", "keep"),
    [(0, 2, "1010 1100"), (4, 2, "1010 1100"), (6, 1, "1011 1000"), (12, 0, "1111 0000")],
)
def test_readjustment_is_annealed_by_cosine(number: float, moved: int, keep: str) -> None:
    # α(t) = 0.5/2 · (1 + cos(π t/12)): 0.5 at 0, 0.375 at 4, 0.25 at 6, 0 at 12; of four, rounded
    # up: 2, ⌈1.5⌉ = 2, 1, 0.
    work = readjusted(LIGHT, eight(0, 0, 0, 0, 0.9, -0.7, 0.2, 0.1), number)
    found = work["keep"]["weight"]
    assert torch.equal(found, bits(keep))
    assert int((found & ~M_G).sum()) == moved
    assert int(found.sum()) == 4


def test_regrowth_reads_the_whole_gradient_of_the_last_batch() -> None:
    # One sample, the unit vector 2, of class 0; θ_c gives it (0, 0), so p = (½, ½) and the gradient
    # is −½ at position 2, +½ at position 6, 0 elsewhere: the only ones that can grow, though both
    # are outside of m_c. Two of m_c = 1100 1100 go: the smallest, 1 and 2 of 1 2 5 6.
    method = replace(EIGHT, readjust=0.5, local_epochs=1)
    client = holder(eight(0, 0, 0, 0, -5, -6, 0, 0))
    upload, held = play(method, received(keep=bits("1100 0000")), client, ANEW, units(([2], [])))
    assert torch.equal(held["keep"]["weight"], bits("0010 1110"))
    assert torch.equal(held["params"]["weight"], eight(0, 0, 0, 0, -5, -6, 0, 0))
    assert torch.equal(upload["params"].keep["weight"], held["keep"]["weight"])
    assert torch.equal(upload["params"].values["weight"], held["params"]["weight"])


@pytest.mark.parametrize("settings", [{"local_epochs": 1}, {"local_epochs": 2, "settle": 0}])
def test_masks_may_be_readjusted_after_the_last_epoch(settings: dict[str, Any]) -> None:
    """As Algorithm 1 is printed: no epoch follows a readjustment."""
    made, _ = stage(DMPFL(**settings), 3)
    progress = made.begin()
    before = progress.clients.state["keep"]["2.weight"].clone()
    advance(made, progress)
    assert not torch.equal(progress.clients.state["keep"]["2.weight"], before)


# Refinement


def test_global_refine_trains_inside_the_global_mask_and_leaves_the_client_alone() -> None:
    # The unit vector 0: θ_g gives (1, 0), so p = (e, 1)/(e + 1) and the gradient of class 0 is
    # −1/(e + 1) at position 0 and +1/(e + 1) at position 4, which is outside of m_g.
    client = holder()
    upload, held = play(EIGHT, received(), client, GLOBAL, units(([0], [])))
    moved = eight(1 + 1 / (math.e + 1), 2, 3, 4, 0, 0, 0, 0)
    torch.testing.assert_close(upload["params"].values["weight"], moved, rtol=0, atol=1e-12)
    assert torch.equal(upload["params"].keep["weight"], M_G)
    assert held is client


SPLIT = eight(0, 0, 0, 0, math.log(3), 0, 0, 0)


def refine(method: DMPFL, client: State, iteration: int, kind: str = "train") -> State:
    """Refine personal weights where position 0 is shared and position 4 personal."""
    message = received(eight(0, 0, 0, 0, 0, 0, 0, 0), bits("1000 0000"))
    round = at(kind, ("personal", iteration))
    upload, held = play(method, message, client, round, units(([0], [])))
    assert upload == {}
    assert held["params"]["weight"].flatten()[[0, 1, 2, 3, 5, 6, 7]].tolist() == [0.0] * 7
    return held


def test_personal_refine_goes_on_from_the_weights_of_the_first_phase() -> None:
    # The output is (0, ln 3), so p = (¼, ¾): position 4 goes from ln 3 to ln 3 − ¾, and the shared
    # position 0, whose gradient is −¾, stays 0.
    held = refine(EIGHT, holder(SPLIT, bits("1000 1000")), 0)
    torch.testing.assert_close(
        held["params"]["weight"][1, 0].item(), math.log(3) - 0.75, rtol=0, atol=1e-12
    )


def test_restart_zeroes_personal_weights_once_per_iteration() -> None:
    again = replace(EIGHT, restart=True)
    # From 0 the output is (0, 0), p = (½, ½): −½. Then it is (0, −½): −½ − 1/(1 + √e).
    client = holder(SPLIT, bits("1000 1000"))
    found = []
    for iteration in (0, 0, 1, 1):
        client = refine(again, client, iteration)
        found.append(client["params"]["weight"][1, 0].item())
    second = -0.5 - 1 / (1 + math.sqrt(math.e))
    torch.testing.assert_close(found, [-0.5, second, -0.5, second], rtol=0, atol=1e-12)


def test_restart_never_touches_a_model_in_use() -> None:
    again = replace(EIGHT, restart=True)
    round = at("adapt", ("personal", False))
    _, client = play(again, received(), holder(), round, units(([0], [])))
    assert torch.equal(client["params"]["weight"], THETA_C)


# As above, position 4 goes from ln 3 by −¾ times the lr, or from 0 by −½ where it starts anew.
@pytest.mark.parametrize(
    ("settings", "begun", "found"),
    [
        ({}, -1, math.log(3) - 0.75),
        ({"refine_lr_scale": 0.5}, -1, math.log(3) - 0.375),
        ({"restart": True}, -1, -0.5),
        ({"restart": True}, 0, math.log(3) - 0.75),
    ],
)
def test_every_client_may_refine_when_its_model_is_used(
    settings: dict[str, Any], begun: int, found: float
) -> None:
    method = replace(EIGHT, refine_epochs=1, **settings)
    held = refine(method, holder(SPLIT, bits("1000 1000"), begun), 0, "adapt")
    torch.testing.assert_close(held["params"]["weight"][1, 0].item(), found, rtol=0, atol=1e-12)


def test_the_global_model_is_not_refined_at_clients() -> None:
    method = replace(EIGHT, refine_epochs=1)
    assert method.adapt(TASK, at("adapt", ("global", False))) == ()
    looked = [stage.name for stage in method.adapt(TASK, at("adapt", ("adaptive", False)))]
    assert looked == ["refine", "base entropies"]


def test_personal_refine_has_a_rate_of_its_own() -> None:
    held = refine(replace(EIGHT, refine_lr_scale=0.5), holder(SPLIT, bits("1000 1000")), 0)
    at_4 = held["params"]["weight"][1, 0].item()
    torch.testing.assert_close(at_4, math.log(3) - 0.375, rtol=0, atol=1e-12)


def test_nothing_arrives_at_the_server_in_personal_refine() -> None:
    cohort, before = Cohort(torch.arange(1), torch.tensor([1]), 1, 1), server()
    after, _ = EIGHT.aggregate(TASK, before, {}, {}, cohort, PERSONAL)
    assert after is before


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_personal_refine_moves_personal_weights_alone(momentum: float) -> None:
    """Weight decay is on, which would move a frozen weight without a gradient."""
    method = DMPFL(local_epochs=2, momentum=momentum, weight_decay=0.1, readjust=0.6, iterations=1)
    made, _ = stage(method, 8)
    progress = made.begin()
    first = names(method, 8).index("personal")
    for _ in range(first):
        advance(made, progress)
    w_g = {name: value.clone() for name, value in progress.server["params"].items()}
    before = {name: value.clone() for name, value in progress.clients.state["params"].items()}
    m_g = progress.server["keep"]
    sent = progress.costs["train"]["values_up"]
    advance(made, progress)
    assert all(torch.equal(value, w_g[name]) for name, value in progress.server["params"].items())
    assert progress.costs["train"]["values_up"] == sent > 0
    personal = 0
    for id in made.server.participation.cohort(first).tolist():
        for name, values in progress.clients.state["params"].items():
            if name not in m_g:
                assert torch.equal(values[id], w_g[name])
                continue
            m_c = progress.clients.state["keep"][name][id]
            own = m_c & ~m_g[name]
            assert torch.equal(values[id][m_c & m_g[name]], w_g[name][m_c & m_g[name]])
            assert not values[id][~m_c].any()
            assert (values[id][own] != before[name][id][own]).all()
            personal += int(own.sum())
    assert personal > 5


# Adaptive inference

# Unit vector 0: θ_c gives (ln 9, 0), p = (0.9, 0.1); θ_g gives (0, ln 3), p = (0.25, 0.75).
# Unit vector 1: θ_c gives (ln 3, −ln 3), p = (0.9, 0.1); θ_g gives (ln 3, 0), p = (0.75, 0.25);
# position 1 is shared. E_c = −0.9 ln 0.9 − 0.1 ln 0.1 = 0.325083 for both, and
# E_g = −0.25 ln 0.25 − 0.75 ln 0.75 = 0.562335 for both. Other unit vectors: all 0, entropy ln 2.
OWN = eight(math.log(9), math.log(3), 0, 0, 0, -math.log(3), 0, 0)
COMMON = eight(0, math.log(3), 0, 0, math.log(3), 0, 0, 0)
OWN_KEEP, COMMON_KEEP = bits("1100 0100"), bits("0100 1000")
E_C = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
E_G = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)


def answers(method: DMPFL, base: tuple[float, float]) -> list[str]:
    """Return who answers the unit vectors 0 and 1."""
    client = {**holder(OWN, OWN_KEEP), "base": torch.tensor(base, dtype=torch.float64)}
    model = method.personalize(TASK, received(COMMON, COMMON_KEEP), client, "adaptive")
    output = method.predict(TASK, model, torch.eye(4, dtype=torch.float64)[:2])
    names = {"own": OWN, "common": COMMON}
    return [
        next(name for name, weight in names.items() if torch.equal(row, weight[:, place]))
        for place, row in enumerate(output)
    ]


PROBABILITIES, LOGITS = EIGHT, replace(EIGHT, similarity="logits")


@pytest.mark.parametrize(
    ("method", "base", "expected"),
    [
        # Cosine of probabilities. Vector 0: (0.9 · 0.25 + 0.1 · 0.75) / (√0.82 · √0.625) = 0.41906,
        # 1 − Sim = 0.58094. Vector 1: (0.675 + 0.025) / 0.71589 = 0.97780, 1 − Sim = 0.02220.
        # Vector 0: 0.32508 − 0.05809 = 0.26699 against 0.56234 − 0.34857 = 0.21377: θ_g.
        # Vector 1: 0.32508 − 0.00222 = 0.32286 against 0.56234 − 0.01332 = 0.54902: θ_c.
        (PROBABILITIES, (0.1, 0.6), ["common", "own"]),
        # Vector 0: 0.26699 against 0.56234 − 0.26142 = 0.30091: θ_c, for θ_g's base is lower.
        (PROBABILITIES, (0.1, 0.45), ["own", "own"]),
        # Cosine of logits. Vector 0: (ln 9, 0) · (0, ln 3) = 0, 1 − Sim = 1.
        # Vector 1: (ln 3)² / (√2 ln 3 · ln 3) = 0.70711, 1 − Sim = 0.29289.
        # Vector 0: 0.32508 − 0.1 = 0.22508 against 0.56234 − 0.45 = 0.11234: θ_g.
        # Vector 1: 0.32508 − 0.02929 = 0.29579 against 0.56234 − 0.13180 = 0.43053: θ_c.
        (LOGITS, (0.1, 0.45), ["common", "own"]),
        # Vector 0: 0.22508 against 0.56234 − 0.3 = 0.26234: θ_c.
        (LOGITS, (0.1, 0.3), ["own", "own"]),
        # A confident θ_g and an unsure θ_c: vector 1 is 0.32508 − 0.29289 · 0.1 = 0.29579 against
        # 0.56234 − 0.29289 · 1 = 0.26944: θ_g.
        (LOGITS, (0.1, 1.0), ["common", "common"]),
    ],
)
def test_the_surer_model_answers(
    method: DMPFL, base: tuple[float, float], expected: list[str]
) -> None:
    assert answers(method, base) == expected


def base_of(data: Federation, id: int = 0) -> list[float]:
    """Return the base entropies (θ_c, θ_g) of a client."""
    round = at("adapt", ("adaptive", False))
    message, client = received(COMMON, COMMON_KEEP), holder(OWN, OWN_KEEP)
    _, held = play(EIGHT, message, client, round, data, id)
    found: list[float] = held["base"].tolist()
    return found


def test_base_entropies_are_means_over_validation_data() -> None:
    # Unit vectors 0, 2 and 3: (0.325083 + 2 ln 2) / 3 and (0.562335 + 2 ln 2) / 3.
    expected = [(E_C + 2 * math.log(2)) / 3, (E_G + 2 * math.log(2)) / 3]
    found = base_of(units(([0], [0, 2, 3])))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("neighbor", [[], [2]])
def test_base_entropies_are_of_training_data_where_there_is_no_other(neighbor: list[int]) -> None:
    """Whether or not another client has validation data."""
    found = base_of(units(([0, 1], []), ([1], neighbor)))
    torch.testing.assert_close(found, [E_C, E_G], rtol=0, atol=1e-12)


# The schedule


def names(method: DMPFL, rounds: int) -> list[str]:
    """Return the phase of every round."""
    phases: list[Any] = [method.schedule(number, rounds) for number in range(rounds)]
    return [phase[0] for phase in phases]


def test_300_rounds_are_two_iterations_of_half_a_quarter_and_a_quarter() -> None:
    # An iteration has 150 rounds: 75, 37.5 and 37.5; a round belongs where its middle lies.
    one = ["dual"] * 75 + ["global"] * 37 + ["personal"] * 38
    assert names(DMPFL(), 300) == one * 2


def test_12_rounds_are_two_iterations_whose_refines_are_told_apart() -> None:
    # An iteration has six rounds: 3, 1.5 and 1.5. Masks are readjusted in every third round.
    method = DMPFL()
    assert [method.schedule(number, 12) for number in range(12)] == [
        ("dual", True),
        ("dual", False),
        ("dual", False),
        ("global",),
        ("personal", 0),
        ("personal", 0),
        ("dual", True),
        ("dual", False),
        ("dual", False),
        ("global",),
        ("personal", 1),
        ("personal", 1),
    ]
    still = replace(method, readjust=0.0)
    assert still.schedule(0, 12) == ("dual", False)


def test_two_rounds_or_more_begin_with_dual_masks() -> None:
    found = {rounds: names(DMPFL(), rounds) for rounds in range(2, 50)}
    assert not {rounds: some for rounds, some in found.items() if some[0] != "dual"}


def test_one_round_is_not_spent_on_personal_weights_that_nobody_has() -> None:
    assert names(DMPFL(), 1) != ["personal"]


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_three_rounds_or_more_reach_every_phase_in_order(iterations: int) -> None:
    method, order = DMPFL(iterations=iterations), ("dual", "global", "personal")
    missed = {}
    for rounds in range(3, 60):
        found = names(method, rounds)
        turns = [here for here, after in pairwise([*found, ""]) if here != after]
        whole = [name for _ in range(iterations) for name in order]
        if set(found) != set(order) or (rounds >= 3 * iterations and turns != whole):
            missed[rounds] = found
    assert not missed


@pytest.mark.parametrize("phases", [(1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5)])
def test_a_phase_without_a_share_never_comes(phases: tuple[float, float, float]) -> None:
    method, order = DMPFL(phases=phases), ("dual", "global", "personal")
    never = {name for name, share in zip(order, phases, strict=True) if not share}
    found = {rounds: names(method, rounds) for rounds in range(1, 50)}
    assert not {rounds: some for rounds, some in found.items() if never & set(some)}


# The replay

PHASES = ["dual", "dual", "dual", "global", "personal", "personal"] * 2
READJUSTED = {0, 2, 6, 8}
VARIANTS = {
    "plain": DMPFL(lr=0.3, local_epochs=3, readjust=0.4, readjust_every=2),
    "all masked, momentum, decay, restart": DMPFL(
        lr=0.1,
        local_epochs=3,
        readjust=0.5,
        readjust_every=2,
        momentum=0.5,
        weight_decay=0.02,
        sparsity=0.6,
        first_dense=False,
        biases_dense=False,
        restart=True,
        refine_lr_scale=0.5,
        settle=2,
        similarity="logits",
    ),
    "from the global mask": DMPFL(
        lr=0.3, local_epochs=3, readjust=0.4, readjust_every=2, anneal=False, mask_start="global"
    ),
}


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_twelve_rounds_equal_the_reference(variant: str, validation: bool) -> None:
    method = VARIANTS[variant]
    made, world = stage(method, 12, replay.federation(validation))
    paper, progress = DualMasks(world, method, 12), made.begin()
    for number, phase in enumerate(PHASES):
        advance(made, progress)
        if phase == "dual":
            paper.dual(number, number in READJUSTED)
        elif phase == "global":
            paper.refine_global(number)
        else:
            paper.refine_personal(number, number // 6)
        held = progress.clients.state
        assert_same(progress.server["params"], paper.w_g)
        assert_masks(progress.server["keep"], paper.m_g, paper.sparse)
        for id in range(len(replay.SIZES)):
            assert_same({name: value[id] for name, value in held["params"].items()}, paper.w[id])
            keep = {name: value[id] for name, value in held["keep"].items()}
            assert_masks(keep, paper.m[id], paper.sparse)
    assert_told_apart(paper)
    models = measure(made, progress, "adaptive", list(made.federation.test)).models
    by_own: list[bool] = []
    for id, model in enumerate(models):
        output = method.predict(made.server.task, model, made.federation.x)
        expected, own = paper.answer(id, made.federation.x)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)
        by_own += own
    assert {True, False} == set(by_own)


def assert_masks(keep: dict[str, Tensor], mask: dict[str, Tensor], sparse: list[str]) -> None:
    """Hold masks against the reference, bit for bit."""
    assert set(keep) == set(sparse)
    for name in sparse:
        assert torch.equal(keep[name], mask[name] == 1), name


def assert_told_apart(paper: DualMasks) -> None:
    """See that the replay had something to compare: masks that moved, shared and personal parts."""
    first = DualMasks(paper.world, paper.paper, paper.rounds)
    for name in ("2.weight", "4.weight"):
        masks = {tuple(mask[name].flatten().tolist()) for mask in paper.m}
        assert len(masks) > 2
        assert not torch.equal(paper.m_g[name], first.m_g[name])
        assert any((mask[name] * paper.m_g[name]).any() for mask in paper.m)
        assert any((mask[name] * (1 - paper.m_g[name])).any() for mask in paper.m)


def test_masks_that_begin_from_the_global_one_and_never_differ_are_refused() -> None:
    # Without a readjustment in every dual round nobody has a mask of their own.
    assert DMPFL(mask_start="global").problems()
    assert DMPFL(mask_start="global", readjust_every=1, readjust=0.0).problems()
    assert not DMPFL(mask_start="global", readjust_every=1).problems()
