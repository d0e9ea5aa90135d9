"""The command on a table as a hospital has it, from its file to the report."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import masquerade as mq
from masquerade.config import toml
from masquerade.config.resolve import federation_of
from masquerade.errors import MasqueradeError
from tests.support import raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

OPTIONS = (
    *("--label", "outcome", "--client", "site", "--drop", "id", "--categorical", "sex,ward"),
    *("--sep", ";", "--encoding", "latin-1"),
)
TRAINED = "--method local --rounds 1 --engine loop --quiet --set train.model=logistic"


def call(*words: object) -> None:
    """Run the command in this process; an error is raised, not printed."""
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    rows = ["id;site;age;sex;ward;outcome"]
    for number in range(60):
        site, sex = ("Süd", "Ost", "West")[number % 3], "wm"[rng.integers(2)]
        ward, sick = ("Innere", "Gynäkologie")[rng.integers(2)], rng.random() < 0.4
        rows.append(f"P{number};{site};{rng.integers(20, 90)};{sex};{ward};{'yes' * sick or 'no'}")
    (tmp_path / "hosp.csv").write_bytes("\n".join(rows).encode("latin-1"))
    return tmp_path / "hosp.csv"


def test_a_table_is_added_and_shown(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("data", "add", "hosp", "--from", table, *OPTIONS, "--impute", "median")
    assert mq.load("hosp").impute == "median"
    call("data", "show", "hosp")
    shown = capsys.readouterr().out
    for word in ("Gynäkologie, Innere", "Ost, Süd, West", "no, yes", "age", "by median"):
        assert word in shown
    call("data", "show", table, *OPTIONS)
    assert "Gynäkologie, Innere" in capsys.readouterr().out


def test_options_and_settings_train_on_the_same(table: Path, tmp_path: Path) -> None:
    further = ("--missing", "k.A.", "--task", "classification")
    call("run", "--data", table, *OPTIONS, *further, *TRAINED.split(), "--out", "options")
    keys = {
        "name": table.name,
        "label_column": "outcome",
        "client_column": "site",
        "drop_columns": "id",
        "categorical_columns": '["sex", "ward"]',
        "encoding": "latin-1",
        "sep": ";",
        "missing": "k.A.",
        "task": "classification",
    }
    settings = [f"data.{key}={value}" for key, value in keys.items()]
    said = toml.load(tmp_path / "options" / "config.toml").data
    federation, resolved = federation_of(toml.parse(toml.apply({}, settings)).data)
    assert said == resolved
    assert federation.fingerprint() == federation_of(said)[0].fingerprint()
    call("resume", "options", "--quiet")
    page = (tmp_path / "options" / "report.html").read_text(encoding="utf-8")
    assert "1: Süd" in page


def test_what_other_libraries_call_imputing_is_understood(table: Path) -> None:
    with raises("E201", "`most_frequent`"):
        call("data", "add", "hosp", "--from", table, *OPTIONS, "--impute", "mode")


def test_no_training_is_announced_on_a_dataset_that_there_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    with raises("E301", "`Verlegung`"):
        call("run", "--data", "Verlegung", "--method", "local", "--rounds", 1)
    assert "Training" not in capsys.readouterr().err


def test_a_table_without_options_lists_its_faults(table: Path) -> None:
    with pytest.raises(MasqueradeError) as fault:
        call("run", "--data", table, *TRAINED.split())
    assert fault.value.code == "E302"
    assert "--encoding latin-1 --label NAME --drop id --client site" in str(fault.value)
