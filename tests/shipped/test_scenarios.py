"""The scenarios under `runs/scenarios`, each as its file has it but on digits and for seconds."""

import itertools
import re
import warnings
from pathlib import Path

import pytest

from masquerade.config import resolve as plan
from masquerade.config.settings import Config
from masquerade.config.toml import apply, parse, read_file
from masquerade.errors import MasqueradeWarning
from masquerade.evaluation.evaluate import Evaluator
from masquerade.experiments import run as experiment
from masquerade.report.clients import difference
from masquerade.results import Summary
from masquerade.simulation.build import build

FOLDER = Path(__file__).parents[2] / "runs" / "scenarios"
SMALL = (
    "data.name=digits",
    "data.clients=10",
    "data.fraction=1.0",
    "train.model=mlp",
    "train.rounds=2",
    "train.seeds=[1]",
    "train.batch_size=20",
    "evaluate.every=0",
    "method.local_epochs=1",
)
"""What makes a scenario one of seconds."""


def small(name: str, *changes: str, methods: list[str]) -> Config:
    """Read a scenario with some of its methods, small."""
    tables = apply(read_file(FOLDER / f"{name}.toml"), (*SMALL, *changes))
    assert set(methods) <= set(tables["methods"])
    return parse({**tables, "methods": methods})


def results(name: str, out: Path, *changes: str, methods: list[str]) -> list[Summary]:
    """Run some methods of a scenario, small; return their summaries in the order of the file."""
    loaded = plan.LoadedConfig.of(small(name, *changes, methods=methods))
    config = plan.settle(loaded).config
    runs = [
        experiment.start(plan.alone(config, each), out / each.folder)
        for each in plan.trainings(config)
    ]
    return [summary for run in runs for summary in run]


def menu() -> list[str]:
    """Return the rules that the file of partitions lists."""
    text = (FOLDER / "partitions.toml").read_text(encoding="utf-8")
    return re.findall(r"^#   ([a-z][\w:.]+) +\d+\b", text, re.MULTILINE)


def test_the_menu_of_partitions_has_every_kind() -> None:
    kinds = {rule.partition(":")[0] for rule in menu()}
    assert kinds == {
        *("iid", "dirichlet", "pathological", "shards", "fedselect", "lottery", "groups"),
        "outliers",
    }


FEWER = {"fedselect:2": 5, "fedselect:4": 2, "dirichlet:0.1:capped": 4}
"""Clients for whom digits has samples enough."""


@pytest.mark.parametrize("rule", menu())
def test_every_partition_of_the_menu_trains(rule: str, tmp_path: Path) -> None:
    changes = (f"data.partition={rule}", f"data.clients={FEWER.get(rule, 10)}")
    changes += ("train.model=logistic", "train.rounds=1")
    (summary,) = results("partitions", tmp_path, *changes, methods=["fedavg"])
    assert set(summary.accuracy.shift) >= {"0", "100"}


def test_a_fifth_of_the_clients_take_part(tmp_path: Path) -> None:
    found = results("participation", tmp_path, "method.density=1.0", methods=["fedavg", "pfedgate"])
    # Of ten clients two are sampled in each of two rounds.
    assert all(6 <= summary.participation.never_sampled <= 8 for summary in found)


def test_novel_clients_are_reported_apart_with_the_gap(tmp_path: Path) -> None:
    found = results("novel", tmp_path, methods=["fedavg", "fedavg_ft", "pfedgate"])
    assert len(found) == 3
    for summary in found:
        novel = summary.novel
        assert novel is not None
        assert len(novel.clients.ids) == 2
        assert summary.clients == 8
        gap = summary.accuracy.own.mean - novel.accuracy.own.mean
        assert novel.gap == pytest.approx(gap)


# Digits are too few for forty samples at each of ten clients.
SHIFT = ("data.partition=dirichlet:0.3", "train.model=digits_cnn", "method.local_epochs=2")


def test_shift_replaces_its_share_of_a_clients_test_samples() -> None:
    config = small("shift", *SHIFT, methods=["fedavg"])
    (training,) = plan.trainings(config)
    made = build(plan.resolve(config, training))
    own = [set(part.tolist()) for part in made.federation.test]
    shifted = Evaluator.of(made).shifted
    assert set(shifted) == {"shift", "pooled"}
    for name, sets in shifted.items():
        for degree, draws in sets.items():
            for (client, chosen), draw in itertools.product(enumerate(own), draws):
                tested = draw[client].tolist()
                # A client with few samples gives some of them twice.
                others = [sample for sample in tested if sample not in chosen]
                assert len(tested) == len(chosen)
                assert len(others) == pytest.approx(len(chosen) * degree / 100, abs=0.5)
                givers = sum(not theirs.isdisjoint(others) for theirs in own)
                assert set(others) <= set().union(*own)
                # One other client gives all, unless the samples are of all others.
                assert name == "pooled" or givers == bool(others)
        assert list(sets) == [0, 20, 40, 60, 80, 100]
    made.close()


def test_shift_goes_from_none_to_all(tmp_path: Path) -> None:
    names = ["fedavg", "fedavg_ft", "dmpfl", "dmpfl_plus"]
    found = results("shift", tmp_path, *SHIFT, methods=names)
    assert [summary.method for summary in found] == names
    for summary in found:
        assert list(summary.accuracy.shift)[:6] == ["0", "20", "40", "60", "80", "100"]


def test_corruption_is_evaluated_by_kind_and_severity(tmp_path: Path) -> None:
    # Digits have no original test part, and are too few for forty samples at each of ten clients.
    changes = ("data.merge=true", "data.partition=dirichlet:0.3", "train.model=digits_cnn")
    changes += ("evaluate.corruptions=['contrast', 'pixelate']", "method.local_epochs=2")
    names = ["fedavg", "fedavg_ft", "dmpfl", "dmpfl_plus"]
    found = results("corruption", tmp_path, *changes, methods=names)
    assert [summary.method for summary in found] == names
    for summary in found:
        kinds = summary.accuracy.corruption
        assert list(kinds) == ["contrast", "pixelate", "averaged"]
        assert all(list(each) == ["1", "2", "3", "4", "5", "averaged"] for each in kinds.values())
        assert summary.corrupted_images == "generated"


def test_models_are_as_small_as_their_devices(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MasqueradeWarning)
        # So small a training is as alarming as it is said to be.
        warnings.filterwarnings("ignore", "W31[01] ")
        found = results("resources", tmp_path, methods=["heterofl", "pfedgate"])
    # Budgets are 0.5 and 0.1 in turn, 0.3 on average.
    gated = next(summary for summary in found if summary.method == "pfedgate")
    assert gated.model.density <= 0.3


# Samples of a client's two classes, by volume and balance: the product, cut off.
HELD = {
    ("20", "0.25"): [5, 20],
    ("20", "0.75"): [15, 20],
    ("10", "0.5"): [5, 10],
    ("10", "0.25"): [2, 10],
    ("5", "0.75"): [3, 5],
    ("5", "1.0"): [5, 5],
}


@pytest.mark.parametrize(("volume", "balance"), HELD)
def test_volume_and_balance_are_what_clients_hold(volume: str, balance: str) -> None:
    rule = f"data.partition=lottery:{volume}:{balance}"
    made, _ = plan.federation_of(small("volume", rule, methods=["fedmask"]).data)
    assert made.clients == 10
    for part in made.train:
        held = made.y[part].bincount()
        assert sorted(held[held > 0].tolist()) == HELD[volume, balance]


def test_few_and_unbalanced_samples_are_trained_on(tmp_path: Path) -> None:
    changes = ("train.clients_per_round=4", "method.fedmask.pruned_layers=1")
    for rule in ("lottery:20:0.25", "lottery:5:1.0"):
        found = results(
            "volume",
            tmp_path / rule,
            *changes,
            f"data.partition={rule}",
            methods=["local", "fedmask"],
        )
        assert len(found) == 2


def test_the_bottom_decile_and_the_gain_of_every_client_can_be_had(tmp_path: Path) -> None:
    found = results("fairness", tmp_path, methods=["fedavg", "fedavg_ft", "pfedgate"])
    for summary in found:
        assert summary.per_client is not None
        own = sorted(value for value in summary.per_client.own if value is not None)
        assert len(own) == 10
        assert summary.accuracy.own.bottom_decile == own[len(own) // 10]
    gains = difference(found, "fedavg_ft", "fedavg").clients
    assert len(gains) == 10


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_value_has_its_source(path: Path) -> None:
    """Every setting of data, training and methods says where it is from, on its line or above."""
    section, bare = "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif re.match(r"\w+ = ", line) and section.split(".")[0] in ("data", "train", "method"):
            bare += [line] if "#" not in line and not line.startswith("name") else []
    assert bare == []
