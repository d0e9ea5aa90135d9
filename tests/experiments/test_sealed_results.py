"""What a run ended with is sealed: damage is refused by name, and what can be is written again."""

import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import masquerade as mq
from masquerade.config.settings import Config
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.experiments import run as experiment
from masquerade.experiments.report_page import write_report
from masquerade.export import from_run
from masquerade.report import plots
from masquerade.storage.results import is_comparison, read_results
from masquerade.storage.run_directory import RunDirectory
from masquerade.storage.saved_folder import is_done
from tests.damage import damaged, drilled, read_run
from tests.experiments.test_resume import compare, complete, contents, problem, same, write_data
from tests.messages import Golden
from tests.reliability import publish
from tests.support import raises, warns

pytestmark = [
    pytest.mark.usefixtures("plain_pages"),
    # So few rounds teach models little.
    pytest.mark.filterwarnings("ignore:W31"),
]


def config_of(folder: Path, *methods: str, rounds: int = 3) -> Config:
    config = problem(write_data(folder / "mine.npz"), *methods or ("fedavg", "fedavg_ft"))
    return replace(config, train=replace(config.train, rounds=rounds))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and beside it one of another seed."""
    folder = tmp_path_factory.mktemp("sealed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "figures", lambda *given: {})
        complete(config_of(folder), folder / "run")
        write_report(folder / "run", read_results(folder / "run"))
        config = config_of(folder)
        other = replace(config, train=replace(config.train, seeds=(2,)))
        complete(other, folder / "other")
    return folder / "run"


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "run")


def flip(file: Path, at: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["summary.json", "data.json", "metrics.jsonl", "config.toml"])
def test_a_flipped_bit_is_refused_by_whoever_reads(run: Path, name: str, golden: Golden) -> None:
    flip(run / name)
    for read in (read_results, mq.load_result, lambda path: from_run.find(path, 1)):
        with raises("E401", name) as refusal:
            read(run)
    golden(refusal.value)


def test_a_flipped_bit_in_a_model_is_not_exported(run: Path) -> None:
    flip(run / "clients" / "1-global.safetensors", -1)
    with raises("E401", "1-global.safetensors"):
        from_run.find(run, 1)
    with raises("E401", "1-global.safetensors"):
        mq.load_result(run).client(1)  # type: ignore[union-attr]
    from_run.find(run, 2)


def test_what_can_be_made_again_is_written_by_a_resume(done: Path, run: Path) -> None:
    flip(run / "summary.json")
    (run / "clients" / "0-tuned.safetensors").unlink()
    (run / "report.html").write_text("damaged")
    with warns("E401", "summary.json", "clients/0-tuned.safetensors"):
        experiment.resume(run, page=True)
    same(run, done)
    assert (run / "report.html").read_text().startswith("<!DOCTYPE")
    assert is_done(run)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_manifest_that_is_damaged_or_gone_is_made_again(
    done: Path, run: Path, damage: object, golden: Golden
) -> None:
    assert callable(damage)
    damage(run / "hashes.json")
    with pytest.raises(MasqueradeError) as refusal:
        read_results(run)
    golden(refusal.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MasqueradeWarning)
        experiment.resume(run)
    same(run, done)


@pytest.mark.parametrize("place", [1, 2])
def test_a_damaged_line_of_metrics_is_lost_and_no_other(
    done: Path, run: Path, place: int, golden: Golden
) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    flip(run / "metrics.jsonl", sum(map(len, lines[: place - 1])) + 3)
    left = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[place - 1]
    kept = b"".join(line for each, line in enumerate(lines, 1) if each != place)
    # Commits are those of rounds 2 and 3: only the last line can be made again.
    for _ in range(2):
        with warnings.catch_warnings():
            # Once the results are written again, they are read: W404.
            warnings.filterwarnings("ignore", "W404")
            with warns("E401", "metrics.jsonl", place, 3) as warned:
                experiment.resume(run)
        assert (run / "damaged-metrics.jsonl").read_bytes() == left
        assert (run / "metrics.jsonl").read_bytes() == kept
        assert contents(run)["summary.json"] == contents(done)["summary.json"]
    golden(warned[0].message)
    with warns("W404", "metrics.jsonl", "damaged-metrics.jsonl", place) as warned:
        read_results(run)
    golden(warned[0].message)


def single(run: Path) -> None:
    """Leave the last commit alone."""
    shutil.rmtree(run / "rounds" / "00000002")


@pytest.mark.parametrize("place", [1, 2, 3])
def test_of_a_single_commit_all_lines_are_kept_but_the_damaged_one(
    done: Path, run: Path, place: int
) -> None:
    single(run)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    # What ends a line is a part of it, and the next one is intact.
    flip(run / "metrics.jsonl", sum(map(len, lines[:place])) - 1)
    with warns("E401", "metrics.jsonl", place, 3):
        experiment.resume(run)
    kept = b"".join(line for each, line in enumerate(lines, 1) if each != place)
    assert (run / "metrics.jsonl").read_bytes() == kept
    assert (run / "damaged-metrics.jsonl").read_bytes().startswith(lines[place - 1][:-1])
    with warns("W404", place):
        read_results(run)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_of_cut_metrics_what_is_left_is_kept(run: Path, kept: int) -> None:
    single(run)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:kept]
    (run / "metrics.jsonl").write_bytes(b"".join(lines))
    with warns("E401", "metrics.jsonl"):
        experiment.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == b"".join(lines)
    assert not (run / "damaged-metrics.jsonl").exists()
    with warns("W404", kept + 1):
        read_results(run)


def test_no_line_of_another_run_is_kept(done: Path, run: Path) -> None:
    single(run)
    other = (done.parent / "other" / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(other)
    with warns("E401", "metrics.jsonl"):
        experiment.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == b""
    assert (run / "damaged-metrics.jsonl").read_bytes() == other
    with warns("W404", "1 to 3"):
        read_results(run)


def test_a_run_goes_on_behind_lines_that_were_lost(run: Path) -> None:
    left = []
    for rounds, at in ((3, 3), (4, 3)):
        left.append((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0])
        flip(run / "metrics.jsonl", at)
        with warns("E401", "metrics.jsonl"):
            experiment.resume(run)
        assert len((run / "damaged-metrics.jsonl").read_bytes()) == sum(map(len, left))
        if rounds == 3:
            with warns("E401", "metrics.jsonl"), warns("W403"):
                experiment.resume(run, changes={"train.rounds": 4})
            # The last round of three is done anew as the third of four.
            with warns("W404", 1):
                read_results(run)
    with warns("W404", "1 to 2"):
        read_results(run)


def test_a_comparison_says_whose_lines_of_metrics_are_lost(tmp_path: Path) -> None:
    compare(config_of(tmp_path, "local", "fedavg", rounds=1), tmp_path / "both")
    flip(tmp_path / "both" / "fedavg-seed1" / "metrics.jsonl", 3)
    with warns("E401", "metrics.jsonl"):
        experiment.compare(tmp_path / "both", None)
    with warns("W404", "fedavg-seed1", 1):
        read_results(tmp_path / "both")


def test_the_last_line_of_metrics_is_made_again(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    complete(config, tmp_path / "whole")
    run = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    flip(run / "metrics.jsonl", -2)
    with warns("E401", 3, "metrics.jsonl", 2):
        experiment.resume(run)
    same(run, tmp_path / "whole")


def test_damage_in_a_comparison_is_found_and_mended(tmp_path: Path) -> None:
    config = config_of(tmp_path, "local", "fedavg", rounds=2)
    compare(config, tmp_path / "both")
    both = shutil.copytree(tmp_path / "both", tmp_path / "copy")
    flip(both / "results.json")
    with raises("E401", "results.json"):
        read_results(both)
    flip(both / "fedavg-seed1" / "summary.json")
    with raises("E401", "summary.json"):
        read_results(both / "fedavg-seed1")
    with warns("E401", "summary.json"):
        experiment.compare(both, None)
    same(both, tmp_path / "both")


@pytest.mark.parametrize(
    ("old", "new"), [("rounds = 3", "rounds = 7"), ("lr = 0.1", "lr = 0.5"), ("10MB/s", "90MB/s")]
)
def test_settings_that_changed_in_their_file_are_written_again(
    old: str, new: str, done: Path, run: Path
) -> None:
    config = (run / "config.toml").read_text()
    assert old in config
    (run / "config.toml").write_text(config.replace(old, new, 1))
    with raises("E401", "config.toml"):
        read_results(run)
    with warns("W403", "config.toml"):
        experiment.resume(run)
    same(run, done)


def test_settings_that_no_commit_has_are_refused_and_nothing_is_touched(run: Path) -> None:
    with warns("W403", "20MB/s"):
        experiment.resume(run, changes={"evaluate.bandwidth": "20MB/s"})
    before = contents(run)
    changed = (run / "config.toml").read_text().replace("20MB/s", "90MB/s")
    (run / "config.toml").write_text(changed)
    for _ in range(2):
        with raises("E401", "config.toml"):
            experiment.resume(run)
    assert contents(run) == before | {"config.toml": changed.encode()}


def test_settings_of_a_comparison_that_changed_in_their_file_are_refused(tmp_path: Path) -> None:
    compare(config_of(tmp_path, "local", "fedavg", rounds=2), tmp_path / "both")
    changed = (tmp_path / "both/config.toml").read_text().replace("rounds = 2", "rounds = 3")
    (tmp_path / "both/config.toml").write_text(changed)
    with raises("E401", "config.toml"):
        experiment.compare(tmp_path / "both", None)
    # Without the mark of a comparison it is no run either.
    (tmp_path / "both/comparison").unlink()
    (tmp_path / "both/hashes.json").unlink()
    with raises("E402", "config.toml", 2):
        experiment.resume(tmp_path / "both")


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_what_has_a_second_name_is_not_written_into(name: str, run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes((run / name).read_bytes() + b"precious")
    (run / name).unlink()
    (run / name).hardlink_to(victim)
    before = victim.read_bytes()
    with raises("E405", name):
        experiment.resume(run)
    assert victim.read_bytes() == before


LINKS = (
    "summary.json",
    "hashes.json",
    "report.html",
    "config.toml",
    "lock",
    "clients/1.safetensors",
)


@pytest.mark.parametrize("name", [*LINKS, "clients/.tmp-1.safetensors", ".tmp-summary.json"])
def test_links_where_results_are_written_are_refused_before_they_are_unsealed(
    run: Path, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    with RunDirectory.open(run) as directory:
        if (run / name).exists():
            (run / name).rename(victim)
        else:
            victim.write_text("precious")
        (run / name).symlink_to(victim)
        before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
        changes = partial(directory.change_settings, "rounds = 9")
        for write in (partial(directory.write_results, [("summary.json", b"new")]), changes):
            with raises("E405", name):
                write()
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_run_with_a_link_in_place_of_a_result_is_refused_before_it_goes_on(
    run: Path, tmp_path: Path, golden: Golden
) -> None:
    (run / "summary.json").rename(tmp_path / "aside")
    (run / "summary.json").symlink_to(tmp_path / "aside")
    with raises("E405", "summary.json") as refusal:
        experiment.resume(run, changes={"evaluate.bandwidth": "20MB/s"})
    golden(refusal.value)
    (run / "summary.json").unlink()
    (tmp_path / "aside").rename(run / "summary.json")
    assert is_done(run)


def resume(path: Path) -> None:
    """Resume as the command does, but for the page."""
    if is_comparison(path):
        experiment.compare(path, None)
    else:
        experiment.resume(path)


def test_no_damage_of_a_run_is_read_in_silence(done: Path, tmp_path: Path) -> None:
    found = damaged(done, done.parent / "other", tmp_path / "run", 300, resume=resume)
    assert found.silent == []
    assert found.cleared < 100
    assert found.resumed["resumed: as if undisturbed"] > 5


def read_both(path: Path) -> None:
    """Read all that a comparison holds."""
    read_results(path)
    for name in ("local-seed1", "fedavg-seed1"):
        read_run(path / name)


def two_comparisons(folder: Path) -> tuple[Path, Path]:
    """Make two that differ in their rounds."""
    made = folder / "both", folder / "others"
    for path, rounds in zip(made, (2, 3), strict=True):
        compare(config_of(folder, "local", "fedavg", rounds=rounds), path)
    return made


def test_no_damage_of_a_comparison_is_read_in_silence(tmp_path: Path) -> None:
    found = damaged(*two_comparisons(tmp_path), tmp_path / "copy", 100, read_both)
    assert found.silent == []
    assert found.cleared < 30


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("what", "thousands"), [("run", 10), ("comparison", 2)])
def test_thousands_of_damages_are_not_read_in_silence(
    done: Path, tmp_path: Path, what: str, thousands: int
) -> None:
    two, read = (done, done.parent / "other"), read_run
    if what == "comparison":
        two, read = two_comparisons(tmp_path), read_both
    found = drilled(f"damage-{what}", *two, read, resume=resume, thousands=thousands)
    publish(f"damage-{what}", "pytest tests/experiments/test_sealed_results.py -m drill", found)
    assert found["damaged folders"] == 1000 * thousands
