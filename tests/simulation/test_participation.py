"""Who takes part, who is lost, and who comes after training."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import masquerade as mq
from masquerade.config.budgets import budgets_of
from masquerade.config.resolve import LoadedConfig, rehearse, settle
from masquerade.config.resolve import novel_clients as novel
from masquerade.config.toml import parse
from masquerade.core import Stage
from masquerade.methods import DMPFL, FedAvg, Local, LotteryFL, PFedGate
from masquerade.simulation.build import Simulation
from masquerade.simulation.participation import Drawn
from masquerade.simulation.state import RunState
from tests.messages import Golden
from tests.support import advance, federation, final, measure, network, raises, simulation, warns

EVERYBODY = torch.tensor([0, 1, 3, 4, 6, 7, 8, 9])


def participation(**changes):
    given = Drawn(EVERYBODY, 3, "always", 0.0, 1)
    return replace(given, **changes)


def trained(method, rounds=4, **settings):
    """A simulation of the toy with other people in it, at its end."""
    made = simulation(method, rounds=rounds)
    made = replace(
        made,
        server=replace(made.server, participation=replace(made.server.participation, **settings)),
    )
    progress = made.begin()
    lines = [advance(made, progress) for _ in range(rounds)]
    return made, progress, lines


def test_a_fixed_number_is_sampled() -> None:
    made = Drawn.of(EVERYBODY, 0.1, 5, "always", 0.0, 1)
    assert {len(made.cohort(number)) for number in range(9)} == {5}
    few = Drawn.of(EVERYBODY[:2], 0.1, 5, "always", 0.0, 1)
    assert few.cohort(0).tolist() == [0, 1]


def test_groups_are_available_in_turn() -> None:
    made = participation(available="cycle:2", asked=9)
    assert [made.cohort(number).tolist() for number in range(2)] == [
        [0, 4, 6, 8],
        [1, 3, 7, 9],
    ]


def test_a_share_is_available_at_random() -> None:
    made = participation(available="random:0.25")
    there = [made.there(number).tolist() for number in range(400)]
    mean = sum(map(len, there)) / len(there)
    # Nobody is there in 0.75 ** 8 = 10 % of the rounds, and then nobody is sampled.
    assert 0.05 < there.count([]) / len(there) < 0.16
    assert not len(made.cohort(there.index([])))
    assert mean == pytest.approx(8 * 0.25, rel=0.15)
    assert all(set(made.cohort(number).tolist()) <= set(there[number]) for number in range(400))


def test_a_share_of_the_cohort_is_lost() -> None:
    made = participation(drop=0.3, asked=8)
    back = [len(made.returning(number, made.cohort(number))) for number in range(300)]
    assert sum(back) / 300 == pytest.approx(8 * 0.7, rel=0.06)
    assert participation().returning(0, EVERYBODY[:3]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["sometimes", "cycle:0", "cycle:x", "random:0", "random:2"])
def test_other_words_are_refused(text: str) -> None:
    with raises("E201", "train.available"):
        parse({"train": {"available": text}})


def test_more_groups_than_clients_are_refused() -> None:
    assert len(run(FedAvg(local_epochs=1), available="cycle:6", views=["global"]).summaries) == 1
    with raises("E201", "'cycle:7'", "6"):
        run(FedAvg(local_epochs=1), available="cycle:7")


def test_a_round_in_which_nobody_is_there_changes_nothing() -> None:
    # In round 1 the second of three groups has its turn, and nobody of it can train.
    made = simulation(DMPFL(local_epochs=1), rounds=3)
    few = torch.tensor([0, 2, 3, 5])
    some = replace(made.server.participation, eligible=few, available="cycle:3")
    made = replace(made, server=replace(made.server, participation=some))
    progress = made.begin()
    assert advance(made, progress).clients == (0, 3)
    before = kept(progress)
    spent = dict(progress.costs["train"])
    line = advance(made, progress)
    assert (line.round, line.clients) == (2, ())
    assert (line.costs["down"], line.costs["masked"]) == (0, 0)
    assert progress.costs["train"] == spent
    assert before.keys() == kept(progress).keys()
    for name, value in kept(progress).items():
        assert torch.equal(value, before[name]), name
    assert advance(made, progress).clients == (2, 5)


def test_a_run_in_which_nobody_is_ever_there_ends() -> None:
    (summary,) = run(FedAvg(local_epochs=1), novel=(), available="random:1e-9").summaries[:1]
    assert (summary.participation.never_sampled, summary.participation.mean) == (6, 0)


def kept(state: RunState) -> dict[str, Tensor]:
    """All tensors but the counts of who was asked and who answered."""
    found = state.tensors()
    return {name: value for name, value in found.items() if not name.startswith("participation/")}


def others_alone(made: Simulation, state: RunState, ids: Tensor, asked: int) -> None:
    """Do a round with some clients, as if more had been asked."""
    server, round = made.server, made.server.round("train", 0)
    job = server.make_job(state, ids, round)
    done = made.engine.work(job)
    state.server, rows = server.method.aggregate(
        server.task, state.server, job.rows, done.uploads, server.cohort(ids, asked), round
    )
    state.keep(ids, rows, done)


def test_a_lost_client_is_as_if_it_had_not_been_asked() -> None:
    """The server and everybody's state are those of a round with the others alone."""
    lost, ended, (line, *_) = trained(DMPFL(local_epochs=2), rounds=1, drop=0.5, asked=6)
    back = torch.tensor(line.clients)
    assert line.lost
    assert sorted([*line.lost, *line.clients]) == [0, 1, 2, 3, 4, 5]
    made = simulation(DMPFL(local_epochs=2), rounds=1)
    others = made.begin()
    asked = len(line.lost) + len(back)
    # The others alone, in a cohort of which as many were asked.
    others_alone(made, others, back, asked)
    for name, value in kept(ended).items():
        assert torch.equal(value, others.tensors()[name]), name
    fresh = lost.begin().tensors()
    for name, value in kept(ended).items():
        # What nobody has sent yet is not there; it starts as the initial model, or as a zero mask.
        first = fresh["session/version/"] if "/version/" in name else torch.zeros_like(value)
        fresh.setdefault(name, first)
        if name.startswith(("clients/", "session/")):
            for id in line.lost:
                assert torch.equal(value[id], fresh[name][id]), name


def test_what_is_lost_was_sent_down_and_computed_and_not_received() -> None:
    _, _, (whole, *_) = trained(FedAvg(local_epochs=1), rounds=2, asked=6)
    _, _, (some, *_) = trained(FedAvg(local_epochs=1), rounds=2, asked=6, drop=0.5)
    for spent in ("down", "masked", "down/params"):
        assert some.costs[spent] == whole.costs[spent], spent
    for received in ("up", "up/params", "values_up"):
        share = len(some.clients) / 6
        assert some.costs[received] == pytest.approx(whole.costs[received] * share), received


def test_a_round_that_everybody_leaves_changes_nothing() -> None:
    made = simulation(FedAvg(local_epochs=1), rounds=1)
    made = replace(
        made,
        server=replace(
            made.server, participation=replace(made.server.participation, drop=1 - 1e-12)
        ),
    )
    progress = made.begin()
    before = kept(progress)
    assert advance(made, progress).clients == ()
    for name, value in kept(progress).items():
        assert torch.equal(value, before[name]), name


def test_novel_clients_are_a_share_and_the_same_for_every_training() -> None:
    chosen = novel(20, 0.2, 7)
    assert len(chosen) == 4
    assert torch.equal(chosen, novel(20, 0.2, 7))
    assert not torch.equal(chosen, novel(20, 0.2, 8))


def run(method, novel=(1, 4), **settings):
    model = network(torch.float32)
    return mq.run(method, model, federation(), 3, novel=novel, batch_size=4, **settings)


def test_novel_clients_never_train_and_are_evaluated_apart() -> None:
    method = FedAvg(local_epochs=2)
    (summary,) = run(method, views=["global"]).summaries
    assert summary.clients == 4
    assert summary.per_client.ids == (0, 2, 3, 5)
    apart = summary.novel
    assert apart.clients.ids == (1, 4)
    gap = summary.accuracy.own.mean - apart.accuracy.own.mean
    assert apart.gap == pytest.approx(gap)
    # Clients 1 and 4 have taught the model nothing: without their samples it is the same.
    given = federation()
    nothing = torch.arange(0)
    train = tuple(nothing if id in (1, 4) else part for id, part in enumerate(given.train))
    without = mq.run(
        method,
        network(torch.float32),
        replace(given, train=train),
        3,
        batch_size=4,
        views=["global"],
    )
    weights = [one.client(0).parts["params"].values for one in (run(method), without)]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])


def test_a_novel_client_of_a_personal_method_trains_before_it_is_evaluated() -> None:
    """Local's novel clients do one round: they are better than an untrained network."""
    (summary,) = run(Local(local_epochs=40, lr=0.2)).summaries
    (fresh,) = run(Local(local_epochs=1, lr=0.0)).summaries
    own = [one.novel.accuracy.own.mean for one in (summary, fresh)]
    assert own[0] > own[1] + 10


class Waits(FedAvg):
    """A method that has a rule of its own for novel clients: it tunes at use."""

    joins = False
    views = ("global",)

    def adapt(self, task, round):
        return (Stage("tune", self.sgd_step(task), 30),) if round.phase[1] else ()

    def personalize(self, task, message, client, view):
        return {"params": mq.Part(client.get("params", message["params"].values))}


def test_a_method_may_have_its_own_rule_for_novel_clients() -> None:
    (tuned,) = run(Waits(local_epochs=1, lr=0.2)).summaries
    (plain,) = run(FedAvg(local_epochs=1, lr=0.2), views=["global"]).summaries
    assert tuned.accuracy == plain.accuracy
    assert tuned.novel.accuracy.own != plain.novel.accuracy.own


def test_a_novel_client_of_pfedgate_trains_its_gate_alone(monkeypatch) -> None:
    """It does no round of its own: the only training that novel clients see is that of gates."""
    method = PFedGate(local_epochs=1, density=0.8, tune_epochs=3)
    trained = []
    plain = PFedGate.sgd_step

    def noted(self, *given, on, **settings):
        trained.append(on)
        return plain(self, *given, on=on, **settings)

    monkeypatch.setattr(PFedGate, "sgd_step", noted)
    (summary,) = run(method).summaries
    assert len(summary.novel.clients.ids) == 2
    assert set(trained) == {("params", "gate"), ("gate",)}
    assert trained[-1] == ("gate",)
    made = simulation(method)
    novel, known = (made.context.round("adapt", ("personal", new), 1) for new in (True, False))
    (tuning, *_) = method.adapt(made.server.task, novel)
    assert tuning.epochs == 3
    assert method.adapt(made.server.task, known) == ()


def test_engines_agree_on_novel_clients() -> None:
    found = [
        run(DMPFL(local_epochs=2), compute=mq.Compute(engine=engine)).summaries
        for engine in ("loop", "batched")
    ]
    assert len(found[0]) == 3
    for left, right in zip(*found, strict=True):
        assert left.novel.accuracy.own == right.novel.accuracy.own


def test_when_all_with_data_are_novel_it_says_so() -> None:
    with raises("E303", "novel"):
        run(FedAvg(), novel=range(6))


def test_those_never_sampled_are_counted() -> None:
    (summary,) = mq.run(
        FedAvg(local_epochs=1),
        network(torch.float32),
        federation(),
        1,
        clients_per_round=2,
        views=["global"],
    ).summaries
    asked = summary.participation
    assert (asked.never_sampled, asked.never_heard) == (4, 4)


def test_those_who_are_sampled_and_lost_are_never_heard() -> None:
    made, progress, _ = trained(FedAvg(local_epochs=1), rounds=1, drop=1 - 1e-12, asked=6)
    asked = final(made, progress)[0][0].participation
    assert (asked.never_sampled, asked.never_heard) == (0, 6)


@pytest.mark.parametrize("given", [[-1], [99], [1, 1], 0.3, 2])
def test_what_are_not_clients_cannot_be_novel(given) -> None:
    with raises("E201", "`novel`"):
        run(FedAvg(), novel=given)


@pytest.mark.parametrize("given", [[0.0], [7.0], [float("nan")], [0.5] * 7, []])
def test_budgets_are_shares(given) -> None:
    with raises("E201", "`budgets`"):
        run(FedAvg(), budgets=given)


@pytest.mark.parametrize("given", ["random", "random:0.5", "random:0:1", "random:0.9:0.5", "some"])
def test_a_text_that_is_no_rule_of_budgets_is_refused(given) -> None:
    with raises("E201", "`budgets`", "random:LOW:HIGH"):
        budgets_of(given, 6, 1)
    with raises("E201", "`budgets`", "random:LOW:HIGH"):
        parse({"data": {"budgets": given}})


def test_budgets_are_drawn_evenly_by_the_seed() -> None:
    drawn, again, other = (budgets_of("random:0.3:0.9", 2000, seed) for seed in (1, 1, 2))
    assert drawn == again != other
    assert min(drawn) >= 0.3
    assert max(drawn) <= 0.9
    # The mean of 2000 draws has a standard error of 0.6 / sqrt(12 * 2000) = 0.004.
    assert sum(drawn) / 2000 == pytest.approx(0.6, abs=0.02)
    # A client's budget does not depend on how many there are beside it.
    assert budgets_of("random:0.3:0.9", 10, 1) == drawn[:10]


def test_drawn_budgets_reach_the_models() -> None:
    (whole,) = run(PFedGate(local_epochs=1, density=1.0)).summaries
    (small,) = run(PFedGate(local_epochs=1, density=1.0), budgets="random:0.3:0.5").summaries
    assert whole.model.density == 1
    assert small.model.density < 0.5


def loaded(tables) -> LoadedConfig:
    return LoadedConfig.of(parse(tables))


def test_those_who_do_not_follow_budgets_are_named_once(golden: Golden) -> None:
    tables = {"methods": ["fedavg", "fedavg_ft", "pfedgate", "ditto"], "data": {"budgets": [0.5]}}
    with warns("W303", "FedAvg, FedAvg+FT, Ditto") as caught:
        settle(loaded(tables))
    assert len(caught) == 1
    with warns("W303", "FedAvg") as warned:
        run(FedAvg(local_epochs=1), budgets="random:0.5:0.9")
    golden(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settle(loaded({**tables, "methods": ["pfedgate", "heterofl"]}))
        settle(loaded({"methods": ["fedavg"]}))


def test_budgets_are_taken_in_turn() -> None:
    found = [run(PFedGate(local_epochs=1), budgets=given) for given in ([0.5, 0.3], [0.5, 0.3] * 3)]
    assert found[0].summaries[0].model.density == found[1].summaries[0].model.density


def test_a_share_of_nobody_is_refused() -> None:
    with raises("E201", "data.novel"):
        rehearse(loaded({"data": {"clients": 4, "novel": 0.01}}))


def test_a_novel_client_keeps_the_mask_that_the_server_would_know() -> None:
    """LotteryFL's masks live at the server: a newcomer's model is as sparse as its first round."""
    method = LotteryFL(local_epochs=1, threshold=0.0, prune=0.5)
    made = simulation(method)
    made = replace(made, server=replace(made.server, novel=(1,)))
    (model,) = measure(
        made, made.begin(), "personal", list(made.federation.test), novel=True
    ).models
    kept = sum(int(keep.sum()) for keep in model["params"].keep.values())
    assert kept < sum(keep.numel() for keep in model["params"].keep.values())
