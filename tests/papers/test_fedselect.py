"""FedSelect (2023): GradLTN by hand, a second text of the algorithms, and mistakes that show."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import masquerade as mq
from masquerade.core import (
    Batch,
    ClientInfo,
    Cohort,
    Message,
    Part,
    Round,
    Stage,
    State,
    Task,
    tree,
)
from masquerade.core.round import steps
from masquerade.core.tree import stack
from masquerade.cost.flops import Meter, shares
from masquerade.cost.traffic import measure_exchange as measure_bytes
from masquerade.data import load, parse, partition
from masquerade.data.loader import BatchLoader
from masquerade.methods import FedSelect
from masquerade.models import build
from masquerade.wire import nbytes, values_bytes
from masquerade.wire.session import ANY
from tests import support
from tests.papers.replay import World, assert_same, stage, weights_of
from tests.support import advance

WHO = ClientInfo(0, 3, 0)


def at(phase: Any = "train", kind: str = "train") -> Round:
    """Return a round whose learning rates are not decayed."""
    zero = torch.zeros((), dtype=torch.float64)
    return Round(kind, phase, zero, zero + 9, zero + 1)


# GradLTN by hand.
#
# Four weights θ_0 = (1, 0, 2, −1), three samples with squared loss: x = (1, 1, 0, 0), y = 9;
# x = (0, 0, 1, 0), y = 8; x = (0, 0, 0, 1), y = −3. The slopes of the mean are 2/3 of the residuals
#     (w1 + w2 − 9, w1 + w2 − 9, w3 − 8, w4 + 3),   at θ_0 (−8, −8, −6, 2),
# and a rate of 3/4 halves: w ← w − residual / 2. Two epochs of one batch, p = 3/4, L = 2.
#
# ticket 0, mask 1111: w1 and w2 move by 4 each, after which their residual is 0, and stay. w3 moves
#     by 3 and then 1.5, w4 by −1 and then −0.5. γ = (4, 4, 4.5, 1.5).
#     Of 4 entries ⌊3/4 · 4⌋ = 3 stay personal: 1110. Rewind.
# ticket 1, mask 1110: as before, γ = (4, 4, 4.5, 0).
#     Of 3 entries ⌊3/4 · 3⌋ = 2 stay: w3, and of the equals the first: 1010. Rewind.
# ticket 2, mask 1010: w2 is frozen at 0, so w1 moves by 4 and then by (8 − 4) / 2 = 2: 7. w3 = 6.5.
# θ_0 = (1, 0, 2, −1) is returned; with θ_L it would be (7, 0, 6.5, −1).

THETA_0 = torch.tensor([[1.0, 0.0, 2.0, -1.0]], dtype=torch.float64)
X = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
Y = torch.tensor([[9], [8], [-3]], dtype=torch.float64)
HAND = FedSelect(
    lr=0.75,
    local_epochs=1,
    iterations=2,
    search_epochs=2,
    personal_share=0.75,
    share_of="survivors",
)


def square(output: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of every sample."""
    return ((output - y) ** 2).flatten()


def four() -> Task:
    """Return the task of four weights."""
    module = nn.Linear(4, 1, bias=False).double()
    module.weight.data = THETA_0
    return Task(module, loss=square, metric=square, better="lower")


def searched(method: FedSelect) -> list[State]:
    """Return the work after each stage of the search, from θ_0 as everything that is shared."""
    task, round = four(), at()
    message = method.download(task, method.server_init(task), method.row_init(task, WHO), round)
    work = method.start(task, message, method.client_init(task, WHO), round)
    found = []
    for one in method.plan(task, round):
        if one.name.startswith(("own", "shared")):
            break
        batches = [Batch(X, Y, None, torch.tensor(0))] * one.epochs
        work = one.then(steps(one, one.prepare(work, round), batches, round), round)
        found.append(work)
    return found


def bits(work: State) -> str:
    """Write a mask as zeros and ones."""
    return "".join("01"[int(bit)] for bit in work["personal"]["weight"].flatten())


def assert_hand(method: FedSelect) -> None:
    """Hold a search that returns θ_L against the arithmetic above."""
    first, second, third = searched(replace(method, rewind=False))
    assert [bits(work) for work in (first, second, third)] == ["1111", "1110", "1010"]
    assert (first["own"]["weight"] - THETA_0).tolist() == [[4.0, 4.0, 4.5, -1.5]]
    ticket = torch.where(third["personal"]["weight"], third["own"]["weight"], THETA_0)
    assert ticket.tolist() == [[7.0, 0.0, 6.5, -1.0]]


def assert_rewound(method: FedSelect) -> None:
    """Demand that a search throws its training away and leaves the shared half alone."""
    last = searched(method)[-1]
    assert torch.equal(last["own"]["weight"], THETA_0)
    assert torch.equal(last["shared"]["weight"], THETA_0)


def test_gradltn_by_hand() -> None:
    assert_hand(HAND)
    assert_rewound(HAND)
    assert bits(searched(HAND)[-1]) == "1010"


def test_momentum_begins_anew_with_every_ticket() -> None:
    # One step per ticket: w1 moves by 4. Were momentum 1/2 carried over, ticket 1 would move it by
    # 4 + 4 / 2 = 6.
    *tickets, _ = searched(replace(HAND, momentum=0.5, search_epochs=1))
    assert len(tickets) == 2
    for work in tickets:
        held = work["personal"]["weight"]
        moved = torch.where(held, (work["own"]["weight"] - THETA_0).abs(), 0)
        assert float(moved[0, 0]) == 4.0


@dataclass(frozen=True, kw_only=True)
class Unwound(FedSelect):
    """Mistake: go on from the trained ticket instead of rewinding to θ_0."""

    def _rewound(self, work: State, where: Tensor) -> State:
        return work


def test_a_search_that_does_not_rewind_is_seen() -> None:
    wrong = Unwound(**vars(HAND))
    with pytest.raises(AssertionError):
        assert_rewound(wrong)
    with pytest.raises(AssertionError):
        assert_hand(wrong)


def assert_compounds(method: FedSelect) -> None:
    """Demand p of the survivors at every pruning: 4 → 2 → 1."""
    assert [bits(work).count("1") for work in searched(replace(method, personal_share=0.5))] == [
        4,
        2,
        1,
    ]


def test_p_compounds_where_it_is_of_survivors_and_not_of_all_entries() -> None:
    assert FedSelect().share_of == "all"
    assert_compounds(HAND)
    with pytest.raises(AssertionError):
        assert_compounds(replace(HAND, share_of="all"))
    # The default: p of all entries, however often.
    assert [bits(work) for work in searched(replace(HAND, share_of="all"))] == [
        "1111",
        "1110",
        "1110",
    ]


def test_the_search_trains_once_more_than_it_prunes() -> None:
    names = [one.name for one in FedSelect().plan(four(), at())]
    assert [name for name in names if name.startswith("ticket")] == [
        f"ticket {i}" for i in range(6)
    ]
    assert names[6:10] == ["own 0", "shared 0", "own 1", "shared 1"]


# Two tensors whose changes are of different size: w changes by (8, 6, 4, 2), b by (1, 1).


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [("tensor", {"w": [1, 1, 0, 0], "b": [1, 0]}), ("overall", {"w": [1, 1, 1, 0], "b": [0, 0]})],
)
def test_changes_compete_within_a_tensor_or_overall(
    ranking: str, expected: dict[str, list[int]]
) -> None:
    method = FedSelect(ranking=ranking, personal_share=0.5, share_of="survivors")
    begun = {"w": torch.zeros(4), "b": torch.zeros(2)}
    own = {"w": torch.tensor([8.0, -6.0, 4.0, 2.0]), "b": torch.tensor([1.0, -1.0])}
    zero = torch.zeros((), dtype=torch.float64)
    work = {"own": own, "shared": begun, "score": zero, "seen": zero, "going": zero == 0}
    work["personal"] = {
        name: torch.ones_like(value, dtype=torch.bool) for name, value in own.items()
    }
    pruned = method.prune(four(), work, at())
    assert {name: held.int().tolist() for name, held in pruned["personal"].items()} == expected


# When a search stops


def test_a_target_share_is_never_undercut() -> None:
    # p = 1/2 of 4 is 2, then 1; a target of 1/2 keeps 2. Ticket 1 is trained with that mask,
    # pruning finds nothing more to do, and the third training does not happen.
    method = replace(HAND, personal_share=0.5, stop="share", target_share=0.5, rewind=False)
    works = searched(method)
    assert [bits(work).count("1") for work in works] == [4, 2, 2]
    assert [bool(work["going"]) for work in works] == [True, True, False]
    assert torch.equal(works[2]["own"]["weight"], works[1]["own"]["weight"])


# After ticket 0 the weights are (5, 4, 6.5, −2.5): the residuals are 0, −1.5 and 0.5, and the mean
# squared error, of which less is better, is (0 + 2.25 + 0.25) / 3 = 0.833… With w4 frozen at −1
# (residual 2) ticket 1 has (0 + 2.25 + 4) / 3 = 2.083…


@pytest.mark.parametrize(
    ("target", "masks"), [(0.8, ["1111"] * 3), (0.84, ["1111", "1110", "1110"]), (9, None)]
)
def test_only_a_ticket_that_reaches_the_target_is_pruned(
    target: float, masks: list[str] | None
) -> None:
    method = replace(HAND, stop="accuracy", target_accuracy=target)
    stages = [one for one in method.plan(four(), at()) if one.name.startswith("measure")]
    assert [one.data for one in stages] == ["validation"] * 2
    look = searched(method)[1]
    assert (float(look["score"]), float(look["seen"])) == (2.5, 3)
    found = [bits(work) for work in searched(method)][::2]
    assert found == (masks or ["1111", "1110", "1010"])


def test_a_search_that_has_ended_costs_nothing() -> None:
    method = replace(HAND, stop="accuracy", target_accuracy=0.8)
    task, round = four(), at()
    meter = Meter(task)
    samples, spent = torch.tensor([3.0], dtype=torch.float64), []
    stages = [one for one in method.plan(task, round) if one.name.startswith("ticket")]
    for one, work in zip(stages, searched(method)[::2], strict=True):
        count = meter.step(one, work, X, Y, round)
        flops = meter.stage(one, count, samples, shares(one, work, lead=0), X).summed()
        spent.append((float(flops.dense) > 0, float(flops.masked) > 0))
    assert spent == [(True, True), (True, False), (True, False)]


# Who averages what: mask convention, privacy, clients without a mask


def sent(method: FedSelect, values: list[float], personal: str) -> Message:
    """Return what a client uploads after a round that ended with these weights and this mask."""
    task, round = four(), at()
    weight = torch.tensor([values], dtype=torch.float64)
    held = torch.tensor([[bit == "1" for bit in personal]])
    message = method.download(task, method.server_init(task), method.row_init(task, WHO), round)
    work = {
        "own": {"weight": torch.where(held, weight, math.nan)},
        "shared": {"weight": torch.where(held, math.nan, weight)},
        "personal": {"weight": held},
    }
    return method.finish(task, work, message, method.client_init(task, WHO), round)[0]


def assert_shared_are_averaged(method: FedSelect) -> None:
    # A has 1 sample and the mask 1100, B has 3 and 1010. Entry 0 is personal to both: the server
    # keeps 1. Entry 1: B alone, 20. Entry 2: A alone, 3. Entry 3: (1 · 4 + 3 · 40) / 4 = 31.
    uploads = stack([sent(method, [1, 2, 3, 4], "1100"), sent(method, [10, 20, 30, 40], "1010")])
    cohort = Cohort(torch.arange(2), torch.tensor([1, 3]), 2, 2)
    server, rows = method.aggregate(
        four(), {"params": {"weight": THETA_0}}, {}, uploads, cohort, at()
    )
    assert server["params"]["weight"].tolist() == [[1, 20, 3, 31]]
    # What a client shares is what it is sent next time, and nothing else.
    for place, mask in enumerate(("0011", "0101")):
        row = tree.take(rows, place)
        keep = method.download(four(), server, row, at())["params"].keep["weight"]
        assert "".join("01"[int(bit)] for bit in keep.flatten()) == mask


@dataclass(frozen=True, kw_only=True)
class Inverted(FedSelect):
    """Mistake: average "where the mask is 1", as a comment of Algorithm 2 says."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        upload, held = super().finish(task, work, message, client, round)
        return {"params": Part(upload["params"].values, work["personal"])}, held


def test_shared_entries_are_averaged_and_personal_ones_never() -> None:
    assert_shared_are_averaged(HAND)
    with pytest.raises(AssertionError):
        assert_shared_are_averaged(Inverted(**vars(HAND)))


def assert_newcomer_gets_everything(keep: Tensor) -> None:
    assert bool(keep.all())


def test_a_client_without_a_mask_gets_everything_that_the_server_has() -> None:
    task = four()
    server = {"params": {"weight": THETA_0 + 5}}
    message = HAND.download(task, server, HAND.row_init(task, WHO), at())
    assert_newcomer_gets_everything(message["params"].keep["weight"])
    client = HAND.client_init(task, WHO)
    model = HAND.personalize(task, message, client, "personal")
    assert torch.equal(HAND.predict(task, model, X), X @ (THETA_0 + 5).T)
    # Mistake: Algorithm 2 gives it the entries that are *personal* to somebody.
    with pytest.raises(AssertionError):
        assert_newcomer_gets_everything(torch.tensor([1, 1, 0, 0]) | torch.tensor([1, 0, 1, 0]) > 0)


# The growing variant


GROW = FedSelect(select="growth", grow=0.5, grow_target=0.75, grow_every=2)


def test_masks_grow_every_few_rounds_and_not_in_the_first() -> None:
    phases = [FedSelect(select="growth").schedule(number, 10) for number in range(8)]
    assert [number for number, phase in enumerate(phases) if phase == "grow"] == [3, 6]
    assert {FedSelect().schedule(number, 10) for number in range(8)} == {"train"}


def grown(method: FedSelect, client: State, weight: list[float]) -> tuple[Message, State]:
    """End a round, with these shared weights, at whose end masks grow."""
    task, row = four(), {"shared": {"weight": ~client["own"].keep["weight"]}}
    message = method.download(task, method.server_init(task), row, at("grow"))
    work = method.start(task, message, client, at("grow"))
    work["shared"] = {"weight": torch.tensor([weight], dtype=torch.float64)}
    return method.finish(task, work, message, client, at("grow"))


def assert_both_sides_agree(method: FedSelect) -> None:
    """Demand that the mask that goes with an upload is the one the client goes on with."""
    upload, client = grown(method, method.client_init(four(), WHO), [2, 3, 2, -3])
    assert torch.equal(upload["params"].keep["weight"], ~client["own"].keep["weight"])


@dataclass(frozen=True, kw_only=True)
class Late(FedSelect):
    """Mistake: upload with the old mask, then update it, so that the server knows an old one."""

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        before = super().finish(task, work, message, client, replace(round, phase="train"))[0]
        return before, super().finish(task, work, message, client, round)[1]


def test_growth_by_hand() -> None:
    # θ_0 = (1, 0, 2, −1) becomes (2, 3, 2, −3): changes (1, 3, 0, 2). Half of four: 0101.
    upload, client = grown(GROW, GROW.client_init(four(), WHO), [2, 3, 2, -3])
    assert client["own"].keep["weight"].int().tolist() == [[0, 1, 0, 1]]
    assert client["own"].values["weight"].tolist() == [[0, 3, 0, -3]]
    # Of the two shared entries half, but in all at most 3/4 · 4 = 3: entry 2, which moves from 2 to
    # 9; what became personal before stays, whatever the shared half holds there.
    upload, client = grown(GROW, client, [1, 77, 9, 77])
    assert client["own"].keep["weight"].int().tolist() == [[0, 1, 1, 1]]
    assert client["own"].values["weight"].tolist() == [[0, 3, 9, -3]]
    assert upload["params"].values["weight"][0, 0] == 1
    # The target is reached: nothing more.
    _, client = grown(GROW, client, [5, 77, 77, 77])
    assert client["own"].keep["weight"].int().tolist() == [[0, 1, 1, 1]]


def test_a_mask_travels_with_the_upload_that_it_belongs_to() -> None:
    assert_both_sides_agree(GROW)
    with pytest.raises(AssertionError):
        assert_both_sides_agree(Late(**vars(GROW)))


# A second text of Algorithms 1 and 2, in plain PyTorch


def epoch_of(world: World, client: int, number: int, stream: int, epoch: int) -> list[Any]:
    """List the batches of one epoch."""
    one = Stage("any", lambda work, batch, round: work, stream=stream, epoch=epoch)
    loader = BatchLoader(world.federation, world.seed, world.batch)
    return list(loader.batches(loader.shuffle(torch.tensor([client]), one, at(), number), 0))


def sgd_step(module: nn.Module, moves: dict[str, Tensor], method: FedSelect, decay: float) -> Any:
    """Return a step of SGD on some of the entries, with momentum of its own."""
    named = dict(module.named_parameters())
    past = {name: torch.zeros_like(value) for name, value in named.items()}

    def step(batch: Any) -> None:
        module.zero_grad()
        cross_entropy(module(batch.x), batch.y).backward()
        for name, value in named.items():
            past[name] = method.momentum * past[name] + value.grad * moves[name]
            value.data = value.data - method.lr * decay * past[name]

    return step


def grad_ltn(
    world: World, theta: dict[str, Tensor], client: int, number: int, method: FedSelect
) -> dict[str, Tensor]:
    """Return m_L of Algorithm 1, as zeros and ones."""
    m = {name: torch.ones_like(value) for name, value in theta.items()}
    trained = theta
    for i in range(method.iterations + 1):
        if i > 0:
            for name in m:
                gamma = ((trained[name] - theta[name]).abs() * m[name]).flatten()
                left = int(method.personal_share * int(m[name].sum()))
                order = sorted(range(len(gamma)), key=lambda place: (-float(gamma[place]), place))
                flat = torch.zeros_like(gamma)
                flat[order[:left]] = 1
                m[name] = flat.reshape(m[name].shape)
        module = copy.deepcopy(world.network)
        module.load_state_dict(theta)
        step = sgd_step(module, m, method, world.lr_decay**number)
        for epoch in range(method.search_epochs):
            for batch in epoch_of(world, client, number, 2, i * method.search_epochs + epoch):
                step(batch)
        trained = weights_of(module)
    return m


def replayed(world: World, method: FedSelect, rounds: int) -> tuple[Any, Any, Any]:
    """Return θ_G, the clients' v and their masks after some rounds of Algorithm 2."""
    theta_g = weights_of(world.network)
    v = [dict(theta_g) for _ in world.federation.train]
    m = [{name: torch.zeros_like(value) for name, value in theta_g.items()} for _ in v]
    for number in range(rounds):
        trained = {}
        for k in world.cohorts[number]:
            theta = {n: torch.where(m[k][n] > 0, v[k][n], theta_g[n]) for n in theta_g}
            m[k] = grad_ltn(world, theta, k, number, method)
            module = copy.deepcopy(world.network)
            module.load_state_dict(theta)
            decay = world.lr_decay**number
            own = sgd_step(module, m[k], method, decay)
            shared = sgd_step(module, {n: 1 - one for n, one in m[k].items()}, method, decay)
            for epoch in range(method.local_epochs):
                for step, stream in ((own, 1), (shared, 0)):
                    for batch in epoch_of(world, k, number, stream, epoch):
                        step(batch)
            trained[k] = v[k] = weights_of(module)
        for name, old in theta_g.items():
            weight = {k: world.share(k) * (1 - m[k][name]) for k in trained}
            total = sum(weight.values(), torch.zeros_like(old))
            mean = sum((weight[k] * trained[k][name] for k in trained), torch.zeros_like(old))
            theta_g[name] = torch.where(total > 0, mean / total.clamp(min=1), old)
    return theta_g, v, m


def test_three_rounds_equal_a_second_text_of_the_algorithms() -> None:
    method = FedSelect(
        lr=0.2,
        local_epochs=2,
        momentum=0.5,
        iterations=2,
        search_epochs=1,
        personal_share=0.6,
        share_of="survivors",
    )
    made, world = stage(method, 3)
    progress = made.begin()
    for _ in range(3):
        advance(made, progress)
    theta_g, v, m = replayed(world, method, 3)
    assert_same(progress.server["params"], theta_g)
    moved = 0
    for k, model in enumerate(
        support.measure(made, progress, "personal", list(made.federation.test)).models
    ):
        own = model["own"]
        for name in theta_g:
            assert torch.equal(own.keep[name], m[k][name] > 0)
            held = own.keep[name]
            torch.testing.assert_close(own.values[name][held], v[k][name][held], rtol=0, atol=1e-9)
            moved += int(held.sum())
    assert moved


# What it costs


def test_the_upload_falls_with_p_and_masks_are_counted() -> None:
    task = Task(build("digits_cnn", (1, 8, 8), 10, seed=1))
    uploads, round = {}, at()
    for p in (0.25, 0.5, 0.75):
        method = FedSelect(personal_share=p, share_of="all")
        keep = {
            name: torch.arange(value.numel()).reshape(value.shape) >= int(p * value.numel() + 1e-9)
            for name, value in task.initial.items()
        }
        uploads[p] = {"params": Part(task.initial, keep)}
        download = method.download(task, {"params": task.initial}, {"shared": keep}, round)
        cost, _ = measure_bytes(download, uploads[p], {ANY: torch.tensor(0)}, 0)
        values = 4 * sum(int(one.sum()) for one in keep.values())
        assert int(cost.values_up) == int(cost.values_down) == values
        # The mask, which the paper leaves out; going up it is the one that came down.
        assert int(cost.down) > int(cost.up) > values
    values = [int(values_bytes(upload)) for upload in uploads.values()]
    everything = [int(nbytes(upload)) for upload in uploads.values()]
    assert values == sorted(values, reverse=True)
    assert everything == sorted(everything, reverse=True)
    assert values[0] == pytest.approx(3 * values[2], rel=0.01)


def test_training_sends_less_where_p_is_larger() -> None:
    sent_up = []
    for p in (0.0, 0.25, 0.5, 0.75):
        method = FedSelect(personal_share=p, iterations=1, search_epochs=1, local_epochs=1)
        made, _ = stage(method, 2)
        progress = made.begin()
        advance(made, progress)
        sent_up.append(progress.costs["train"]["values_up"])
    assert sent_up == sorted(sent_up, reverse=True)
    assert len(set(sent_up)) == 4


# Norms and buffers


class Normed(nn.Module):
    """A layer, a BatchNorm, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.last(self.norm(self.first(x)))
        return logits


LINEAR = {"first.weight", "first.bias", "last.weight", "last.bias"}
NORM = {"norm.weight", "norm.bias"}
BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.mark.parametrize(
    ("norms", "buffers", "sent", "masked"),
    [
        ("masked", "local", LINEAR | NORM, LINEAR | NORM),
        ("shared", "local", LINEAR | NORM, LINEAR),
        ("personal", "local", LINEAR, LINEAR),
        ("personal", "averaged", LINEAR | BUFFERS, LINEAR),
        ("masked", "averaged", LINEAR | NORM | BUFFERS, LINEAR | NORM),
    ],
)
def test_norms_and_buffers_live_where_the_policy_says(
    norms: str, buffers: str, sent: set[str], masked: set[str]
) -> None:
    method = FedSelect(norms=norms, buffers=buffers, local_epochs=1, iterations=1, search_epochs=1)
    task, generator = Task(Normed().double()), torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    batch = Batch(x, torch.tensor([0, 1, 2, 0, 1, 2]), None, torch.tensor(0))
    message = method.download(task, method.server_init(task), method.row_init(task, WHO), at())
    client = method.client_init(task, WHO)
    work = method.start(task, message, client, at())
    for one in method.plan(task, at()):
        work = one.then(steps(one, one.prepare(work, at()), [batch], at()), at())
    upload, client = method.finish(task, work, message, client, at())
    assert message["params"].values.keys() == upload["params"].values.keys() == sent
    assert message["params"].keep.keys() == upload["params"].keep.keys() == masked
    # One pass over the shared half has moved the running means, wherever they live.
    where = upload["params"] if buffers == "averaged" else client["own"]
    assert int(where.values["norm.num_batches_tracked"]) == 1
    assert bool(where.values["norm.running_mean"].any())
    model = method.personalize(task, upload, client, "personal")
    assert method.predict(task, model, x).isfinite().all()
    # All of the model is there once: personal or shared.
    assert sum(part.kept() for part in model.values()) == tree.size(task.initial)


# On real data


@pytest.mark.parametrize(
    ("select", "name"), [("tickets", "fedselect"), ("growth", "fedselect_grow")]
)
def test_digits_end_well_above_an_untrained_model(select: str, name: str) -> None:
    data = partition(load("digits"), 5, parse("fedselect:2:20:50"), 1)
    model = build("mlp", (1, 8, 8), 10, seed=1)
    method = FedSelect(
        select=select,
        personal_share=0.75,
        iterations=2,
        search_epochs=1,
        local_epochs=3,
        grow_every=1,
    )
    result = mq.run(method, model, data, 4, evaluate=mq.Evaluate(every=0, degrees=(0,)))
    untrained = [
        float((model(data.x[own]).argmax(1) == data.y[own]).double().mean()) for own in data.test
    ]
    own = result.summaries[0].accuracy.own.mean
    assert own >= 100 * sum(untrained) / len(untrained) + 10
    overlap = result.summaries[0].overlap
    assert overlap is not None
    assert 0 <= overlap.whole < 1
    assert result.summaries[0].method == name


def test_a_pass_needs_the_gradient_of_the_half_that_it_trains() -> None:
    """Own passes take the gradient of personal entries, shared ones that of the others."""
    task = four()
    stages = {one.name: one for one in FedSelect(local_epochs=1).plan(task, at())}
    personal = {"weight": torch.tensor([[True, False, False, False]])}
    work = {"personal": personal}
    for name, share in (("own 0", 0.25), ("shared 0", 0.75)):
        keep = stages[name].masks
        assert keep is not None
        forward, gradient = keep(work)
        assert forward == {}
        assert gradient is not None
        assert float(gradient["weight"].double().mean()) == share


def test_buffers_stay_with_the_client_unless_asked() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    task = Task(model)
    for buffers, there in (("local", False), ("averaged", True)):
        method = FedSelect() if buffers == "local" else FedSelect(buffers=buffers)
        assert ("1.running_mean" in method.server_init(task)["params"]) is there
