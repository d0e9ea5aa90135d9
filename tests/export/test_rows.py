"""Files of rows: read as training read its own, and answered so that answers can be matched."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import masquerade as mq
from masquerade.data import cache
from masquerade.data.fetch import add
from masquerade.data.readers.options import TableOptions
from masquerade.export.predict import (
    Asked,
    Bundle,
    Samples,
    read_samples,
    write_answers,
)
from masquerade.tables.faults import rows_by_number
from masquerade.tables.layout import Layout
from tests.messages import Golden
from tests.support import raises, warns

HEADER = "id;site;pay €;age;sex;out"
LINES = ("1;Ost;<50 €;40;w;no", "2;West;>50 €;50,5;m;yes", "3;Ost;<50 €;60;w;yes")
OPTIONS: dict[str, Any] = {
    "label": "out",
    "client": "site",
    "drop": ("id",),
    "categorical": ("pay €", "sex"),
}


def bundle_of(path: Path, **options: Any) -> Bundle:
    """A bundle of a model of Ost that reads the rows of a file; nothing is in its folder."""
    federation = mq.partition(mq.load(path, **options), None, "client", seed=1, split=(1, 0, 0))
    schema = federation.schema(0, impute=True)
    assert schema is not None
    like = {"shape": [len(schema.columns)], "type": "float32"}
    table = json.loads(json.dumps(schema.to_json()))
    return Bundle(path.parent, {"input": like, "labels": ["no", "yes"], "table": table})


def euros(folder: Path, encoding: str = "cp1252") -> Path:
    path = folder / "eu.csv"
    path.write_bytes("\n".join([HEADER, *LINES * 4]).encode(encoding))
    return path


def as_read(encoding: str) -> dict[str, Any]:
    """The options of a file in cp1252 that somebody says is in another encoding."""
    named = "pay €".encode("cp1252").decode(encoding)
    return OPTIONS | {"categorical": (named, "sex"), "encoding": encoding}


@pytest.mark.filterwarnings("ignore:W30[18] ", "ignore:W31[24] ")
def test_a_bundle_reads_the_file_that_it_was_trained_on(tmp_path: Path, golden: Golden) -> None:
    path = euros(tmp_path)
    with warns("W313", "line 1", "0x80", "'€'", "--encoding cp1252") as told:
        bundle = bundle_of(path, **as_read("latin-1"))
    golden(next(each.message for each in told if str(each.message).startswith("W313")))
    expected = [[0, 40, 1], [1, 50.5, 0], [0, 60, 1]] * 4
    assert read_samples(bundle, path).x.tolist() == expected
    assert read_samples(bundle, path, Asked(";", "latin-1")).x.tolist() == expected
    with raises("E302", "`pay €`"):
        read_samples(bundle, path, Asked(encoding="cp1252"))


@pytest.mark.filterwarnings("ignore:W30[18] ", "ignore:W31[24] ")
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("sep", [";", "|", "\t"])
def test_a_file_may_be_written_in_another_way_than_that_of_training(
    tmp_path: Path, encoding: str, sep: str
) -> None:
    path = euros(tmp_path)
    bundle = bundle_of(path, **as_read("cp1252"))
    expected = read_samples(bundle, path).x
    text = path.read_bytes().decode("cp1252").replace(";", sep)
    (tmp_path / "x.csv").write_bytes(text.encode(encoding))
    assert np.array_equal(read_samples(bundle, tmp_path / "x.csv").x, expected)


@pytest.mark.filterwarnings("ignore:W30[18] ", "ignore:W31[234] ")
def test_text_that_was_trained_in_a_wrong_encoding_is_found_again(tmp_path: Path) -> None:
    """A UTF-8 file that somebody called Latin-1 has strange names, in training and in rows."""
    path = euros(tmp_path, "utf-8")
    named = "pay €".encode().decode("latin-1")
    bundle = bundle_of(path, **OPTIONS | {"encoding": "latin-1", "categorical": (named, "sex")})
    assert len(read_samples(bundle, path).x) == 12


@pytest.mark.filterwarnings("ignore:W30[18] ", "ignore:W31[24] ")
def test_how_a_table_was_written_stays_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    path = euros(tmp_path)
    add("eu", path, table=TableOptions(**as_read("cp1252"), missing=("-9",)))
    expected = Layout(("id", "site", "out"), "site", ("-9",), ";", "cp1252")
    assert mq.load("eu").layout == expected
    assert mq.partition(mq.load("eu"), None, "client").layout == expected
    # Of clients that are made up no row of a file is.
    with warns("W302", "eu"):
        assert mq.partition(mq.load("eu"), 2, "iid").layout.client == ""
    manifest = cache.root() / "eu" / "manifest.json"
    old = json.loads(manifest.read_text())
    del old["layout"]
    manifest.write_text(json.dumps(old | {"other_columns": ["id"], "missing": ["-9"]}))
    assert mq.load("eu").layout == Layout(("id",), missing=("-9",))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "x.csv"
    lines = ["id;site;age;crp;out", *("7;Ost;40;3,5;no", "8;Ost;50;1,5;yes", "9;West;9;2,5;no") * 9]
    path.write_text("\n".join(lines))
    return path


SIMPLE: dict[str, Any] = {"label": "out", "client": "site", "drop": ("id",), "impute": "mean"}


@pytest.mark.filterwarnings("ignore:W308 ")
def test_rows_of_other_clients_are_warned_of_and_left_out_if_asked(
    plain: Path, golden: Golden, tmp_path: Path
) -> None:
    bundle = bundle_of(plain, **SIMPLE)
    with warns("W314", "9 of 27", "West", "Ost") as told:
        assert len(read_samples(bundle, plain).x) == 27
    golden(next(each.message for each in told if str(each.message).startswith("W314")))
    found = read_samples(bundle, plain, Asked(own_rows=True))
    assert found.places.numbers[:3].tolist() == [2, 3, 5]
    frame = pandas.read_csv(plain, sep=";", decimal=",")
    frame.to_parquet(tmp_path / "x.parquet")
    same = read_samples(bundle, tmp_path / "x.parquet", Asked(own_rows=True))
    assert np.array_equal(same.x, found.x)
    frame.drop(columns="site").to_csv(tmp_path / "y.csv", index=False)
    assert len(read_samples(bundle, tmp_path / "y.csv").x) == 27
    with raises("E302", "`site`", "--own-rows"):
        read_samples(bundle, tmp_path / "y.csv", Asked(own_rows=True))
    np.save(tmp_path / "x.npy", found.x)
    with raises("E201"):
        read_samples(bundle, tmp_path / "x.npy", Asked(sep=";"))
    with raises("E201"):
        Asked(sep="#")


def read_back(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore:W30[18] ", "ignore:W314 ")
def test_answers_say_whose_they_are(plain: Path, tmp_path: Path) -> None:
    bundle = bundle_of(plain, **SIMPLE)
    lines = plain.read_text().splitlines()
    (tmp_path / "y.csv").write_text("\n".join([*lines[:2], "", ";;;;", *lines[2:4], ";;;;", ""]))
    samples = read_samples(bundle, tmp_path / "y.csv")
    found = np.log([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])
    write_answers(bundle, tmp_path / "a.csv", samples, found)
    answers = read_back(tmp_path / "a.csv")
    assert [each["line"] for each in answers] == ["2", "5", "6"]
    assert [each["id"] for each in answers] == ["7", "8", "9"]
    assert [each["out"] for each in answers] == ["no", "yes", "no"]
    assert [each["label"] for each in answers] == ["no", "no", "yes"]
    for name, expected in {
        "probability": (0.75, 0.5, 0.875),
        "probability of no": (0.75, 0.5, 0.125),
        "probability of yes": (0.25, 0.5, 0.875),
    }.items():
        assert [float(each[name]) for each in answers] == pytest.approx(expected)


def test_columns_that_are_called_as_those_of_answers_keep_their_values(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, {"labels": None})
    given = Samples(np.zeros((1, 1)), rows_by_number(1), {"output 0": np.array(["x"])})
    write_answers(bundle, tmp_path / "a.csv", given, np.array([[2.5, 3]]))
    assert read_back(tmp_path / "a.csv") == [
        {"row": "0", "output 0 (input)": "x", "output 0": "2.5", "output 1": "3.0"}
    ]


def test_a_row_of_which_nothing_is_known_is_refused_with_its_line(
    plain: Path, tmp_path: Path, golden: Golden
) -> None:
    bundle = bundle_of(plain, **SIMPLE)
    (tmp_path / "y.csv").write_text("id;age;crp\n1;40;3,5\n\n2;;NA\n")
    with raises("E302", "1 of 2", "line 4") as refusal:
        read_samples(bundle, tmp_path / "y.csv")
    golden(refusal.value)


def test_points_for_thousands_are_refused_in_rows_as_in_training(
    plain: Path, tmp_path: Path
) -> None:
    bundle = bundle_of(plain, **SIMPLE)
    (tmp_path / "y.csv").write_text("age;crp\n1.200;3,5\n1.300;2,5\n")
    with raises("E302", "`age`", "thousands"):
        read_samples(bundle, tmp_path / "y.csv")
