"""What ε is stated, kept and refused."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from opacus.accountants.analysis import rdp
from opacus.accountants.rdp import RDPAccountant

import masquerade
from masquerade.config.settings import Privacy
from masquerade.config.toml import check
from masquerade.core import Task
from masquerade.core.preprocess import Standardize
from masquerade.laws.toy import federation, network_of
from masquerade.results.json_records import from_json, to_json
from masquerade.simulation.accountant import (
    CLOSE,
    epsilon,
    epsilon_of,
    guarantee,
    noise_for,
    uncovered,
    worst,
)
from masquerade.simulation.build import build
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.privacy_sheet import sheet_of
from masquerade.simulation.state import StateFacts
from tests.privacy.test_dp_sgd import private
from tests.support import METHOD_TABLE, advance, network, raises, restored, specified, warns

ORDERS = RDPAccountant.DEFAULT_ALPHAS


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.05, 400), (0.7, 0.5, 30)])
def test_epsilon_is_that_of_opacus(noise, rate, steps):
    spent = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=ORDERS)
    wanted, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=1e-5)
    assert epsilon(noise, rate, steps, 1e-5) == pytest.approx(wanted, abs=1e-6)


def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism():
    orders = torch.tensor(ORDERS, dtype=torch.float64)
    spent = 10 * orders / (2 * 2.0**2)
    bound = (
        spent + torch.log1p(-1 / orders) - (torch.tensor(1e-5).log() + orders.log()) / (orders - 1)
    )
    assert epsilon(2.0, 1.0, 10, 1e-5) == pytest.approx(float(bound.min()), abs=1e-6)


def test_noise_is_found_that_just_keeps_epsilon():
    known = [(0.1, 100), (1.0, 2)]
    found = noise_for(Privacy(unit="sample", epsilon=3.0), known)
    assert worst(found, known, 1e-5) <= 3.0 < worst(found / CLOSE**2, known, 1e-5)


def test_epsilon_survives_a_resume_and_counts_lost_rounds():
    made = build(private("fedavg", noise_multiplier=2.0, run={"drop": 0.5}))
    state = made.begin()
    advance(made, state)
    facts = from_json(StateFacts, json.loads(json.dumps(to_json(state.facts()))))
    again = restored(made, state.number, state.tensors(), facts)
    privacy = made.spec.privacy
    assert again.noised == state.noised
    assert guarantee(made.server, again, privacy) == guarantee(made.server, state, privacy)
    before = guarantee(made.server, state, privacy).epsilon
    while again.number < 3:
        advance(made, again)
    after = guarantee(made.server, again, privacy)
    assert 0 < before < after.epsilon
    # By what was asked of clients, whether or not their answer came.
    epochs, sizes = made.server.method.local_epochs, made.server.samples
    steps = {id: int(again.sampled[id]) * epochs * -(-int(sizes[id]) // 2) for id in again.noised}
    assert again.noised == steps


def test_nothing_is_guaranteed_without_noise():
    made = build(private("fedavg"))
    state = made.begin()
    advance(made, state)
    assert guarantee(made.server, state, made.spec.privacy) is None


REFUSED = {
    "a batch that is larger than the data": {"train": {"batch_size": 30}},
    "delta too large": {"privacy": {"delta": 0.2}},
    "no such epsilon": {"privacy": {"epsilon": 1e-6, "noise_multiplier": 0.0}},
    "too little noise": {"privacy": {"epsilon": 1.0}},
    "fitted preprocessing": {"task": lambda: Task(network(), preprocess=Standardize())},
    "batch norm": {
        "task": lambda: Task(
            torch.nn.Sequential(
                torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
            ).double()
        )
    },
    "class weights": {"train": {"class_weights": "balanced"}},
    "novel clients": {"novel": (1,)},
    "another step": {"method": "scaffold"},
    "a pass that measures": {"method": "lotteryfl"},
    "a view that is trained": {"method": "fedbabu"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_refused(case, golden):
    change = REFUSED[case]
    spec = private(change.get("method", "fedavg"), noise_multiplier=1.0)
    spec = replace(
        spec,
        train=replace(spec.train, **change.get("train", {})),
        privacy=replace(spec.privacy, **change.get("privacy", {})),
        novel=change.get("novel", ()),
        task=change["task"]() if "task" in change else spec.task,
    )
    with raises("E202") as refusal:
        build(spec)
    golden(refusal.value)


def test_steps_on_training_batches_alone_are_covered():
    step = METHOD_TABLE["fedavg"].sgd_step(Task(network()))
    assert not uncovered(step, "train", 1)
    assert uncovered(step, "validation", 1)
    assert uncovered(step, "train", 2)
    assert uncovered(lambda work, batch, round: work, "train", 1)


def test_settings_that_contradict_each_other_are_refused():
    for settings in (
        {"epsilon": 1.0},
        {"unit": "sampel"},
        {"unit": "sample", "delta": 0.0},
        {"unit": "sample", "max_grad_norm": 0.0},
    ):
        with raises("E201"):
            check(privacy=Privacy(**settings))


def test_no_module_imports_opacus_unless_it_is_asked_for():
    texts = [path.read_text("utf-8") for path in Path(masquerade.__file__).parent.rglob("*.py")]
    assert not any(re.search(r"(?m)^\s*(import|from) opacus", text) for text in texts)


def test_without_the_accountant_a_run_is_refused(monkeypatch):
    epsilon_of.cache_clear()
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with raises("E202", "masquerade[privacy]"):
        build(private("fedavg", epsilon=3.0))


def client_level(name, *, drop=0.0, **settings):
    spec = specified(
        METHOD_TABLE[name],
        Task(network()),
        federation(),
        rounds=4,
        batch_size=4,
        drop=drop,
        participation=0.67,
    )
    return replace(spec, privacy=Privacy(unit="client", **settings))


def test_clients_are_accounted_for_by_their_rounds():
    made = build(client_level("fedavg", noise_multiplier=2.0))
    state = made.begin()
    for _ in range(4):
        advance(made, state)
    found = guarantee(made.server, state, made.spec.privacy)
    assert state.noised == {id: int(n) for id, n in enumerate(state.sampled) if n}
    assert found.epsilon == epsilon(2.0, 1.0, int(state.sampled.max()), 1e-5)
    nothing = Fitting(made.server.task.preprocess), Weighting(), ()
    lines = sheet_of(made.server, state, "", 1, *nothing, guarantee=found).lines
    kept = {line.direction: line.epsilon for line in lines if line.name == "params"}
    # The server, which adds the noise, sees uploads without it.
    assert kept == {"up": None, "down": found.epsilon}
    wanted = build(client_level("fedavg", epsilon=5.0)).server.aggregation
    assert epsilon(wanted.noise_multiplier, 1.0, int(state.sampled.max()), 1e-5) <= 5.0


@pytest.mark.parametrize("name", ["bnn", "dmpfl", "fedmask", "lotteryfl", "scaffold", "feddst"])
def test_methods_whose_server_looks_closer_than_a_mean_are_refused(name, golden):
    spec = client_level(name, noise_multiplier=1.0)
    if name == "bnn":
        spec = replace(spec, task=Task(network_of(METHOD_TABLE[name])))
    with raises("E202") as refusal:
        build(spec)
    golden(refusal.value)


def test_noise_at_the_server_refuses_other_rules_and_processes():
    spec = client_level("fedavg", noise_multiplier=1.0)
    for other in (
        replace(spec, train=replace(spec.train, aggregation="median")),
        replace(spec, compute=replace(spec.compute, processes=2)),
    ):
        with raises("E202"):
            build(other)


def test_a_round_with_fewer_answers_than_the_noise_is_for_changes_nothing():
    made = build(client_level("fedavg", noise_multiplier=1.0, drop=0.3))
    state, whole = made.begin(), []

    def follow():
        for _ in range(4):
            before = state.server
            lost = advance(made, state).lost
            whole.append(not lost)
            assert (state.server is before) == bool(lost)

    with warns("W618"):
        follow()
    assert {True, False} == set(whole)
