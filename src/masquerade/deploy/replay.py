"""A federation simulated again from its record of who took part, and compared bit for bit.

It needs the data of all clients in one place, and so is for trials and drills. It shows that what
happened over a network, with all that was lost on the way, is what the simulator does.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from masquerade.config.normalize import spelled
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Fleet
from masquerade.core import tree
from masquerade.core.preprocess import Raw
from masquerade.data import Federation
from masquerade.deploy.agreement import AGREED, Agreement, fitted_alone
from masquerade.deploy.facts import translated
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.fleet import RENEWED
from masquerade.deploy.member import Member, open_member
from masquerade.deploy.noise import clipped_alone, noised_mean
from masquerade.deploy.own_data import fingerprint, joined
from masquerade.deploy.roster import NOBODY, Gathered, Roster, check_whole, read_roster
from masquerade.deploy.server import AFTER, at_commit
from masquerade.engine.exchange import TURN
from masquerade.engine.loop import Loop
from masquerade.engine.precision import numbers
from masquerade.errors import MasqueradeError, listed
from masquerade.evaluation.evaluate import Evaluator
from masquerade.results import Attendance, Preparation, RoundRecord, Summary
from masquerade.results.json_records import from_json
from masquerade.simulation import class_weights, fitting
from masquerade.simulation.build import Simulation, context_of, server_of
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.server import Turn, federated_round, train
from masquerade.simulation.state import RunState
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import HASHES, METRICS, RunDirectory
from masquerade.storage.saved_folder import Folder

MEMBERS = "members"
"""The folder in a federation's folder that has the clients' folders, by name, where all are on one
machine."""


@dataclass
class Replayed:
    """What came of a replay."""

    rounds: int = 0
    compared: int = 0
    """Tensors and figures that were held against one another."""
    differences: list[str] = field(default_factory=list)
    """Names of those that differ."""
    missing: list[str] = field(default_factory=list)
    """Clients that have no state to compare: they lost it, and were not asked since."""

    def compare(self, name: str, there: object, here: object) -> None:
        """Hold a tensor or a figure of the federation against that of the simulation."""
        self.compared += 1
        if isinstance(there, Tensor) and isinstance(here, Tensor):
            same = there.dtype == here.dtype and torch.equal(there, here)
        else:
            same = there == here
        if not same:
            self.differences.append(name)


@dataclass(frozen=True, eq=False)
class Recorded(Gathered):
    """Who took part in a round, as it was recorded."""

    back: tuple[int, ...]

    def returning(self, number: int, ids: Tensor) -> Tensor:
        """Return the places of those whose update was taken."""
        places = [place for place, id in enumerate(ids.tolist()) if id in self.back]
        return torch.tensor(places, dtype=torch.int64)


def replay(folder: Path, members: Path | None = None) -> Replayed:
    """Simulate a federation as it was recorded; `members` has the folders of all clients."""
    check_whole(folder)
    if not (folder / AGREED).is_file():
        raise MasqueradeError("E408", f"{folder} has no committed round yet; nothing to replay")
    agreement = Agreement.load(folder)
    fleet = FederationConfig.load(folder).fleet
    names, threads = fleet.clients, torch.get_num_threads()
    compute, privacy = agreement.settings().compute, agreement.settings().privacy
    if privacy.epsilon or privacy.noise_multiplier:
        text = "its noise is of the operating system, and nobody can draw it again"
        raise MasqueradeError("E632", f"{folder} was trained with differential privacy: {text}")
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(numbers(compute.precision))
        # Sums are others in other threads, and torch begins with one per core.
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(compute.threads)
        roster = read_roster(folder, agreement.run)
        # Who never fitted in had no part in it.
        wanted = [n for id, n in enumerate(names) if n in roster.clients or id in agreement.summed]
        opened = opened_members(members or folder / MEMBERS, wanted)
        made = simulated(agreement, roster, fleet, opened)
        with RunDirectory.open(folder) as directory:
            commit = directory.latest()
        records = list(read_records(folder))
        if commit is None:
            raise MasqueradeError("E408", f"{folder} has no committed round yet; nothing to replay")
        found = Replayed()
        _compare_agreed(agreement, [opened[names[id]] for id in agreement.summed], found)
        state = made.server.begin()
        for record in records[: commit.number]:
            assert record.attendance is not None
            _one_round(made, state, record, record.attendance)
        found.rounds = state.number
        there = at_commit(replace(made.server, holds_clients=False), commit).tensors()
        _compare_server(there, state, found)
        enrolled = {id: opened[name] for id, name in enumerate(names) if name in roster.clients}
        _compare_clients(agreement.run, there, state, enrolled, found)
        if (folder / HASHES).is_file():
            for each in json.loads(Folder.open(folder).read(AFTER)):
                _prepare(made, state, from_json(Preparation, each))
            _compare_views(made, state, read_results(folder), found)
    return found


def read_records(folder: Path) -> Iterator[RoundRecord]:
    """Read what happened in each round."""
    for line in (folder / METRICS).read_text("utf-8").splitlines():
        yield from_json(RoundRecord, json.loads(line))


def simulated(
    agreement: Agreement, roster: Roster, fleet: Fleet, members: Mapping[str, Member]
) -> Simulation:
    """Return a simulation of the same clients, with the data of all that fitted in."""
    config, names, parts = agreement.settings(), fleet.clients, []
    for name in names:
        known = roster.clients.get(name)
        if known is None:
            parts.append(agreement.form.blank(agreement.name, [name]))
            continue
        own = members[name].own(config)
        if fingerprint(own, agreement.run) != known.facts.fingerprint:
            text = f"the data of {name} are not those that it took part with"
            raise MasqueradeError("E618", f"{text}; restore them")
        parts.append(translated(own, agreement.form))
    data = replace(joined(parts), name=agreement.name, names=tuple(names))
    spec = agreement.specified(data)
    applied = data if agreement.preprocess else _each_by_itself(spec)
    task = agreement.task(spec, applied)
    task = task.with_dp(clipped_alone(spec, task))
    context = context_of(spec, task, applied)
    counts, cpu = data.samples.tolist(), torch.device("cpu")
    server = server_of(spec, task, counts, NOBODY, context.meter, cpu)
    noised = noised_mean(spec, context, fleet)
    return Simulation(
        spec=replace(spec, federation=applied),
        server=replace(server, aggregation=noised or server.aggregation),
        engine=Loop(context),
        context=context,
        federation=applied,
        fitting=Fitting(task.preprocess),
        weighting=Weighting(),
        seconds=0.0,
    )


def opened_members(folder: Path, names: Sequence[str]) -> dict[str, Member]:
    """Open the folders of some clients; refuse to go on without one."""
    missing = [name for name in names if not (folder / name).is_dir()]
    if missing:
        text = f"{folder} has no folder of {listed(missing)}"
        raise MasqueradeError(
            "E618", f"{text}; a replay needs the data of all clients in one place"
        )
    return {name: open_member(folder / name) for name in names}


def _each_by_itself(spec: TrainingSpec) -> Federation:
    """Return samples as clients preprocess them that fit it each on its own."""
    own = tuple(fitted_alone(spec, id) for id in range(spec.federation.clients))
    return Fitting(Raw(), own=own).applied(spec.federation)


def _compare_agreed(agreement: Agreement, members: Sequence[Member], found: Replayed) -> None:
    """Find again what the sums of some clients decided."""
    if not members:
        return
    config = agreement.settings()
    parts = [translated(member.own(config), agreement.form) for member in members]
    spec = agreement.specified(joined(parts))
    fitted, weighed = fitting.fit(spec), class_weights.weigh(spec)
    if agreement.preprocess:
        found.compare("preprocessing", agreement.preprocess, spelled(fitted.preprocess))
    weights = () if weighed.weights is None else tuple(weighed.weights.tolist())
    found.compare("class weights", agreement.class_weights, weights)


def _one_round(made: Simulation, state: RunState, record: RoundRecord, seen: Attendance) -> None:
    """Do what was done in a round, and before it."""
    eligible = torch.tensor(seen.eligible, dtype=torch.int64)
    for each in seen.prepared:
        _prepare(made, state, each, eligible)
    asked = torch.tensor(seen.asked, dtype=torch.int64)
    server = replace(made.server, participation=Recorded(eligible, asked, record.clients))
    train(server, made.engine, state, until=state.number + 1)


def _prepare(
    made: Simulation, state: RunState, done: Preparation, eligible: Tensor = NOBODY.eligible
) -> None:
    """Do what was done with some clients before a round, or after the last one."""
    ids = torch.tensor(done.clients, dtype=torch.int64)
    if done.kind == "renewed":
        state.renew(ids, made.server.begin())
        return
    server = replace(made.server, participation=Gathered(eligible, ids))
    round = server.round("setup", state.number)
    back = torch.tensor([at for at, id in enumerate(done.clients) if id in done.back])
    turn = Turn("setup", state.number, round, ids, back.to(torch.int64))
    federated_round(server, made.engine, state, turn)


def _compare_server(there: Mapping[str, Tensor], state: RunState, found: Replayed) -> None:
    """Compare what the server holds; clients' states lie with them."""
    here = state.tensors()
    for name in sorted(there.keys() | here.keys()):
        place = name.partition("/")[0]
        if place in ("server", "rows", "session") and name != f"session/{TURN}":
            found.compare(name, there.get(name), here.get(name))


def _compare_clients(
    run: str,
    there: Mapping[str, Tensor],
    state: RunState,
    members: Mapping[int, Member],
    found: Replayed,
) -> None:
    """Compare what every client holds in the file that the server's session names."""
    session = {n.removeprefix("session/"): v for n, v in there.items() if n.startswith("session/")}
    for id, member in members.items():
        try:
            client = member.participant(run).client
            held = client.load(client.channel.base(tree.take(session, id)))
        except MasqueradeError as error:
            if error.code not in RENEWED:
                raise
            found.missing.append(member.folder.name)
            continue
        mine, theirs = tree.named(held.client), tree.named(tree.take(state.clients.state, id))
        for name in sorted(mine.keys() | theirs.keys()):
            found.compare(f"clients/{id}/{name}", mine.get(name), theirs.get(name))


def _compare_views(
    made: Simulation, state: RunState, summaries: Sequence[Summary], found: Replayed
) -> None:
    """Compare the figure of every client in every view."""
    for summary in summaries:
        listed_clients = summary.per_client
        assert listed_clients is not None
        server = replace(made.server, known=listed_clients.ids)
        evaluator = Evaluator.of(replace(made, server=server))
        scores = evaluator.measure(state, summary.view, evaluator.asked())
        figures = evaluator.described({(summary.view, False): scores})[summary.view, False].figures
        for id, there, here in zip(
            listed_clients.ids, listed_clients.own, figures.own, strict=True
        ):
            found.compare(f"view {summary.view}, client {id}", there, here)
