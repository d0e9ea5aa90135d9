"""Bundles of tables: they answer raw rows by column names, and refuse what does not fit."""

import csv
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor

import masquerade as mq
from masquerade.core import Task
from masquerade.core.preprocess import fitted_on, moved
from masquerade.core.table import Tabular
from masquerade.data.source import DATASETS
from masquerade.export import from_run, sparse
from masquerade.export import predict as answering
from masquerade.export.predict import Asked, Bundle, open_bundle, read_samples
from masquerade.methods import FedAvg
from masquerade.models import build
from masquerade.storage.manifest import fingerprint, seal, unseal
from masquerade.tables.known import KnownColumn
from masquerade.tables.layout import Layout
from masquerade.tables.schema import Schema
from tests.export.test_bundle import call, without_torch
from tests.messages import Golden
from tests.support import raises, warns
from tests.tables.example import COLUMNS, NAN, WIDTH, federation, linear, own_rows, table

NAMES = [column.name for column in COLUMNS]


def lines(x: Tensor) -> list[list[str]]:
    """Rows as a person writes them."""
    return [
        [
            ""
            if value != value
            else column.categories[int(value)]
            if column.categories
            else repr(value)
            for column, value in zip(COLUMNS, row, strict=True)
        ]
        for row in x.tolist()
    ]


def written(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], sep: str = ","
) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=sep).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the table, each client of which fits preprocessing on its own samples."""
    path = tmp_path_factory.mktemp("runs") / "fedavg-1"
    settings = ("data.normalize_per_client=true", "method.local_epochs=1", "evaluate.degrees=0")
    options = [word for each in settings for word in ("--set", each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "hospital", table)
        call("run", "--data", "hospital", "--rounds", 1, *options, "--out", path, "--quiet")
    return path


@pytest.fixture
def hospital(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "hospital", table)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[mq.Personal, Path]:
    """A client's model, fitted from sums, and its bundle."""
    own = mq.Evaluate(every=0, degrees=(0,))
    mine = mq.run(FedAvg(local_epochs=1), linear(), federation(), 2, evaluate=own).client("h1")
    path = tmp_path_factory.mktemp("bundles") / "h1"
    mine.export(path, own_rows(federation(), 1), ["young", "old"])
    return mine, path


def test_raw_rows_by_name_are_answered_as_the_model_answers(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    mine, bundle = made
    x = own_rows(federation(), 1)
    assert x.isnan().any(0).tolist() == [True, False, False, True]
    order = [2, 0, 3, 1]
    rows = [[row[place] for place in order] + ["old"] for row in lines(x)]
    header = [NAMES[place] for place in order] + ["y"]
    file = written(tmp_path / "rows.csv", header, rows)
    answered = without_torch("predict", bundle, "--input", file, "--out", tmp_path / "a.csv")
    assert answered.returncode == 0, answered.stderr
    assert "W308" not in answered.stderr
    found = answering.predict(open_bundle(bundle), read_samples(open_bundle(bundle), file).x)
    expected = mine.predict(x)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
    with (tmp_path / "a.csv").open() as answers:
        read = list(csv.DictReader(answers))
    likely = expected.softmax(-1).max(-1)
    assert [each["label"] for each in read] == [("young", "old")[k] for k in likely.indices]
    shares = [float(each["probability"]) for each in read]
    assert shares == pytest.approx(likely.values.tolist(), abs=1e-5)


def test_arrays_of_raw_rows_are_answered_too(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    mine, bundle = made
    x = own_rows(federation(), 1)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    opened = open_bundle(bundle)
    found = answering.predict(opened, read_samples(opened, tmp_path / "x.npz").x)
    np.testing.assert_allclose(found, mine.predict(x).numpy(), rtol=1e-5, atol=1e-5)
    x = x.clone()
    x[0, 3] = 3
    np.savez(tmp_path / "x.npz", x=x.numpy())
    with raises("E302"):
        read_samples(opened, tmp_path / "x.npz")


@pytest.mark.usefixtures("hospital")
def test_a_run_gives_the_model_with_the_clients_own_constants_and_ranges(
    run: Path, tmp_path: Path
) -> None:
    model = from_run.find(run, "h1").model
    own = own_rows(federation(), 1)
    by_itself = moved(fitted_on(Tabular(COLUMNS, "median"), own), torch.float32)
    assert torch.equal(model.task.preprocess.mean, by_itself.mean)
    call("export", run, "--client", "h1", "--out", tmp_path / "bundle", "--quiet")
    opened = open_bundle(tmp_path / "bundle")
    assert opened.schema is not None
    ages = own[~own[:, 0].isnan(), 0]
    known = opened.schema.columns[0]
    assert (known.name, known.range) == ("age", (float(ages.min()), float(ages.max())))
    assert known.distance(ages.numpy()) == 0
    assert opened.schema.columns[1] == KnownColumn("sex", ("f", "m"))
    assert opened.manifest["labels"] == ["young", "old"]
    card = (tmp_path / "bundle" / "card.md").read_text()
    assert "own training samples; nothing was sent" in card
    # Weights alone come with what is to be done to rows.
    call("export", run, "--client", "h1", "--format", "packed", "--out", tmp_path / "w", "--quiet")
    task = Task(build("mlp", (WIDTH,), 2, 7), preprocess=sparse.read_preprocess(tmp_path / "w"))
    (weights,) = sparse.read(tmp_path / "w")
    assert torch.equal(task(weights, own)[0], model.predict(own))
    config = (run / "config.toml").read_text()
    assert 'normalize = "table"' in config


def test_a_card_says_what_was_sent_for_preprocessing(made: tuple[mq.Personal, Path]) -> None:
    card = (made[1] / "card.md").read_text()
    said = made[0].summary.preprocessing
    assert said is not None
    assert "missing values are replaced by the median" in card
    assert "count, sum, deviations, categories, histogram, fractions; " in card
    assert f"{said.bytes.up:,.0f} bytes up" in card


def test_a_bundle_without_columns_answers_as_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n3,4\n")
    old = {"input": {"shape": [2], "type": "float32"}, "labels": None}
    found = read_samples(Bundle(tmp_path, old), path).x
    assert found.tolist() == [[1, 2], [3, 4]]


def refused(made: tuple[mq.Personal, Path], path: Path) -> str:
    with raises("E302") as fault:
        read_samples(open_bundle(made[1]), path)
    return str(fault.value)


GOOD = [["50", "f", "120", "a"], ["60", "m", "130", "b"]]


def test_columns_that_are_missing_or_unknown_are_named(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    said = refused(made, written(tmp_path / "x.csv", ["age", "sex", "presure", "ward"], GOOD))
    assert "no column `pressure` (did you mean `presure`?)" in said
    said = refused(made, written(tmp_path / "x.csv", ["AGE", "sex", "pressure", "ward"], GOOD))
    assert "no column `age` (did you mean `AGE`?)" in said
    assert "leave it out" not in said
    said = refused(made, written(tmp_path / "x.csv", [*NAMES, "id"], [[*r, "7"] for r in GOOD]))
    assert "`id` is no column of this model" in said
    said = refused(made, written(tmp_path / "x.csv", [*NAMES, "age"], [[*r, "7"] for r in GOOD]))
    assert "columns 1 and 5 are both called `age`" in said


def test_a_file_without_names_of_columns_is_refused(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("50,0,120,1\n60,1,130,2\n")
    assert "has 1 fault" in refused(made, path)
    path.write_text("50,f,120,b\n60,m,130,a\n")
    for asked in (Asked(), Asked(own_rows=True)):
        with raises("E302", "1 fault", "'50', 'f', '120'", "names of the columns"):
            read_samples(open_bundle(made[1]), path, asked)
    path.write_text("age,sex,pressure,ward\n")
    assert "no rows below" in refused(made, path)


def test_two_exports_that_were_joined_have_one_fault(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    path = written(tmp_path / "x.csv", NAMES, [*GOOD, NAMES, *GOOD])
    with raises("E302", "1 fault", "line 4 repeats line 1"):
        read_samples(open_bundle(made[1]), path)


@pytest.mark.parametrize(
    ("place", "cell", "said"),
    [
        (3, "d", ("`ward`", "1 of 2", "line 3 'd'", "a, b, c")),
        (0, "old", ("`age`", "1 of 2", "line 3 'old'")),
        (0, "inf", ("`age`", "1 of 2", "line 3 'inf'")),
    ],
)
def test_cells_that_cannot_be_read_are_told_with_line_and_column(
    place: int, cell: str, said: tuple[str, ...], made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    rows = [list(row) for row in GOOD]
    rows[1][place] = cell
    with raises("E302", *said):
        read_samples(open_bundle(made[1]), written(tmp_path / "x.csv", NAMES, rows))


def test_a_category_that_is_not_known_may_be_left_empty_where_that_is_imputed(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    said = refused(made, written(tmp_path / "x.csv", NAMES, [["50", "f", "120", "z"]]))
    assert "known are a, b, c; where it is none of these, leave it empty" in said


def test_all_strange_cells_are_told_at_once(made: tuple[mq.Personal, Path], tmp_path: Path) -> None:
    rows = [["?", "x", "high", "z"], ["1", "f"]]
    said = refused(made, written(tmp_path / "x.csv", NAMES, rows))
    for part in ("column `sex`", "column `pressure`", "column `ward`", "line 3 has 2"):
        assert part in said
    assert "column `age`" not in said


def plain(*ranges: tuple[float, float] | None, impute: bool = False) -> Schema:
    """A table of numbers a, b, ..., with these ranges."""
    columns = (KnownColumn("abc"[k], (), each or ()) for k, each in enumerate(ranges))
    return Schema(tuple(columns), impute)


def bundle_of(schema: Schema) -> Bundle:
    """A bundle that reads these rows; it has no file."""
    like = {"shape": [len(schema.columns)], "type": "float64"}
    return Bundle(Path("none"), {"input": like, "labels": None, "table": schema.to_json()})


def read(path: Path, schema: Schema) -> np.ndarray:
    return read_samples(bundle_of(schema), path).x


def test_an_empty_cell_needs_a_model_that_imputes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("b,a\n1,2\n NA ,4\n")
    with raises("E302"):
        read(path, plain(None, None))
    np.testing.assert_equal(read(path, plain(None, None, impute=True)), [[2, 1], [4, NAN]])


def test_semicolons_decimal_commas_and_latin_1_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    columns = (KnownColumn("größe"), KnownColumn("ort", ("Köln", "Ulm")))
    path.write_bytes("ort;größe\nKöln;1,75\nUlm;2\n".encode("latin-1"))
    assert read(path, Schema(columns)).tolist() == [[1.75, 0], [2, 1]]
    path.write_bytes("ort;größe\nKöln;1,234\n".encode("utf-16"))
    assert read(path, Schema(columns)).tolist() == [[1.234, 0]]
    path.write_bytes("\ufefforte\tgröße\n".replace("orte", "ort").encode() + b"Ulm\t3\n")
    assert read(path, Schema(columns)).tolist() == [[3, 1]]


def test_numbers_outside_the_range_are_warned_of_once_per_column(golden: Golden) -> None:
    x = np.array([[5, 1, 5], [50, 1, NAN], [-3, 1, 5]])
    table = plain((0, 10), (0, 2), (0, 9), impute=True)
    with warns("W308", "`a`", "2 of 3", "0 to 10") as told:
        table.check(x, "x")
    golden(told[0].message)
    assert told[0].filename == __file__
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        table.check(x, "x")
    assert len(heard) == 1
    # What is beyond by a tenth of the range is hardly news; one strange value has its line.
    table.check(np.array([[11, 1, 5]]), "x")
    with warns("W308", "(12, row 0)"):
        table.check(np.array([[12, 1, 5]]), "x")


@pytest.mark.parametrize(
    ("rows", "swapped"),
    [
        # a is from 0 to 10, b from 100 to 200, c from 5 to 150.
        ([[5, 120, 20], [7, 130, 30]], False),
        ([[120, 5, 20], [130, 7, 30]], True),
        ([[120, 5, 20], [NAN, 7, 30]], True),
        # One value fits where it is: strange, but not swapped.
        ([[120, 5, 20], [7, 7, 30]], False),
        # Exchanged, b would not fit.
        ([[120, 50, 20], [130, 50, 30]], False),
        # a and c, of which c fits where it is: one strange patient looks like that.
        ([[20, 120, 6], [30, 130, 7]], False),
    ],
)
@pytest.mark.filterwarnings("ignore:W308")
def test_swapped_columns_are_refused(rows: list[list[float]], swapped: bool) -> None:
    table = plain((0, 10), (100, 200), (5, 150), impute=True)
    if not swapped:
        table.check(np.array(rows), "x")
        return
    with raises("E302"):
        table.check(np.array(rows), "x")


def test_swapped_columns_of_a_file_are_refused(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    rows = lines(own_rows(federation(), 1))
    header = ["pressure", "sex", "age", "ward"]
    said = refused(made, written(tmp_path / "x.csv", header, rows))
    assert "`age` and `pressure`" in said


def test_python_checks_rows_as_the_command_does(
    made: tuple[mq.Personal, Path], tmp_path: Path
) -> None:
    mine, x = made[0], own_rows(federation(), 1).numpy()
    swapped = x[:, [2, 1, 0, 3]]
    np.save(tmp_path / "x.npy", swapped)
    with raises("E302") as refusal:
        mine.predict(swapped)
    (in_python, in_file) = (str(refusal.value), refused(made, tmp_path / "x.npy"))
    assert "`age` and `pressure`" in in_python
    assert in_python.partition(": ")[2] == in_file.partition(": ")[2]
    strange = x.copy()
    strange[0, 2] = 999
    for rows in (strange, torch.from_numpy(strange), strange.tolist()):
        with warns("W308", "`pressure`", "999"):
            mine.predict(rows)
    strange[0, 3] = 7
    with raises("E302", "`ward`", 7):
        mine.predict(strange)


def test_a_frame_is_read_by_its_names_and_checked(made: tuple[mq.Personal, Path]) -> None:
    mine, x = made[0], own_rows(federation(), 1)
    frame = pandas.DataFrame(lines(x), columns=NAMES)
    order = ["ward", "pressure", "age", "sex"]
    assert torch.equal(mine.predict(frame[order].assign(note="x")), mine.predict(x))
    renamed = frame.rename(columns={"age": "pressure", "pressure": "age"})
    with raises("E302", "`age`", "`pressure`"):
        mine.predict(renamed)
    with warns("W308", "`age`", "500"):
        mine.predict(frame.assign(age="500"))
    with raises("E302", "`ward`", "row 0 'd'"):
        mine.predict(frame.assign(ward="d"))


def test_texts_that_meant_missing_in_training_mean_it_in_rows(tmp_path: Path) -> None:
    data = replace(federation(), layout=Layout(missing=("k.A.",)))
    own = mq.Evaluate(every=0, degrees=(0,))
    mine = mq.run(FedAvg(local_epochs=1), linear(), data, 1, evaluate=own).client("h1")
    mine.export(tmp_path / "bundle")
    rows = [["k.A.", "f", "120", "K.A."], ["", "f", "120", ""]]
    file = written(tmp_path / "x.csv", NAMES, rows)
    bundle = open_bundle(tmp_path / "bundle")
    found = read_samples(bundle, file).x
    assert np.isnan(found[:, [0, 3]]).all()
    frame = pandas.DataFrame(rows, columns=NAMES)
    expected = mine.predict(torch.from_numpy(found))
    assert torch.equal(mine.predict(frame), expected)
    np.testing.assert_allclose(answering.predict(bundle, found), expected, rtol=1e-5, atol=1e-5)
    # Tabs and parquet are tables as well.
    np.testing.assert_equal(
        read_samples(bundle, written(tmp_path / "x.tsv", NAMES, rows, "\t")).x, found
    )
    frame.to_parquet(tmp_path / "x.parquet")
    np.testing.assert_equal(read_samples(bundle, tmp_path / "x.parquet").x, found)


@pytest.mark.parametrize(
    "change", [{"columns": 3}, {"columns": [{"name": "a"}]}, {"impute": None, "columns": None}]
)
def test_a_manifest_whose_columns_make_no_sense_is_refused(change: dict, tmp_path: Path) -> None:
    from masquerade.storage.manifest import fingerprint, seal

    (tmp_path / "model.onnx").write_bytes(b"")
    manifest = {
        "version": answering.VERSION,
        "input": {"shape": [2], "type": "float32"},
        "labels": None,
        "table": Schema(()).to_json() | change,
        "files": {"model.onnx": fingerprint(b"")},
    }
    (tmp_path / "manifest.json").write_bytes(seal(manifest))
    with raises("E406"):
        open_bundle(tmp_path)


def test_a_manifest_survives_json() -> None:
    columns = (KnownColumn("a", ("x", "y")), KnownColumn("b", (), (0.5, 2.0)), KnownColumn("c"))
    table = Schema(columns, True, Layout(("y",), "site", ("k.A.",), ";", "cp1252"), "Ulm")
    assert Schema.from_json(json.loads(json.dumps(table.to_json()))) == table


@pytest.mark.usefixtures("hospital")
def test_a_run_whose_data_changed_gives_no_model(run: Path) -> None:
    facts, hashes = run / "data.json", run / "hashes.json"
    before, sealed = facts.read_text(), hashes.read_bytes()
    other = re.sub(r'"fingerprint": "\w+"', '"fingerprint": "0"', before).encode()
    try:
        facts.write_bytes(other)
        files = unseal(sealed)["files"] | {facts.name: fingerprint(other)}
        hashes.write_bytes(seal({"files": files}))
        with raises("E402"):
            from_run.find(run, "h1")
    finally:
        facts.write_text(before)
        hashes.write_bytes(sealed)
