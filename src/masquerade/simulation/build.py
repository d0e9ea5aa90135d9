"""From a specification to a simulation: the server, and the engine that does its clients' work."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from masquerade.config.availability import check as check_available
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Train
from masquerade.core.aggregation import Aggregation
from masquerade.core.preprocess import moved
from masquerade.core.random import Label, fold
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.cost import memory
from masquerade.cost.flops import Meter
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.data.poisson import PoissonLoader
from masquerade.engine import select
from masquerade.engine.base import Engine, EngineContext
from masquerade.engine.divided import Divided
from masquerade.engine.precision import numbers
from masquerade.engine.ranks import Ranks, forked, launched
from masquerade.engine.store import Place
from masquerade.errors import MasqueradeError
from masquerade.simulation import contract, preflight
from masquerade.simulation.accountant import dp_mean, dp_sgd
from masquerade.simulation.class_weights import Weighting, weigh
from masquerade.simulation.fitting import Fitting, eligible, fit
from masquerade.simulation.participation import Drawn, Participation
from masquerade.simulation.server import Server, train
from masquerade.simulation.state import RunState


@dataclass(frozen=True, eq=False)
class Simulation:
    """A federation, as each process of it sees it: its server, and all clients' data and work."""

    spec: TrainingSpec
    """With the engine and the device that "auto" stands for."""
    server: Server
    engine: Engine
    context: EngineContext
    federation: Federation
    """The data, on the device; preprocessed where each client does it in its own way."""
    fitting: Fitting
    """What is done to samples before the network, and what it cost to find out."""
    weighting: Weighting
    """What classes weigh in the loss."""
    seconds: float
    """Seconds that building took."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that do it together."""

    def begin(self) -> RunState:
        """Return the state before round 0."""
        state = self.server.begin()
        state.clock.seconds["start-up"] += self.seconds
        return state

    def own_tasks(self) -> tuple[Task, ...]:
        """Return the tasks of all clients of the training, where each has its own preprocessing."""
        if not self.fitting.own:
            return ()
        task, device = self.server.task, self.server.device
        raw = self.spec.federation.x[:1].to(device)
        own = (moved(self.fitting.of(id), device) for id in self.server.known)
        return tuple(task.with_preprocess(each).with_example(raw) for each in own)

    def divided(self, ranks: Ranks) -> "Simulation":
        """Return it with clients' work divided among the processes that do it."""
        if not ranks.several:
            return self
        return replace(self, engine=Divided(self.engine, self.context, ranks), ranks=ranks)

    def advance(self, state: RunState) -> None:
        """Do one round, and nothing else."""
        train(self.server, self.engine, state, until=state.number + 1)

    def close(self) -> None:
        """Let go of what the engine holds."""
        self.engine.close()


def build(spec: TrainingSpec) -> Simulation:
    """Build a simulation of one process; what cannot work is refused before any work."""
    begun = time.monotonic()
    device = _device(spec.compute)
    participation = _participation(spec)
    fitting = fit(spec)
    federation = fitting.applied(spec.federation.to(device))
    weighting = weigh(spec)
    fitted = spec.task.with_preprocess(fitting.preprocess).with_class_weights(weighting.weights)
    task = fitted.to(device).with_example(federation.x)
    preflight.try_out(task, federation)
    task = task.with_dp(dp_sgd(spec, task, participation))
    context = context_of(spec, task, federation)
    private = dp_mean(spec, context, participation)
    # A fork of a process that has used several would wait for them forever.
    torch.set_num_threads(spec.compute.threads if spec.compute.processes == 1 else 1)
    memory.keep_freed()
    place = _place(spec.compute.store, device)
    counts = spec.federation.samples.tolist()
    server = server_of(spec, task, counts, participation, context.meter, place)
    server = replace(server, aggregation=private or server.aggregation)
    busiest = int(federation.samples.argmax())
    contract.check(context, server.clients[busiest], spec.compute.engine, server.aggregation)
    engine = select.make(
        context,
        spec.compute.engine,
        clients=participation.asked,
        clients_per_chunk=spec.compute.clients_per_chunk,
        replay=spec.compute.replay,
    )
    compute = replace(spec.compute, engine=engine.name, device=device.type)
    preflight.warn_of_small_limits(spec.method, task, server.clients[0])
    seconds = time.monotonic() - begun
    spec = replace(spec, compute=compute)
    return Simulation(spec, server, engine, context, federation, fitting, weighting, seconds)


def context_of(spec: TrainingSpec, task: Task, federation: Federation) -> EngineContext:
    """Return what clients' work depends on, with samples as they are preprocessed by their owners.

    The task's own preprocessing is fitted.
    """
    loader = BatchLoader(federation, spec.seed, spec.train.batch_size)
    if task.dp is not None:
        secret = task.dp.noise_multiplier > 0
        loader = PoissonLoader(federation, spec.seed, spec.train.batch_size, secret=secret)
    return EngineContext(
        method=spec.method,
        task=task,
        loader=loader,
        meter=Meter(task),
        rounds=spec.train.rounds,
        lr_decay=spec.train.lr_decay,
        precision=spec.compute.precision,
        message_dtype=spec.train.message_dtype,
    )


@contextmanager
def simulating(spec: TrainingSpec) -> Iterator[Simulation]:
    """Build a simulation in all of its processes; afterwards end them, and put torch as it was."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), numbers(spec.compute.precision), ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        if spec.compute.memory:
            device = _device(spec.compute)
            memory.bound(device, spec.compute.memory)
            stack.callback(memory.bound, device, 0.0)
        ranks = stack.enter_context(launched(spec.compute.device))
        simulation = build(spec)
        memory.watch(simulation.server.device)
        if spec.compute.processes > 1 and not ranks.several:
            ranks = stack.enter_context(forked(spec.compute.processes, simulation.server.device))
        simulation = simulation.divided(ranks)
        stack.callback(simulation.close)
        yield simulation


def _device(compute: Compute) -> torch.device:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(found if compute.device == "auto" else compute.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MasqueradeError("E503", "there is no CUDA device here; take compute.device=cpu")
    if compute.memory and device.type != "cuda":
        text = "`compute.memory` bounds the memory of a CUDA device, and this run is on a CPU"
        raise MasqueradeError("E503", f"{text}; leave it out, or take compute.device=cuda")
    return device


def _place(store: str, device: torch.device) -> Place:
    """Say where clients' states lie between rounds."""
    if store == "disk":
        return Path(tempfile.gettempdir())
    return device if store == "device" else torch.device("cpu")


def _participation(spec: TrainingSpec) -> Drawn:
    """Say who takes part; refuse a federation in which nobody can, or nobody can be evaluated."""
    train, trained = spec.train, eligible(spec)
    if not len(trained):
        text = ", or all that have one are novel" if spec.novel else ""
        raise MasqueradeError("E303", f"no client has a training sample{text}")
    if not any(len(own) for own in getattr(spec.federation, spec.evaluate.split)):
        text = f"no client has a sample to be evaluated on ({spec.evaluate.split})"
        raise MasqueradeError("E304", text)
    check_available(train.available, spec.federation.clients)
    how = (train.participation, train.clients_per_round, train.available, train.drop)
    drawn = Drawn.of(trained, *how, spec.seed)
    if train.min_contributors > drawn.asked:
        text = f"`train.min_contributors` is {train.min_contributors}, of {drawn.asked} clients"
        raise MasqueradeError("E202", f"{text} in a round: no weight would ever change; lower it")
    return drawn


def aggregation_of(train: Train) -> Aggregation:
    """Say how clients' values become one."""
    return Aggregation(train.aggregation, train.trim, train.clip_updates, train.min_contributors)


def server_of(
    spec: TrainingSpec,
    task: Task,
    samples: Sequence[int],
    participation: Participation,
    meter: Meter,
    place: Place,
) -> Server:
    """Make the server of a training whose clients have so many training samples."""
    kept_out = set(spec.novel)
    budgets = spec.budgets or [1.0] * len(samples)
    return Server(
        method=spec.method,
        task=task,
        clients=tuple(
            ClientInfo(id, count, fold(spec.seed, Label.CLIENT, id), budgets[id])
            for id, count in enumerate(samples)
        ),
        participation=participation,
        rounds=spec.train.rounds,
        lr_decay=spec.train.lr_decay,
        novel=tuple(id for id in spec.novel if samples[id]),
        known=tuple(id for id in range(len(samples)) if id not in kept_out),
        meter=meter,
        place=place,
        aggregation=aggregation_of(spec.train),
    )
