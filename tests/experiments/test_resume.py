"""Runs that were killed, stopped or damaged end in the same bits as if nothing had happened.

Run as a program, this file is the part that forks, in a process of its own that has one thread:
`python -m tests.experiments.test_resume FOLDER DRILL=KILLS`. `make test` kills fifty times, in one
training of every kind of state; `make drill` kills all of them, a thousand times.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from masquerade.config import resolve as plan
from masquerade.config.settings import Config
from masquerade.config.toml import parse, read_file
from masquerade.core import ClientInfo, Round
from masquerade.experiments import run as experiment
from masquerade.experiments.callbacks import Callback, Run
from masquerade.experiments.checkpoints import CommitFacts
from masquerade.methods import METHODS
from masquerade.models import build
from masquerade.report import plots
from masquerade.results import RoundRecord
from masquerade.results.json_records import from_json
from masquerade.simulation.build import simulating
from masquerade.storage.results import is_comparison
from masquerade.storage.run_directory import VERSION, RunDirectory
from tests.messages import Golden
from tests.reliability import publish
from tests.support import raises, warns

pytestmark = pytest.mark.usefixtures("plain_pages")
ROOT = Path(__file__).parents[2]
ROUNDS = 8
Work = Callable[[Path, Sequence[Callback]], object]
"""Begins what is not begun in a directory, or resumes it, and ends it."""


class Halt(Exception):
    """Stops a run between two rounds."""


class HaltAfter(Callback):
    """Stops a run after a round."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds

    def on_round(self, run: Run, record: RoundRecord) -> None:
        if record.round == self.rounds:
            raise Halt


def write_data(path: Path, seed: int = 1) -> Path:
    """Write five clients with 20 to 24 samples of four features and three classes."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(5), np.arange(20, 25))
    x = rng.normal(size=(len(client), 4)).astype(np.float32)
    y = (x @ rng.normal(size=(4, 3))).argmax(1)
    np.savez(path, x=x, y=y, client=client)
    return path


def problem(data: Path, *methods: str, **compute: Any) -> Config:
    """Return a tiny problem in which everything that a run commits moves."""
    return parse(
        {
            "methods": list(methods),
            "data": {"name": str(data), "clients": 0, "partition": "client"},
            "train": {"model": "mlp", "rounds": ROUNDS, "participation": 0.6, "lr_decay": 0.9},
            "evaluate": {"every": 2, "draws": 2},
            "compute": {"engine": "loop", "commit_every": 0.0} | compute,
            "method": {
                "local_epochs": 2,
                "momentum": 0.5,
                "dmpfl": {"readjust_every": 1},
                "scaffold": {"controls": "gradient"},
            },
        }
    )


def complete(config: Config, path: Path, callbacks: Sequence[Callback] = ()) -> object:
    """Start the only training of a configuration, or resume it."""
    if (path / "config.toml").exists():
        return experiment.resume(path, callbacks)
    return experiment.start(config, path, callbacks)


def compare(config: Config, path: Path, callbacks: Sequence[Callback] = ()) -> object:
    """Start a comparison, or resume it."""
    begun = (path / "config.toml").exists()
    return experiment.compare(path, None if begun else config, callbacks)


def timeless(value: Any) -> Any:
    """Drop what time and memory a run took, and the fingerprint of what holds them."""
    if isinstance(value, dict):
        moody = ("seconds", "memory", "sha256", "size")
        return {k: timeless(v) for k, v in value.items() if k not in moody}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def contents(path: Path) -> dict[str, Any]:
    """Return every file but locks, pages and older commits, times left out."""
    found: dict[str, Any] = {}
    older = {commit for rounds in path.rglob("rounds") for commit in sorted(rounds.iterdir())[:-1]}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in ("lock", "report.html") and file.parent not in older:
            data = file.read_bytes()
            name = str(file.relative_to(path))
            found[name] = timeless(json.loads(data)) if file.suffix == ".json" else data
    return found


def same(path: Path, other: Path) -> None:
    """Fail where a file of two directories differs, by its name."""
    one, two = contents(path), contents(other)
    differ = [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
    assert differ == [], differ


def halted(config: Config, path: Path, after: int) -> None:
    """Run up to the commit of a round."""
    with pytest.raises(Halt):
        complete(config, path, [HaltAfter(after)])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return problem(write_data(tmp_path / "mine.npz"), "dmpfl", "dmpfl_plus")


@pytest.fixture
def whole(tmp_path: Path, config: Config) -> Path:
    """A run that nobody disturbed."""
    complete(config, tmp_path / "whole")
    return tmp_path / "whole"


def test_a_run_holds_its_rounds_and_its_models(whole: Path) -> None:
    written = (whole / "metrics.jsonl").read_text().splitlines()
    lines = [from_json(RoundRecord, json.loads(line)) for line in written]
    assert [line.round for line in lines] == list(range(1, ROUNDS + 1))
    measured = [line.evaluation for line in lines if line.evaluation is not None]
    assert [record.round for record in measured] == [2, 4, 6]
    models = {path.name for path in (whole / "clients").glob("*.safetensors")}
    views = ("personal", "adaptive")
    assert models == {f"{id}-{view}.safetensors" for id in range(5) for view in views}
    assert sorted(os.listdir(whole / "rounds")) == ["00000007", "00000008"]


def test_a_finished_run_that_is_resumed_does_not_change(whole: Path) -> None:
    before = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    experiment.resume(whole)
    after = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    del before[whole / "lock"], after[whole / "lock"]
    assert after == before


def test_what_a_kill_left_of_an_old_commit_is_cleared_away(whole: Path) -> None:
    """Commits older than two are removed after the last one has its name, when a kill may come."""
    half = whole / "rounds" / "00000006"
    half.mkdir()
    shutil.copy(whole / "rounds" / "00000007" / "manifest.json", half)
    experiment.resume(whole)
    assert sorted(os.listdir(whole / "rounds")) == ["00000007", "00000008"]


def test_a_run_that_was_stopped_before_its_first_round_begins_anew(
    tmp_path: Path, config: Config, whole: Path
) -> None:
    halted(config, tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run" / "rounds" / "00000001")
    experiment.resume(tmp_path / "run")
    same(tmp_path / "run", whole)


def test_a_damaged_commit_is_passed_over_to_the_same_bits(
    tmp_path: Path, config: Config, whole: Path
) -> None:
    run = tmp_path / "run"
    halted(config, run, 5)
    state = run / "rounds" / "00000005" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with warns("E401", "5", "4"):
        experiment.resume(run)
    same(run, whole)


def test_other_data_are_refused_and_the_run_is_left_alone(tmp_path: Path, config: Config) -> None:
    halted(config, tmp_path / "run", 3)
    write_data(tmp_path / "mine.npz", seed=2)
    before = contents(tmp_path / "run")
    with raises("E402"):
        experiment.resume(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_a_run_from_pretrained_weights_begins_there_and_knows_its_file(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "weights.pth", tmp_path / "run"
    model = build("mlp", (4,), 3, seed=77)
    torch.save(model.state_dict(), path)
    monkeypatch.chdir(tmp_path)
    train = dataclasses.replace(config.train, weights="weights.pth")
    config = dataclasses.replace(config, train=train)
    halted(config, run, 3)
    (training,) = plan.trainings(config)
    begun = plan.resolve(config, training).task.initial
    assert all(torch.equal(begun[name], value) for name, value in model.state_dict().items())
    # It is found again from anywhere; another file in its place is refused.
    monkeypatch.chdir("/")
    torch.save(build("mlp", (4,), 3, seed=78).state_dict(), path)
    with raises("E402"):
        experiment.resume(run)
    torch.save(model.state_dict(), path)
    summary, _ = experiment.resume(run)
    # A seed costs 8 bytes, weights of a file 4 bytes each.
    assert summary.costs.initial == 4 * sum(value.numel() for value in model.parameters())


def test_other_settings_are_refused_with_the_difference(tmp_path: Path, config: Config) -> None:
    run = tmp_path / "run"
    halted(config, run, 3)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("epochs = 2", "epochs = 3"))
    with raises("E402", "local_epochs"):
        experiment.resume(run)


def test_a_run_whose_commits_have_the_states_of_all_clients_goes_on(
    tmp_path: Path, config: Config, whole: Path
) -> None:
    """Format 4 had all in one file."""
    run = tmp_path / "run"
    halted(config, run, 3)
    (training,) = plan.trainings(config)
    spec = plan.LoadedConfig.of(config).resolve(training)
    with RunDirectory.open(run) as directory:
        commit = directory.latest()
        assert commit is not None
        with simulating(spec) as made:
            state = made.begin()
            facts = from_json(CommitFacts, commit.facts)
            state.restore(commit.number, commit.tensors, facts.state, commit.pieces)
        shutil.rmtree(run / "rounds")
        (run / "rounds").mkdir()
    (run / "metrics.jsonl").rename(tmp_path / "lines")
    (run / "metrics.jsonl").touch()
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    with RunDirectory.open(run) as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("masquerade.storage.run_directory.VERSION", 4)
        directory.commit(3, state.tensors(), commit.facts, lines)
    experiment.resume(run)
    for name in ("metrics.jsonl", "summary.json"):
        assert contents(run)[name] == contents(whole)[name]


def test_a_run_whose_commits_have_the_former_format_is_refused(
    tmp_path: Path, config: Config
) -> None:
    """Format 3 held facts in another form, which no record can be made of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("masquerade.storage.run_directory.VERSION", 3)
        halted(config, tmp_path / "run", 2)
    with raises("E402", 3, VERSION):
        experiment.resume(tmp_path / "run")


def test_another_torch_is_told(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    halted(config, tmp_path / "run", 3)
    monkeypatch.setattr(torch, "__version__", "0.0")
    with warns("W402", "0.0") as warned:
        experiment.resume(tmp_path / "run")
    golden(warned[0].message)


def test_the_resolved_settings_are_written_and_read_back(tmp_path: Path) -> None:
    config = problem(write_data(tmp_path / "mine.npz"), "local", engine="auto")
    assert config.compute.device == "auto"
    complete(config, tmp_path / "run")
    written = parse(read_file(tmp_path / "run" / "config.toml"))
    assert written.compute.engine in ("loop", "batched")
    assert written.compute.device in ("cpu", "cuda")
    assert written.train == config.train


def test_a_comparison_is_known_as_one_as_soon_as_it_can_be_resumed(tmp_path: Path) -> None:
    """Return to the instant after the configuration was written, before anything else was."""
    config = problem(write_data(tmp_path / "mine.npz"), "local", "fedavg")
    begun: list[bool] = []

    def create(path: Path, text: str, mark: str | None = None) -> RunDirectory:
        directory = RunDirectory(path, text, mark)
        begun.append(is_comparison(path))
        return directory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "create", create)
        compare(config, tmp_path / "run")
    assert begun == [True, False, False]


@pytest.mark.parametrize(
    "drills",
    [
        # In one process, whose start takes as long as a drill.
        ["kinds=4", "engines=3", "comparison=8"],
        # 34 kills of each of the 27 trainings, and 50 and 32: a thousand.
        pytest.param(["methods=34"], marks=pytest.mark.drill),
        pytest.param(["engines=25"], marks=pytest.mark.drill),
        pytest.param(["comparison=32"], marks=pytest.mark.drill),
    ],
    ids=" ".join,
)
def test_killed_at_random_instants_it_ends_in_the_same_bits(
    drills: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.experiments.test_resume", str(tmp_path), *drills]
    # NumPy's library starts a thread for every core as it is imported, unless it is told.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    (drill, *others), counted = drills, json.loads(done.stdout.splitlines()[-1])
    command = "pytest -m drill tests/experiments/test_resume.py"
    publish(f"kills-{drill.partition('=')[0]}", command, counted, when=not others)
    if others:
        assert counted["kills"] == 50


class Telling(Callback):
    """Writes a byte per round."""

    def __init__(self, out: int) -> None:
        self.out = out

    def on_round(self, run: Run, record: RoundRecord) -> None:
        os.write(self.out, b".")


def forked(work: Work, path: Path, out: int) -> int:
    """Work in a process of its own, which writes a byte per round; return its id."""
    child = os.fork()
    if child:
        return child

    try:
        work(path, [Telling(out)])
    except BaseException as fault:
        print(repr(fault), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def attempt(work: Work, path: Path, chance: random.Random, apart: int) -> bool:
    """Begin or resume work, kill it fewer than `apart` rounds later; return if it was faster."""
    reading, writing = os.pipe()
    child = forked(work, path, writing)
    os.close(writing)
    for _ in range(chance.randrange(apart)):
        os.read(reading, 1)
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status == 0


def become_single() -> None:
    """Wait until this process has one thread.

    One with more must not fork: the child would have their locks, but not them. Those of a pool
    that was shut down may take an instant to be gone.
    """
    for _ in range(200):
        if len(os.listdir("/proc/self/task")) == 1:
            break
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/task")) == 1


def survive(work: Work, path: Path, kills: int, apart: int = 4) -> None:
    """Kill work so many times; what is done all the same must equal what nobody disturbed."""
    COUNTED["trainings"] += 1
    COUNTED["kills"] += kills
    work(path / "whole", ())
    become_single()
    chance, lives = random.Random(path.name), 1
    while kills:
        run = path / f"run-{lives}"
        if attempt(work, run, chance, apart):
            same(run, path / "whole")
            lives += 1
        else:
            kills -= 1
    work(path / f"run-{lives}", ())
    same(path / f"run-{lives}", path / "whole")
    COUNTED["finished runs, each equal in every bit"] += lives


COUNTED: Counter[str] = Counter()
"""What a drill has done."""


def trainings() -> list[list[str]]:
    """List every training that the table of methods has, by the names of its views."""
    groups: dict[Any, list[str]] = {}
    for name, line in METHODS.items():
        groups.setdefault((line.method, line.settings), []).append(name)
    return list(groups.values())


def kind(config: Config) -> tuple[bool, ...]:
    """Say where a training keeps what its commits hold: in rows, clients, the server, a setup."""
    (training,) = plan.trainings(config)
    spec, info = plan.resolve(config, training), ClientInfo(0, 4, 0, 1.0)
    method, task = spec.method, spec.task
    states = method.row_init(task, info), method.client_init(task, info)
    setup = method.setup(task, Round.of("setup", None, 0, ROUNDS, 1.0, torch.device("cpu")))
    return *map(bool, states), len(method.server_init(task)) > 1, bool(setup)


def drill_kinds(path: Path, kills: int) -> None:
    """Kill a training of every kind of state, that with most of it more often.

    Law 7 has what each method saves and loads.
    """
    data = write_data(path / "mine.npz")
    most = problem(data, "dmpfl", "dmpfl_plus")
    all_of_them = {kind(config): config for config in (problem(data, *n) for n in trainings())}
    for config in (all_of_them | {kind(most): most}).values():
        times = 3 * kills if config is most else kills
        survive(partial(complete, config), path / config.methods[0], times)


def drill_methods(path: Path, kills: int) -> None:
    """Kill every training that the table of methods has."""
    data = write_data(path / "mine.npz")
    for names in trainings():
        survive(partial(complete, problem(data, *names)), path / names[0], kills)


def drill_engines(path: Path, kills: int) -> None:
    """Kill the method with most state when it is batched, and spread over processes."""
    data = write_data(path / "mine.npz")
    kinds: dict[str, Any] = {"batched": {"engine": "batched"}, "processes": {"processes": 2}}
    for name, compute in kinds.items():
        work = partial(complete, problem(data, "dmpfl", "dmpfl_plus", **compute))
        survive(work, path / name, kills)


def drill_comparison(path: Path, kills: int) -> None:
    """Kill a comparison within and between its trainings."""
    config = problem(write_data(path / "mine.npz"), "local", "fedavg_ft", "fedavg")
    # Pages are not compared, and their figures take longer than all trainings.
    plots.figures = lambda *given: {}
    # Few kills, too, are to come to the second training and the third.
    survive(partial(compare, config), path / "comparison", kills, apart=2 * ROUNDS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[2:]:
        name, kills = each.split("=")
        globals()[f"drill_{name}"](Path(sys.argv[1]), int(kills))
    print(json.dumps(COUNTED))
