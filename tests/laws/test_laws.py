"""The ten laws, each over every method of the table: a new method is covered by being in it."""

import dataclasses

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from masquerade.config import toml as config
from masquerade.core import ClientInfo, Cohort, Round, Task, client_round, tree
from masquerade.core.part import ROUNDED as WIRES
from masquerade.engine.base import Job
from masquerade.engine.batched import where_busy
from masquerade.engine.vmapped import VmappedMethod
from masquerade.methods import METHODS, FedAvg, FedEM, FedSelect, HeteroFL, PFedGate, TopK
from masquerade.wire import count, decode, digest, encode, nbytes
from masquerade.wire.session import moved
from tests.support import (
    BUDGETS,
    METHOD_TABLE,
    advance,
    final,
    measure,
    network,
    owed,
    restored,
    scheduled,
    simulate,
    simulation,
)

every_method = pytest.mark.parametrize("name", METHOD_TABLE)


def tensors(progress):
    """All of a run's state, by name; digests aside, which compare bits and not numbers."""
    found = progress.tensors()
    return {name: value for name, value in found.items() if not name.startswith("session/version/")}


def assert_equal(left, right):
    """Bit for bit."""
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, different


def assert_close(left, right, tolerance):
    """Masks equal, numbers within a tolerance."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, right[name], rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert torch.equal(value, right[name]), name


def kinds(made, method):
    """Every (kind, phase) that a run of this method has."""
    phases = dict.fromkeys(method.schedule(number, 8) for number in range(8))
    found = [("train", phase) for phase in phases] + [
        ("adapt", (view, False)) for view in method.views
    ]
    if method.setup(made.server.task, made.context.round("setup", None, 0)):
        found.insert(0, ("setup", None))
    return found


def exchanges(name, number=4):
    """One client's download, state and round for every kind, after some rounds of training."""
    method = METHOD_TABLE[name]
    made, progress = simulate(method, rounds=number)
    for kind, phase in kinds(made, method):
        round = made.context.round(kind, phase, 3)
        for id in (1, 4):
            row, client = (tree.take(s.state, id) for s in (progress.rows, progress.clients))
            download = method.download(made.server.task, progress.server, row, round)
            yield made, progress, round, id, row, client, download


def feed_of(made, id, round):
    ids = torch.tensor([id])

    def batches(stage):
        return made.context.loader.batches(made.context.loader.shuffle(ids, stage, round, 3), 0)

    return batches


@every_method
def test_law_1_functions_are_pure(name):
    method = METHOD_TABLE[name]
    for made, progress, round, id, row, client, download in exchanges(name):
        inputs = {"server": progress.server, "row": row, "client": client, "message": download}
        before = {key: value.clone() for key, value in tree.named(inputs).items()}
        results = [
            client_round(
                method, made.server.task, download, client, feed_of(made, id, round), round
            )
            for _ in range(2)
        ]
        again = method.download(made.server.task, progress.server, row, round)
        assert_equal(*map(tree.named, results))
        assert_equal(tree.named(download), tree.named(again))
        assert_equal(before, tree.named(inputs))
        if round.kind == "adapt":
            personal = [
                method.personalize(made.server.task, download, held, round.phase[0])
                for _, held in results
            ]
            assert_equal(*map(tree.named, personal))
            x = made.federation.x[:5]
            assert torch.equal(*(method.predict(made.server.task, one, x) for one in personal))
        assert_equal(before, tree.named(inputs))


@every_method
def test_law_1_aggregation_is_pure(name):
    method = METHOD_TABLE[name]
    made, progress = simulate(method, rounds=4)
    ids = torch.tensor([0, 2, 4])
    for phase in dict.fromkeys(method.schedule(number, 8) for number in range(8)):
        round = made.context.round("train", phase, 3)
        rows, clients = progress.rows.take(ids), progress.clients.take(ids)
        job = Job(progress.server, rows, clients, tree.take(progress.session, ids), ids, round, 3)
        uploads = made.engine.work(job).uploads
        inputs = {"server": progress.server, "rows": rows, "uploads": uploads}
        before = {key: value.clone() for key, value in tree.named(inputs).items()}
        cohort = Cohort(ids, made.server.samples[ids], 3, 6)
        results = [
            method.aggregate(made.server.task, progress.server, rows, uploads, cohort, round)
            for _ in range(2)
        ]
        assert_equal(*map(tree.named, results))
        assert_equal(before, tree.named(inputs))


@every_method
def test_law_2_loop_equals_batched(name):
    """Batched with replayed steps, and with every step as it is written."""
    method = METHOD_TABLE[name]
    loop, ended = simulate(method, rounds=10)
    summaries, models = final(loop, ended)
    for replay in ("auto", "off"):
        # Three clients at a time of four: the second chunk is padded.
        how = {"engine": "batched", "clients_per_chunk": 3, "replay": replay}
        batched, also = simulate(method, rounds=10, **how)
        assert (loop.engine.name, batched.engine.name) == ("loop", "batched")
        assert_close(tensors(ended), tensors(also), 1e-9)
        for kind, sums in owed(ended.costs).items():
            assert owed(also.costs)[kind] == pytest.approx(sums, rel=1e-12), kind
        others, also_models = final(batched, also)
        for left, right in zip(summaries, others, strict=True):
            assert left.accuracy == right.accuracy
            assert left.global_view == right.global_view
            assert left.per_client == right.per_client
            assert owed(left.costs.adapt) == owed(right.costs.adapt)
        assert_close(tree.named(models), tree.named(also_models), 1e-9)


@every_method
def test_law_2_workers_change_no_bit(name):
    method = METHOD_TABLE[name]
    _, alone = simulate(method, rounds=3)
    _, together = simulate(method, rounds=3, workers=2)
    assert_equal(alone.tensors(), together.tensors())
    assert alone.costs == together.costs


@every_method
def test_law_3_counted_bytes_are_encoded_bytes(name):
    method = METHOD_TABLE[name]
    messages = 0
    for made, progress, round, id, _, client, download in exchanges(name):
        upload, _ = client_round(
            method, made.server.task, download, client, feed_of(made, id, round), round
        )
        for message in (download, upload):
            for wire in ("", *WIRES) if id == 1 else ("",):
                sent = {key: part.to(wire, 7) for key, part in message.items()} if wire else message
                assert_counted(sent, {})
                # As both ends hold it after these rounds, and after this very download.
                held = tree.take(progress.session, id)
                masks = count(download, {}).masks
                for session in (held, moved(held, "down", masks)):
                    assert_counted(sent, session)
            messages += bool(message)
    assert messages or name.startswith("local")


def assert_counted(message, session):
    """Counted bytes are encoded bytes, alone and stacked; what is decoded is what was sent."""
    data = encode(message, session=session)
    assert nbytes(message, session) == len(data)
    both = {key: torch.stack([value] * 2) for key, value in session.items()}
    counted = nbytes(tree.stack([message] * 2), both, lead=1).expand(2)
    assert counted.tolist() == [len(data)] * 2
    read = decode(data, message, session=session)
    assert message.keys() == read.keys()
    for part_name, part in message.items():
        assert digest(read[part_name]) == digest(part)
        assert_equal(read[part_name].keep, part.keep)
        assert_equal(read[part_name].scale, part.scale)
    assert encode(read, session=session) == data
    same = dict.fromkeys(message, True)
    short = encode(message, None, session, same)
    assert nbytes(message, session, same) == len(short)
    assert_equal(tree.named(decode(short, message, held=message)), tree.named(message))
    assert encode(message, None, session, dict.fromkeys(message, False)) == data


@every_method
def test_law_4_the_order_of_clients_does_not_matter(name):
    method = METHOD_TABLE[name]
    forward = simulation(method)
    one, two = forward.begin(), forward.begin()
    for state in (one, two):
        advance(forward, state)
    round = forward.server.round("train", 1)
    ids, mixed = torch.tensor([0, 1, 3, 4]), torch.tensor([3, 0, 4, 1])
    outcomes = []
    for progress, order in ((one, ids), (two, mixed)):
        states = progress.rows.take(order), progress.clients.take(order)
        known = tree.take(progress.session, order)
        job = Job(progress.server, *states, known, order, round, 1)
        outcomes.append(forward.engine.work(job))
    sort = mixed.argsort()
    assert_equal(
        tree.named([outcomes[0].uploads, outcomes[0].clients]),
        tree.named(tree.take([outcomes[1].uploads, outcomes[1].clients], sort)),
    )


NEUTRAL = {
    name: METHODS[name].neutral for name in METHOD_TABLE if METHODS[name].neutral is not None
}
"""Settings under which a method is FedAvg."""
BUDGET_OF_ONE = {"pfedgate"}
ROUNDED = {"topk", "pfedme"}
"""Methods that add up differences, which gives the same numbers only to rounding."""


@pytest.mark.parametrize("name", NEUTRAL)
def test_law_5_neutral_settings_give_fedavg(name, monkeypatch):
    method = dataclasses.replace(METHOD_TABLE[name], **NEUTRAL[name])
    if name in BUDGET_OF_ONE:
        monkeypatch.setattr("tests.support.BUDGETS", (1.0,) * len(BUDGETS))
    common = {
        key: getattr(method, key)
        for key in ("lr", "local_epochs", "momentum", "weight_decay", "clip")
    }
    _, reference = simulate(FedAvg(**common), rounds=6)
    _, ended = simulate(method, rounds=6)
    tolerance = 1e-12 if name in ROUNDED else 0
    assert_close(reference.server["params"], ended.server["params"], tolerance)


def test_law_5_can_fail():
    """The same comparison tells FedAvg from methods whose settings are not neutral."""
    _, reference = simulate(FedAvg(local_epochs=3), rounds=3)
    others = [cls(local_epochs=3) for cls in (HeteroFL, PFedGate, TopK, FedEM)]
    for method in (FedSelect(local_epochs=3, select="growth", grow_every=1), *others):
        _, other = simulate(method, rounds=3)
        with pytest.raises(AssertionError):
            assert_close(reference.server["params"], other.server["params"], 1e-6)


@every_method
def test_law_6_an_unsampled_client_is_untouched(name):
    made = simulation(METHOD_TABLE[name])
    progress = made.begin()
    advance(made, progress)  # Round 0 may setup everybody.
    before = progress.tensors()
    sampled = set(made.server.participation.cohort(progress.number).tolist())
    advance(made, progress)
    after = progress.tensors()
    for key, value in before.items():
        if key.split("/")[0] in ("rows", "clients", "session"):
            for id in set(range(len(BUDGETS))) - sampled:
                assert torch.equal(value[id], after[key][id]), (key, id)
    assert len(sampled) < len(BUDGETS)


@every_method
def test_law_7_save_load_continue_is_continue(name):
    method = METHOD_TABLE[name]
    made, whole = simulate(method)
    part = made.begin()
    for _ in range(3):
        advance(made, part)
    resumed = restored(made, part.number, part.tensors(), part.facts())
    while resumed.number < made.spec.train.rounds:
        advance(made, resumed)
    assert_equal(whole.tensors(), resumed.tensors())
    assert whole.costs == resumed.costs


@every_method
def test_law_8_densities_stay_within_the_limit(name):
    method = METHOD_TABLE[name]
    made = simulation(method)
    progress = made.begin()
    checked = 0
    while progress.number < made.spec.train.rounds:
        advance(made, progress)
    own = [index[:1] for index in made.federation.test]
    models = measure(made, progress, method.views[0], own).models
    for info, model in zip(made.server.clients, models, strict=True):
        limit = method.limit(made.server.task, info)
        row, client = (tree.take(s.state, info.id) for s in (progress.rows, progress.clients))
        for kind, phase in kinds(made, method):
            if kind != "adapt":
                round = made.context.round(kind, phase, 3)
                download = method.download(made.server.task, progress.server, row, round)
                upload, _ = client_round(
                    method, made.server.task, download, client, feed_of(made, info.id, round), round
                )
                checked += within(upload, limit["upload" if kind == "train" else kind])
        checked += within(model, limit["use"])
    bounded = any(limit.values())
    assert checked or not bounded


def within(message, limit):
    """Assert that no tensor of a message keeps more than its limit; return how many have one."""
    found = 0
    for part in message.values():
        for tensor, most in limit.items():
            if tensor in part.values:
                held = part.held(tensor)
                assert (part.values[tensor].numel() if held is None else int(held.sum())) <= most
                found += 1
    return found


@every_method
def test_law_9_a_traced_step_serves_every_round_of_its_phase(name):
    """Trace a step; replayed in any round, it equals the eager one.

    A step that makes a changing number a constant would have it in its trace, and fail here.
    """
    method = METHOD_TABLE[name]
    made = simulation(method)
    progress = made.begin()
    rows, clients = progress.rows.state, progress.clients.state
    vmapped = VmappedMethod(method, len(BUDGETS))
    ids = torch.arange(len(BUDGETS))
    for kind, phase in kinds(made, method):
        round = made.context.round(kind, phase, 1)
        download = vmapped.download(made.server.task, progress.server, rows, round)
        work = vmapped.start(made.server.task, download, clients, round)
        for stage in vmapped.stages(made.server.task, round):
            work = stage.prepare(work, round)
            loader = made.context.loader
            pack = loader.stack(loader.shuffle(ids, stage, round, 1))
            batch = loader.batch(pack.rows[0], pack.draws, whole=False)
            step = stepper(stage, round)
            traced = traced_by(step)(work, batch, *later(made, kind, phase, 1))
            for number in (1, 2, 6):
                numbers = later(made, kind, phase, number)
                eager = step(work, batch, *numbers)
                assert_equal(tree.named(eager), tree.named(traced(work, batch, *numbers)))
            work = step(work, batch, *later(made, kind, phase, 1))


@every_method
def test_law_9_replayed_steps_are_the_steps_as_they_are_written(name):
    """What is recorded in early rounds serves the late ones, bit for bit, and evaluation too."""
    method = METHOD_TABLE[name]
    found = {}
    for replay in ("auto", "off"):
        with scheduled(method, 6, engine="batched", replay=replay) as made:
            if replay == "auto":
                # Recorded at once, not only after some steps of a form.
                made.engine.steps.often = 0
            state, found[replay] = made.begin(), []
            while state.number < 6:
                advance(made, state)
                found[replay].append(state.tensors())
            for view in method.views:
                scores = measure(made, state, view, list(made.federation.test)).scores
                found[replay].append({view: torch.cat(scores)})
            if replay == "auto":
                recordings = list(made.engine.steps._made.values())
                assert recordings
                assert None not in recordings
    for left, right in zip(found["auto"], found["off"], strict=True):
        assert_equal(left, right)


def traced_by(step):
    """Trace a step by shapes alone: one that reads a number on the host fails, in any round."""
    return make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)


def stepper(stage, round):
    """A step, and what follows the last one, as a function of tensors alone."""

    def step(work, batch, number, decay):
        moved = dataclasses.replace(round, number=number, decay=decay)
        return stage.then(stage.step(work, batch, moved), moved)

    return step


def later(made, kind, phase, number):
    round: Round = made.context.round(kind, phase, number)
    return round.number, round.decay


@pytest.mark.parametrize("name", METHODS)
def test_law_10_a_method_survives_the_config(name):
    entry = METHODS[name]
    method = entry.method(lr=0.0123, local_epochs=7, **dict(entry.settings))
    text = config.dump(config.Config(methods=(name,), method={name: config.plain(method)}))
    again = config.method_of(name, config.parse(config.read(text)))
    assert again == method
    assert repr(again) == repr(method)
    assert config.dump(config.parse(config.read(text))) == text


def test_a_step_without_samples_changes_nothing():
    """All of a client's work stays bit-identical where a step has no sample for it."""
    method = METHOD_TABLE["dmpfl"]
    made = simulation(method, participation=1.0)
    progress = made.begin()
    vmapped = VmappedMethod(method, len(BUDGETS))
    round = made.context.round("train", ("dual", True), 0)
    download = vmapped.download(made.server.task, progress.server, progress.rows.state, round)
    work = vmapped.start(made.server.task, download, progress.clients.state, round)
    stage = vmapped.stages(made.server.task, round)[0]
    work = stage.prepare(work, round)
    loader = made.context.loader
    pack = loader.stack(loader.shuffle(torch.arange(6), stage, round, 0))
    idle = 0
    for row in pack.rows:
        busy = row[:, -2] > 0
        new = where_busy(busy, stage.step(work, loader.batch(row, 1, whole=False), round), work)
        for id, has in enumerate(busy.tolist()):
            same = [
                torch.equal(a[id], b[id])
                for a, b in zip(tree.leaves(work), tree.leaves(new), strict=True)
            ]
            assert has or all(same)
            assert not has or not all(same)
            idle += not has
        work = new
    assert idle


def test_who_is_told_apart_by_the_task():
    """Budgets reach the methods: a client of HeteroFL that can hold half is never wide."""
    task = Task(network())
    for budget, widths in ((1.0, {0.5, 1.0}), (0.5, {0.5})):
        assert {
            HeteroFL().width(task, ClientInfo(0, 1, key, budget)) for key in range(20)
        } == widths
