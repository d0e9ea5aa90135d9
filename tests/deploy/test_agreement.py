"""What clients agree on before training: columns, categories, sums, class weights, code."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import masquerade as mq
from masquerade.config import code, toml
from masquerade.core.part import Part
from masquerade.deploy.agreement import Agreement, read_sums, write_sums
from masquerade.deploy.facts import Form
from masquerade.deploy.federation import FederationConfig
from masquerade.deploy.member import open_member
from masquerade.deploy.messages import SUMS, Answer, Question, read, write
from masquerade.deploy.replay import MEMBERS
from masquerade.deploy.server import serve
from masquerade.storage.results import read_results
from masquerade.wire import encode
from tests.deploy.network import Network, federation
from tests.deploy.test_federation import is_its_replay, served
from tests.support import forget, raises, warns

pytestmark = pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning")
COLORS = (("red", "green"), ("red", "blue"), ("green", "blue", "red"))


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("masquerade.report.render.can_draw", lambda: False)


def of_tables(folder: Path, impute: str = "median", **more) -> Network:
    """Three clients with tables, none of whom has seen all colors, classes and values."""
    network = federation(folder, "dmpfl", **more)
    for id, colors in enumerate(COLORS):
        rng = np.random.default_rng(id)
        rows = ["age,color,weight,y"]
        for place in range(24):
            age, weight = rng.integers(20 + 10 * id, 60), rng.normal(70 + id, 10)
            known = "" if place == 3 else f"{weight:.3f}"
            label = ("no", "yes", "perhaps")[int(age > 40) + (id == 2 and place % 5 == 0)]
            rows.append(f"{age},{colors[place % len(colors)]},{known},{label}")
        own = folder / MEMBERS / f"c{id}"
        (own / "own.csv").write_text("\n".join(rows))
        options = f'categorical_columns = ["color"]\nimpute = "{impute}"\n'
        (own / "data.toml").write_text(f'[data]\nname = "own.csv"\n{options}')
    return network


def test_tables_agree_on_categories_and_sums(tmp_path: Path) -> None:
    network = served(of_tables(tmp_path, train={"class_weights": "balanced"}))
    agreement = Agreement.load(tmp_path)
    age, color, weight = agreement.form.features
    assert (age.categories, weight.categories) == ((), ())
    assert color.categories == ("blue", "green", "red")
    assert agreement.form.class_names == ("no", "perhaps", "yes")
    assert len(agreement.class_weights) == 3
    assert agreement.summed == (0, 1, 2)
    is_its_replay(network)
    (summary,) = read_results(tmp_path)
    assert summary.preprocessing is not None
    assert summary.class_weights is not None
    sums = sum(
        len(read(Answer, network.member(name).answer(write(question))).body)
        for name, question in network.seen
        if question.kind == SUMS
    )
    counted = summary.preprocessing.bytes.up + summary.class_weights.bytes.up
    # Each message has its length before it: sums and labels, and histograms when sums are known.
    assert counted == pytest.approx(sums / 3 - 3 * 4)


def test_who_sends_no_histograms_after_its_sums_has_no_part_in_what_is_fitted(
    tmp_path: Path,
) -> None:
    network = of_tables(tmp_path, fleet={"quorum": 2})
    asked = iter(range(9))

    def second_time(name: str, question: Question) -> str:
        return "failed" if (name, question.kind) == ("c2", SUMS) and next(asked) == 1 else ""

    network.fault = second_time
    served(network)
    agreement = Agreement.load(tmp_path)
    assert agreement.summed == (0, 1)
    assert {"sum", "histogram"} <= set(agreement.sent)
    is_its_replay(network)


def test_sums_that_no_client_sends_are_refused() -> None:
    data = mq.partition(mq.load("digits"), clients=2, by="iid", seed=1)
    settings = {"data": {"normalize": "standard"}, "train": {"class_weights": "balanced"}}
    form = Form.of(data)
    draft = Agreement("run", "digits", toml.dump(toml.parse(settings)), form)
    spec = draft.fitted_so_far(form.blank("digits", ["a", "b"]))
    honest = write_sums(draft, data, 0)
    first, _ = read_sums(draft, spec, honest)
    values = first["statistics"].values
    (size,) = struct.unpack_from("<I", honest)
    body, rest = honest[4 : 4 + size], honest[4 + size :]
    masks = {name: torch.ones_like(value).bool() for name, value in values.items()}
    masked = encode({"statistics": Part(values, masks)})
    for wrong, refusal in (
        (honest + b"x", "E610"),
        (honest[:-1], "E605"),
        (struct.pack("<I", len(masked)) + masked + rest, "E610"),
        (struct.pack("<I", 1 << 31) + body + rest, "E605"),
    ):
        with raises(refusal):
            read_sums(draft, spec, wrong)


def test_each_client_may_fit_its_own(tmp_path: Path) -> None:
    network = served(of_tables(tmp_path, data={"normalize_per_client": True}))
    assert not any(question.kind == SUMS for _, question in network.seen)
    is_its_replay(network)
    personal = open_member(tmp_path / MEMBERS / "c1").personal()
    outputs = personal.predict(np.array([[30.0, 1.0, 70.0]], dtype=np.float32))
    assert outputs.shape == (1, 3)


def test_columns_that_differ_are_refused(tmp_path: Path) -> None:
    network = of_tables(tmp_path)
    own = tmp_path / MEMBERS / "c2" / "own.csv"
    own.write_text(own.read_text().replace("weight", "mass"))
    with warns("W617", "E612", "c2", "weight", "mass"):
        served(network)
    is_its_replay(network)


OWN = """
import numpy as np
import torch
from torch import nn

import masquerade as mq


class Own(mq.Method):
    pass


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))


def data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 6))
    return x, (x[:, 0] > 0).astype(int)
"""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Code is loaded in this process, which is the server's and all clients'."""
    yield
    forget()


def of_own_code(folder: Path) -> Network:
    """Two clients with a method, a network and data that are code."""
    (folder / "own.py").write_text(OWN)
    name, net = code.load(f"{folder}/own.py:Own")[0], code.load(f"{folder}/own.py:net")[0]
    network = federation(
        folder,
        clients=2,
        methods=[name],
        train={"model": net},
        code={each: code.LOADED[each].sha256 for each in (name, net)},
        fleet={"code": [f"{folder}/own.py:Own", f"{folder}/own.py:net"]},
    )
    for id in range(2):
        own = folder / MEMBERS / f"c{id}"
        (own / "own.py").write_text(OWN)
        paths = json.dumps(["own.py:Own", "own.py:net"])
        text = f'[data]\nname = "own.py:data"\n[code]\npaths = {paths}\n'
        (own / "data.toml").write_text(text)
    return network


@pytest.mark.usefixtures("forgotten")
def test_methods_networks_and_data_may_be_code_of_ones_own(tmp_path: Path) -> None:
    network = served(of_own_code(tmp_path))
    is_its_replay(network)
    assert read_results(tmp_path)[0].network == "own.py:net"
    assert FederationConfig.load(tmp_path).config.methods == ("own.py:Own",)


@pytest.mark.usefixtures("forgotten")
def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    network = of_own_code(tmp_path)
    wanted = dict(FederationConfig.load(tmp_path).config.code)
    (tmp_path / MEMBERS / "c1" / "own.py").write_text(OWN + "\n# changed\n")
    member = open_member(tmp_path / MEMBERS / "c1")
    network.events.append((5.0, stop))
    with warns("W617", "E613", "c1", "own.py:Own"), pytest.raises(Stop):
        serve(tmp_path, network, network.now)
    assert wanted
    assert not member.runs()


class Stop(BaseException):
    pass


def stop() -> None:
    raise Stop


def test_the_settings_of_a_federation_are_refused_with_all_their_faults(
    tmp_path: Path, golden
) -> None:
    tables = {
        "methods": ["dmpfl"],
        "data": {"novel": 0.2},
        "train": {"seeds": [1, 2], "clients_per_round": 1, "min_contributors": 9},
        "fleet": {
            "clients": ["a", "a", "../x"],
            "quorum": 7,
            "deadline": 0,
            "removed": ["z"],
            "prt": 4,
        },
    }
    with raises("E201", "z", "../x", 7) as refusal:
        FederationConfig.parse(tables)
    golden(refusal.value)


def test_a_federation_is_written_and_read_alike(tmp_path: Path) -> None:
    federation(tmp_path, "dmpfl")
    found = FederationConfig.load(tmp_path)
    found.save(tmp_path)
    assert FederationConfig.load(tmp_path).dump() == found.dump()
    assert found.without("c1").fleet.removed == ("c1",)
    with raises("E201", "c0"):
        found.with_clients(["c0"])
