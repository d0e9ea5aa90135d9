"""Masquerade itself; with torch and numpy alone where nothing else is installed."""

import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from protocol import EVALUATED, Data, Ledger, Work, given, network

import masquerade
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Part, Task
from masquerade.data import Federation
from masquerade.evaluation.evaluate import Evaluator
from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.checkpoints import Checkpoints, Origin
from masquerade.methods import APFL, DMPFL, Ditto, FedAvg, FedRep
from masquerade.models import build
from masquerade.results import RoundRecord
from masquerade.simulation.build import Simulation, simulating
from masquerade.simulation.server import train
from masquerade.simulation.state import RunState
from masquerade.storage.run_directory import RunDirectory

METHODS = {
    "fedavg": FedAvg(local_epochs=1),
    "ditto": Ditto(local_epochs=1, personal_epochs=1),
    "apfl": APFL(local_epochs=1),
    # Heads are not trained once more before use: the bare loop does not either.
    "fedrep": FedRep(local_epochs=1, head_epochs=1, final_epochs=0),
    "dmpfl": DMPFL(local_epochs=1),
}


def federation(data: Data) -> Federation:
    """The same samples as a federation; a central test set is dealt over the clients."""
    device = data.y.device
    count = len(data.y)
    train, test = (
        tuple(torch.arange(first, last, device=device) for first, last in pairwise(ends))
        for ends in (data.ends, [count + end for end in data.test_ends])
    )
    none = torch.empty(0, dtype=torch.int64, device=device)
    x, y = torch.cat([data.x, data.test_x]), torch.cat([data.y, data.test_y])
    return Federation("peers", x, y, 10, train, (none,) * data.clients, test)


def task_of(work: Work, data: Data) -> Task:
    """The network with the weights that everybody begins with."""
    model = build(work.network, tuple(data.x.shape[1:]), 10, seed=0).to(data.x)
    with torch.no_grad():
        for value, start in zip(model.parameters(), data.initial, strict=True):
            value.copy_(start)
    return Task(model)


def central(simulation, progress, data: Data) -> tuple[float, float]:
    """Return loss and accuracy of the server's model on the central test set."""
    method, task, loader = (
        simulation.server.method,
        simulation.server.task,
        simulation.engine.context.loader,
    )
    model = {"params": Part(progress.server["params"])}
    loss, right, size = 0.0, 0.0, EVALUATED[data.test_x.device.type]
    with torch.no_grad():
        for x, y in zip(data.test_x.split(size), data.test_y.split(size), strict=True):
            output = method.predict(task, model, loader.in_layout(x))
            loss += torch.nn.functional.cross_entropy(output, y, reduction="sum")
            right += task.metric(output, y).sum()
    return float(loss) / len(data.test_y), float(right) / len(data.test_y)


def per_sample(work: Work, data: Data) -> float:
    """Count the operations of one training sample, on the plain network and by torch alone."""
    with FlopCounterMode(display=False) as counter:
        network(work.network, data)(data.x[:1]).sum().backward()
    return counter.get_total_flops()


def made(work: Work, data: Data) -> AbstractContextManager[Simulation]:
    """Make the simulation; a CPU's engine is chosen by our own rule."""
    method = replace(METHODS[work.method], lr=work.rate)
    return simulating(
        TrainingSpec(
            method=method,
            task=task_of(work, data),
            federation=federation(data),
            train=Train("", work.total, work.batch, clients_per_round=work.cohort),
            evaluate=Evaluate(every=0, degrees=(0,)),
            compute=Compute(device=work.device, processes=work.processes, precision=work.precision),
            seed=1,
            views=method.views[:1],
        )
    )


def run(work: Work, data: Data, model: nn.Module) -> Ledger:
    """Do the rounds with our engine; the plain network is not used."""
    ledger = Ledger(work)
    with made(work, data) as simulation:
        progress = simulation.begin()

        directory = None
        if work.commits:
            directory = RunDirectory.create(Path(work.folder).with_name("run"), "")
        every = simulation.spec.compute.commit_every
        run = Run(work.method, simulation.spec.seed, work.total, progress)
        with ExitStack() as stack:
            told = Callback()
            if directory is not None:
                told = Checkpoints(directory, every, Origin.of(simulation, ""), Callback())
                stack.callback(told.close, progress)

            def ended(state: RunState, record: RoundRecord) -> None:
                told.on_round(run, record)
                if ledger.due():
                    central(simulation, state, data)
                    ledger.evaluated()
                ledger.mark()

            train(simulation.server, simulation.engine, progress, after_round=ended)
        if work.method == "fedavg":
            ledger.loss, ledger.accuracy = central(simulation, progress, data)
            # What was trained, read off the run's own account of its operations.
            spent = progress.costs["train"]["dense"]
            ledger.steps = round(spent / per_sample(work, data) / work.batch)
            ledger.flops = spent / work.total
        else:
            ledger.steps = None
            own = list(simulation.federation.test)
            scores = (
                Evaluator.of(simulation).measure(progress, simulation.spec.views[0], own).scores
            )
            ledger.accuracy = sum(float(score.mean()) for score in scores) / len(scores)
        ledger.version = f"masquerade {masquerade.__version__}, {simulation.engine.name}"
    return ledger


if __name__ == "__main__":
    run(*given(sys.argv[1])).write(sys.argv[2])
