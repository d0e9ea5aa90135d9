"""Configurations: what is written is read, and what is wrong is refused, all of it, by name."""

import dataclasses
import math
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.config.resolve import Training, trainings
from masquerade.config.settings import SECTIONS, Compute, Config, Data, Evaluate, Privacy, Train
from masquerade.config.toml import (
    Limits,
    apply,
    complete,
    dump,
    like_of,
    limits,
    load,
    method_of,
    parse,
    read,
    read_file,
    title_of,
    value_of,
)
from masquerade.core import Method, Stage
from masquerade.core.old_words import ELSEWHERE, RENAMED
from masquerade.errors import MasqueradeError
from masquerade.methods import DMPFL, METHODS, FedAvg, FedProx
from masquerade.tables.words import words_in
from tests.messages import Golden
from tests.reliability import publish
from tests.support import raises

Place = tuple[str, ...]
"""Where a setting stands: section, perhaps method, key."""


def refusal(tables: dict[str, Any]) -> str:
    """Return the text of the refusal; anything but E201 fails the test."""
    with pytest.raises(MasqueradeError) as fault:
        parse(tables)
    assert fault.value.code == "E201"
    return str(fault.value)


def with_methods(*names: str, **method: Any) -> Config:
    return parse({"methods": list(names), "method": method})


def test_an_empty_configuration_is_the_default() -> None:
    assert parse({}) == Config()


def test_a_configuration_survives_toml() -> None:
    method: dict[str, Any] = {"fedprox": {"mu": 0.25}, "dmpfl": {"phases": [0.5, 0.5, 0.0]}}
    config = Config(
        methods=tuple(METHODS),
        data=Data(
            name="mine.npz",
            clients=3,
            partition="client",
            split=(0.5, 0.25, 0.25),
            seed=7,
            budgets=(0.5, 1.0),
            novel=0.5,
            fraction=0.5,
            merge=False,
            normalize="0.5:0.5",
            partition_per_seed=True,
            normalize_per_client=True,
            label_column="outcome",
            client_column="site",
            drop_columns=("id",),
            categorical_columns=("sex", "ward"),
            impute="median",
            sep=";",
            encoding="latin-1",
            missing=("k.A.",),
            task="regression",
        ),
        train=Train(
            model="mlp",
            rounds=3,
            batch_size=4,
            participation=0.25,
            lr_decay=0.9,
            seeds=(1, 2),
            clients_per_round=2,
            available="cycle:2",
            drop=0.5,
            weights="mine.pth",
            message_dtype="int8",
            class_weights="balanced",
            aggregation="trimmed_mean",
            trim=0.1,
            clip_updates=2.0,
            min_contributors=3,
        ),
        evaluate=Evaluate(
            every=0,
            degrees=(0, 50),
            draws=2,
            split="validation",
            corruptions=("fog",),
            severities=(5,),
            bandwidth="8kbps",
            metrics=("auroc",),
            prior=("own", "batch"),
        ),
        compute=Compute(
            engine="loop",
            device="cpu",
            processes=2,
            clients_per_chunk=8,
            threads=2,
            precision="tf32",
            store="host",
            commit_every=0.0,
            memory=2.5,
            replay="off",
        ),
        privacy=Privacy("client", 3.0, 1e-6, 2.0, 0.5),
        method=method | {"local_epochs": 2},
    )
    for name, cls in SECTIONS.items():
        default, chosen = vars(cls()), vars(getattr(config, name))
        assert [key for key in default if default[key] == chosen[key]] == []
    again = parse(read(dump(config)))
    for name in ("methods", *SECTIONS):
        assert getattr(again, name) == getattr(config, name)
    assert trainings(again) == trainings(config)
    assert complete(again) == complete(config)


def test_what_is_written_is_complete() -> None:
    tables = read(dump(Config(methods=tuple(METHODS))))
    for name, cls in SECTIONS.items():
        assert set(tables[name]) == {each.name for each in dataclasses.fields(cls)}
    for name, line in METHODS.items():
        budget = {"like"} if line.like else set()
        assert set(tables["method"][name]) == budget | {
            each.name for each in dataclasses.fields(line.method)
        }


@pytest.mark.parametrize(
    ("tables", "wrong", "meant"),
    [
        ({"trian": {}}, "`trian`", "`train`"),
        ({"train": {"round": 3}}, "`train.round`", "`rounds`"),
        ({"data": {"Budget": [1.0]}}, "`data.Budget`", "`budgets`"),
        (
            {"method": {"fedavg": {"tun_epoch": 3}}},
            "tun_epoch`",
            "`tune_epochs`",
        ),
        ({"methods": ["dmpfl+"]}, "`dmpfl+`", "`dmpfl`"),
        ({"method": {"fedpox": {"mu": 3.0}}}, "`fedpox`", "`fedprox`"),
        ({"compute": {"engine": "batch"}}, "`compute.engine`", "`batched`"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest_known(
    tables: dict[str, Any], wrong: str, meant: str
) -> None:
    text = refusal(tables)
    assert wrong in text
    assert f"did you mean {meant}?" in text


@pytest.mark.parametrize(
    ("section", "key", "told"),
    [
        ("method", "rate", "`rate` is `lr` here"),
        ("train", "rate", "`rate` is `method.lr` here"),
        ("train", "batch", "`batch` is `batch_size` here"),
        ("compute", "width", "`width` is `clients_per_chunk` here"),
        ("method", "pull", "`pull` is `lam` of ditto, pfedme and `mu` of fedprox here"),
        ("method", "learning_rate", "`learning_rate` is `method.lr` here"),
        ("train", "join_ratio", "`join_ratio` is `train.participation` here"),
        ("data", "num_clients", "`num_clients` is `data.clients` here"),
        ("train", "global_rounds", "`global_rounds` is `train.rounds` here"),
        ("train", "bs", "`bs` is `train.batch_size` here"),
    ],
)
def test_a_word_of_older_versions_or_of_others_gets_a_hint(
    section: str, key: str, told: str
) -> None:
    assert refusal({section: {key: 1}}).endswith(told)


def test_hints_name_settings_that_there_are() -> None:
    settings = {f"{section}.{key}" for section, cls in SECTIONS.items() for key in vars(cls())}
    settings |= {f"method.{key}" for line in METHODS.values() for key in vars(line.method())}
    settings |= {f"stage.{each.name}" for each in dataclasses.fields(Stage)}
    for section, words in RENAMED.items():
        for old, new in words.items():
            assert f"{section.split('.')[0]}.{new}" in settings
            if "." in section:
                assert new in vars(METHODS[section.split(".")[1]].method())
                assert old not in vars(METHODS[section.split(".")[1]].method())
    assert {each.partition("=")[0] for each in ELSEWHERE.values()} <= settings


@pytest.mark.parametrize(
    ("tables", "home"),
    [
        ({"train": {"lr": 0.1}}, "`method.lr` for local, local_flops, "),
        ({"data": {"rounds": 3}}, "`train.rounds`"),
        ({"method": {"lam": 1.0}}, "one for pfedme, ditto"),
    ],
)
def test_a_key_of_another_section_is_refused_with_its_home(
    tables: dict[str, Any], home: str
) -> None:
    assert f"; there is {home}" in refusal(tables)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("train.rounds", 0, "`train.rounds` is 0; it must be at least 1"),
        ("train.participation", 2.0, "is 2.0; it must be above 0 and at most 1"),
        ("data.novel", 1.0, "is 1.0; it must be at least 0 and below 1"),
        ("evaluate.severities", 6, "is 6; it must be at least 1 and at most 5"),
    ],
)
def test_a_number_out_of_range_is_refused_in_words(key: str, value: float, said: str) -> None:
    section, name = key.split(".")
    assert said in refusal({section: {name: value}})


def test_a_fault_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nrouns = 3\n")
    with pytest.raises(MasqueradeError) as fault:
        load(path)
    assert str(fault.value).startswith(f"E201 {path}: unknown key `train.rouns`")


def test_all_faults_are_listed_at_once() -> None:
    tables = {
        "methods": ["fedavg", "fedpox"],
        "trian": {},
        "data": {"clients": -1, "spilt": [1, 0, 0], "split": [0.9, 0.9, 0.9]},
        "train": {"rounds": "many", "seeds": []},
        "evaluate": {"degrees": [0, 101], "split": "tets"},
        "compute": {"device": "gpu", "processes": 0},
        "method": {"fedavg": {"lr": -0.1, "mu": 1.0}},
    }
    text = refusal(tables)
    for part in (
        "`fedpox`",
        "`trian`",
        "`data.clients`",
        "`data.spilt`",
        "`data.split`",
        "`train.rounds`",
        "`train.seeds`",
        "`evaluate.degrees`",
        "`evaluate.split`",
        "`compute.device`",
        "`compute.processes`",
        "lr`",
        "mu`",
    ):
        assert text.count(part) == 1, part


def test_words_that_name_a_model_or_a_partition_are_faults_like_others() -> None:
    text = refusal({"train": {"model": "mpl", "rounds": 0}, "data": {"partition": "idd"}})
    assert "mpl" in text
    assert "idd" in text
    assert "`train.rounds`" in text


@pytest.mark.parametrize("methods", [[], [3], {"fedavg": 1}, True, ["fedavg", None]])
def test_methods_must_be_names(methods: Any) -> None:
    assert "`methods`" in refusal({"methods": methods})


def test_what_is_named_twice_is_refused() -> None:
    """Two equal rows would pass for two seeds that agree."""
    assert "`methods`" in refusal({"methods": ["fedavg", "fedavg"]})
    assert "`train.seeds`" in refusal({"train": {"seeds": [1, 2, 1]}})


@pytest.mark.parametrize("name", [*SECTIONS, "method"])
def test_a_section_that_is_no_table_is_refused(name: str) -> None:
    for value in (3, "digits", [1]):
        assert f"`{name}`" in refusal({name: value})


@pytest.mark.parametrize(
    "split", [[0.5, 0.5], [1.2, -0.1, -0.1], [0.5, 0.2, 0.2], [], [math.nan] * 3]
)
def test_shares_that_make_no_whole_are_refused(split: list[float]) -> None:
    assert "`data.split`" in refusal({"data": {"split": split}})


@pytest.mark.parametrize("degrees", [[], [20, 100], [-1, 0], [0, 101]])
def test_degrees_of_shift_start_with_none_and_end_at_all(degrees: list[int]) -> None:
    """Accuracy on own data is read off degree 0, so a run without it has no result."""
    assert "`evaluate.degrees`" in refusal({"evaluate": {"degrees": degrees}})


@pytest.mark.parametrize("phases", [[], [1.0], [0.5, 0.5], [-1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
def test_phases_are_three_shares(phases: list[float]) -> None:
    tables = {"methods": ["dmpfl"], "method": {"dmpfl": {"phases": phases}}}
    assert "phases`" in refusal(tables)


def test_validation_needs_validation_data() -> None:
    tables = {"data": {"split": [0.8, 0, 0.2]}, "evaluate": {"split": "validation"}}
    assert "no validation data" in refusal(tables)


def test_whole_numbers_are_numbers_and_one_is_a_list() -> None:
    config = parse({"data": {"split": [0, 0, 1]}, "train": {"participation": 1, "seeds": 4}})
    assert config.data.split == (0.0, 0.0, 1.0)
    assert isinstance(config.train.participation, float)
    assert config.train.seeds == (4,)


def test_a_number_beyond_all_floats_is_refused() -> None:
    assert "`compute.commit_every`" in refusal({"compute": {"commit_every": 10**400}})


def test_a_table_of_a_method_that_is_not_run_is_checked_too() -> None:
    """A file serves several commands: a typo must not wait for the one that reads it."""
    assert "pul`" in refusal({"methods": ["fedavg"], "method": {"fedprox": {"pul": 1.0}}})


def test_text_that_is_no_toml_is_refused_with_its_place() -> None:
    with raises("E201", "line 2"):
        read("a = 1\nb = \n")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with raises("E201", "no.toml"):
        read_file(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("train.rounds=7", "train", "rounds", 7),
        ("train.lr_decay = 0.5", "train", "lr_decay", 0.5),
        ("train.seeds=[1, 2]", "train", "seeds", (1, 2)),
        ("evaluate.corruptions=['fog']", "evaluate", "corruptions", ("fog",)),
        ("data.partition=dirichlet:0.3:capped", "data", "partition", "dirichlet:0.3:capped"),
        ('data.name="my data.npz"', "data", "name", "my data.npz"),
        ("data.name=a=b.npz", "data", "name", "a=b.npz"),
    ],
)
def test_a_setting_is_toml_or_a_word(text: str, section: str, key: str, value: Any) -> None:
    assert getattr(getattr(parse(apply({}, [text])), section), key) == value


def test_settings_reach_methods_by_name_or_all_that_have_them() -> None:
    tables: dict[str, Any] = {"methods": ["fedavg", "fedprox", "dmpfl"]}
    config = parse(apply(tables, ["method.lr=0.5", "method.mu=2", "method.dmpfl.lr=0.25"]))
    assert method_of("fedavg", config) == FedAvg(lr=0.5)
    assert method_of("fedprox", config) == FedProx(lr=0.5, mu=2.0)
    assert method_of("dmpfl", config) == DMPFL(lr=0.25)


def test_a_setting_that_no_method_has_is_refused() -> None:
    assert "method.mu" in refusal({"methods": ["fedavg", "dmpfl"], "method": {"mu": 1.0}})


def test_a_setting_for_all_stands_over_what_a_file_says_of_one() -> None:
    file = {"methods": ["fedavg", "fedprox"], "method": {"fedprox": {"lr": 0.9, "mu": 3.0}}}
    config = parse(apply(file, ["method.lr=0.5"]))
    assert method_of("fedprox", config) == FedProx(lr=0.5, mu=3.0)
    later = parse(apply(file, ["method.lr=0.5", "method.fedprox.lr=0.25"]))
    assert method_of("fedprox", later).lr == 0.25
    assert file["method"] == {"fedprox": {"lr": 0.9, "mu": 3.0}}


@pytest.mark.parametrize("text", ["rounds=3", "train.rounds", "=3", "train.=3", ".rounds=3", ""])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with raises("E201", "section.key=value"):
        apply({}, [text])


def test_a_setting_below_a_value_is_refused() -> None:
    with raises("E201"):
        apply({"train": {"rounds": 3}}, ["train.rounds.more=3"])


def test_views_share_one_training() -> None:
    config = with_methods("fedavg", "dmpfl_plus", "fedavg_ft", "dmpfl", fedavg={"lr": 0.5})
    assert trainings(config) == [
        Training(FedAvg(lr=0.5), ("fedavg", "fedavg_ft"), 1),
        Training(DMPFL(), ("dmpfl_plus", "dmpfl"), 1),
    ]


def test_views_with_settings_of_their_own_are_trained_apart() -> None:
    config = with_methods("fedavg", "fedavg_ft", fedavg={"lr": 0.5}, fedavg_ft={"lr": 0.25})
    assert trainings(config) == [
        Training(FedAvg(lr=0.5), ("fedavg",), 1),
        Training(FedAvg(lr=0.25), ("fedavg_ft",), 1),
    ]


TABLES = complete(parse({"methods": list(METHODS)}))
"""A valid configuration with every setting of every section and of every method."""

PLACES: list[Place] = [
    *((section, key) for section in SECTIONS for key in TABLES[section]),
    *(("method", name, key) for name in TABLES["method"] for key in TABLES["method"][name]),
]
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(),
    str: st.text(),
    dict: st.just({}),
    type(None): st.none(),
}
FITTING = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}


def at(tables: dict[str, Any], path: Place) -> Any:
    for step in path:
        tables = tables[step]
    return tables


def put(path: Place, value: Any) -> dict[str, Any]:
    """Return the valid configuration with one value changed."""
    tables = deepcopy(TABLES)
    at(tables, path[:-1])[path[-1]] = value
    return tables


def wrong_type(path: Place) -> st.SearchStrategy[Any]:
    value = at(TABLES, path)
    # The one list that is empty by default holds names.
    kind = type([*value, ""][0]) if isinstance(value, list) else type(value)
    wrong = st.one_of(*(SCALARS[each] for each in SCALARS if each not in FITTING[kind]))
    return st.lists(wrong, min_size=1, max_size=3) if isinstance(value, list) else wrong


def out_of_range(bounds: tuple[float, float], like: Any) -> st.SearchStrategy[Any]:
    low, high = bounds
    beyond = [low - 1, *([high + 1] if high < math.inf else [])]
    if isinstance(like, float):
        return st.sampled_from([*beyond, -math.inf, math.nan, 1e308, -1e308])
    return st.sampled_from([*(int(value) for value in beyond), 10**25, -(10**25), 1 << 20_000])


def unknown_key(known: dict[str, Any]) -> st.SearchStrategy[str]:
    # A setting of a method may also stand under no name, for all of them.
    taken = {*known, *METHODS, *(path[-1] for path in PLACES if path[0] == "method")}
    return st.text(min_size=1).filter(lambda key: key not in taken)


def limits_at(path: Place) -> Limits:
    """Return the limits of a setting: its section's, or its method's."""
    cls = METHODS[path[1]].method if path[0] == "method" else SECTIONS[path[0]]
    return limits(cls, path[0])


@st.composite
def mutations(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, dict[str, Any]]:
    """Draw a configuration with one fault, and the key that is at fault."""
    path: Place = draw(st.sampled_from(PLACES))
    name, like, within = f"{path[0]}.{path[-1]}", at(TABLES, path), limits_at(path)
    kinds = ["type", "key"] + ["text"] * isinstance(like, str)
    kinds += ["range"] * (name in within.bounds) + ["choice"] * (name in within.choices)
    kind = draw(st.sampled_from(kinds))
    if kind == "key":
        cut = draw(st.integers(0, len(path) - 1))
        key = draw(unknown_key(at(TABLES, path[:cut])))
        return key, put((*path[:cut], key), draw(st.sampled_from([1, 0.5, "x", True, [1]])))
    if kind == "text":
        return path[-1], put(path, draw(st.sampled_from(["a" * 5000, "a\0b", "a\x1b[2J", "\n"])))
    if kind == "range":
        return path[-1], put(path, draw(out_of_range(within.bounds[name], like)))
    if kind == "choice":
        # A list may be written with commas, so that a text of no word is an empty one.
        words = words_in if isinstance(like, (list, tuple)) else (lambda text: [text])
        known = set(within.choices[name])
        word = draw(st.text().filter(lambda text: not set(words(text)) <= known))
        return path[-1], put(path, word)
    return path[-1], put(path, draw(wrong_type(path)))


HELP = re.compile(
    r"did you mean|there (are|is)|choose from|known are|must be|give |write |leave it out"
)
"""How a refusal goes on: with what there is, what fits, or what to do."""


def check_refusal(mutation: tuple[str, dict[str, Any]]) -> float:
    """Hold a refusal against what it owes a person; return the seconds that it took."""
    key, tables = mutation
    began = time.process_time()
    said = refusal(tables)
    seconds = time.process_time() - began
    assert f"{key[:80]}`" in said
    assert HELP.search(said)
    assert len(said) < 10_000
    assert seconds < 2
    return seconds


@settings(max_examples=400, deadline=None)
@given(mutations())
def test_every_mutation_of_a_valid_configuration_is_refused_by_name(
    mutation: tuple[str, dict[str, Any]],
) -> None:
    check_refusal(mutation)


@pytest.mark.drill
def test_a_thousand_broken_configurations_are_refused_with_key_range_and_suggestion() -> None:
    taken: list[float] = []

    @settings(max_examples=1000, deadline=None)
    @given(mutations())
    def refused(mutation: tuple[str, dict[str, Any]]) -> None:
        taken.append(check_refusal(mutation))

    refused()
    assert len(taken) >= 1000
    figures = {"configurations": len(taken), "slowest, s of CPU": round(max(taken), 3)}
    publish("configurations", "pytest tests/config/test_toml.py -m drill", figures)


HOSTILE = {
    "no UTF-8": b"[train]\nmodel = '\xff'",
    "nested lists": b"x = " + b"[" * 100_000,
    "nested tables": b"[" + b".".join([b"a"] * 50_000) + b"]",
    "a long number": b"[train]\nrounds = " + b"9" * 5000,
    "a long number in hexadecimal": b"[train]\nrounds = 0x" + b"f" * 20_000,
    "too many bytes": b"#" * (1 << 21),
    "NUL": b"[data]\nname = 'a\0b'",
    "escaped NUL": b'[data]\nname = "a\\u0000b"',
    "a base with NUL": b'base = "a\\u0000b"',
    "a base of a long name": b'base = "' + b"a" * 3000 + b'"',
    "a long key": b"[train]\n" + b"a" * 100_000 + b" = 1",
    "a count": b"[train]\nrounds = 10000000000000000000000000",
    "a rate": b"[method]\nlr = 1e308",
    "processes": b"[compute]\nprocesses = 1000000",
    "shares": b"[data]\nsplit = [nan, 0.5, 0.5]",
    "many values": b"[train]\nseeds = [" + b"1," * 200_000 + b"]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once(tmp_path: Path, name: str, golden: Golden) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(HOSTILE[name])
    began = time.process_time()
    with raises("E201") as fault:
        load(path)
    assert time.process_time() - began < 2
    golden(fault.value)


def test_infinity_means_no_bound_where_a_setting_says_so_and_nowhere_else() -> None:
    assert parse({"method": {"clip": math.inf}}).method["clip"] == math.inf
    for key in ("lr", "momentum", "clip"):
        assert f"`method.{key}`" in refusal({"method": {key: -math.inf}})
    assert "`method.lr`" in refusal({"method": {"lr": math.inf}})


RULES_OF_TEXT = {
    "data.partition": (
        "dirichlet:1e400",
        "dirichlet:nan",
        "dirichlet:1e308:9",
        "shards:" + "9" * 30,
    ),
    "data.budgets": ("random:nan:1", "random:0:1e400", "random:1:0"),
    "data.normalize": ("nan:1", "1e400:1", "0:0", "1e308:1e-308"),
    "train.available": ("random:nan", "cycle:" + "9" * 30, "random:1e400"),
    "evaluate.bandwidth": ("nanMB/s", "1e400MB/s", "0MB/s", "-1MB/s"),
}


@pytest.mark.parametrize(
    ("key", "text"), [(key, text) for key, texts in RULES_OF_TEXT.items() for text in texts]
)
def test_numbers_within_texts_have_bounds_too(key: str, text: str) -> None:
    section, _, name = key.partition(".")
    with raises("E201"):
        parse({section: {name: text}})


def test_the_configuration_that_is_mutated_is_valid() -> None:
    assert complete(parse(TABLES)) == TABLES


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_method_has_its_limits(name: str) -> None:
    """Numbers have bounds and words have choices; nothing else does, and no limit is misspelled."""
    within = limits(METHODS[name].method, "method")
    kinds: dict[str, type] = {}
    for each in dataclasses.fields(METHODS[name].method):
        one = each.default[0] if isinstance(each.default, tuple) else each.default
        kinds[f"method.{each.name}"] = type(one)
    assert set(within.bounds) | set(within.choices) <= set(kinds)
    for key, kind in kinds.items():
        checked = METHODS[name].method.problems is not Method.problems
        if kind in (int, float):
            assert key in within.bounds or checked, key
        if kind is str:
            assert key in within.choices or checked, key


def test_a_setting_for_all_methods_is_checked_even_where_each_has_its_own() -> None:
    tables = {"methods": ["fedavg"], "method": {"lr": "fast", "fedavg": {"lr": 0.1}}}
    assert "`method.lr` must be float" in refusal(tables)


def test_a_budget_is_what_another_method_costs() -> None:
    config = with_methods("local", "local_flops", local={"lr": 0.5}, local_flops={"like": "dmpfl"})
    assert (like_of("local_flops", config), like_of("local", config)) == ("dmpfl", "")
    assert title_of("local_flops", config) == "Local, equal FLOPs (DM-PFL)"
    # It reads what is said of its class; what is said of it alone reaches nobody else.
    assert method_of("local_flops", config).lr == 0.5
    alone = with_methods("local", "local_flops", local_flops={"lr": 0.25, "like": "fedavg"})
    assert (method_of("local", alone).lr, method_of("local_flops", alone).lr) == (0.1, 0.25)


@pytest.mark.parametrize("like", ["dmplf", "local_flops", "", 3])
def test_a_budget_that_is_no_methods_is_refused(like: Any) -> None:
    assert "`method.like`" in refusal({"method": {"local_flops": {"like": like}}})


def test_a_budget_in_numbers_and_one_for_a_method_without_are_refused() -> None:
    assert "`method.local_flops.spend`" in refusal({"method": {"local_flops": {"spend": 2.0}}})
    assert "`method.like`" in refusal({"method": {"local": {"like": "dmpfl"}}})


def test_a_setting_that_no_chosen_method_has_is_refused_with_those_they_have() -> None:
    text = refusal({"methods": ["fedavg"], "method": {"lrr": 0.1}})
    assert "`method.lrr` (did you mean `lr`" in text
    assert "local_epochs" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [(".1", 0.1), ("-.5", -0.5), ("1.", 1.0), ("2.e-1", 0.2), ("1.5", 1.5), ("a.b", "a.b")],
)
def test_a_number_may_lack_a_digit_at_its_point(text: str, value: object) -> None:
    assert value_of(text) == value
