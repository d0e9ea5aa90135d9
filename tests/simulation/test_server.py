"""The published figures of a run, against the same figures worked by hand."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from masquerade.config.settings import Evaluate
from masquerade.core import (
    ClientInfo,
    Cohort,
    Message,
    Method,
    Part,
    Round,
    Stage,
    State,
    Task,
    Tree,
)
from masquerade.data import Federation
from masquerade.engine.base import Job, Outcome
from masquerade.methods import DMPFL
from masquerade.results import (
    Bytes,
    ClientFigures,
    Flops,
    PaperCosts,
    Point,
    Spent,
    Statistics,
    Summary,
)
from masquerade.results.costs import Parts
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from masquerade.wire import encode
from tests import support
from tests.support import SIZES, built, carry_on, final

simulate: Callable[..., tuple[Simulation, RunState]] = support.simulate

TEST, VALIDATION, TRAIN = (10, 5, 20, 4), (2, 6, 1, 3), (3, 3, 3, 3)
"""Samples of each of four clients."""
OWN = (90, 60, 80, 100)
"""What each client scores on its own test samples."""
DEGREES = (0, 20, 50, 100)
ROUNDS = 3


def owned(
    test: tuple[int, ...] = TEST,
    validation: tuple[int, ...] = VALIDATION,
    train: tuple[int, ...] = TRAIN,
) -> Federation:
    """Samples that tell their owner o, what others score on them, 12 · o, and their split."""
    rows: list[list[float]] = []
    splits: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    for name, sizes in zip(splits, (train, validation, test), strict=True):
        for owner, size in enumerate(sizes):
            splits[name].append(torch.arange(len(rows), len(rows) + size))
            rows += [[owner, 12 * owner, float(name == "validation")]] * size
    x = torch.tensor(rows, dtype=torch.float64)
    return Federation("owned", x, x[:, 0], None, *(tuple(parts) for parts in splits.values()))


def score(output: Tensor, y: Tensor) -> Tensor:
    """The answer is the score, whatever the target."""
    return output[:, 0]


def one_third(work: State) -> tuple[Tree, Tree]:
    """One of the three weights is there and trained."""
    keep = {"weight": torch.tensor([[True, False, False]])}
    return keep, keep


@dataclass(frozen=True, kw_only=True)
class Known(Method):
    """Clients that know their own samples, and a server that counts rounds; all scores are known.

    Validation samples score 5 less. The global view scores 47 and one more for every round.
    """

    views: ClassVar[tuple[str, ...]] = ("personal", "tuned", "global")

    def server_init(self, task: Task) -> State:
        return {"age": torch.zeros(5)}

    def client_init(self, task: Task, info: ClientInfo) -> State:
        best = OWN[info.id] if info.id < len(OWN) else 100 - info.id
        return {"id": torch.tensor(info.id), "best": torch.tensor(float(best))}

    def download(self, task: Task, server: State, row: State, round: Round) -> Message:
        if round.kind == "setup":
            return {"setup": Part({"setup": torch.ones(2)})}
        return {"age": Part({"age": server["age"]})}

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return {"params": task.initial}

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return (Stage("train", self.sgd_step(task), masks=one_third),)

    def setup(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return (Stage("setup", self.sgd_step(task), epochs=2),)

    def adapt(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return (Stage("tune", self.sgd_step(task), epochs=5),) if round.phase[0] == "tuned" else ()

    def finish(
        self, task: Task, work: State, message: Message, client: State, round: Round
    ) -> tuple[Message, State]:
        return {"up": Part({"up": torch.ones(7 if round.kind == "setup" else 3)})}, client

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        return ({"age": server["age"] + 1} if round.kind == "train" else server), rows

    def personalize(self, task: Task, message: Message, client: State, view: str) -> Message:
        return message if view == "global" else {"own": Part(dict(client))}

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        owner, others, validates = x.unbind(1)
        if "own" in personal:
            own = personal["own"].values
            answer = torch.where(owner == own["id"], own["best"].double(), others)
        else:
            answer = 47 + personal["age"].values["age"][0] + 0 * owner
        return (answer - 5 * validates)[:, None]


class OnlyPersonal(Known):
    """The same without a global view."""

    views: ClassVar[tuple[str, ...]] = ("personal",)


def world(
    method: Method | None = None,
    evaluate: Evaluate | None = None,
    data: Federation | None = None,
    views: tuple[str, ...] = Known.views,
) -> Simulation:
    """Three rounds with half of the clients; every client is shifted toward each other one."""
    return built(
        method or Known(),
        Task(nn.Linear(3, 1).double(), loss=score, metric=score),
        data or owned(),
        rounds=ROUNDS,
        batch_size=2,
        participation=0.5,
        lr_decay=1.0,
        evaluate=evaluate or Evaluate(every=1, degrees=DEGREES, draws=3),
        seed=5,
        views=views,
    )


def summaries(made: Simulation) -> dict[str, Summary]:
    """Run to the end and return the summary of every view."""
    progress = carry_on(made, made.begin())
    made.close()
    return {summary.view: summary for summary in final(made, progress)[0]}


@pytest.fixture(scope="module")
def found() -> dict[str, Summary]:
    return summaries(world())


def test_every_degree_replaces_its_share_and_averages_every_draw(found: dict[str, Summary]) -> None:
    # Of four clients, three draws of a partner are the three others, each once. They give client 0
    # (12 + 24 + 36) / 3 = 24 on average, clients 1 to 3 likewise 20, 16, 12.
    # Degree 20 replaces 2 of 10, 1 of 5, 4 of 20, 1 of 4:
    #   0.8 · 90 + 0.2 · 24, 0.8 · 60 + 0.2 · 20, 0.8 · 80 + 0.2 · 16, 0.75 · 100 + 0.25 · 12
    # Degree 50 replaces 5 of 10, 2 of 5 (2.5 rounds to even), 10 of 20, 2 of 4.
    figures = {
        "0": (90, 60, 80, 100),
        "20": (76.8, 52, 67.2, 78),
        "50": (57, 44, 48, 56),
        "100": (24, 20, 16, 12),
    }
    means = {"0": 82.5, "20": 68.5, "50": 51.25, "100": 18}
    shift = dict(found["personal"].accuracy.shift)
    # All four degrees count, 0 and 100 too: 220.25 / 4. Clients have 61.95, 44, 52.8 and 61.5 on
    # average, whose deviations are 6.8875, 11.0625, 2.2625 and 6.4375: √(216.3769 / 4).
    averaged = shift.pop("averaged")
    assert (averaged.mean, averaged.std) == pytest.approx((55.0625, 7.35488))
    assert shift.keys() == figures.keys()
    for degree, values in figures.items():
        mean = means[degree]
        # Over clients, not over draws or samples, and over four of them, not three.
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / 4)
        assert (shift[degree].mean, shift[degree].std) == pytest.approx((mean, std)), degree
    # The clients that this describes are listed, and averaged over the degrees too.
    listed = found["personal"].per_client
    assert listed is not None
    by_client = {degree: pytest.approx(values) for degree, values in figures.items()}
    assert listed.shift == by_client | {"averaged": pytest.approx((61.95, 44, 52.8, 61.5))}
    for degree, pooled in found["personal"].accuracy.pooled.items():
        assert sum(value or 0 for value in listed.pooled[degree]) / 4 == pytest.approx(pooled.mean)


def test_own_figures_are_those_of_the_clients_on_their_own_samples(
    found: dict[str, Summary],
) -> None:
    personal = found["personal"]
    assert personal.per_client is not None
    assert replace(personal.per_client, shift={}, pooled={}) == ClientFigures(
        ids=(0, 1, 2, 3), samples=(3, 3, 3, 3), own=(90, 60, 80, 100), tests=(10, 5, 20, 4)
    )
    assert vars(personal.accuracy.own) == pytest.approx(
        {
            "mean": 82.5,
            # Deviations 7.5, −22.5, −2.5, 17.5: squares 56.25 + 506.25 + 6.25 + 306.25 = 875.
            "std": math.sqrt(875 / 4),
            # By test samples: 10 · 90 + 5 · 60 + 20 · 80 + 4 · 100 = 3200.
            "weighted": 3200 / 39,
            "bottom_decile": 60,
            "defined": 4,
        }
    )


def test_the_bottom_decile_of_eleven_clients_is_the_second_lowest() -> None:
    # 90, 60, 80, 100, then 96, 95, … 90 for clients 4 to 10: below all of them lie 60 and 80.
    sizes = (1,) * 11
    made = world(OnlyPersonal(), data=owned(sizes, sizes, sizes), views=("personal",))
    assert summaries(made)["personal"].accuracy.own.bottom_decile == 80


@pytest.mark.parametrize("views", [("personal",), ("personal", "tuned", "global")])
def test_the_global_view_stands_beside_every_other(views: tuple[str, ...]) -> None:
    # After three rounds it scores 47 + 3 on every test sample, shifted or not.
    flat = Statistics(50, 0)
    made = summaries(world(views=views))
    assert tuple(made) == views
    for summary in made.values():
        beside = summary.global_view
        assert beside is not None
        assert beside.own == replace(flat, weighted=50, bottom_decile=50, defined=4)
        assert beside.shift == dict.fromkeys([*map(str, DEGREES), "averaged"], flat)
        assert beside.pooled == beside.shift
    assert made["personal"].accuracy.own.mean == 82.5


def test_a_method_without_a_global_view_has_none_beside() -> None:
    found = summaries(world(OnlyPersonal(), views=("personal",)))
    assert found["personal"].global_view is None


def test_where_validation_is_asked_for_every_figure_is_of_validation_samples() -> None:
    evaluate = Evaluate(every=1, degrees=DEGREES, draws=3, split="validation")
    found = summaries(world(evaluate=evaluate))
    personal = found["personal"]
    # Validation samples score 5 less: 85, 55, 75, 95, of which there are 2, 6, 1, 3.
    assert personal.per_client is not None
    assert personal.per_client.own == (85, 55, 75, 95)
    assert personal.accuracy.own.mean == 77.5
    assert personal.accuracy.own.weighted == pytest.approx((170 + 330 + 75 + 285) / 12)
    assert personal.accuracy.shift["100"].mean == pytest.approx(18 - 5)
    assert personal.global_view is not None
    assert personal.global_view.own.mean == 50 - 5
    assert [point.own for point in personal.history] == [77.5] * 3
    assert [point.own for point in found["global"].history] == [43, 44, 45]


def message(count: int) -> int:
    """The encoded size of so many float32 numbers."""
    return len(encode({"part": Part({"part": torch.ones(count)})}))


def test_costs_are_means_over_all_clients_of_the_training_rounds(found: dict[str, Summary]) -> None:
    for summary in found.values():
        # Two of four clients in each of three rounds: six exchanges, 1.5 per client, of five
        # float32 numbers down and three up; the papers average the directions.
        spent = summary.costs.train
        assert spent.bytes == Bytes(down=1.5 * message(5), up=1.5 * message(3))
        # Three samples each time, 4.5 per client: forward 6 operations, weight gradient 6, and a
        # third of both as masked, which the loop runs whole; the papers count three forward
        # passes, masked: 3 · 2.
        ways = {"dense": 4.5 * 12, "masked": 4.5 * 4, "executed": 4.5 * 12}
        assert vars(spent.flops) == pytest.approx(ways)
        assert summary.participation.mean == 1.5
        paper = {"bytes": 1.5 * (20 + 12) / 2, "flops": 4.5 * 6}
        assert vars(spent.paper) == pytest.approx(paper)


def test_hello_and_adapt_stand_apart(found: dict[str, Summary]) -> None:
    for view, summary in found.items():
        # All four clients once: two numbers down, seven up, two epochs of three samples, dense.
        assert summary.costs.setup == Spent(
            bytes=Bytes(down=message(2), up=message(7)),
            # A flag for the part and one for its tensor.
            parts=Parts(down={"setup": 2 + 8}, up={"up": 2 + 28}),
            flops=Flops(dense=6 * 12, masked=6 * 12, executed=6 * 12),
            paper=PaperCosts(bytes=(8 + 28) / 2, flops=6 * 18),
        )
        assert (summary.costs.adapt is None) == (view == "personal")
    # Five epochs of three samples at every client. Clients know what they score: nothing is sent.
    adapt = found["tuned"].costs.adapt
    assert adapt is not None
    assert adapt.flops == Flops(dense=15 * 12, masked=15 * 12, executed=15 * 12)
    assert adapt.bytes == Bytes(0, 0)


def test_the_download_that_a_view_needs_before_use_is_charged(found: dict[str, Summary]) -> None:
    # The shared model of five float32 numbers moved in the last round, so that every client is
    # sent it: a header of 24 bytes, a flag for the part, one for its tensor, and 20 bytes, of which
    # the papers' mean of both directions has half.
    nothing = Flops(dense=0, masked=0, executed=0)
    assert found["global"].costs.adapt == Spent(
        bytes=Bytes(down=24 + 1 + 1 + 20, up=0), flops=nothing, paper=PaperCosts(20 / 2, 0)
    )


class Still(Known):
    """Its shared model never changes."""

    def aggregate(
        self, task: Task, server: State, rows: State, uploads: Message, cohort: Cohort, round: Round
    ) -> tuple[State, State]:
        return server, rows


def test_a_client_is_not_sent_before_use_what_it_has() -> None:
    made = world(Still())
    progress = carry_on(made, made.begin())
    (adapt,) = [s.costs.adapt for s in final(made, progress)[0] if s.view == "global"]
    had = int((progress.answered > 0).sum())
    assert 0 < had < 4
    # Who took part has it, and is sent a header and a flag; the others get it now.
    assert adapt is not None
    assert adapt.bytes.down == (25 * had + message(5) * (4 - had)) / 4


def test_history_has_every_look_with_what_was_spent_by_then(found: dict[str, Summary]) -> None:
    # A round is half an exchange per client: 1.5 samples of four masked operations each.
    def point(done: int, own: float, std: float) -> Point:
        return Point(
            round=done,
            own=own,
            std=pytest.approx(std),
            down=pytest.approx(done * message(5) / 2),
            up=pytest.approx(done * message(3) / 2),
            flops=pytest.approx(done * 1.5 * 4),
        )

    spread = math.sqrt(875 / 4)
    assert found["personal"].history == tuple(point(done, 82.5, spread) for done in (1, 2, 3))
    # The shared model is looked at as it was then.
    assert found["global"].history == tuple(point(done, 47 + done, 0) for done in (1, 2, 3))
    # A view that has to be trained is evaluated at the end only.
    assert found["tuned"].history == (point(3, 82.5, spread),)


def test_looks_come_every_so_many_rounds_and_at_the_end() -> None:
    found = summaries(world(evaluate=Evaluate(every=2, draws=1)))
    assert [point.round for point in found["personal"].history] == [2, 3]


class Noted(Known):
    """Notes of every personal model what it scores, and a one."""

    def notes(self, task: Task, personal: Message) -> dict[str, Tensor]:
        return {"of": torch.stack([personal["own"].values["best"], torch.tensor(1.0)])}


def test_notes_are_means_over_clients_at_every_look_of_the_default_view() -> None:
    found = summaries(world(Noted()))
    # The mean of 90, 60, 80 and 100, and of four ones.
    assert [point.notes for point in found["personal"].history] == [{"of": [82.5, 1]}] * 3
    others = [*found["tuned"].history, *found["global"].history]
    assert not any(point.notes for point in others)


class Growing(Known):
    """Its shared model scores ten in the first round and twenty more in each one after it."""

    views: ClassVar[tuple[str, ...]] = ("global",)

    def predict(self, task: Task, personal: Message, x: Tensor) -> Tensor:
        return (20 * personal["age"].values["age"][0] - 10 + 0 * x[:, :1]).double()


@pytest.mark.parametrize(
    ("rounds", "better", "expected"),
    [
        # 10, 30, 50, 70, 90: 80 % of 90 is 72, which the last round reaches; of 70 it is 56.
        (5, "higher", 5),
        (4, "higher", 4),
        # 80 % of 310 is 248: round 13 has 250.
        (16, "higher", 13),
        # Where less is better, 10 is there at once.
        (5, "lower", 1),
    ],
)
def test_the_rounds_to_80_percent_of_the_final_figure(
    rounds: int, better: str, expected: int
) -> None:
    made = built(
        Growing(),
        Task(nn.Linear(3, 1).double(), loss=score, metric=score, better=better),
        owned(),
        rounds=rounds,
        batch_size=2,
        participation=0.5,
        evaluate=Evaluate(every=1, degrees=(0,)),
        seed=5,
        views=Growing.views,
    )
    assert summaries(made)["global"].rounds_to_80 == expected


def ones(keep: Tree) -> int:
    return sum(int(value.sum()) for value in keep.values())


def test_the_density_of_dmpfl_counts_every_distinct_weight_once() -> None:
    made, progress = simulate(DMPFL(local_epochs=2, lr=0.1), rounds=4)
    density = {one.view: one.model.density for one in final(made, progress)[0]}
    # 6 → 8 → 6 → 3 has 131 parameters; the 48 + 18 weights of the last two layers are masked by
    # half, the other 65 are dense.
    mine, ours = progress.clients.state["keep"], progress.server["keep"]
    assert density["personal"] == pytest.approx((65 + 24 + 9) / 131)
    assert density["global"] == pytest.approx((65 + ones(ours)) / 131)
    # DM-PFL+ carries what either mask holds; masks of clients are stacked [clients, …].
    union = ones({name: keep | ours[name] for name, keep in mine.items()}) / len(SIZES)
    assert union > 24 + 9
    assert density["adaptive"] == pytest.approx((65 + union) / 131)


@pytest.mark.parametrize("readjust", [0.3, 0.0])
def test_a_readjusting_round_of_dmpfl_pays_for_whole_weight_gradients(readjust: float) -> None:
    made, progress = simulate(
        DMPFL(local_epochs=3, settle=1, readjust=readjust), rounds=1, participation=1.0
    )
    # Forward 96, 96, 36 operations per sample; the first layer is dense, the others half, and
    # the first has no input gradient. Inside the masks a sample costs
    #   (96 + 96) + (48 + 48 + 48) + (18 + 18 + 18) = 390
    # and where regrowth reads whole weight gradients
    #   (96 + 96) + (48 + 48 + 96) + (18 + 18 + 36) = 456
    # which is so in the two epochs before the one that settles.
    per_sample = 2 * 456 + 390 if readjust else 3 * 390
    costs = progress.costs["train"]
    assert costs["masked"] == pytest.approx(per_sample * sum(SIZES))
    assert costs["dense"] == pytest.approx(3 * 588 * sum(SIZES))
    flops = final(made, progress)[0][0].costs.train.flops
    assert flops.masked == pytest.approx(per_sample * sum(SIZES) / len(SIZES))


def test_start_up_is_counted_apart_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    # Making takes 3 s; the first round 9 s, of which 7 are start-up, and four others 2 s each.
    made = support.simulation(DMPFL(local_epochs=1), rounds=5)
    now, laps = [0.0], iter([9.0, 2.0, 2.0, 2.0, 2.0])
    work = made.engine.work

    def slow(job: Job) -> Outcome:
        now[0] += next(laps)
        return work(job)

    monkeypatch.setattr(made.engine, "work", slow)
    monkeypatch.setattr(
        "masquerade.simulation.clock.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    progress = carry_on(made, replace(made, seconds=3.0).begin())
    assert progress.clock.seconds["training"] == 5 * 2.0
    assert progress.clock.seconds["start-up"] == 3.0 + 7.0
