"""What is gone from a run, or in the place of a file: a resume mends it, or says what to do."""

import os
import shutil
import warnings
from pathlib import Path

import pytest

from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.experiments import run as experiment
from masquerade.storage.results import read_results
from masquerade.storage.saved_folder import Folder, is_done
from tests.experiments.test_resume import compare, complete, same
from tests.experiments.test_sealed_results import config_of
from tests.messages import Golden
from tests.support import raises, warns

pytestmark = [
    pytest.mark.usefixtures("plain_pages"),
    # So few rounds teach models little.
    pytest.mark.filterwarnings("ignore:W31"),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("missing")
    complete(config_of(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("missing")
    compare(config_of(folder, "local", "fedavg", rounds=2), folder / "both")
    return folder / "both"


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "run")


def test_models_whose_folder_is_gone_are_written_again(done: Path, run: Path) -> None:
    shutil.rmtree(run / "clients")
    with warns("E401", "clients/0-tuned.safetensors"):
        experiment.resume(run)
    same(run, done)
    assert is_done(run)


def test_the_same_of_a_training_of_a_comparison(both: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    shutil.rmtree(copy / "fedavg-seed1" / "clients")
    with warns("E401", "clients/0-global.safetensors"):
        experiment.compare(copy, None)
    same(copy, both)


@pytest.mark.parametrize(
    "name",
    [
        *("summary.json", "data.json", "privacy.json", "environment.json", "hashes.json"),
        *("clients/1-global.safetensors", "metrics.jsonl", "config.toml"),
    ],
)
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_changed(
    done: Path, run: Path, tmp_path: Path, name: str, golden: Golden
) -> None:
    (run / name).rename(tmp_path / "aside")
    (run / name).mkdir()
    (run / name / "mine").write_text("precious")
    before = sorted(run.rglob("*"))
    for _ in range(2):
        with raises("E405", name) as refusal:
            experiment.resume(run)
    assert sorted(run.rglob("*")) == before
    golden(refusal.value)
    with pytest.raises(MasqueradeError) as told:
        Folder.open(run).read(name)
    golden(told.value)
    (run / name).rename(tmp_path / "moved")
    if name == "metrics.jsonl":
        (tmp_path / "aside").rename(run / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        experiment.resume(run)
    same(run, done)
    assert is_done(run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml"])
def test_a_pipe_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    for resume in (experiment.resume, lambda path: experiment.compare(path, None)):
        with raises("E405", name):
            resume(run)
    with raises("E401", "Move it away"):
        read_results(run)


def test_settings_that_are_gone_are_written_again_of_the_last_commit(
    done: Path, run: Path, golden: Golden
) -> None:
    (run / "config.toml").unlink()
    with raises("E401", f"masquerade resume {run}"):
        read_results(run)
    with warns("E401", "config.toml", 3) as warned:
        experiment.resume(run)
    golden(warned[0].message)
    same(run, done)
    assert is_done(run)


def test_settings_of_a_training_of_a_comparison_are_written_again(
    both: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    (copy / "fedavg-seed1" / "config.toml").unlink()
    with warns("E401", "config.toml"):
        experiment.compare(copy, None)
    same(copy, both)


def test_settings_that_no_commit_has_are_asked_for(
    both: Path, tmp_path: Path, golden: Golden
) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    (copy / "config.toml").rename(tmp_path / "aside")
    with raises("E408", "config.toml") as refusal:
        experiment.compare(copy, None)
    golden(refusal.value)
    with raises("E401", "config.toml") as told:
        read_results(copy)
    golden(told.value)
    assert same_advice(str(refusal.value), str(told.value))
    (tmp_path / "aside").rename(copy / "config.toml")
    experiment.compare(copy, None)
    same(copy, both)


def test_without_commits_results_are_read_and_no_more(run: Path, golden: Golden) -> None:
    shutil.rmtree(run / "rounds")
    read_results(run)
    before = sorted(run.rglob("*"))
    with raises("E408", "rounds") as refusal:
        experiment.resume(run)
    golden(refusal.value)
    assert sorted(run.rglob("*")) == before
    (run / "data.json").unlink()
    with raises("E401", "data.json") as told:
        read_results(run)
    golden(told.value)
    assert same_advice(str(refusal.value), str(told.value))


def test_a_comparison_needs_no_folder_of_rounds(both: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    shutil.rmtree(copy / "rounds")
    experiment.compare(copy, None)
    same(copy, both)


def same_advice(resume: str, report: str) -> bool:
    """Tell whether a report says what a resume says."""
    return report.endswith(resume.split(" ", 1)[1])
