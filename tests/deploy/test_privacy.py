"""Differential privacy of real clients: ε is counted where the noise is, and survives what dies."""

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from masquerade.core.dp_mean import DPMean
from masquerade.deploy.agreement import Agreement
from masquerade.deploy.budget import FILE as SPENT
from masquerade.deploy.budget import Ledger
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.member import open_member
from masquerade.deploy.messages import Answer, Question, read, write
from masquerade.deploy.replay import MEMBERS, read_records, replay
from masquerade.deploy.roster import read_roster
from masquerade.deploy.server import serve
from masquerade.deploy.status import Status
from masquerade.report.privacy import markdown
from masquerade.results.json_records import from_json
from masquerade.results.privacy import UP
from masquerade.simulation.accountant import epsilon, epsilon_of
from masquerade.storage.results import read_sheets
from masquerade.storage.run_directory import RunDirectory
from tests.deploy.chaos import Chaos
from tests.deploy.network import Crash, Network, federation, member_folder
from tests.support import raises, warns

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")

BATCH, ROUNDS, DELTA = 8, 3, 1e-3


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are made of the same summaries elsewhere, and take seconds."""
    monkeypatch.setattr("masquerade.report.render.can_draw", lambda: False)


def private(folder: Path, unit: str = "sample", method: str = "fedavg", **privacy) -> Network:
    """A federation with differential privacy."""
    asked = {"unit": unit, "delta": DELTA, **privacy}
    every = 0 if unit == "client" else 2
    return federation(
        folder, method, privacy=asked, evaluate={"every": every}, data={"normalize": "none"}
    )


def served(network: Network) -> Network:
    """Serve until it is done, again after every crash."""
    while True:
        try:
            serve(network.folder, network, network.now)
            return network
        except Crash:
            network.members.clear()


def ledger(network: Network, name: str) -> Ledger:
    """Read what a client has counted."""
    (path,) = (network.folder / MEMBERS / name / "runs").glob(f"*/{SPENT}")
    return from_json(Ledger, json.loads(path.read_bytes()))


def sizes(network: Network) -> list[int]:
    """Return how many samples each client trains on."""
    return [
        each.facts.train
        for each in read_roster(network.folder, Agreement.load(network.folder).run).clients.values()
    ]


def steps(network: Network) -> list[int]:
    """Return the steps of each client in all rounds."""
    return [ROUNDS * math.ceil(size / BATCH) for size in sizes(network)]


def counted(network: Network) -> list[int]:
    """Return what each client has counted."""
    return [ledger(network, name).steps for name in ("c0", "c1", "c2")]


def guaranteed(network: Network):
    (sheet,) = read_sheets(network.folder)
    return sheet


def asked_last(network: Network, name: str) -> Question:
    return [q for who, q in network.seen if (who, q.kind) == (name, "train")][-1]


def later(question: Question, number: int = 0, **other) -> bytes:
    """The same question, asked after all others, or with something else in it."""
    return write(replace(question, order=(2**40, number), **other))


def test_every_client_counts_its_own_steps_and_the_sheet_says_so(tmp_path: Path) -> None:
    network = served(private(tmp_path, noise_multiplier=2.0))
    sheet = guaranteed(network)
    made = sheet.guarantee
    assert made is not None
    taken = zip(sizes(network), steps(network), strict=True)
    wanted = {
        str(id): epsilon(2.0, BATCH / size, taken, DELTA) for id, (size, taken) in enumerate(taken)
    }
    assert made.clients == wanted
    assert made.epsilon == max(wanted.values()) > 0
    assert counted(network) == steps(network)
    # It holds against the server too, and of facts and figures nothing does.
    kept = {line.name: line.epsilon for line in sheet.lines if line.direction == UP}
    assert kept["params"] == made.epsilon
    assert kept["facts"] is kept["figures"] is None
    text = markdown([sheet])
    assert sheet.epsilon in text
    assert "cannot be repeated bit for bit" in text


def test_noise_is_drawn_that_nobody_can_draw_again(tmp_path: Path) -> None:
    ends = []
    for place in ("one", "other"):
        network = served(private(tmp_path / place, noise_multiplier=2.0))
        with RunDirectory.open(network.folder) as directory:
            ends.append(directory.latest().tensors)
        with raises("E632", network.folder):
            replay(network.folder)
    assert not torch.equal(*(end["server/params/layers.0.weight"] for end in ends))


def test_a_replay_of_noise_is_refused(tmp_path: Path, golden) -> None:
    network = served(private(tmp_path / "fed", "client", noise_multiplier=1.0))
    with raises("E632") as refusal:
        replay(network.folder)
    text = str(refusal.value).replace(str(network.folder), "FOLDER").removeprefix("E632 ")
    golden(type(refusal.value)("E632", text))


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_without_noise_it_is_what_a_simulation_does(unit: str, tmp_path: Path) -> None:
    network = private(tmp_path, unit, max_grad_norm=0.05)
    network.fault = lambda name, q: (
        "lost on the way" if (name, q.kind, q.number) == ("c1", "train", 1) else ""
    )
    served(network)
    found = replay(tmp_path)
    assert (found.rounds, found.differences, found.missing) == (ROUNDS, [], [])
    assert guaranteed(network).guarantee is None


@pytest.mark.parametrize("place", [5, 7])
def test_a_server_that_crashes_costs_no_privacy(place: int, tmp_path: Path) -> None:
    """A client that is asked the same again answers the same, and draws no other noise."""
    network, asked = private(tmp_path, noise_multiplier=2.0), iter(range(1000))

    def fault(name: str, question: Question) -> str:
        return "crash" if question.kind == "train" and next(asked) == place else ""

    network.fault = fault
    served(network)
    assert counted(network) == steps(network)
    twice = [(who, q.number) for who, q in network.seen if q.kind == "train"]
    assert len(twice) > len(set(twice))
    own = network.folder / MEMBERS / "c0"
    bodies = [
        read(Answer, open_member(own).answer(later(asked_last(network, "c0"), number))).body
        for number in (1, 2)
    ]
    assert bodies[0] == bodies[1] != b""
    assert counted(network) == steps(network)


def test_through_chaos_no_round_is_paid_for_twice(tmp_path: Path) -> None:
    """Clients and the server are killed and cut; what came was counted, and nothing else twice."""
    rounds = 8
    network = federation(
        tmp_path,
        clients=4,
        privacy={"unit": "sample", "noise_multiplier": 2.0, "delta": DELTA},
        data={"normalize": "none"},
        train={"rounds": rounds},
    )
    Chaos(network, rounds, kills=5).serve()
    came = Counter(id for record in read_records(tmp_path) for id in record.clients)
    for id, size in enumerate(sizes(network)):
        steps = math.ceil(size / BATCH)
        assert came[id] * steps <= ledger(network, f"c{id}").steps <= rounds * steps


def test_a_client_trains_no_more_than_its_bound_allows(tmp_path: Path, golden) -> None:
    network = served(private(tmp_path, epsilon=4.0))
    sheet = guaranteed(network)
    made = sheet.guarantee
    assert made is not None
    assert max(made.clients.values()) <= 4.0
    # The noise is each client's own, and just what keeps the bound.
    assert min(made.clients.values()) > 3.8
    assert made.noise_multiplier > 0
    more = later(asked_last(network, "c0"), body=b"another download")
    answer = read(Answer, network.member("c0").answer(more))
    assert answer.code == "E633"
    assert counted(network) == steps(network)
    golden(f"{answer.code} {answer.text}")


def test_a_client_that_lost_its_files_is_told_what_it_has_spent(tmp_path: Path) -> None:
    network, left = private(tmp_path, noise_multiplier=2.0), ["disk"]

    def fault(name: str, question: Question) -> str:
        due = (name, question.kind, question.number) == ("c1", "train", 2)
        return left.pop() if due and left else ""

    network.fault = fault
    served(network)
    # The third round was asked of it, and counts, though it could not do it.
    assert counted(network) == steps(network)
    made = guaranteed(network).guarantee
    assert made.clients["1"] == epsilon(2.0, BATCH / sizes(network)[1], steps(network)[1], DELTA)


def test_a_client_that_comes_after_training_counts_its_one_round(tmp_path: Path) -> None:
    network = served(private(tmp_path, noise_multiplier=2.0))
    member_folder(tmp_path, 3)
    FederationConfig.load(tmp_path).with_clients(["c3"]).save(tmp_path)
    network.up.add("c3")
    served(network)
    assert counted(network) == steps(network)[:3]
    assert ledger(network, "c3").steps == steps(network)[3] / ROUNDS
    made = guaranteed(network).guarantee
    size = sizes(network)[3]
    assert made.clients["3"] == epsilon(2.0, BATCH / size, steps(network)[3] // ROUNDS, DELTA)


def test_what_was_spent_and_cannot_be_read_is_not_nothing(tmp_path: Path, golden) -> None:
    network = served(private(tmp_path, noise_multiplier=2.0))
    (path,) = (network.folder / MEMBERS / "c0" / "runs").glob(f"*/{SPENT}")
    path.write_text("{")
    more = later(asked_last(network, "c0"), body=b"another download")
    answer = read(Answer, open_member(network.folder / MEMBERS / "c0").answer(more))
    assert answer.code == "E633"
    golden(f"{answer.code} {answer.text}")


def test_a_damaged_count_at_the_server_is_not_taken_for_another(tmp_path: Path) -> None:
    network = served(private(tmp_path, noise_multiplier=2.0))
    path = tmp_path / SPENT
    data = bytearray(path.read_bytes())
    # One digit of a count: what is read would still be JSON, and too little.
    place = max(at for at, byte in enumerate(data) if byte in b"123456789")
    data[place] = ord("0")
    path.write_bytes(data)
    with raises("E401", SPENT):
        serve(tmp_path, network, network.now)


def test_a_client_with_too_few_samples_is_refused_and_the_others_train(tmp_path: Path) -> None:
    network = private(tmp_path, noise_multiplier=2.0)
    own = network.folder / MEMBERS / "c1" / "own.npz"
    x = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    np.savez(own, x=x, y=np.arange(9) % 3)
    with warns("W617", "E202", "c1"):
        served(network)
    status = Status.read(tmp_path)
    assert status is not None
    assert "fewer than the 8 training samples" in status.refusals["c1"]
    assert all(record.clients == (0, 2) for record in read_records(tmp_path))


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_what_clients_data_would_decide_is_refused_before_anybody_sums(
    unit: str, tmp_path: Path
) -> None:
    network = private(tmp_path, unit, noise_multiplier=1.0)
    config = FederationConfig.load(tmp_path)
    data = replace(config.config.data, normalize="standard")
    replace(config, config=replace(config.config, data=data)).save(tmp_path)
    with raises("E202", "preprocessing"):
        serve(tmp_path, network, network.now)
    assert {question.kind for _, question in network.seen} == {"hello"}


@pytest.mark.parametrize(("unit", "method"), [("sample", "scaffold"), ("client", "dmpfl")])
def test_methods_that_are_not_covered_are_refused(unit: str, method: str, tmp_path: Path) -> None:
    with raises("E202"):
        served(private(tmp_path, unit, method, noise_multiplier=1.0))


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_server_without_the_accountant_trains_nothing(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epsilon_of.cache_clear()
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    network = private(tmp_path, unit, epsilon=8.0)
    with raises("E202", "masquerade[privacy]"):
        serve(tmp_path, network, network.now)
    assert {question.kind for _, question in network.seen} == {"hello"}


def test_noise_at_the_server_is_counted_by_rounds_also_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that was not committed was shown to nobody, and costs nothing."""
    network, real, left = private(tmp_path, "client", epsilon=6.0), RunDirectory.commit, [1, 2]

    def commit(directory, number: int, *rest) -> None:
        if left and number == left[0]:
            left.pop(0)
            assert not [q for _, q in network.seen if q.kind == "adapt"]
            raise Crash
        real(directory, number, *rest)

    monkeypatch.setattr(RunDirectory, "commit", commit)
    served(network)
    sheet = guaranteed(network)
    made = sheet.guarantee
    assert made is not None
    assert made.unit == "client"
    assert set(made.clients.values()) == {epsilon(made.noise_multiplier, 1.0, ROUNDS, DELTA)}
    assert 5.8 < made.epsilon <= 6.0
    kept = {line.direction: line.epsilon for line in sheet.lines if line.name == "params"}
    assert kept == {"up": None, "down": made.epsilon}


def test_a_round_of_the_quorum_moves_and_is_divided_by_all_that_may_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, seen = private(tmp_path, "client", max_grad_norm=0.5), []
    real = DPMean.reduce

    def noting(mean: DPMean, part, *rest, **more):
        seen.append((mean.expected, mean.quorum, len(next(iter(part.values.values())))))
        return real(mean, part, *rest, **more)

    network.fault = lambda name, q: (
        "lost on the way" if (name, q.kind, q.number) == ("c1", "train", 1) else ""
    )
    monkeypatch.setattr(DPMean, "reduce", noting)
    served(network)
    assert [each for each in seen if each[2] > 1][-3:] == [(3, 2, 3), (3, 2, 2), (3, 2, 3)]
    assert [record.clients for record in read_records(tmp_path)] == [(0, 1, 2), (0, 2), (0, 1, 2)]


def test_figures_between_rounds_would_show_what_is_not_committed(golden) -> None:
    privacy = {"unit": "client", "noise_multiplier": 1.0}
    with raises("E201", "evaluate.every=0") as refusal:
        FederationConfig.parse({"privacy": privacy})
    golden(refusal.value)
