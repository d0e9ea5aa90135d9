"""Which engine: a fixed rule of device, layers and sizes, so that two runs never differ.

`bench/engines.py` measures both engines in one run and fails where this rule picks the slower one.
"""

from dataclasses import replace

import torch
from torch import nn

from masquerade.core import tree
from masquerade.core.padding import couples
from masquerade.core.round import Batch, ClientInfo
from masquerade.core.sgd import loss_gradient
from masquerade.core.task import Task
from masquerade.engine.base import Engine, EngineContext, Job
from masquerade.engine.batched import Batched
from masquerade.engine.loop import Loop
from masquerade.engine.replay.cuda_graphs import CudaGraphs
from masquerade.engine.replay.eager import Eager, Stepper
from masquerade.engine.replay.recorded import Recordings
from masquerade.errors import warn
from masquerade.wire import session

LARGEST = 200_000
"""Parameters of a dense network up to which batching wins on a CPU."""
FEWEST = 4
"""Clients from which batching wins."""


def choose(task: Task, device: torch.device, cohort: int) -> str:
    """Name the engine that suits a task, a device and the number of clients in a round."""
    if device.type == "cuda":
        return "batched"
    dense = all(layer.kind in ("linear", "norm") for layer in task.layers)
    return "batched" if dense and task.parameters <= LARGEST and cohort >= FEWEST else "loop"


def laid_out(context: EngineContext) -> EngineContext:
    """Choose the memory layout of one client's images that a CPU reads fastest.

    Convolutions and pools take up to a third less time where channels lie side by side. Nothing is
    gained in double precision, and norms over single images lose.
    """
    task, data = context.task, context.loader.federation
    images = data.x.ndim == 4 and any(layer.kind == "conv" for layer in task.layers)
    slower = any(isinstance(module, nn.InstanceNorm2d) for module in task.module.modules())
    if data.x.device.type != "cpu" or not images or slower or task.dtype == torch.float64:
        return context
    loader = replace(context.loader, layout=torch.channels_last)
    some = loader.in_layout(data.x[:2])
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            loss_gradient(task, task.initial, Batch(some, data.y[:2], None, torch.tensor(0)))
            task(task.initial, some)
    except Exception:
        # A network may reshape by `view`, or ask how its numbers lie.
        return context
    return replace(context, loader=loader)


def make(
    context: EngineContext,
    name: str,
    *,
    clients: int,
    clients_per_chunk: int = 64,
    replay: str = "auto",
) -> Engine:
    """Make an engine for so many clients a round; what cannot be batched is looped, with a warning.

    "auto" is `choose`. `replay` is how the batched engine takes its steps.
    """
    device = context.loader.federation.x.device
    if name == "auto":
        name = choose(context.task, device, clients)
    if name == "batched":
        why = obstacle(context)
        if why is None:
            # What is drawn outside of torch would be the same in every replay.
            replay = "off" if context.task.dp else replay
            return Batched(context, clients_per_chunk, steps=stepper(replay, device))
        warn(
            f"W501 this run cannot be batched over clients and is looped instead: {why}",
        )
    return Loop(laid_out(context))


def stepper(replay: str, device: torch.device) -> Stepper:
    """Return what takes the steps of the batched engine."""
    if replay == "off":
        return Eager()
    return CudaGraphs() if device.type == "cuda" else Recordings()


def obstacle(context: EngineContext) -> str | None:
    """Say what keeps a run from being batched, by trying a small round of every phase."""
    task, method, federation = context.task, context.method, context.loader.federation
    counts = set(federation.samples.tolist())
    ragged = len(counts) > 1 or max(counts) % context.loader.size
    if ragged and task.couples_batch:
        return "its BatchNorm would see the padding of ragged batches"
    if ragged and couples(task, federation.x):
        return "an output of its network depends on other samples of the batch, so on padding too"
    busy = [id for id, count in enumerate(federation.samples.tolist()) if count][:2]
    ids = torch.tensor(busy)
    infos = [ClientInfo(id, 1, id) for id in busy]
    rows = tree.stack([method.row_init(task, info) for info in infos])
    clients = tree.stack([method.client_init(task, info) for info in infos])
    own = [federation.train[id][:1] for id in busy]
    known = session.begin(task.initial, len(ids))
    engine = Batched(context, clients_per_chunk=2, trial=True, steps=Eager())
    for kind, phase in context.phases():
        job = Job(
            method.server_init(task), rows, clients, known, ids, context.round(kind, phase, 0), 0
        )
        try:
            if kind == "adapt":
                engine.evaluate(job, own)
            else:
                engine.work(job)
        except Exception as error:
            # What fails in the loop too is no matter of batching: let that error be seen.
            loop = Loop(context)
            loop.evaluate(job, own) if kind == "adapt" else loop.work(job)
            sentence = str(error).strip().splitlines()[0].split(". ")[0]
            return f"{type(error).__name__}: {sentence[:200]}{_instead(task)}"
    return None


def _instead(task: Task) -> str:
    """Name the layer that stands in for one whose noise cannot be batched."""
    kinds = nn.modules.dropout._DropoutNd
    found = [type(each).__name__ for each in task.module.modules() if isinstance(each, kinds)]
    if not found:
        return ""
    return f"; its nn.{found[0]} draws from torch's own generator, mq.Dropout(share) can be batched"
