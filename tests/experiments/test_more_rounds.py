"""A run goes on to more rounds, to the bits of one that was to have them from the start."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import masquerade as mq
from masquerade.config.settings import Config
from masquerade.core import Round, Task
from masquerade.errors import MasqueradeWarning
from masquerade.experiments import run as experiment
from masquerade.experiments.run import resume
from masquerade.storage.results import read_results
from tests.experiments.test_resume import (
    Halt,
    HaltAfter,
    complete,
    contents,
    problem,
    same,
    write_data,
)
from tests.messages import Golden
from tests.support import federation, network, raises, warns

pytestmark = [
    pytest.mark.usefixtures("plain_pages"),
    pytest.mark.filterwarnings("ignore:W31"),
    pytest.mark.filterwarnings("ignore:W403"),
]


def config_of(tmp_path: Path, *methods: str, rounds: int, **compute: Any) -> Config:
    config = problem(write_data(tmp_path / "mine.npz"), *methods, **compute)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, rounds=rounds))


def more(rounds: int) -> dict[str, Any]:
    return {"train.rounds": rounds}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedselect_grow"])
@pytest.mark.parametrize("first", [3, 4])
def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(
    tmp_path: Path, method: str, first: int
) -> None:
    complete(config_of(tmp_path, method, rounds=6), tmp_path / "whole")
    complete(config_of(tmp_path, method, rounds=first), tmp_path / "run")
    with warns("W403", "train.rounds", first, 6):
        resume(tmp_path / "run", changes=more(6))
    same(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_was_stopped_goes_on_to_fewer_rounds(tmp_path: Path) -> None:
    complete(config_of(tmp_path, "fedavg", rounds=4), tmp_path / "whole")
    with pytest.raises(Halt):
        complete(config_of(tmp_path, "fedavg", rounds=9), tmp_path / "run", [HaltAfter(4)])
    with raises("E402", 9, 3, 4):
        resume(tmp_path / "run", changes=more(3))
    resume(tmp_path / "run", changes=more(4))
    same(tmp_path / "run", tmp_path / "whole")


def test_a_run_with_one_commit_begins_anew_for_the_same_bits(tmp_path: Path) -> None:
    slow = {"commit_every": 1e6}
    complete(config_of(tmp_path, "fedavg", rounds=6, **slow), tmp_path / "whole")
    complete(config_of(tmp_path, "fedavg", rounds=4, **slow), tmp_path / "run")
    assert len(list((tmp_path / "run" / "rounds").iterdir())) == 1
    resume(tmp_path / "run", changes=more(6))
    same(tmp_path / "run", tmp_path / "whole")


def test_a_schedule_that_disagrees_is_told_and_nothing_is_touched(
    tmp_path: Path, golden: Golden
) -> None:
    complete(config_of(tmp_path, "lgfedavg", rounds=4), tmp_path / "run")
    before = contents(tmp_path / "run")
    with raises("E402", 4, 8) as refusal:
        resume(tmp_path / "run", changes=more(8))
    golden(refusal.value)
    assert contents(tmp_path / "run") == before
    read_results(tmp_path / "run")


class Growing(mq.Method):
    """Counts on the number of rounds in its loss."""

    def plan(self, task: Task, round: Round) -> Sequence[Any]:
        def loss(work: Any, batch: Any, round: Round) -> Any:
            values, buffers = task.losses(work["params"], batch)
            return values * (1 + round.progress.to(values.dtype)), buffers

        step = self.sgd_step(task, loss)
        return [mq.Stage("train", step, epochs=1)]


def test_a_method_that_computes_with_the_number_of_rounds_is_refused(
    tmp_path: Path, golden: Golden
) -> None:
    def run(rounds: int) -> None:
        mq.run(Growing(), network(), federation(), rounds, batch_size=4, out=tmp_path / "run")

    run(2)
    with raises("E402", 2, 4, "Growing") as refusal:
        run(4)
    golden(refusal.value)
    run(2)


def test_a_program_that_asks_for_more_rounds_goes_on(tmp_path: Path) -> None:
    def run(rounds: int, out: str) -> mq.Result:
        method = mq.methods.FedAvg(local_epochs=1)
        path = tmp_path / out
        return mq.run(method, network(), federation(), rounds, batch_size=4, out=path)

    run(5, "whole")
    run(2, "run")
    with warns("W403", 2, 5):
        assert run(5, "run").summaries[0].rounds == 5
    same(tmp_path / "run", tmp_path / "whole")


def test_settings_on_which_nothing_depends_may_be_others(tmp_path: Path, golden: Golden) -> None:
    config = config_of(tmp_path, "fedavg", rounds=4)
    complete(config, tmp_path / "whole")
    complete(config, tmp_path / "run")
    changes = {"evaluate.bandwidth": "1MB/s", "compute.commit_every": 9.0, "compute.store": "disk"}
    with warns("W403", "evaluate.bandwidth", "compute.store") as warned:
        resume(tmp_path / "run", changes=changes)
    golden(next(each.message for each in warned if "W403" in str(each.message)))
    one, other = contents(tmp_path / "run"), contents(tmp_path / "whole")
    assert {name for name in one if one[name] != other[name]} == {"config.toml"}
    assert 'bandwidth = "1MB/s"' in (tmp_path / "run" / "config.toml").read_text()
    with raises("E402", "train.batch_size"):
        resume(tmp_path / "run", changes={"train.batch_size": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error", MasqueradeWarning)
        resume(tmp_path / "run")


def test_a_comparison_keeps_its_rounds(tmp_path: Path) -> None:
    experiment.compare(tmp_path / "both", config_of(tmp_path, "local", "fedavg", rounds=2))
    with raises("E402", "train.rounds"):
        experiment.compare(tmp_path / "both", None, changes=more(3))
    experiment.compare(tmp_path / "both", None, changes={"evaluate.bandwidth": "1MB/s"})
    assert len(read_results(tmp_path / "both")) == 2
