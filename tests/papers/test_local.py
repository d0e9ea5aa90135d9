"""Local in two budgets: as many participations as the others, or as many FLOPs as one of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from masquerade.config import resolve as plan
from masquerade.config.settings import Config
from masquerade.config.toml import complete, method_of, parse, read_file
from masquerade.core import Task
from masquerade.cost.forecast import forecast
from masquerade.experiments import run as experiment
from masquerade.methods import Local
from tests.experiments.test_resume import timeless
from tests.messages import Golden
from tests.support import METHOD_TABLE, SIZES, federation, network, simulate, warns


def epochs(method: Local, rounds: int) -> list[Any]:
    return [method.schedule(number, rounds) for number in range(rounds)]


def test_epochs_by_hand() -> None:
    # Five epochs a round: floor((r + 1) · 5 · spend) − floor(r · 5 · spend).
    assert epochs(Local(), 4) == [5, 5, 5, 5]
    # Half of them: 2.5, 5, 7.5, 10 rounded down are 2, 5, 7, 10.
    assert epochs(Local(spend=0.5), 4) == [2, 3, 2, 3]
    # 0.5, 1, 1.5, 2 rounded down are 0, 1, 1, 2: rounds without training are allowed.
    assert epochs(Local(spend=0.1), 4) == [0, 1, 0, 1]
    assert epochs(Local(spend=2.0), 2) == [10, 10]
    # 0.3 · 10 is a little less than 3 in floating point, and is 3 all the same.
    assert sum(epochs(Local(local_epochs=1, spend=0.3), 10)) == 3


def test_the_ordinary_budget_is_local_training_as_it_was() -> None:
    _, plain = simulate(Local(local_epochs=2), rounds=3)
    _, spent = simulate(Local(local_epochs=1, spend=2.0), rounds=3)
    left, right = plain.tensors(), spent.tensors()
    assert left.keys() == right.keys()
    assert all(bool((left[name] == right[name]).all()) for name in left)


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("name", ["fedavg", "fedem", "dmpfl"])
def test_the_budget_is_met_within_one_epoch(name: str, participation: float) -> None:
    """Forecast and measured FLOPs, as masks allow them, on clients of different sizes."""
    like, data, rounds = METHOD_TABLE[name], federation(), 12

    def foreseen(method: Any) -> float:
        task = Task(network())
        cost = forecast(method, task, data.x, data.y, SIZES, rounds, participation, 5)
        return cost.masked * len(SIZES)

    ordinary = foreseen(Local(local_epochs=3))
    method = Local(local_epochs=3, spend=foreseen(like) / ordinary)
    _, ended = simulate(method, rounds=rounds, participation=participation)
    assert ended.costs["train"]["masked"] == pytest.approx(foreseen(method), rel=1e-9)
    # One epoch of all clients: what the ordinary budget spends on average in a third of a round.
    epoch = ordinary / participation / rounds / 3
    assert abs(foreseen(method) - foreseen(like)) <= epoch
    if name != "fedavg":
        # The ordinary budget would not have done.
        assert abs(ordinary - foreseen(like)) > 5 * epoch


def config(folder: Path, **method: Any) -> Config:
    """Two clients of a few samples, and a method that costs less than the ordinary budget."""
    data = federation()
    np.savez(folder / "toy.npz", x=data.x.numpy(), y=data.y.numpy())
    return parse(
        {
            "methods": ["local", "local_flops", "dmpfl"],
            "data": {"name": str(folder / "toy.npz"), "clients": 2, "partition": "iid"},
            "train": {"rounds": 2, "model": "mlp", "batch_size": 50},
            "evaluate": {"every": 0, "degrees": [0]},
            "compute": {"commit_every": 0.0},
            "method": {"local_epochs": 2, **method},
        }
    )


def settle(given: Config) -> Config:
    return plan.settle(plan.LoadedConfig.of(given)).config


def test_like_is_settled_once_and_resumed_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(tmp_path, local_flops={"like": "dmpfl"}, dmpfl={"first_dense": False})
    settled = settle(given)
    # What is settled stays settled, and nothing but the budget changes.
    assert complete(settle(settled)) == complete(settled)
    spend = complete(settled)["method"]["local_flops"].pop("spend")
    assert 0.3 < spend < 0.9
    tables, others = complete(settled), complete(given)
    assert tables["method"]["local_flops"].pop("spend") == spend
    assert others["method"]["local_flops"].pop("spend") == 1.0
    assert tables == others

    monkeypatch.setattr(experiment, "write_report", lambda *given: None)
    results = experiment.compare(tmp_path / "out", given)
    titles = [result.title for result in results]
    assert titles == ["Local", "Local, equal FLOPs (DM-PFL)", "DM-PFL"]
    for path in ("config.toml", "local_flops-seed1/config.toml"):
        tables = read_file(tmp_path / "out" / path)["method"]["local_flops"]
        assert (tables["spend"], tables["like"]) == (spend, "dmpfl")

    # A resumed training does not ask what the other costs: it has its number.
    (tmp_path / "out" / "local_flops-seed1" / "hashes.json").unlink()
    monkeypatch.setattr(plan, "forecast", None)
    again = experiment.compare(tmp_path / "out", None)
    for result, same in zip(results, again, strict=True):
        assert timeless(result.to_json()) == timeless(same.to_json())


def test_a_budget_that_cannot_be_foreseen_says_so(tmp_path: Path, golden: Golden) -> None:
    given = config(tmp_path, local_flops={"like": "lotteryfl"})
    with warns("W508", "`local_flops`", "LotteryFL") as warned:
        settle(given)
    golden(warned[-1].message)


def test_the_budget_of_a_dense_method_is_the_ordinary_one(tmp_path: Path) -> None:
    """FedAvg is what is meant where nothing is said; then both names are one training."""
    settled = settle(config(tmp_path))
    assert method_of("local_flops", settled) == method_of("local", settled)
    assert [training.names for training in plan.trainings(settled)] == [
        ("local", "local_flops"),
        ("dmpfl",),
    ]
