"""Tables as people have them: what columns become, and every fault of a file at once."""

import gzip
import json
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import masquerade as mq
from masquerade.config import toml
from masquerade.config.resolve import federation_of
from masquerade.config.settings import Config, Data
from masquerade.core.features import Feature
from masquerade.data import cache
from masquerade.data.fetch import add
from masquerade.data.readers.options import TableOptions, names_of
from masquerade.data.source import loaded
from masquerade.errors import MasqueradeError
from masquerade.tables.words import in_one_text
from tests.data.test_readers import png
from tests.messages import Golden
from tests.support import raises, warns

pytestmark = pytest.mark.filterwarnings("ignore:W304")
"""Most files here name no client."""

HOSPITAL = """\
id;site;age;sex;ward;crp;outcome
P1;Süd;40;w;Gynäkologie;3,5;yes
P2;Ost;51;m;Innere;;no
P3;Süd;62;m;Innere;12;no
P4;Ost;NA;w;Gynäkologie;0,25;yes
"""
"""A file as a hospital has it: semicolons, decimal commas, words, missing values."""
OPTIONS = TableOptions("outcome", "site", ("id",), ("sex", "ward"), "median")


SEVERAL = ("drop", "categorical", "missing")


def load(source: Path, **given: Any) -> mq.Dataset:
    """Read a file as a command does, whose options are proposed."""
    named = {key: names_of(text) if key in SEVERAL else text for key, text in given.items()}
    return loaded(source, TableOptions(**named))


def test_a_program_is_proposed_arguments_that_can_be_copied(tmp_path: Path) -> None:
    path = csv(tmp_path, "age;job;y\n1;a;yes\n2;b;no\n;a;no\n")
    with raises("E302", "impute='median' or drop=['age']") as refusal:
        mq.load(path)
    tried = str(refusal.value).splitlines()[-1].removeprefix("Try: ")
    assert "--" not in str(refusal.value)
    assert mq.load(path, **eval(f"dict({tried})")).x.shape == (3, 2)


def csv(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "hosp.csv"
    path.write_bytes(text.encode(encoding))
    return path


def keywords(options: TableOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.given}


def assert_hospital(dataset: mq.Dataset) -> None:
    nan = np.nan
    # Categories are their places: m and w are 0 and 1, Gynäkologie and Innere too.
    expected = [[40, 1, 0, 3.5], [51, 0, 1, nan], [62, 0, 1, 12], [nan, 1, 0, 0.25]]
    assert dataset.x.dtype == torch.float32
    assert np.array_equal(dataset.x, np.array(expected, dtype=np.float32), equal_nan=True)
    wards = ("Gynäkologie", "Innere")
    assert dataset.features == (
        *(Feature("age"), Feature("sex", ("m", "w")), Feature("ward", wards), Feature("crp")),
    )
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 0, 1], ("no", "yes"))
    assert dataset.client is not None
    assert (dataset.client.tolist(), dataset.names) == ([1, 0, 1, 0], ("Ost", "Süd"))
    assert dataset.impute == "median"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_csv_is_read_as_its_options_say(tmp_path: Path, encoding: str) -> None:
    path = csv(tmp_path, HOSPITAL, encoding)
    given = {"encoding": encoding} if encoding == "latin-1" else {}
    assert_hospital(load(path, **keywords(OPTIONS), **given))
    assert_hospital(load(path, **keywords(OPTIONS), **given, sep=";"))


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
def test_the_separator_is_guessed_and_a_quoted_one_is_text(tmp_path: Path, sep: str) -> None:
    rows = [("a", "b", "y"), ("1", f'"u{sep}v"', "0"), ("2.5", "w", "1")]
    path = csv(tmp_path, "".join(sep.join(row) + "\r\n" for row in rows))
    dataset = load(path, categorical=["b"])
    assert dataset.x.tolist() == [[1, 0], [2.5, 1]]
    assert dataset.features[1].categories == (f"u{sep}v", "w")


def frame() -> dict[str, list[Any]]:
    return {
        "id": ["P1", "P2", "P3", "P4"],
        "site": ["Süd", "Ost", "Süd", "Ost"],
        "age": [40, 51, 62, None],
        "sex": ["w", "m", "m", "w"],
        "ward": ["Gynäkologie", "Innere", "Innere", "Gynäkologie"],
        "crp": [3.5, None, 12.0, 0.25],
        "outcome": ["yes", "no", "no", "yes"],
    }


FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "arrow": pyarrow.table,
}


@pytest.mark.parametrize("library", FRAMES)
def test_frames_give_what_the_file_gives(library: str) -> None:
    made = FRAMES[library](frame())
    assert_hospital(mq.from_frame(made, **keywords(OPTIONS)))


def test_parquet_gives_what_the_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "hosp.parquet"
    parquet.write_table(pyarrow.table(frame()), path)
    assert_hospital(load(path, **keywords(OPTIONS)))


@pytest.mark.parametrize("kind", ["file", "frame"])
def test_a_wrong_value_leaves_decimal_commas_beside_it_what_they_are(
    tmp_path: Path, kind: str
) -> None:
    values = ["3,5", "abc", "1,234", "4"]
    made = pandas.DataFrame({"a": values, "y": [0, 1, 0, 1]})
    path = csv(tmp_path, "a;y\n" + "".join(f"{each};0\n" for each in values))
    with raises("E302", "`a`", "1 of 4", "'abc'"):
        load(path) if kind == "file" else mq.from_frame(made, label="y")
    read = mq.from_frame(made.drop(1), label="y")
    assert read.x.flatten().tolist() == pytest.approx([3.5, 1.234, 4])


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with raises("E301"):
        load(tmp_path / "a.parquet")


def test_types_of_a_frame_say_what_is_a_category() -> None:
    grades = ["low", "mid", "high"]
    words = ["mid", "low", None, "low"]
    made = {
        "pandas": pandas.DataFrame(
            {"g": pandas.Categorical(words, categories=[*grades, "never"]), "y": [True, False] * 2}
        ),
        "polars": polars.DataFrame(
            {"g": polars.Series(words, dtype=polars.Enum(grades)), "y": [True, False] * 2}
        ),
        "in the order of the alphabet": polars.DataFrame(
            {"g": polars.Series(words, dtype=polars.Categorical), "y": [True, False] * 2}
        ),
    }
    for each in made.values():
        dataset = mq.from_frame(each, label="y", impute="most_frequent")
        # In the order of the type, without what does not occur.
        assert dataset.features == (Feature("g", ("low", "mid")),)
        assert np.array_equal(dataset.x[:, 0], [1, 0, np.nan, 0], equal_nan=True)
        assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 1, 0], ("False", "True"))


def test_a_column_of_dates_or_a_strange_object_is_named() -> None:
    made = pandas.DataFrame({"d": pandas.to_datetime(["2020-01-01"]), "a": [1.0], "y": [0]})
    with raises("E302", "`d`", "dates", "drop=['d']"):
        mq.from_frame(made, label="y")
    assert mq.from_frame(made, label="y", drop="d").x.tolist() == [[1.0]]
    with raises("E302"):
        mq.from_frame([1], label="y")


def test_what_mends_a_frame_can_be_copied_into_the_call() -> None:
    made = pandas.DataFrame({"sex": ["m", "w", "m"], "a": [1.0, None, 2.0], "y": [0, 1, 0]})
    with raises("E302", "sex") as caught:
        mq.from_frame(made, label="y")
    tried = str(caught.value).splitlines()[-1].removeprefix("Try: ")
    assert tried == "categorical=['sex'], impute='median'"
    assert len(mq.from_frame(made, label="y", categorical=["sex"], impute="median").y) == 3


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        ("2 0 1", [2, 0, 1], ()),
        ("1 10 2", [0, 2, 1], ("1", "2", "10")),
        ("-1 1 1", [0, 1, 1], ("-1", "1")),
        ("no yes no", [0, 1, 0], ("no", "yes")),
        ("0.5 1 2", [0.5, 1.0, 2.0], ()),
    ],
)
def test_labels_are_classes_if_they_are_whole_or_words(
    tmp_path: Path, labels: str, numbers: list[float], names: tuple[str, ...]
) -> None:
    text = "y,a\n" + "".join(f"{each},{place % 2}\n" for place, each in enumerate(labels.split()))
    dataset = load(csv(tmp_path, text))
    assert (dataset.y.tolist(), dataset.class_names) == (numbers, names)
    assert dataset.classes == (None if dataset.y.is_floating_point() else len(set(numbers)))


def test_clients_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    text = "y,a,client,train\n0,1,10,true\n1,2,9,0\n0,4,10,train\n"
    dataset = load(csv(tmp_path, text))
    assert dataset.names == ("9", "10")
    assert dataset.train is not None
    assert dataset.train.tolist() == [True, False, True]


FAULTY = """\
id;site;age;sex;ward;crp;crp2;lab;outcome
P1;Süd;40;w;Gynäkologie;3,5;1;1.234,5;yes
P2;;51;m;Innere;;2;1;
P3;Süd;<60;m;Innere;12;inf;2;no
P4;Ost;70;w
P5;Ost;50;w;Gynäkologie;12;3;3;yes
"""


def faults(path: Path, **options: Any) -> list[str]:
    """Return the lines of the refusal."""
    with pytest.raises(MasqueradeError) as fault:
        load(path, **options)
    assert fault.value.code == "E302"
    return str(fault.value).splitlines()


def one(lines: list[str], *words: str) -> None:
    """See that one line, no more, has all of some words."""
    assert len([line for line in lines if all(word in line for word in words)]) == 1, words


def test_all_faults_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = csv(tmp_path, FAULTY, "latin-1")
    lines = faults(path, label="outcome", client="site")
    one(lines, "line 2", "0xfc", "--encoding latin-1")
    one(lines, "1 of 5", "line 5 has 4")
    one(lines, "`outcome` (label)", "1 of 4", "line 3")
    one(lines, "`site` (client)", "1 of 4", "line 3")
    one(lines, "`id`", "4 different words", "line 2 'P1'", "--drop id")
    one(lines, "`sex`", "line 2 'w', line 3 'm'", "--categorical sex or --drop sex")
    one(lines, "`ward`", "--categorical ward")
    one(lines, "`age`", "1 of 4", "line 4 '<60'", "--drop age")
    one(lines, "`crp`", "1 of 4", "line 3", "--impute median or --drop crp")
    one(lines, "`crp2`", "line 4 'inf'")
    one(lines, "`lab`", "line 2 '1.234,5'")
    assert len(lines) == 13
    tried = "--encoding latin-1 --drop id --categorical sex,ward --impute median"
    assert lines[-1] == f"Try: {tried}"


def test_the_documented_message_is_the_one_that_is_given(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block).strip() for block in re.findall(r"(?:^    .*\n)+", text, re.M)]
    (table,) = (block for block in blocks if block.startswith("id;site;"))
    (message,) = (block for block in blocks if block.startswith("E302 "))
    lines = faults(csv(tmp_path, table), label="outcome", client="site")
    assert [line.replace(f"{tmp_path}/", "") for line in lines] == message.splitlines()


def test_what_is_tried_mends_what_can_be_mended(tmp_path: Path) -> None:
    path = csv(tmp_path, HOSPITAL, "latin-1")
    lines = faults(path, label="outcome", client="site")
    words = lines[-1].removeprefix("Try: ").split()
    options = dict(zip((word.strip("-") for word in words[::2]), words[1::2], strict=True))
    assert_hospital(load(path, label="outcome", client="site", **options))


def test_a_long_list_is_cut_and_a_long_value_too(tmp_path: Path) -> None:
    rows = "".join(f"{'x' * 999}{row},{row % 2}\n" for row in range(50))
    lines = faults(csv(tmp_path, f"a,y\n{rows}"))
    assert max(map(len, lines)) < 250
    wide = ",".join(f"c{place}" for place in range(99))
    lines = faults(csv(tmp_path, f"{wide},y\n{','.join(['w'] * 99)},0\n"))
    assert len(lines) < 30
    one(lines, "and 79 more")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("53,f,Ost,no\n51,m,West,yes\n", {"label": "outcome", "client": "site", "drop": "id"}),
        ("53,f,Ost,no\n51,m,West,yes\n", {}),
        ("a,y\n", {"label": "outcome", "categorical": "sex"}),
    ],
)
def test_what_hides_all_else_is_the_only_fault(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    lines = faults(csv(tmp_path, text), **options)
    assert len(lines) == 2, lines


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,0\n", {}, ("which column is the label", "a, b", "--label NAME")),
        ("a,outcome\n1,0\n", {"label": "outcom"}, ("`outcom`", "did you mean `outcome`")),
        ("a,Ergebnis\n1,x\n2,z\n", {"label": "ergebniss"}, ("Try: --label Ergebnis",)),
        ("a,y\n1,0\na,y\n2,1\na,y\n", {}, ("line 3, line 5 repeat line 1", "delete these")),
        ("a,y\n1,5,0\n2,5,1\n3,1,0\n", {}, ("line 1 has 2 fields", "decimal commas")),
        ("a,y\n1,0\n", {"drop": "b"}, ("drop", "`b`", "columns are a, y")),
        ("a,b,y\n1,2,0\n", {"drop": "a", "categorical": "a"}, ("`a`", "drop and categorical")),
        ("a,y,a\n1,0,2\n", {}, ("columns 1 and 3", "`a`")),
        ("y\n0\n", {}, ("no column is left for features",)),
        ("a,y\n1,0\n", {"drop": "y"}, ("which column is the label", "--label NAME")),
        ("a,y\n", {}, ("no rows",)),
        ("", {}, ("it is empty",)),
        ("1,2\n3,0\n", {}, ("line 1 has numbers alone",)),
        ('a,y\n1,0\n"2,1\n', {}, ("line 3", "quotation marks")),
        ("a;y\n1;0\n", {"sep": ","}, ("line 1 is one field", "--sep ';'")),
        ("a;y\n1,234;0\n2,500;1\n", {}, ("`a`", "thousands or for decimals", "1.234")),
        ("a,y\n1_000,0\n2,1\n", {}, ("`a`", "line 2 '1_000'")),
        ("a,b,y\n1,,0\n2,NaN,1\n", {"impute": "mean"}, ("`b`", "all values are missing")),
        ("a,train,y\n1,maybe,0\n", {}, ("`train`", "line 2 'maybe'")),
        ('a,y\n"1,500",0\n"2,700",1\n', {}, ("`a`", "2 of 2", "thousands or for decimals")),
        ("a;b;y\n1,5;1.200;0\n2;12.500;1\n", {}, ("`b`", "2 of 2", "other columns", "1,234")),
        ("a,d,y\n1,2024-01-31,0\n2,1.2.24 10:30,1\n", {}, ("`d`", "dates", "--drop d")),
        ("# of May\na,y\n1,0\n2,1\n", {}, ("line 1 has 1 field", "2", "delete it")),
        ("sep=;\na;b;y\n1;2;0\n", {}, ("line 1 has 2 fields", "3", "delete it")),
        ("Ost,53,no\nWest,51,yes\n", {"label": "out"}, ("line 1", "(53)", "names of the columns")),
        ("a,y\n1,0\nx,1\n3,0\nx,1\n5,1\n", {}, ("`a`", "line 3 'x'", "--missing x or --drop a")),
    ],
)
def test_a_faulty_file_says_what_to_do(
    tmp_path: Path, text: str, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    one(faults(csv(tmp_path, text), **options), *words)


@pytest.mark.parametrize(
    "options", [{"impute": "medain"}, {"sep": ":"}, {"encoding": "latin-99"}, {"label": "a"}]
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", x=[[1.0]], y=[0])
    with raises("E201"):
        load(tmp_path / "a.npz", **options)


def test_columns_that_say_nothing_are_warned_of(tmp_path: Path, golden: Golden) -> None:
    rows = "".join(f"{row},k{row},7,{row * row},{row % 2}\n" for row in range(12))
    path = csv(tmp_path, f"number,key,same,square,y\n{rows}")
    with warns("W306") as heard:
        load(path, categorical="key")
    golden(heard[0].message)
    # Python shows the line of the program.
    assert heard[0].filename == __file__


def test_columns_to_drop_are_named_as_they_are_typed(tmp_path: Path) -> None:
    rows = "".join(f"{row * row},7,7,{row % 2}\n" for row in range(12))
    path = csv(tmp_path, f'square,blood pressure,"a, b",y\n{rows}')
    with warns("W306") as heard:
        load(path)
    option, typed = shlex.split(str(heard[0].message).rpartition(": ")[2])
    left = load(path, drop=typed)
    assert (option, [each.name for each in left.features]) == ("--drop", ["square"])


@pytest.mark.parametrize("source", ["file", "frame"])
def test_words_that_are_read_as_missing_are_shown(tmp_path: Path, source: str) -> None:
    path = csv(tmp_path, "country,age,y\nDE,40,0\nNA,,1\n,51,0\nDE,60,1\n")
    frame = pandas.read_csv(path, keep_default_na=False)
    with raises("E302", "country", "'NA'", "age") as refusal:
        if source == "file":
            load(path, categorical="country")
        else:
            mq.from_frame(frame, label="y", categorical="country")
    assert "''" not in str(refusal.value)


def test_numbers_that_are_called_as_those_of_rows_are_warned_of() -> None:
    keys = np.random.default_rng(1).permutation(10**6)[:40]
    made = pandas.DataFrame({"PatientID": keys, "income": keys + 1, "y": np.arange(40) % 2})
    with warns("W306", "`PatientID`") as heard:
        mq.from_frame(made, label="y")
    assert "income" not in str(heard[0].message)


def test_labels_clients_and_words_that_may_be_mistakes_are_warned_of(golden: Golden) -> None:
    made = pandas.DataFrame(
        {
            "a": np.arange(40) % 7,
            "ward": ["Innere", "innere "] * 20,
            "site": ["ost", "west"] * 19 + ["wets", "ost"],
            "y": ["no", "yes"] * 19 + ["yse", "No"],
        }
    )
    said = ("'yse'", "'No'", "'wets'", "did you mean `west`", "row 38", "`ward`")
    with warns("W312", *said) as heard:
        mq.from_frame(made, label="y", client="site", categorical="ward")
    golden(heard[0].message)
    # Amounts are all rare, and so are clients of whom all are.
    numbers = made.assign(y=np.linspace(0, 1, 40), site=[f"s{row // 2}" for row in range(40)])
    mq.from_frame(numbers, label="y", client="site", drop="ward")
    mq.from_frame(made[:29], label="y", client="site", drop="ward")


def test_a_value_of_nines_far_from_all_others_is_warned_of() -> None:
    rows = {"y": [0, 1] * 20, "site": ["a", "a", "b", "b"] * 10}
    ages = [18.5 + place // 2 for place in range(40)]
    for marked, mark in ((999.0, "999"), (-99.0, "-99")):
        made = pandas.DataFrame(rows | {"age": [*ages[:39], marked]})
        with warns("W315", f"`age` {mark}", f"missing=['{mark}']"):
            assert mq.from_frame(made, label="y", client="site").x.isfinite().all()
        mq.from_frame(made, label="y", client="site", missing=mark, impute="mean")
    # What is in line with the others, or no number of nines, is a value.
    for value in (99.0, 1000.0):
        mq.from_frame(
            pandas.DataFrame(rows | {"age": [*ages[:39], value]}), label="y", client="site"
        )


def test_names_that_differ_by_spaces_or_points_are_warned_of() -> None:
    def sites(*names: str) -> pandas.DataFrame:
        return pandas.DataFrame(
            {"a": [1, 1, 2, 2] * 10, "y": [0, 0, 1, 1] * 10, "site": names * 20}
        )

    for one, other in (("St. Josef", "St Josef"), ("Haus-Nord", "haus nord"), ("Ulm.", "Ulm")):
        with warns("W312", one, other):
            mq.from_frame(sites(one, other), label="y", client="site")
    mq.from_frame(sites("A+", "A-"), label="y", client="site")


def test_a_table_of_another_program_says_how_to_bring_it(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with raises("E301", "a.xlsx", "CSV", "mq.from_frame"):
        load(tmp_path / "a.xlsx")


def test_a_packed_table_is_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "hosp.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n1,0\n"))
    with raises("E301", "gunzip"):
        load(path, label="y")


def test_differences_that_float32_loses_are_warned_of() -> None:
    # Near 1e9 float32 has steps of 64: of a minute's seconds nothing is left, of an hour's little.
    times = np.arange(60) * np.array([[1.0], [60.0], [3600.0]]) + 1e9
    columns = dict(zip(("minute", "hour", "days"), times, strict=True))
    made = pandas.DataFrame(columns | {"y": np.arange(60) % 2})
    with warns("W306", "`minute`") as heard:
        mq.from_frame(made.sample(frac=1, random_state=1).iloc[:50], label="y")
    assert "days" not in str(heard[0].message)


SITES = "".join(
    f"{site};{ward};{row % 2};{row % 37};{row % 3 % 2}\n"
    for row in range(60)
    for site, ward in [(("Ost", "Süd", "West")[row % 3], "ab"[row % 2])]
)
"""Rows of site, ward, device, age and y."""


def test_columns_that_may_be_the_client_are_proposed(tmp_path: Path, golden: Golden) -> None:
    path = csv(tmp_path, f"site;ward;device_id;age;y\n{SITES}")
    # The likeliest is tried as the client, others as what they are.
    lines = faults(path)
    one(lines, "`site`", "--client site or --categorical site or --drop site")
    one(lines, "`ward`", "--categorical ward or --client ward or --drop ward")
    assert lines[-1] == "Try: --client site --categorical ward"
    with warns("W304", "`site` (3 values)", "`ward`", "`device_id`", "--client site") as heard:
        load(path, categorical="site,ward")
    golden(heard[0].message)
    with warns("W304", "--client device_id"):
        load(path, drop=["site", "ward"])
    named = load(path, client="device_id", drop="site,ward")
    assert named.client is not None
    assert [each.name for each in named.features] == ["age"]


@pytest.mark.parametrize(
    ("name", "values", "proposed"),
    [
        ("HospitalNr", [7, 7, 9] * 10, True),
        ("Sites", ["a", "b", "c"] * 10, True),
        ("patient", list(range(30)), False),
        ("site", ["a"] * 30, False),
        ("site", np.linspace(0, 1, 30).round(3).tolist(), False),
        ("websites", [1, 2, 3] * 10, False),
        ("age", [1, 2, 3] * 10, False),
    ],
)
def test_a_client_has_a_name_few_values_and_rows_enough(
    name: str, values: list[Any], proposed: bool
) -> None:
    made = pandas.DataFrame({name: values, "a": np.arange(30) % 4, "y": np.arange(30) % 2})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        mq.from_frame(made, label="y", categorical=[name])
    said = [str(each.message) for each in heard if "W304" in str(each.message)]
    assert len(said) == proposed
    assert all(f"client='{name}'" in each for each in said)


def test_a_file_without_a_client_says_that_clients_are_made_up(tmp_path: Path) -> None:
    with warns("W304", "--client COLUMN", "`a`"):
        load(csv(tmp_path, "a,sex,y\n" + "1,w,0\n2,m,1\n" * 9), categorical="sex")
    with warns("W304", "--client COLUMN"):
        load(csv(tmp_path, "a,y\n" + "1,0\n2,1\n" * 9))


LABELS = {"0.0 1.0 1.0 0.0": (), "1.0 2.0 10.0 1.0": ("1", "2", "10")}


@pytest.mark.parametrize("labels", LABELS)
def test_few_whole_floats_are_classes_unless_a_regression_is_asked_for(
    tmp_path: Path, labels: str, golden: Golden
) -> None:
    values = list(map(float, labels.split()))
    path = csv(tmp_path, "y,a\n" + "".join(f"{each},{each}\n" for each in labels.split()))
    made = pandas.DataFrame({"y": values, "a": [1, 2, 3, 4]})
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1)), y=values)
    ways = {
        "file": lambda **given: load(path, **given),
        "frame": lambda **given: mq.from_frame(made, label="y", **given),
        "npz": lambda **given: load(tmp_path / "a.npz", **given),
        "arrays": lambda **given: mq.from_arrays(np.zeros((4, 1)), values, **given),
    }
    numbers = np.unique(values, return_inverse=True)[1].tolist()
    for way in ways.values():
        with warns("W305", "regression") as heard:
            dataset = way()
        (said,) = [each.message for each in heard if str(each.message).startswith("W305")]
        if not LABELS[labels]:
            golden(said)
        asked = way(task="classification")
        for each in (dataset, asked):
            assert (each.y.tolist(), each.class_names) == (numbers, LABELS[labels])
        amounts = way(task="regression")
        assert (amounts.y.tolist(), amounts.classes) == (values, None)


def test_many_whole_numbers_are_asked_about_too(tmp_path: Path) -> None:
    path = csv(tmp_path, "days,a\n" + "".join(f"{row % 30},{row % 7}\n" for row in range(90)))
    with warns("W305", "`days`", "30", "--task regression"):
        assert load(path, label="days").classes == 30
    assert load(path, label="days", task="classification").classes == 30
    assert load(path, label="days", task="regression").y.dtype == torch.float32
    # Floats that are many make a regression, as those that are not whole do.
    made = pandas.DataFrame({"days": np.arange(90.0) % 30, "a": np.arange(90) % 7})
    assert mq.from_frame(made, label="days").classes is None


def test_words_make_no_regression(tmp_path: Path) -> None:
    lines = faults(csv(tmp_path, "y,a\nno,1\n3,2\n"), task="regression")
    one(lines, "`y`", "line 2 'no'", "--task classification")
    with raises("E302"):
        mq.from_arrays([[1.0]], ["no"], task="regression")
    with raises("E201", "'regresion'"):
        mq.from_arrays([[1.0]], [0], task="regresion")


def test_further_texts_that_mean_missing_stay_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    path = csv(tmp_path, "y,a,b\n0,k.A.,u\n1,2,-9\n0,NA,\n1,4,u\n")
    given = {"missing": ("K.A.", "-9"), "categorical": ("b",), "impute": "mean"}
    add("hosp", path, table=TableOptions(**given))
    columns = {"y": [0, 1, 0, 1], "a": ["k.A.", "2", None, "4"], "b": ["u", "-9", None, "u"]}
    made = mq.from_frame(pandas.DataFrame(columns), label="y", **given)
    for dataset in (load(path, **given), load("hosp"), made):
        # The usual texts mean it as well.
        assert dataset.x.isnan().tolist() == [[True, False], [False, True], [True] * 2, [False] * 2]
        assert dataset.layout.missing == ("K.A.", "-9")
        assert dataset.features[1].categories == ("u",)


NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32))
WORDS = st.one_of(st.none(), st.sampled_from(["a", "é", "b c", '"', "x;y", "10", "9"]))


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(NUMBERS, WORDS, st.sampled_from("uvw")), min_size=2, max_size=9))
def test_what_is_written_is_read_from_a_file_as_from_a_frame(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float | None, str | None, str]]
) -> None:
    columns = {
        "n": [row[0] for row in rows],
        "w": [row[1] for row in rows],
        "y": [row[2] for row in rows],
    }
    # A column without a value is refused.
    columns["n"][0], columns["w"][0] = 0.5, "a"
    made = pandas.DataFrame(columns)
    path = tmp_path_factory.mktemp("table") / "t.csv"
    made.to_csv(path, index=False)
    options = {"label": "y", "categorical": ["w"], "impute": "mean"}
    by_file, by_frame = load(path, **options), mq.from_frame(made, **options)
    assert np.array_equal(by_file.x, by_frame.x, equal_nan=True)
    assert np.array_equal(by_file.x[:, 0], np.float32(made["n"]), equal_nan=True)
    feature = by_file.features[1]
    texts = [feature.categories[int(place)] for place in by_file.x[:, 1] if not place.isnan()]
    assert texts == [word for word in columns["w"] if word is not None]
    assert [by_file.class_names[place] for place in by_file.y] == columns["y"]
    assert by_file.features == by_frame.features


def test_a_table_stays_itself_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    path = csv(tmp_path, HOSPITAL)
    assert add("hosp", path, table=OPTIONS).impute == "median"
    assert_hospital(load("hosp"))
    assert cache.describe("hosp").features == list(load("hosp").features)
    # What stands in for missing values may be changed later, and columns may not.
    assert load("hosp", impute="mean").impute == "mean"
    with raises("E201"):
        load("hosp", label="age")


@pytest.mark.parametrize("name", ["Alter, Jahre", 'a "b", c', "age", "blood pressure"])
def test_names_with_commas_are_kept_together_by_quotation_marks(tmp_path: Path, name: str) -> None:
    header = in_one_text([name, "color, old", "y"])
    rows = [f"{number},{'A' if number % 3 else 'B'},{number % 2}" for number in range(12)]
    path = csv(tmp_path, "\n".join([header, *rows]))
    with raises("E302") as refusal:
        load(path, drop=[name])
    # What the message proposes is typed as it stands there.
    *_, option, typed = shlex.split(str(refusal.value).rpartition("Try: ")[2])
    assert (option, typed) == ("--categorical", '"color, old"')
    left = load(path, drop=in_one_text([name]), categorical=typed)
    assert [each.name for each in left.features] == ["color, old"]
    data = Data(
        name=str(path), clients=2, drop_columns=(name,), categorical_columns=("color, old",)
    )
    assert federation_of(data)[0].features == left.features
    assert toml.parse(toml.read(toml.dump(Config(data=data)))).data == data


def test_settings_read_a_table_as_options_do(tmp_path: Path) -> None:
    path = csv(tmp_path, HOSPITAL * 1 + HOSPITAL.partition("\n")[2])
    data = Data(
        name=str(path),
        label_column="outcome",
        client_column="site",
        drop_columns=("id",),
        categorical_columns=("sex", "ward"),
        impute="median",
    )
    federation, resolved = federation_of(data)
    assert (federation.names, federation.impute) == (("Ost", "Süd"), "median")
    assert [each.name for each in federation.features] == ["age", "sex", "ward", "crp"]
    assert (resolved.name, resolved.partition) == (str(path.resolve()), "client")
    other, _ = federation_of(Data(**vars(data) | {"impute": "mean"}))
    assert other.fingerprint() != federation.fingerprint()


def test_labels_may_be_words_or_booleans() -> None:
    x = np.zeros((3, 2))
    for words in (["sick", "well", "sick"], pandas.Series(["sick", "well", "sick"])):
        dataset = mq.from_arrays(x, words)
        assert (dataset.y.tolist(), dataset.classes) == ([0, 1, 0], 2)
        assert dataset.class_names == ("sick", "well")
    dataset = mq.from_arrays(x, np.array([True, True, True]))
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 1, 1], ("False", "True"))


def test_words_are_labels_in_an_npz_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.array(["b", "a"]))
    assert load(tmp_path / "a.npz").class_names == ("a", "b")


def test_only_tables_may_lack_a_value() -> None:
    x, columns = [[1.0, np.nan]], (Feature("a"), Feature("b"))
    assert mq.from_arrays(x, [0], features=columns).x.isnan().tolist() == [[False, True]]
    for options in ({}, {"features": columns[:1]}):
        with raises("E302"):
            mq.from_arrays(x, [0], **options)
    with raises("E302"):
        mq.from_arrays([[1.0, np.inf]], [0], features=columns)


def test_a_dataset_is_one_short_line() -> None:
    dataset = mq.from_arrays(np.zeros((3, 2)), [0, 1, 0], ["a", "b", "a"], "mine")
    assert repr(dataset) == "<Dataset mine: 3 samples of 2, 2 classes, 2 clients>"


def saved(folder: Path, columns: dict[str, Any], kinds: dict[str, Any], files: int = 1) -> None:
    """Write a folder as `datasets` does with `save_to_disk`."""
    folder.mkdir(parents=True)
    table = pyarrow.table(columns)
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    size = -(-len(table) // files)
    for number, name in enumerate(names):
        with pyarrow.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table.slice(number * size, size))
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": kinds}))


LABEL = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}


def test_images_of_hugging_face_are_read_with_their_splits(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    cells = [{"bytes": png(each), "path": None} for each in pixels]
    kinds = {"image": {"_type": "Image"}, "label": LABEL, "id": {"dtype": "string"}}
    for split, rows in {"train": slice(0, 3), "test": slice(3, 5)}.items():
        columns = {"image": cells[rows], "label": [0, 2, 1, 2, 0][rows], "id": list("abcde")[rows]}
        saved(tmp_path / "animals" / split, columns, kinds)
    (tmp_path / "animals" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    dataset = load(tmp_path / "animals")
    order = [3, 4, 0, 1, 2]
    assert np.array_equal(dataset.x[:, 0], pixels[order])
    assert (dataset.y.tolist(), dataset.class_names) == ([2, 0, 0, 2, 1], ("cat", "dog", "owl"))
    assert dataset.train is not None
    assert dataset.train.tolist() == [False, False, True, True, True]
    named = load(tmp_path / "animals", client="id")
    assert named.names == tuple("abcde")


def test_tables_of_hugging_face_are_tables(tmp_path: Path) -> None:
    kinds = {"a": {"dtype": "float64"}, "kind": LABEL, "b": [{"dtype": "int64"}], "u": {}}
    columns = {"a": [1.0, 2.0, 3.0], "kind": [1, 0, 1], "b": [[1], [2], []], "u": ["p", "q", "p"]}
    saved(tmp_path / "t", columns, kinds, files=2)
    dataset = load(tmp_path / "t", client="u", drop="b")
    assert dataset.x.tolist() == [[1.0], [2.0], [3.0]]
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 1], ("cat", "dog"))
    one(faults(tmp_path / "t", client="u"), "`b`", "--drop b")


@pytest.mark.parametrize("name", ["../../secret.arrow", "/etc/passwd"])
def test_a_folder_reads_no_file_outside_of_it(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "t", {"a": [1.0], "y": [0]}, {"a": {}, "y": {}})
    (tmp_path / "t" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with raises("E301"):
        load(tmp_path / "t")


def test_an_image_outside_of_the_file_is_not_read(tmp_path: Path) -> None:
    cells = [{"bytes": None, "path": "/etc/passwd"}]
    kinds = {"image": {"_type": "Image"}, "y": {}}
    saved(tmp_path / "t", {"image": cells, "y": [0]}, kinds)
    with raises("E301"):
        load(tmp_path / "t")


def test_an_empty_file_has_one_fault(tmp_path: Path) -> None:
    assert len(faults(csv(tmp_path, ""))) == 2


def test_a_wrong_separator_hides_no_other_fault(tmp_path: Path) -> None:
    path = csv(tmp_path, "id;sex;out\nP1;w;yes\nP2;m;no\nP3;w;no\n")
    lines = faults(path, sep="|", label="out", drop="idd", categorical="sexx")
    one(lines, "line 1 is one field", "--sep ';'")
    one(lines, "drop", "`idd`", "did you mean `id`")
    one(lines, "categorical", "`sexx`", "did you mean `sex`")
    one(lines, "`id`", "--drop id")


def test_rows_of_separators_alone_are_no_rows(tmp_path: Path) -> None:
    dataset = load(csv(tmp_path, "a;b;y\n1;2;0\n;;\n\n3;4;1\n ; ;\n;;;;\n"))
    assert dataset.x.tolist() == [[1, 2], [3, 4]]
    one(faults(csv(tmp_path, "a;b;y\n1;2;0\n;;\nx;4;1\n")), "`a`", "line 4 'x'")


def test_quoted_decimal_commas_are_read_where_commas_separate(tmp_path: Path) -> None:
    dataset = load(csv(tmp_path, 'a,y\n"7,9",0\n8.5,1\n"12,25",1\n'))
    assert dataset.x.flatten().tolist() == [7.9000000953674316, 8.5, 12.25]


@pytest.mark.parametrize(
    ("column", "thousands"),
    [
        (["1.200", "12.500"], True),
        (["1.200", "850", "1.234.567"], True),
        (["1.200", "3.5"], False),
        (["0.125", "0.250"], False),
        (["1.61", "1.200"], False),
    ],
)
def test_points_for_thousands_are_told_by_commas_in_other_columns(
    tmp_path: Path, column: list[str], thousands: bool
) -> None:
    rows = [f"{value};1,5;{row % 2}" for row, value in enumerate(column)]
    path = csv(tmp_path, "\n".join(["a;b;y", *rows]))
    if thousands:
        one(faults(path), "`a`", "thousands", "1234 or 1,234")
    else:
        assert load(path).x[:, 0].tolist() == pytest.approx(list(map(float, column)))


def test_all_words_of_a_column_are_listed_and_marks_of_missing_values_pointed_at(
    tmp_path: Path, golden: Golden
) -> None:
    rows = [f"{'wmd'[k % 3]};{k % 7 + 20};{k % 2}" for k in range(20)]
    rows += ["k.A.;31;0", "-;31;1", "-;unbekannt;1", "w;unbekannt;0", "w;40;0"]
    path = csv(tmp_path, "\n".join(["sex;age;y", *rows]))
    with raises("E302", "'w'", "'m'", "'d'", "'k.A.'", "'-'", "--missing -,k.A.") as refusal:
        load(path)
    golden(refusal.value)
    assert "--missing unbekannt" in str(refusal.value).splitlines()[-1]
    # What could be a limit of detection is offered, and not proposed.
    limit = csv(tmp_path, "a;y\n" + "1;0\n2;1\n" * 9 + "<0.3;1\n")
    with raises("E302", "--missing '<0.3'", "correct these values") as refusal:
        load(limit)
    assert "Try:" not in str(refusal.value)


def test_categories_that_may_mean_missing_values_are_warned_of(
    tmp_path: Path, golden: Golden
) -> None:
    rows = [f"{'wm-'[k % 3]};{k % 5};{k % 2}" for k in range(30)]
    path = csv(tmp_path, "\n".join(["sex;a;y", *rows]))
    with warns("W315", "`sex`", "'-'", "--missing -") as told:
        load(path, categorical="sex")
    golden(next(each.message for each in told if str(each.message).startswith("W315")))
    load(path, categorical="sex", missing="-", impute="median")


def test_whole_numbers_that_all_differ_name_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    case = 100_000 + np.cumsum(rng.integers(1, 9, 120))
    columns = {"case": case, "age": rng.integers(20, 90, 120), "mass": rng.normal(80, 9, 120)}
    rows = [
        f"{a};{b};{c};{k % 2}" for k, (a, b, c) in enumerate(zip(*columns.values(), strict=True))
    ]
    with warns("W306", "`case`") as told:
        load(csv(tmp_path, "\n".join(["case;age;mass;y", *rows])))
    text = next(str(each.message) for each in told if str(each.message).startswith("W306"))
    assert "`age`" not in text
    assert "`mass`" not in text
    # A few whole numbers may differ and measure something.
    mq.from_frame(pandas.DataFrame({"mass": range(1000, 1900, 30), "y": [0, 1] * 15}), label="y")


def test_columns_of_few_whole_numbers_may_be_the_client_and_categories_are_not(
    tmp_path: Path,
) -> None:
    rows = [f"{k % 6 + 101};{'ab'[k % 2]};{k % 2};{k / 7};{k % 2}" for k in range(60)]
    with warns("W304", "`KH` (6 values)") as told:
        load(csv(tmp_path, "\n".join(["KH;sex;flag;v;y", *rows])), categorical="sex")
    text = next(str(each.message) for each in told if str(each.message).startswith("W304"))
    assert "`sex`" not in text
    assert "`flag`" not in text
