"""A client as it takes part in one run: what was agreed, and its own samples."""

import json
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.core.part import Message, Part
from masquerade.core.random import Label, fold
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.deploy.agreement import Agreement, fitted_alone
from masquerade.deploy.budget import FILE as SPENT
from masquerade.deploy.budget import Budget
from masquerade.deploy.client import Client
from masquerade.deploy.measure import Adapted, ClientReport, Measurer
from masquerade.engine.base import EngineContext
from masquerade.engine.loop import Loop
from masquerade.errors import MasqueradeError
from masquerade.evaluation.evaluate import Evaluator
from masquerade.results.json_records import to_json
from masquerade.simulation import contract, preflight
from masquerade.simulation.accountant import dp_sgd
from masquerade.simulation.build import Simulation, aggregation_of, context_of, server_of
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.participation import Drawn
from masquerade.storage import atomic, model_files, sealed
from masquerade.storage.run_directory import check_name
from masquerade.wire import digest

STATES, MODELS = "states", "models"
"""Folders of a run at a client."""
LAST = "last.json"
"""A file beside them: the order of the last question that was taken."""


@dataclass(frozen=True)
class LastQuestion:
    """The last question that was taken."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Seat:
    """A client's place in a run."""

    name: str
    id: int
    budget: float = 1.0
    """The share of the parameters that its device can hold."""
    clients: int = 1
    """How many the federation had when it was told."""
    steps: int = 0
    """Steps of differential privacy that the server has asked it for, as far as it knows."""


@dataclass(frozen=True)
class Invitation:
    """What a client is told when all is agreed."""

    agreement: Agreement
    seat: Seat
    anew: bool = False
    """Whether it drops its states of this run."""

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(to_json(self)).encode()


@dataclass(frozen=True, eq=False)
class Participant:
    """A client as it takes part in one run: what was agreed, with its own samples."""

    agreement: Agreement
    seat: Seat
    folder: Path
    """Of this run."""
    data: Federation
    """Its samples as they are, with its number in the run."""

    @cached_property
    def spec(self) -> TrainingSpec:
        """Return the training, over this client's samples alone."""
        found = self.agreement.specified(self.data)
        return replace(found, budgets=(1.0,) * self.seat.id + (self.seat.budget,))

    @cached_property
    def applied(self) -> Federation:
        """Return the samples as the task reads them."""
        return self.agreement.applied(self.spec, self.seat.id)

    @cached_property
    def task(self) -> Task:
        """Return the task of training."""
        task = self.agreement.task(self.spec, self.applied)
        return task.with_dp(dp_sgd(replace(self.spec, federation=self.applied), task, self._alone))

    @cached_property
    def _alone(self) -> Drawn:
        """Say that it takes part in every round: nobody knows yet in which it will not."""
        return Drawn(torch.tensor([self.seat.id]), 1, "always", 0.0, self.spec.seed)

    @cached_property
    def budget(self) -> Budget | None:
        """Return what it may spend of its privacy; None where it adds no noise."""
        dp = self.task.dp
        if dp is None or not dp.noise_multiplier:
            return None
        return Budget(self.folder / SPENT, self.spec.privacy, dp, self.info.samples)

    @cached_property
    def own_task(self) -> Task:
        """Return the task by which it answers raw samples."""
        if self.agreement.preprocess:
            return self.task
        own = fitted_alone(self.spec, self.seat.id)
        return self.task.with_preprocess(own).with_example(self.data.x)

    @cached_property
    def info(self) -> ClientInfo:
        """Return what it knows of itself before training."""
        id, key = self.seat.id, fold(self.spec.seed, Label.CLIENT, self.seat.id)
        return ClientInfo(id, len(self.data.train[id]), key, self.seat.budget)

    @cached_property
    def context(self) -> EngineContext:
        """Return what its work depends on."""
        return context_of(self.spec, self.task, self.applied)

    def take(self, order: tuple[int, int]) -> None:
        """Note that a question is taken; refuse one that was sent before the last one.

        Messages may overtake one another. To do an old one would replace the states that the server
        goes on from.
        """
        last = self.last()
        if order <= last:
            text = f"question {order[1]} of start {order[0]} came after {last[1]} of {last[0]}"
            raise MasqueradeError("E615", f"{text}; it is not done")
        self.folder.mkdir(parents=True, exist_ok=True)
        sealed.write_record(self.folder / LAST, self.whose(LAST), LastQuestion(order))

    def last(self) -> tuple[int, ...]:
        """Return the order of the last question that it took; none if that is lost or damaged.

        One that was overtaken may be done then. If the next builds on a state that is gone for
        that, it is refused, and the client begins anew.
        """
        path = self.folder / LAST
        try:
            return sealed.read_record(LastQuestion, path, self.whose(LAST), "").order
        except FileNotFoundError:
            return ()
        except MasqueradeError as damage:
            logging.getLogger(__name__).warning("%s", damage)
            return ()

    @cached_property
    def client(self) -> Client:
        """Return what answers the calls of rounds."""
        (self.folder / STATES).mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(self.spec.compute.threads)
        states = self.folder / STATES
        return Client(self.agreement.run, self.context, self.info, states, self._tell, self.budget)

    @cached_property
    def _measurer(self) -> Measurer:
        samples = [0] * self.seat.id + [self.info.samples]
        server = server_of(
            self.spec,
            self.task,
            samples,
            self._alone,
            self.context.meter,
            torch.device("cpu"),
        )
        alone = Simulation(
            spec=replace(self.spec, federation=self.applied),
            server=replace(server, known=(self.seat.id,)),
            engine=Loop(self.context),
            context=self.context,
            federation=self.applied,
            fitting=Fitting(self.task.preprocess),
            weighting=Weighting(),
            seconds=0.0,
        )
        return Measurer(Evaluator.of(alone), self.seat.id)

    def _tell(self, adapted: Adapted) -> bytes:
        """Return what it tells of a view; at the end it keeps the model."""
        report, model = self._measurer(adapted)
        if self.budget is not None:
            noise = self.budget.dp.noise_multiplier
            report = replace(report, epsilon=self.budget.epsilon, noise_multiplier=noise)
        if adapted.final:
            (self.folder / MODELS).mkdir(parents=True, exist_ok=True)
            file = self.model_file(adapted.view)
            atomic.write_file(file, model_files.encode(model, self.whose(file.name)))
            file = self.report_file(adapted.view)
            sealed.write_record(file, self.whose(file.name), report)
        return report.to_bytes()

    def model_file(self, view: str) -> Path:
        """Return where the model of a view is."""
        return self.folder / MODELS / f"{check_name(view)}.safetensors"

    def report_file(self, view: str) -> Path:
        """Return where the figures of a view are."""
        return self.folder / MODELS / f"{check_name(view)}.json"

    def model(self, view: str) -> Message:
        """Read the model of a view."""
        path = self._there(self.model_file(view))
        data = sealed.checked(path.read_bytes(), self.whose(path.name), str(path), sealed.NO_OTHER)
        return model_files.decode(data, path.name)

    def report(self, view: str) -> ClientReport:
        """Read the figures of a view."""
        path = self._there(self.report_file(view))
        return sealed.read_record(ClientReport, path, self.whose(path.name), sealed.NO_OTHER)

    def _there(self, path: Path) -> Path:
        if not path.is_file():
            text = f"{path} is not there: training is not done, or this client missed its end"
            raise MasqueradeError("E408", f"{text}; see `masquerade deploy status`")
        return path

    def whose(self, name: str) -> str:
        """Say whose a file is."""
        return f"{self.agreement.run}/{self.seat.id}/{name}"

    def try_out(self) -> None:
        """Refuse what cannot work with these samples, before any round."""
        preflight.try_out(self.task, self.applied)
        how = aggregation_of(self.spec.train)
        contract.check(self.context, self.info, self.spec.compute.engine, how)
        here = int(digest(Part(self.task.initial)))
        if here != self.agreement.initial:
            text = f"the initial weights are others here ({here:016x}) than at the server "
            text += f"({self.agreement.initial:016x}); this is torch {torch.__version__}, there "
            raise MasqueradeError("E612", f"{text}it is {self.agreement.torch}; install the same")
