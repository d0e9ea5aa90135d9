"""From a specification to a simulation: the server, and the engine that does its clients' work."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from masquerade.config.availability import check as check_available
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute
from masquerade.core.preprocess import moved
from masquerade.core.random import Label, fold
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.cost import memory
from masquerade.cost.flops import Meter
from masquerade.data import Federation
from masquerade.data.loader import BatchLoader
from masquerade.engine import select
from masquerade.engine.base import Engine, EngineContext
from masquerade.engine.precision import numbers
from masquerade.errors import MasqueradeError
from masquerade.simulation import contract, preflight
from masquerade.simulation.class_weights import Weighting, weigh
from masquerade.simulation.fitting import Fitting, eligible, fit
from masquerade.simulation.participation import Participation
from masquerade.simulation.server import Server, train
from masquerade.simulation.state import RunState


@dataclass(frozen=True, eq=False)
class Simulation:
    """A federation in one process: its server, and all clients' data and work."""

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

    def advance(self, state: RunState) -> None:
        """Do one round, and nothing else."""
        train(self.server, self.engine, state, until=state.number + 1)

    def close(self) -> None:
        """End the engine's processes."""
        self.engine.close()


def build(spec: TrainingSpec) -> Simulation:
    """Build a simulation; what cannot work is refused before any work."""
    begun = time.monotonic()
    device = _device(spec.compute)
    participation = _participation(spec)
    fitting = fit(spec)
    federation = fitting.applied(spec.federation.to(device))
    weighting = weigh(spec)
    fitted = spec.task.with_preprocess(fitting.preprocess).with_class_weights(weighting.weights)
    task = fitted.to(device).with_example(federation.x)
    preflight.try_out(task, federation)
    context = EngineContext(
        method=spec.method,
        task=task,
        loader=BatchLoader(federation, spec.seed, spec.train.batch_size),
        meter=Meter(task),
        rounds=spec.train.rounds,
        lr_decay=spec.train.lr_decay,
        precision=spec.compute.precision,
        message_dtype=spec.train.message_dtype,
    )
    torch.set_num_threads(spec.compute.threads)
    memory.keep_freed()
    server = _server(spec, task, participation, context.meter, device)
    busiest = int(federation.samples.argmax())
    contract.check(context, server.clients[busiest], spec.compute.engine)
    engine = select.make(
        context,
        spec.compute.engine,
        clients=participation.asked,
        workers=spec.compute.workers,
        clients_per_chunk=spec.compute.clients_per_chunk,
        replay=spec.compute.replay,
    )
    compute = replace(spec.compute, engine=engine.name, device=device.type)
    preflight.warn_of_small_limits(spec.method, task, server.clients[0])
    seconds = time.monotonic() - begun
    spec = replace(spec, compute=compute)
    return Simulation(spec, server, engine, context, federation, fitting, weighting, seconds)


@contextmanager
def simulating(spec: TrainingSpec) -> Iterator[Simulation]:
    """Build a simulation; afterwards end its processes and put torch's settings back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), numbers(spec.compute.precision), ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        simulation = build(spec)
        stack.callback(simulation.close)
        memory.watch(simulation.server.device)
        yield simulation


def _device(compute: Compute) -> torch.device:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(found if compute.device == "auto" else compute.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MasqueradeError("E503", "there is no CUDA device here; take compute.device=cpu")
    return device


def _participation(spec: TrainingSpec) -> Participation:
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
    return Participation.of(trained, *how, spec.seed)


def _server(
    spec: TrainingSpec,
    task: Task,
    participation: Participation,
    meter: Meter,
    device: torch.device,
) -> Server:
    counts, kept_out = spec.federation.samples.tolist(), set(spec.novel)
    budgets = spec.budgets or [1.0] * len(counts)
    return Server(
        method=spec.method,
        task=task,
        clients=tuple(
            ClientInfo(id, count, fold(spec.seed, Label.CLIENT, id), budgets[id])
            for id, count in enumerate(counts)
        ),
        participation=participation,
        rounds=spec.train.rounds,
        lr_decay=spec.train.lr_decay,
        novel=tuple(id for id in spec.novel if counts[id]),
        known=tuple(id for id in range(len(counts)) if id not in kept_out),
        meter=meter,
        place=device if spec.compute.store == "device" else torch.device("cpu"),
    )
