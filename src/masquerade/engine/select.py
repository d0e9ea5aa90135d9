"""Which engine: a fixed rule of device, layers and sizes, so that two runs never differ.

`bench/engines.py` measures both engines in one run and fails where this rule picks the slower one.
"""

import warnings
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import nn

from masquerade.core import tree
from masquerade.core.round import Batch, Who
from masquerade.core.sgd import slope
from masquerade.core.task import Task
from masquerade.engine.base import Engine, Job, Setting
from masquerade.engine.batched import Batched
from masquerade.engine.loop import Loop
from masquerade.engine.replay.cuda_graphs import Graphs
from masquerade.engine.replay.recorded import Recordings
from masquerade.errors import MasqueradeWarning
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


def laid_out(setting: Setting) -> Setting:
    """Have one client's images lie in memory as a CPU reads them fastest.

    Convolutions and pools take up to a third less time where channels lie side by side. Nothing is
    gained in double precision, and norms over single images lose.
    """
    task, data = setting.task, setting.feed.federation
    images = data.x.ndim == 4 and any(layer.kind == "conv" for layer in task.layers)
    slower = any(isinstance(module, nn.InstanceNorm2d) for module in task.module.modules())
    if data.x.device.type != "cpu" or not images or slower or task.dtype == torch.float64:
        return setting
    feed = replace(setting.feed, layout=torch.channels_last)
    some = feed.laid(data.x[:2])
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            slope(task, task.initial, Batch(some, data.y[:2], None, torch.tensor(0)))
            task(task.initial, some)
    except Exception:
        # A network may reshape by `view`, or ask how its numbers lie.
        return setting
    return replace(setting, feed=feed)


def make(setting: Setting, name: str, workers: int, clients_per_chunk: int) -> Engine:
    """Make an engine; what cannot be batched is looped, with one warning."""
    if name == "batched":
        why = obstacle(setting)
        if why is None:
            on_cuda = setting.feed.federation.x.is_cuda
            return Batched(
                setting, clients_per_chunk, repeats=Graphs() if on_cuda else Recordings()
            )
        warnings.warn(
            f"W501 this run cannot be batched over clients and is looped instead: {why}",
            MasqueradeWarning,
            stacklevel=2,
        )
    return Loop(laid_out(setting), workers)


def _couples(task: Task, x: torch.Tensor) -> bool:
    """Tell whether the output for one sample changes with the others of its batch."""
    batch, key = x[:3], torch.tensor(0, device=x.device)
    others = torch.cat([batch[:1], batch[1:].flip(0) + 1]) if batch.is_floating_point() else batch
    outputs = []
    for given in (batch, others):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)
            outputs.append(task(task.initial, given, train=True, key=key)[0][0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


def obstacle(setting: Setting) -> str | None:
    """Say what keeps a run from being batched, by trying a small round of every phase."""
    task, method, federation = setting.task, setting.method, setting.feed.federation
    counts = set(federation.samples.tolist())
    ragged = len(counts) > 1 or max(counts) % setting.feed.size
    if ragged and task.couples_batch:
        return "its BatchNorm would see the padding of ragged batches"
    if ragged and _couples(task, federation.x):
        return "an output of its network depends on other samples of the batch, so on padding too"
    busy = [id for id, count in enumerate(federation.samples.tolist()) if count][:2]
    ids = torch.tensor(busy)
    whos = [Who(id, 1, id) for id in busy]
    rows = tree.stack([method.row_init(task, who) for who in whos])
    clients = tree.stack([method.client_init(task, who) for who in whos])
    phases: list[tuple[str, Hashable]] = [("adapt", (view, False)) for view in method.views]
    phases += dict.fromkeys(
        ("train", method.schedule(number, setting.rounds)) for number in range(setting.rounds)
    )
    if method.greet(task, setting.round("hello", None, 0)):
        phases.insert(0, ("hello", None))
    own = [federation.train[id][:1] for id in busy]
    known = session.begin(task.initial, len(ids))
    engine = Batched(setting, clients_per_chunk=2, trial=True)
    for kind, phase in phases:
        job = Job(
            method.server_init(task), rows, clients, known, ids, setting.round(kind, phase, 0), 0
        )
        try:
            if kind == "adapt":
                engine.judge(job, own)
            else:
                engine.work(job)
        except Exception as error:
            # What fails in the loop too is no matter of batching: let that error be seen.
            loop = Loop(setting)
            loop.judge(job, own) if kind == "adapt" else loop.work(job)
            sentence = str(error).strip().splitlines()[0].split(". ")[0]
            return f"{type(error).__name__}: {sentence[:200]}"
    return None
