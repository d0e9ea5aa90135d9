"""The server of a federation of real clients: the simulator's round loop, with clients elsewhere.

`serve` does the rounds that are left, from the last commit. Before each round it gathers clients:
newcomers are asked what their data look like and told what was agreed, who lost its states begins
anew, and no round begins below the quorum. Every round is committed before the next one begins, so
that a client, which keeps two states, always has the one that the server goes on from.
"""

import json
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from masquerade.config import toml
from masquerade.config.resolve import TrainingSpec, resolved, trainings
from masquerade.core.part import Message, Part
from masquerade.core.preprocess import shape_after
from masquerade.core.random import Label, choose, fold
from masquerade.core.task import Task
from masquerade.deploy import messages
from masquerade.deploy.agreement import (
    AGREED,
    Agreement,
    concluded,
    read_sums,
    settled,
    specified,
    wanted_sums,
)
from masquerade.deploy.calls import Calls
from masquerade.deploy.carrier import Carrier
from masquerade.deploy.evaluate import TRIES, FleetEvaluator
from masquerade.deploy.facts import Facts, Form, check_known, merged, unlike
from masquerade.deploy.federation import FILE as FEDERATION
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.fleet import BEAT, SHOWN, Fleet, next_start
from masquerade.deploy.measure import ClientReport, FinalFigures
from masquerade.deploy.messages import Question
from masquerade.deploy.noise import Noised, clipped_alone, guarantee_of, noised_mean
from masquerade.deploy.participant import Invitation, Seat
from masquerade.deploy.roster import (
    CLIENTS,
    NOBODY,
    Enrolled,
    Gathered,
    check_whole,
    read_roster,
)
from masquerade.deploy.status import Status, StatusFile
from masquerade.engine.base import EngineContext
from masquerade.engine.exchange import TURN
from masquerade.engine.precision import numbers
from masquerade.engine.remote import Remote
from masquerade.errors import MasqueradeError, MasqueradeWarning, listed
from masquerade.experiments import data_facts
from masquerade.experiments.checkpoints import (
    CommitFacts,
    Origin,
    check_number,
    check_text,
    facts_of,
)
from masquerade.experiments.data_facts import DataFacts
from masquerade.experiments.report_page import can_write, write_report
from masquerade.experiments.run import directory_at
from masquerade.experiments.run_files import json_of
from masquerade.results import (
    Attendance,
    EvaluationRecord,
    Preparation,
    PrivacySheet,
    RoundRecord,
    Summary,
)
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.results.privacy import FILE as PRIVACY
from masquerade.simulation.accountant import check_sums
from masquerade.simulation.build import context_of, server_of
from masquerade.simulation.participation import Participation
from masquerade.simulation.privacy_sheet import sheet_of
from masquerade.simulation.server import Server, Turn, federated_round, train
from masquerade.simulation.state import RunState
from masquerade.storage import sealed
from masquerade.storage.run_directory import Commit, RunDirectory
from masquerade.wire import digest

AFTER = "after.json"
"""A file of a server's folder: who began anew after training."""
SPENT = "spent.json"
"""Another: the steps of differential privacy that each client was asked for, lost rounds too."""
TELLING = 10.0
"""Seconds that a client which is refused has to hear it."""
LONGEST_TEXT = 1000
"""Letters of a sentence that says why a client is refused."""
RETRY, LONGEST = 30.0, 600.0
"""Seconds before a client that was refused is asked again: at first, and at most. All others wait
while it is asked."""


@dataclass(frozen=True)
class Spent:
    """What clients were asked for, by number."""

    steps: dict[str, int]


def serve(folder: Path, carrier: Carrier, now: Callable[[], float] = time.monotonic) -> None:
    """Do the rounds that are left of the federation in a folder, and evaluate it at the end."""
    status = StatusFile(folder, Status(doing="gathering"))
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        try:
            service = Service(folder, carrier, now, status, FederationConfig.load(folder))
            settings = service.settings.config
            torch.set_num_threads(settings.compute.threads)
            stack.enter_context(numbers(settings.compute.precision))
            service.run()
        except Exception as error:
            status.update(doing="failed", problem=f"{type(error).__name__}: {error}"[:1000])
            raise
        except BaseException:
            if status.status.doing != "finished":
                status.update(doing="stopped")
            raise


class Service:
    """What serves one federation, from its last commit to its end."""

    def __init__(
        self,
        folder: Path,
        carrier: Carrier,
        now: Callable[[], float],
        status: StatusFile[Status],
        settings: FederationConfig,
    ) -> None:
        self.folder, self.status, self.settings = folder, status, settings
        check_whole(folder)
        agreement = Agreement.load(folder) if (folder / AGREED).is_file() else None
        run = agreement.run if agreement else f"{settings.fleet.name}-{secrets.token_hex(4)}"
        self.fleet = Fleet(run, carrier, now, start=next_start(folder), beat=self._beat)
        self.roster = read_roster(folder, run)
        self.tried: dict[str, tuple[float, float]] = {}
        """When a client that was refused is asked again, and after how long a wait; until it goes
        away: who comes back may be another."""
        self.told: dict[str, str] = {}
        """What a client was told then, until it goes away: who comes back may have forgotten."""
        self.absent: set[str] = set()
        """Clients that were waited for in vain."""
        self.prepared: list[Preparation] = []
        self.joined: list[int] = []
        self.set_up: dict[int, float] = {}
        """When a client was last asked to do its setup."""
        self.read = b""
        """`federation.toml` as it was read last."""
        self.left: set[str] = set(settings.fleet.removed)
        self.reported: dict[int, Noised] = {}
        """What clients say of their privacy."""
        self.seconds = 0.0
        self.agreement = agreement or self._agree()
        self._build()

    # What is agreed

    def _agree(self) -> Agreement:
        """Find out what clients' data look like, and what their sums decide.

        Who does not fit is heard on until it is asked again: others who come may be like it, and
        most are right.
        """
        config = self.settings.config
        text, heard = toml.dump(config).encode(), dict[str, Facts]()
        while True:
            self._wait_for(lambda: self._to_enroll(self.fleet.now()))
            fleet, asked = self.settings.fleet, self._to_enroll(self.fleet.now())
            kept = set(self._there) - set(asked)
            heard = {name: each for name, each in heard.items() if name in kept}
            heard |= self._hello(asked, text)
            in_order = [name for name in fleet.clients if name in heard]
            wrong = unlike({name: heard[name].form for name in in_order})
            self._refuse({name: why for name, why in wrong.items() if name in asked})
            fitting = [name for name in in_order if name not in wrong]
            if len(fitting) < fleet.quorum:
                continue
            form = merged(heard[name].form for name in fitting)
            spec = specified(config, form.blank(fleet.name, fleet.clients))
            (training,) = trainings(config)
            if spec.privacy.unit != "none":
                check_sums(spec)
            complete = toml.dump(resolved(config, training, spec))
            draft = Agreement(self.fleet.run, fleet.name, complete, form)
            found = self._sum_up(draft, fitting)
            if found is not None:
                for name in fitting:
                    self.tried.pop(name, None)
                found.save(self.folder)
                return found
            heard.clear()

    def _sum_up(self, draft: Agreement, asked: Sequence[str]) -> Agreement | None:
        """Return the agreement that clients' sums decide; None where too few sent any.

        Who is lost in a later exchange has no part in the first: it is begun anew without it, so
        that a replay finds the same clients in all of them.
        """
        fleet, found = self.settings.fleet, draft
        blank = draft.form.blank(fleet.name, fleet.clients)
        while any(wanted_sums(found, spec := found.fitted_so_far(blank))):
            sums = self._sums(found, spec, asked)
            if len(sums) < fleet.quorum:
                return None
            lost = found.summed and len(sums) < len(asked)
            found = draft if lost else settled(found, spec, sums)
            asked = [fleet.clients[id] for id in sums]
        return concluded(found, spec)

    def _sums(
        self, draft: Agreement, spec: TrainingSpec, asked: Sequence[str]
    ) -> dict[int, list[Message]]:
        """Ask clients for the sums that are wanted next."""
        question = Question(run="", client="", nonce="", kind=messages.SUMS, body=draft.to_bytes())
        answers = self.fleet.ask(dict.fromkeys(asked, question), self.settings.fleet.deadline)
        found, wrong = {}, {}
        for name in asked:
            if name in answers:
                try:
                    found[self._id(name)] = read_sums(draft, spec, answers[name].body)
                except MasqueradeError as error:
                    wrong[name] = error
        self._refuse(wrong)
        return found

    def _hello(self, names: Iterable[str], text: bytes) -> dict[str, Facts]:
        """Ask clients what their data look like; those that are refused are asked again later."""
        asked = Question(run="", client="", nonce="", kind=messages.HELLO, body=text)
        questions = dict.fromkeys(names, asked)
        answers = self.fleet.ask(questions, self.settings.fleet.deadline)
        found, wrong = dict[str, Facts](), dict[str, MasqueradeError]()
        for name in questions:
            if name not in answers:
                self._not_now(name)
                continue
            try:
                said = from_json(Facts, parsed(answers[name].body))
                said.check()
                if not said.train:
                    others = f"{said.validation} to validate, {said.test} to test"
                    why = f"{name} has no training sample ({others}); give it more data"
                    raise MasqueradeError("E612", why)
                found[name] = said
            except MasqueradeError as error:
                wrong[name] = error
            except ValueError as error:
                wrong[name] = MasqueradeError("E610", f"facts cannot be read: {error}")
        self._refuse(wrong)
        return found

    def _refuse(self, errors: Mapping[str, MasqueradeError]) -> None:
        """Let clients not take part for now, and tell them why where they do not know."""
        news = {}
        for name, error in errors.items():
            # It may name what the client says that its columns are called.
            text = str(error)[:LONGEST_TEXT]
            self._later(name)
            why = text.removeprefix(f"{error.code} ")
            self.fleet.note(error.code, name, why, "it cannot take part")
            self._hold_against(name, text)
            if self.told.get(name) != text:
                self.told[name] = text
                news[name] = Question(
                    run="", client="", nonce="", kind=messages.REFUSED, body=text.encode()
                )
        if news:
            self.fleet.ask(news, TELLING)

    def _later(self, name: str) -> None:
        """Ask a client again after a while, which is longer every time."""
        wait = min(2 * self.tried.get(name, (0.0, RETRY / 2))[1], LONGEST)
        self.tried[name] = self.fleet.now() + wait, wait

    def _hold_against(self, name: str, text: str = "") -> None:
        """Show why a client cannot take part; without a text, that it can."""
        others = {n: said for n, said in self.status.status.refusals.items() if n != name}
        self.status.update(refusals=others | ({name: text} if text else {}))

    # What is known of clients

    def _id(self, name: str) -> int:
        return self.settings.fleet.clients.index(name)

    def _ids(self, names: Iterable[str]) -> Tensor:
        return torch.tensor(sorted(map(self._id, names)), dtype=torch.int64)

    @property
    def _there(self) -> list[str]:
        """Name the clients that can be reached, and are not removed."""
        fleet = self.settings.fleet
        here = set(self.fleet.carrier.connected())
        return [name for name in fleet.clients if name in here and name not in fleet.removed]

    def _to_enroll(self, now: float) -> list[str]:
        """Name those of them that are to be asked what their data look like."""
        new = (
            name
            for name in self._there
            if name not in self.roster.clients or name in self.fleet.begin_anew
        )
        return [name for name in new if now >= self.tried.get(name, (now, RETRY))[0]]

    @property
    def _eligible(self) -> list[str]:
        """Name the clients that may take part in a round: known, and not removed."""
        known, fleet = self.roster.clients, self.settings.fleet
        return [each for each in fleet.clients if each in known and each not in fleet.removed]

    def _build(self) -> None:
        """Make what does not change while the same clients are known."""
        fleet, agreement = self.settings.fleet, self.agreement
        blank = agreement.form.blank(fleet.name, fleet.clients)
        self.spec: TrainingSpec = agreement.specified(blank)
        if not agreement.preprocess:
            # A sample is then as clients preprocess it, each by itself.
            shape = shape_after(self.spec.task.preprocess, agreement.form.shape)
            blank = replace(blank, x=torch.zeros(1, *shape, dtype=self.spec.task.dtype))
        self.task: Task = agreement.task(self.spec, blank)
        here = int(digest(Part(self.task.initial)))
        if here != agreement.initial:
            text = "the initial weights differ from those this federation began with"
            raise MasqueradeError("E402", f"{text}; restore the version of torch")
        self.task = self.task.with_dp(clipped_alone(self.spec, self.task))
        self.context: EngineContext = context_of(self.spec, self.task, blank)
        self.noised = noised_mean(self.spec, self.context, fleet)
        self.calls = Calls(self.fleet, fleet.clients, fleet.deadline)
        infos = self._server().clients
        self.engine = Remote(self.context, agreement.run, infos, self.calls)

    # Differential privacy

    def _count(self, server: Server, state: RunState, turn: Turn) -> None:
        """Have on the disk what a turn may cost clients, before anybody is asked."""
        if server.task.dp is None:
            return
        steps = server.noised_steps(turn)
        spent = {
            str(id): state.noised.get(id, 0) + steps.get(id, 0)
            for id in sorted({*state.noised, *steps})
        }
        sealed.write_record(self.folder / SPENT, self.agreement.run, Spent(spent))

    def _recall(self, state: RunState) -> None:
        """Take over what was counted since the last commit."""
        path = self.folder / SPENT
        if not path.is_file():
            return
        counted = sealed.read_record(Spent, path, self.agreement.run, sealed.NO_OTHER)
        for id, steps in counted.steps.items():
            state.noised[int(id)] = max(steps, state.noised.get(int(id), 0))

    def _server(self, participation: Participation = NOBODY) -> Server:
        """Return the server with what is known of clients now."""
        known = self.roster.clients
        counts = [
            known[name].facts.train if name in known else 0 for name in self.settings.fleet.clients
        ]
        made = server_of(
            self.spec, self.task, counts, participation, self.context.meter, torch.device("cpu")
        )
        late = {n for n, each in known.items() if each.round >= self.spec.train.rounds}
        return replace(
            made,
            aggregation=self.noised or made.aggregation,
            holds_clients=False,
            known=tuple(self._ids(known.keys() - late).tolist()),
            novel=tuple(self._ids(late).tolist()),
        )

    # Rounds

    def run(self) -> None:
        """Do everything that is left."""
        opened = directory_at(self.folder, begun=True)
        text = self.agreement.config
        with opened(text) as directory:
            check_text(directory, text)
            origin = Origin(text, self.agreement.run, self.agreement.initial, torch.__version__)
            state = self._begin(directory, origin)
            rounds = self.spec.train.rounds
            while state.number < rounds:
                self._gather(state)
                self._one_round(state, directory, origin)
            self._finish(state, directory)

    def _begin(self, directory: RunDirectory, origin: Origin) -> RunState:
        """Return the state after the last commit, with room for clients that came since."""
        state = self._last(directory, origin)
        self._recall(state)
        return state

    def _last(self, directory: RunDirectory, origin: Origin) -> RunState:
        server, commit = self._server(), directory.latest()
        if commit is None:
            return server.begin()
        facts_of(commit).origin.check(origin)
        return at_commit(server, commit)

    def _one_round(self, state: RunState, directory: RunDirectory, origin: Origin) -> None:
        """Do a round, measure where it is time to, and commit."""
        fleet, number = self.settings.fleet, state.number
        eligible, ready = self._ids(self._eligible), self._ids(self._ready(state))
        share = self.spec.train.participation * len(eligible)
        wanted = self.spec.train.clients_per_round or round(share)
        count = min(max(wanted, fleet.quorum), len(ready))
        chosen = choose(fold(self.spec.seed, Label.COHORT, number), ready, count)
        server = replace(self._server(Gathered(eligible, chosen)), quorum=fleet.quorum)
        self.engine.update(server.clients)
        evaluator = self._evaluator(server, state)
        self._tell("training", state, asked=self._names(chosen))
        self._count(server, state, server.choose(state))

        def evaluate(state: RunState) -> EvaluationRecord | None:
            self.seconds = self.calls.seconds
            known = self._ids(self._ready(state)).tolist()
            return evaluator.between_rounds(state, known, self.spec.train.rounds)

        def after_round(state: RunState, record: RoundRecord) -> None:
            for id in self.engine.unread:
                self.fleet.note("W608", fleet.clients[id])
            self.engine.unread.clear()
            back = [id for id in chosen.tolist() if id not in record.lost]
            attendance = Attendance(
                eligible=tuple(eligible.tolist()),
                asked=tuple(chosen.tolist()),
                back=tuple(back),
                prepared=tuple(self.prepared),
                joined=tuple(self.joined),
                left=tuple(self._ids(set(fleet.removed) - self.left).tolist()),
                quorum=fleet.quorum,
                answers=len(back) - len(record.refused),
                faults=self.fleet.taken_faults(),
                seconds=round(self.seconds, 3),
            )
            if attendance.below_quorum:
                text = f"W618 round {state.number}: {attendance.answers} answers, and it needs "
                warnings.warn(
                    f"{text}{fleet.quorum}: it changes nothing", MasqueradeWarning, stacklevel=2
                )
            self.left = set(fleet.removed)
            self.prepared, self.joined = [], []
            line = to_json(replace(record, attendance=attendance))
            facts = to_json(CommitFacts(state.facts(), origin))
            with state.clock.measure("commits"):
                directory.commit(state.number, state.tensors(), facts, [line])
            self._tell_of(record, attendance, state)

        train(server, self.engine, state, evaluate, after_round, until=number + 1)

    def _evaluator(self, server: Server, state: RunState) -> FleetEvaluator:
        return FleetEvaluator(
            spec=self.spec,
            engine=self.engine,
            fitting=self.agreement.fitting(self.spec),
            weighting=self.agreement.weighting,
            names=self.settings.fleet.clients,
            server=server,
            refused=lambda id, text: self.fleet.note("W608", self.settings.fleet.clients[id], text),
            spent=self.reported,
            again=lambda: self._refresh(state),
        )

    # Gathering

    def _gather(self, state: RunState) -> None:
        """Wait until enough clients are there and ready, and a little longer for the others."""
        self._wait_for(lambda: self._make_ready(state), state)

    def _wait_for(self, found: Callable[[], Sequence[str]], state: RunState | None = None) -> None:
        """Wait for a quorum among those who are found, and a little longer for the others."""
        enough_since: float | None = None
        while True:
            self._reload(state)
            fleet, ready = self.settings.fleet, found()
            self.absent -= set(ready)
            missing = set(fleet.clients) - set(fleet.removed) - set(ready) - self.absent
            if len(ready) >= fleet.quorum:
                enough_since = self.fleet.now() if enough_since is None else enough_since
                if not missing or self.fleet.now() - enough_since >= fleet.wait:
                    self.absent |= missing
                    self.status.update(waiting_since=0.0)
                    return
            else:
                enough_since = None
            since = self.status.status.waiting_since or time.time()
            waiting = len(ready) < fleet.quorum
            self.status.update(
                doing="waiting" if waiting else "gathering",
                waiting_since=since if waiting else 0.0,
            )
            self.fleet.listen(BEAT)

    def _reload(self, state: RunState | None) -> None:
        """Take over clients that were added or removed in `federation.toml` meanwhile."""
        written = (self.folder / FEDERATION).read_bytes()
        if written == self.read:
            return
        self.read = written
        now, old = FederationConfig.load(self.folder).fleet, self.settings.fleet
        if now == old:
            return
        if now.clients[: len(old.clients)] != old.clients:
            text = f"`fleet.clients` were {listed(old.clients)}, and are {listed(now.clients)}"
            raise MasqueradeError("E617", f"{text}; put new ones behind the others, and keep those")
        self.settings = replace(self.settings, fleet=now)
        if state is not None:
            grown = len(now.clients) > len(old.clients)
            self._build()
            if grown:
                state.grow(self._server().begin())

    def _make_ready(self, state: RunState) -> list[str]:
        """Enroll who came, have all do their setup, and return those who can take part."""
        self._refresh(state)
        return self._ready(state)

    def _ready(self, state: RunState) -> list[str]:
        """Name those who can take part in a round now."""
        here, server = set(self._there), self._server()
        able = [n for n in self._eligible if n in here and n not in self.fleet.begin_anew]
        if not server.has_setup():
            return able
        turns = self._turns(state)
        return [name for name in able if turns[self._id(name)]]

    def _turns(self, state: RunState) -> Tensor:
        """Return how many exchanges of every client were taken."""
        nothing = torch.zeros(len(state.sampled), dtype=torch.int64)
        turns: Tensor = state.session.state.get(TURN, nothing)
        return turns

    def _enroll(self, state: RunState) -> None:
        """Ask newcomers what their data look like, and tell them what is agreed."""
        asked = self._to_enroll(self.fleet.now())
        if not asked:
            return
        self._tell("preparing", state, asked=tuple(asked))
        facts = self._hello(asked, self.agreement.config.encode())
        invited, wrong = {}, {}
        for name, each in facts.items():
            try:
                check_known(self.agreement.form, each.form, name)
            except MasqueradeError as error:
                wrong[name] = error
                continue
            # Whoever has no place yet drops what an earlier run of this name left.
            invited[name] = Question(
                run="",
                client="",
                nonce="",
                kind=messages.SETTLE,
                body=self._invitation(name, state),
            )
        self._refuse(wrong)
        answers = self.fleet.ask(invited, self.settings.fleet.deadline)
        for name in invited:
            if name in answers:
                self._take_in(name, facts[name], state)
            else:
                self._not_now(name)

    def _not_now(self, name: str) -> None:
        """Ask a client again later, that has not answered or has refused."""
        self._later(name)
        said = self.fleet.refusals.pop(name, None)
        if said is not None:
            self._hold_against(name, f"{said.code} {said.text}"[:SHOWN])

    def _invitation(self, name: str, state: RunState) -> bytes:
        id = self._id(name)
        budgets = self.spec.budgets
        seat = Seat(
            name,
            id,
            budgets[id] if budgets else 1.0,
            len(self.settings.fleet.clients),
            state.noised.get(id, 0),
        )
        return Invitation(self.agreement, seat, anew=True).to_bytes()

    def _take_in(self, name: str, facts: Facts, state: RunState) -> None:
        """Give a client its place, or let it begin anew where it had lost its states."""
        id, known = self._id(name), self.roster.clients
        before = known.get(name)
        known[name] = Enrolled(facts, state.number if before is None else before.round)
        sealed.write_record(self.folder / CLIENTS, self.agreement.run, self.roster)
        server = self._server()
        self.engine.update(server.clients)
        state.renew(torch.tensor([id]), server.begin())
        self.fleet.begin_anew.discard(name)
        self._hold_against(name)
        self.tried.pop(name, None)
        self.told.pop(name, None)
        self.set_up.pop(id, None)
        if before is None:
            self.joined.append(id)
        else:
            self.prepared.append(Preparation("renewed", (id,)))

    def _set_up(self, state: RunState) -> None:
        """Have clients do their setup that have not; whoever does not answer is asked again."""
        server = self._server()
        if not server.has_setup():
            return
        turns, here = self._turns(state), set(self._there)
        new = [
            self._id(name) for name in self._eligible if name in here and not turns[self._id(name)]
        ]
        now = self.fleet.now()
        new = [id for id in new if now - self.set_up.get(id, -RETRY) >= RETRY]
        if not new:
            return
        self.set_up |= dict.fromkeys(new, now)
        ids = torch.tensor(new)
        self._tell("preparing", state, asked=self._names(ids))
        server = self._server(Gathered(self._ids(self._eligible), ids))
        round = server.round("setup", state.number)
        turn = Turn("setup", state.number, round, ids, torch.arange(len(ids)))
        self._count(server, state, turn)
        federated_round(server, self.engine, state, turn)
        back = tuple(id for id in new if self._turns(state)[id])
        self.prepared.append(Preparation("setup", tuple(new), back))

    # The end

    def _finish(self, state: RunState, directory: RunDirectory) -> None:
        """Have all clients measure themselves, and write what came of it."""
        # Also who is prepared before the first figure comes after the last round.
        self.prepared = []
        self._gather(state)
        for _ in range(TRIES):
            begun = len(self.prepared)
            summaries = self._measured(state)
            # Who lost its states meanwhile has figures of before and after.
            if len(self.prepared) == begun:
                break
        blank = self.context.loader.federation
        facts = DataFacts.of(replace(blank, partition="each client has its own data"), self.task)
        anew = [id for each in self.prepared for id in each.clients if each.kind == "renewed"]
        if anew:
            names = listed(self._names(torch.tensor(anew)))
            text = f" Clients that lost their states after training were measured anew: {names}."
            summaries = [replace(each, data_note=each.data_note + text) for each in summaries]
        after = json.dumps(to_json(self.prepared)).encode()
        found = {
            data_facts.FILE: facts.to_bytes(),
            AFTER: after,
            PRIVACY: self._sheet(state, summaries[0].title).to_bytes(),
            "summary.json": json_of(summaries),
        }
        directory.write_results(found.items())
        if can_write():
            write_report(self.folder, summaries)
        self._tell("finished", state)

    def _sheet(self, state: RunState, title: str) -> PrivacySheet:
        """Return what left clients: all that facts, messages and reports have room for."""
        known, report = (fields(Facts), fields(Form)), (fields(ClientReport), fields(FinalFigures))
        facts, figures = (
            tuple(each.name for each in chain(*pair) if each.name not in ("form", "final"))
            for pair in (known, report)
        )
        server = self._server(Gathered(self._ids(self._eligible), NOBODY.chosen))
        return sheet_of(
            server,
            state,
            title,
            self.spec.seed,
            self.agreement.fitting(self.spec),
            self.agreement.weighting,
            (*figures, "operations"),
            {"facts": facts},
            guarantee_of(server, state, self.spec.privacy, self.reported),
            simulated=False,
        )

    def _measured(self, state: RunState) -> list[Summary]:
        """Have all clients that are there measure all of their views."""
        server = self._server(Gathered(self._ids(self._eligible), NOBODY.chosen))
        self.engine.update(server.clients)
        here = set(self._ids(self._ready(state)).tolist())
        known, novel = ([id for id in some if id in here] for some in (server.known, server.novel))
        self._tell("evaluating", state, asked=self._names(torch.tensor([*known, *novel])))
        self._join_late(server, state, novel)
        return self._evaluator(server, state).summaries(state, known, novel)

    def _join_late(self, server: Server, state: RunState, novel: Sequence[int]) -> None:
        """Let clients that came after training do one round, whose uploads nobody gets.

        So do novel clients of a simulation, unless their method has another rule for them.
        """
        turns, last = self._turns(state), state.number - 1
        ids = torch.tensor([id for id in novel if turns[id] <= server.has_setup()])
        if not server.method.joins or not len(ids):
            return
        round = server.round("train", last)
        job = replace(server.make_job(state, ids, round), number=last)
        turn = Turn("train", last, round, ids, torch.arange(len(ids)))
        self._count(server, state, turn)
        self._recall(state)
        sent = self.engine.work(job)
        assert sent.back is not None
        turn = replace(turn, back=sent.back)
        answers = server.check(turn, job, sent, state.warned)
        state.refused_novel |= answers.refused
        if len(answers.ids):
            cohort = server.cohort(answers.ids, len(ids))
            uploads = answers.accepted.uploads
            _, rows = server.method.aggregate(
                server.task, state.server, answers.rows, uploads, cohort, round
            )
            state.keep(answers.ids, rows, answers.accepted)

    def _refresh(self, state: RunState) -> None:
        """Have who lost its states begin anew, before it is asked again."""
        self._enroll(state)
        self._set_up(state)

    # What is told

    def _names(self, ids: Tensor) -> tuple[str, ...]:
        return tuple(self.settings.fleet.clients[id] for id in ids.tolist())

    def _beat(self) -> None:
        connected = tuple(sorted(self.fleet.carrier.connected()))
        self.told = {name: text for name, text in self.told.items() if name in connected}
        self.tried = {name: when for name, when in self.tried.items() if name in connected}
        self.status.update(
            connected=connected,
            outstanding=tuple(sorted(self.fleet.waiting.values())),
        )

    def _tell(self, doing: str, state: RunState, asked: tuple[str, ...] = ()) -> None:
        fleet = self.settings.fleet
        self.status.update(
            doing=doing,
            run=self.fleet.run,
            round=state.number,
            rounds=self.spec.train.rounds,
            clients=fleet.clients,
            removed=fleet.removed,
            quorum=fleet.quorum,
            enrolled=tuple(self.roster.clients),
            asked=asked,
        )

    def _tell_of(self, record: RoundRecord, attendance: Attendance, state: RunState) -> None:
        """Say what a round came to."""
        old = self.status.status
        faults = {code: dict(counts) for code, counts in old.faults.items()}
        for code, counts in attendance.faults.items():
            for name, often in counts.items():
                total = faults.setdefault(code, {})
                total[name] = total.get(name, 0) + often
        self.status.update(
            round=state.number,
            asked=(),
            lost=old.lost + len(record.lost),
            refused=state.refused,
            below_quorum=old.below_quorum + attendance.below_quorum,
            faults=faults,
        )


def at_commit(server: Server, commit: Commit) -> RunState:
    """Return the state of a commit, with room for clients that came since."""
    clients = len(commit.tensors["participation/sampled"])
    if clients > len(server.clients):
        text = f"the last commit has {clients} clients, and federation.toml {len(server.clients)}"
        raise MasqueradeError("E617", f"{text}; keep those that left, and name them `removed`")
    state = replace(server, clients=server.clients[:clients]).begin()
    facts = facts_of(commit)
    check_number(commit, server.rounds)
    state.restore(commit.number, commit.tensors, facts.state)
    if clients < len(server.clients):
        state.grow(server.begin())
    return state
