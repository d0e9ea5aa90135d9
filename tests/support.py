"""What tests share: refusals by their codes, settings by name, and all methods on the laws' toy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from masquerade.config import code
from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Task
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.evaluation.evaluate import Evaluator
from masquerade.laws.engines import owed as owed
from masquerade.laws.toy import BUDGETS, federation, network_of
from masquerade.laws.toy import SIZES as SIZES
from masquerade.laws.toy import network as network
from masquerade.methods import METHODS
from masquerade.results import (
    Accuracy,
    Bytes,
    Costs,
    Flops,
    ModelSize,
    PaperCosts,
    Participations,
    Spent,
    Statistics,
    Storage,
    Summary,
)
from masquerade.simulation.build import Simulation, build, simulating
from masquerade.simulation.server import train
from masquerade.storage.manifest import fingerprint, seal
from masquerade.storage.saved_folder import Folder


@contextmanager
def raises(code: str, *named: object) -> Iterator[pytest.ExceptionInfo[MasqueradeError]]:
    """Expect an error with this code, which names these values. Its text is not looked at."""
    with pytest.raises(MasqueradeError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    _names(str(caught.value), code, named)


@contextmanager
def warns(code: str, *named: object) -> Iterator[pytest.WarningsRecorder]:
    """Expect a warning with this code, which names these values; others are passed on."""
    with pytest.warns(MasqueradeWarning, match=f"^{code} ") as caught:
        yield caught
    heard = [str(each.message) for each in caught]
    _names("\n".join(each for each in heard if each.startswith(code)), code, named)


def _names(text: str, code: str, named: tuple[object, ...]) -> None:
    """Fail where a value is not in a text, as a word or number of its own."""
    rest = text.replace(f"{code} ", "")
    for value in map(str, named):
        before, after = (r"(?<!\w)" * value[:1].isalnum(), r"(?!\w)" * value[-1:].isalnum())
        assert re.search(f"{before}{re.escape(value)}{after}", rest), f"no {value} in: {text}"


def reseal(path: Path) -> None:
    """Write the manifest of results that were changed on purpose."""
    names = Folder.open(path).files
    files = {name: fingerprint((path / name).read_bytes()) for name in names}
    (path / "hashes.json").write_bytes(seal({"files": files}))


def _small(cls, **settings):
    return cls(local_epochs=3, lr=0.1, **settings)


SMALL: dict[str, dict] = {
    # Settings, by name, that make a method quick on the toy, or show more of it there.
    "local_flops": {"spend": 0.5},
    "fedem": {"models": 2},
    "topk": {"share": 0.3},
    "pfedgate": {"density": 0.8, "blocks": 3, "gate_lr": 0.3, "local_epochs": 2},
    "pfedgate_sample": {"density": 0.8, "blocks": 3, "gate_lr": 0.3, "local_epochs": 1},
    "fedselect": {
        "local_epochs": 2,
        "iterations": 1,
        "search_epochs": 1,
        "stop": "accuracy",
        "target_accuracy": 40.0,
        "rewind": False,
        "weight_decay": 1e-3,
    },
    "fedselect_grow": {"local_epochs": 2, "grow_every": 2},
    "fedrep": {"head_epochs": 2, "final_epochs": 2},
    "scaffold": {"momentum": 0.0},
    "pfedme": {"lam": 5.0, "inner_steps": 2},
    "perfedavg": {"variant": "hessian_free", "inner_lr": 0.05},
    "feddst": {"readjust": 0.3, "readjust_every": 2},
    # In this order of levels, seed 5 draws three wide clients and three narrow ones.
    "heterofl": {"weight_decay": 1e-3, "levels": (0.5, 1.0)},
    "subfedavg": {"target": 0.5},
    "subfedavg_hy": {"target": 0.5},
}

_NAMED = {
    name: replace(_small(entry.method, momentum=0.5), **dict(entry.settings) | SMALL.get(name, {}))
    for name, entry in METHODS.items()
}
METHOD_TABLE = {
    # Names that are views of one training are one row.
    name: method
    for place, (name, method) in enumerate(_NAMED.items())
    if method not in list(_NAMED.values())[:place]
}
"""Every method under law. A new entry of METHODS is here by itself."""


AT_THE_END, LOOPED = Evaluate(every=0), Compute(engine="loop")


def built(method, task, data, **settings) -> Simulation:
    """A simulation of what is given."""
    return build(specified(method, task, data, **settings))


def specified(
    method,
    task,
    data,
    *,
    evaluate=AT_THE_END,
    compute=LOOPED,
    seed=1,
    views=(),
    budgets=(),
    novel=(),
    **train,
) -> TrainingSpec:
    """The specification of a training; what is not named here goes into `Train`."""
    views = tuple(views or method.views)
    return TrainingSpec(
        method=method,
        task=task,
        federation=data,
        train=Train(model="", seeds=(seed,), **train),
        evaluate=evaluate,
        compute=compute,
        seed=seed,
        views=views,
        names=tuple((type(method).__name__, view) for view in views),
        budgets=tuple(budgets),
        novel=tuple(novel),
    )


def toy(
    method,
    *,
    rounds=8,
    task=None,
    seed=5,
    participation=0.67,
    drop=0.0,
    evaluate=None,
    novel=(),
    **compute,
) -> TrainingSpec:
    """The specification of a training on the toy federation."""
    return specified(
        method,
        task or Task(network_of(method)),
        federation(),
        rounds=rounds,
        batch_size=4,
        participation=participation,
        lr_decay=0.97,
        drop=drop,
        evaluate=evaluate or Evaluate(every=0, draws=2),
        compute=Compute(**({"engine": "loop"} | compute)),
        seed=seed,
        budgets=BUDGETS,
        novel=novel,
    )


def simulation(method, **settings) -> Simulation:
    """A simulation of the toy federation, of one process."""
    return build(toy(method, **settings))


def scheduled(method, rounds, **compute):
    """The toy as runs make it, for some rounds of falling learning rates: to be entered."""
    return simulating(
        specified(
            method,
            Task(network_of(method)),
            federation(),
            rounds=rounds,
            batch_size=4,
            participation=0.67,
            lr_decay=0.9,
            compute=Compute(**compute),
            seed=5,
            budgets=BUDGETS,
        )
    )


def advance(made, state):
    """Do one round; return its record."""
    records = []
    train(
        made.server,
        made.engine,
        state,
        after_round=lambda _, record: records.append(record),
        until=state.number + 1,
    )
    return records[0]


def carry_on(made, state):
    """Do all rounds that are left, evaluating between them."""
    return train(made.server, made.engine, state, Evaluator.of(made).between_rounds)


def measure(made, state, view, samples, novel=False):
    """Use a view at every client, and score it on some samples of each."""
    return Evaluator.of(made).measure(state, view, samples, novel)


def final(made, state):
    """Evaluate a run at its end: summaries, and models by view."""
    return Evaluator.of(made).final(state)


def restored(made, number, tensors, facts):
    """The state that a commit holds."""
    state = made.begin()
    state.restore(number, tensors, facts)
    return state


def simulate(method, **settings):
    """Run a simulation to its end, in as many processes as it has: (simulation, state)."""
    with simulating(toy(method, **settings)) as made:
        state = made.begin()
        while state.number < made.server.rounds:
            advance(made, state)
    return made, state


def summary(**changes) -> Summary:
    """A summary whose numbers mean nothing, but for what is given."""
    spent = Spent(Bytes(0.0, 0.0), Flops(0.0, 0.0, 0.0), PaperCosts(0.0, 0.0))
    facts = {
        "method": "fedavg",
        "title": "FedAvg",
        "view": "global",
        "data": "toy",
        "seed": 1,
        "rounds": 1,
        "clients": 6,
        "network": "mlp",
        "metric": "accuracy",
        "better": "higher",
        "accuracy": Accuracy(Statistics(80.0, 5.0)),
        "costs": Costs(spent, Storage(0.0, 0.0, 0.0), 8.0),
        "model": ModelSize(10, 10.0, 1.0),
        "participation": Participations(1.0, 0, 0),
        "history": (),
        "rounds_to_80": 1,
    }
    return Summary(**facts | changes)


def forget() -> None:
    """Forget what was imported by name, as a new process would."""
    for name in list(code.LOADED):
        del code.LOADED[name]
        METHODS.ours.pop(name, None)
