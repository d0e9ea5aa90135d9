"""Callbacks: what they are told and when, and what is left of a run when one of them fails."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import masquerade as mq
from masquerade.core import tree
from masquerade.experiments.callbacks import Callback, Run
from masquerade.storage.run_directory import RunDirectory
from tests.experiments.test_resume import Halt, timeless
from tests.support import federation, network

pytestmark = pytest.mark.usefixtures("plain_pages")
ROUNDS = 4


def go(
    out: Path | None, callbacks: Sequence[Callback] = (), commit_every: float = 0.0
) -> mq.Result:
    """Four rounds of DM-PFL, measured after every second one."""
    return mq.run(
        mq.methods.DMPFL(local_epochs=1),
        network(),
        federation(),
        rounds=ROUNDS,
        batch_size=4,
        participation=0.5,
        seed=7,
        evaluate=mq.Evaluate(every=2, degrees=(0,)),
        compute=mq.Compute(engine="loop", commit_every=commit_every),
        out=out,
        callbacks=callbacks,
    )


class Noting(Callback):
    """Notes all events: their name and round, and what they were told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.told: list[Any] = []
        self.runs: list[Run] = []

    def _note(self, name: str, round: int, run: Run, what: object) -> None:
        self.events.append((name, round))
        self.told.append(what)
        self.runs.append(run)

    def on_evaluation(self, run: Run, record: mq.EvaluationRecord) -> None:
        self._note("evaluation", record.round, run, record)

    def on_round(self, run: Run, record: mq.RoundRecord) -> None:
        assert run.state.number == record.round
        self._note("round", record.round, run, record)

    def on_commit(self, run: Run, rounds: int) -> None:
        self._note("commit", rounds, run, None)

    def on_end(self, run: Run, result: mq.Result) -> None:
        self._note("end", run.state.number, run, result)


def test_events_come_in_the_order_in_which_things_happen() -> None:
    noting = Noting()
    result = go(None, [noting])
    assert noting.events == [
        ("round", 1),
        ("evaluation", 2),
        ("round", 2),
        ("round", 3),
        # The last round is measured at the end, with everything else.
        ("round", 4),
        ("end", 4),
    ]
    assert noting.told[-1] is result
    # An evaluation is part of the record of its round.
    assert noting.told[1] is noting.told[2].evaluation
    assert [noting.told[at].evaluation for at in (0, 3, 4)] == [None] * 3
    run = noting.runs[0]
    assert (run.name, run.seed, run.rounds, run.place, run.of) == ("dmpfl", 7, ROUNDS, 0, 1)


def test_all_callbacks_are_told_in_their_order() -> None:
    said: list[str] = []

    class Saying(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_round(self, run: Run, record: mq.RoundRecord) -> None:
            said.append(f"{self.name}{record.round}")

    go(None, [Saying("a"), Saying("b")])
    assert said == ["a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4"]


class OnTheDisk(Noting):
    """Fails where it is told of a commit that is not on the disk, or told in another thread."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.out = out

    def on_commit(self, run: Run, rounds: int) -> None:
        super().on_commit(run, rounds)
        assert threading.current_thread() is threading.main_thread()
        assert (self.out / "rounds" / f"{rounds:08d}" / "manifest.json").is_file()
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        assert len(lines) >= rounds

    def on_end(self, run: Run, result: mq.Result) -> None:
        super().on_end(run, result)
        # Whoever is told of the end may read what the run ended with.
        assert (self.out / "summary.json").exists()


def test_a_commit_is_told_of_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunDirectory.commit

    def slow(*given: Any) -> None:
        time.sleep(0.05)
        plain(*given)

    monkeypatch.setattr(RunDirectory, "commit", slow)
    noting = OnTheDisk(tmp_path / "run")
    go(tmp_path / "run", [noting])
    # One commit is written beside the next round, and the last one before the end.
    assert [event for event in noting.events if event[0] in ("commit", "end")] == [
        *(("commit", done) for done in range(1, ROUNDS + 1)),
        ("end", ROUNDS),
    ]
    places = {event: place for place, event in enumerate(noting.events)}
    assert all(places["commit", n] > places["round", n] for n in range(1, ROUNDS + 1))


def test_rounds_between_two_commits_are_told_of_by_the_later_one(tmp_path: Path) -> None:
    noting = OnTheDisk(tmp_path / "run")
    go(tmp_path / "run", [noting], commit_every=3600.0)
    assert [event for event in noting.events if event[0] == "commit"] == [("commit", ROUNDS)]


def test_without_a_directory_nobody_is_told_of_commits() -> None:
    noting = Noting()
    go(None, [noting])
    assert "commit" not in {name for name, _ in noting.events}


class Failing(Noting):
    """Fails at one event."""

    def __init__(self, at: tuple[str, int]) -> None:
        super().__init__()
        self.at = at

    def _note(self, name: str, round: int, run: Run, what: object) -> None:
        if (name, round) == self.at:
            raise Halt
        super()._note(name, round, run, what)


@pytest.mark.parametrize(
    "at", [("evaluation", 2), ("round", 2), ("commit", 2), ("commit", ROUNDS), ("end", ROUNDS)]
)
def test_a_callback_that_fails_leaves_commits_that_go_on_to_the_same_bits(
    at: tuple[str, int], tmp_path: Path
) -> None:
    whole = go(None)
    with pytest.raises(Halt):
        go(tmp_path / "run", [Failing(at)])
    left = sorted((tmp_path / "run" / "rounds").iterdir())
    # The round of an evaluation is not committed yet; every other one was, before anybody failed.
    committed = at[1] - (at[0] == "evaluation")
    assert left[-1].name == f"{committed:08d}"
    noting = Noting()
    resumed = go(tmp_path / "run", [noting])
    done = [round for name, round in noting.events if name == "round"]
    assert done == list(range(committed + 1, ROUNDS + 1))
    for one, other in zip(whole.summaries, resumed.summaries, strict=True):
        assert timeless(one.to_json()) == timeless(other.to_json())
    models = tree.named(resumed.personal)
    assert all(torch.equal(v, models[name]) for name, v in tree.named(whole.personal).items())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == ROUNDS


def test_a_finished_run_that_is_called_again_tells_of_its_end_alone(tmp_path: Path) -> None:
    go(tmp_path / "run")
    noting = Noting()
    go(tmp_path / "run", [noting])
    assert noting.events == [("end", ROUNDS)]
