"""Results that are saved, loaded and reported: nothing is lost, and what is damaged is refused."""

import html
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.core import tree
from masquerade.core.features import Feature
from masquerade.experiments.data_facts import DataFacts
from masquerade.storage import saved_folder
from tests.support import federation, network, raises, reseal, warns

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

pytestmark = pytest.mark.usefixtures("plain_pages")
METHOD = mq.methods.FedAvg(local_epochs=1)
ALONE = mq.methods.Local(local_epochs=1)
X = federation().x[:4].float()


def json_of(found: mq.Result | mq.Comparison) -> list[Any]:
    return [each.to_json() for each in found.summaries]


@pytest.fixture(scope="module")
def result() -> mq.Result:
    return mq.run(METHOD, network(), federation(), 1, batch_size=4)


@pytest.fixture(scope="module")
def saved(result: mq.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "deep" / "result"
    result.save(path)
    return path


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that the command made: two views of FedAvg, with Local between them."""
    folder = tmp_path_factory.mktemp("command")
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    np.savez(folder / "mine.npz", x=x, y=rng.integers(0, 2, 60))
    out = folder / "both"
    words = ["compare", "--methods", "fedavg,local,fedavg_ft", "--data", folder / "mine.npz"]
    # What is left to "auto" is the partition, the network and the engine.
    words += ["--clients", 3, "--rounds", 1, "--out", out, "--quiet"]
    words += ["--set", "data.normalize=standard"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("masquerade.report.plots.figures", lambda *given: {})
        app([str(word) for word in words], standalone_mode=False)
    return out


def test_a_saved_result_comes_back_as_it_was(result: mq.Result, saved: Path) -> None:
    found = mq.load_result(saved)
    assert isinstance(found, mq.Result)
    assert json_of(found) == json_of(result)
    assert repr(found) == repr(result)
    assert found.to_frame().equals(result.to_frame())
    assert found._repr_html_() == result._repr_html_()


def test_its_models_come_back_with_the_objects_of_the_program(
    result: mq.Result, saved: Path
) -> None:
    found = mq.load_result(saved, method=mq.methods.FedAvg(local_epochs=1), model=network())
    assert isinstance(found, mq.Result)
    for view in METHOD.views:
        for client in range(6):
            one, other = (each.client(client, view) for each in (result, found))
            left, right = tree.named(one.parts), tree.named(other.parts)
            assert all(torch.equal(left[name], right[name]) for name in left)
            assert torch.equal(one.predict(X), other.predict(X))


@pytest.mark.parametrize("where", ["saved", "out"])
def test_a_network_that_was_not_seeded_is_loaded_with_other_weights(
    where: str, tmp_path: Path
) -> None:
    # What a client uses is bits on the initial weights.
    method = mq.methods.FedMask(local_epochs=1)
    folder = tmp_path / where
    out = folder if where == "out" else None
    made = mq.run(method, network(), federation(), 1, batch_size=4, out=out)
    if out is None:
        made.save(folder)
    other = network()
    with torch.no_grad():
        for each in other.parameters():
            each.normal_()
    found = mq.load_result(folder, method=method, model=other)
    assert isinstance(found, mq.Result)
    for client in (0, 5):
        assert torch.equal(found.client(client).predict(X), made.client(client).predict(X))
    found.save(tmp_path / "again")
    again = mq.load_result(tmp_path / "again", method=method, model=other)
    assert isinstance(again, mq.Result)
    assert torch.equal(again.client(0).predict(X), made.client(0).predict(X))


def test_other_objects_are_refused(saved: Path) -> None:
    first, *rest = network()
    wider = nn.Sequential(nn.Linear(first.in_features, first.out_features + 1), *rest)
    deeper = nn.Sequential(*network(), nn.Linear(3, 3))
    for other in (wider, deeper, nn.Sequential(*list(network())[:-1])):
        with raises("E402"):
            mq.load_result(saved, method=METHOD, model=other)
    with raises("E402"):
        mq.load_result(saved, method=mq.methods.FedAvg(local_epochs=2), model=network())
    for given in ({"method": METHOD}, {"model": network()}, {"method": "fedavg", "model": 3}):
        with raises("E201"):
            mq.load_result(saved, **given)
    loaded = mq.load_result(saved)
    assert isinstance(loaded, mq.Result)
    with raises("E202"):
        loaded.client(0)


@pytest.mark.parametrize(
    "name",
    ["summary.json", "config.toml", "data.json", "hashes.json", "clients/2-global", "initial"],
)
def test_a_flipped_bit_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(saved, tmp_path / "copy")
    file = next(path.glob(f"{name}*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with raises("E401"):
        mq.load_result(path, method=METHOD, model=network()).client(2)  # type: ignore[union-attr]


def test_nothing_that_is_there_is_replaced_and_nothing_half_is_left(
    result: mq.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link"):
        with raises("E407"):
            result.save(tmp_path / name)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_folder.atomic, "write_at", full)
    with raises("E502"):
        result.save(tmp_path / "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "there"]


def test_a_program_s_preprocessing_comes_back_to_the_bit(tmp_path: Path) -> None:
    data = mq.partition(mq.from_arrays(X.repeat(5, 1) * 3 + 1, torch.arange(20) % 2), 2, mq.IID())
    model = nn.Linear(X.shape[1], 2)
    found = mq.run(ALONE, mq.Task(model, preprocess=mq.Standardize()), data, 1, batch_size=4)
    found.save(tmp_path / "fitted")
    # The plain network is enough: what was fitted is in the folder.
    loaded = mq.load_result(tmp_path / "fitted", method=ALONE, model=model)
    assert isinstance(loaded, mq.Result)
    assert torch.equal(loaded.client(1).predict(data.x), found.client(1).predict(data.x))

    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    mine = mq.Task(model, preprocess=halved)
    mq.run(ALONE, mine, data, 1, batch_size=4).save(tmp_path / "own")
    with raises("E402"):
        mq.load_result(tmp_path / "own", method=ALONE, model=model)
    assert mq.load_result(tmp_path / "own", method=ALONE, model=mine)


class Shifted(nn.Module):
    """Preprocessing with a constant of its own."""

    by: torch.Tensor

    def __init__(self, by: float) -> None:
        super().__init__()
        self.register_buffer("by", torch.tensor(by))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, less the constant."""
        return x - self.by


def test_own_preprocessing_is_known_by_its_constants(tmp_path: Path) -> None:
    data = mq.partition(mq.from_arrays(X.repeat(5, 1), torch.arange(20) % 2), 2, mq.IID())
    model = nn.Linear(X.shape[1], 2)
    made = mq.run(ALONE, mq.Task(model, preprocess=Shifted(1.0)), data, 1, batch_size=4)
    made.save(tmp_path / "own")
    again = mq.Task(model, preprocess=Shifted(1.0))
    loaded = mq.load_result(tmp_path / "own", method=ALONE, model=again)
    assert isinstance(loaded, mq.Result)
    assert torch.equal(loaded.client(1).predict(data.x), made.client(1).predict(data.x))
    with raises("E402"):
        mq.load_result(
            tmp_path / "own", method=ALONE, model=mq.Task(model, preprocess=Shifted(2.0))
        )


def test_a_comparison_is_saved_and_loaded_with_its_trainings(tmp_path: Path) -> None:
    made = mq.compare([METHOD, ALONE], network(), federation(), 1, seeds=(1, 2), batch_size=4)
    made.save(tmp_path / "both")
    found = mq.load_result(tmp_path / "both")
    assert isinstance(found, mq.Comparison)
    assert json_of(found) == json_of(made)
    assert [json_of(one) for one in found.results] == [json_of(one) for one in made.results]
    run = next((tmp_path / "both").glob("*local*seed2"))
    alone = mq.load_result(run, method=ALONE, model=network())
    assert isinstance(alone, mq.Result)
    assert torch.equal(alone.client(3).predict(X), made.results[3].client(3).predict(X))
    with raises("E201"):
        mq.load_result(tmp_path / "both", method=ALONE, model=network())


def test_models_that_were_not_kept_are_asked_for_in_vain(tmp_path: Path) -> None:
    made = mq.compare([ALONE], network(), federation(), 1, batch_size=4, models=False)
    made.save(tmp_path / "both")
    (run,) = (each.parent for each in (tmp_path / "both").glob("*/summary.json"))
    loaded = mq.load_result(run, method=ALONE, model=network())
    for found in (made.results[0], loaded):
        assert isinstance(found, mq.Result)
        with raises("E408"):
            found.client(0)


def test_the_directory_of_a_program_is_loaded_as_a_saved_one(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Beside a novel client, places in lists are no numbers of clients.
    made = mq.run(ALONE, network(), federation(), 1, batch_size=4, novel=[1], out=out)
    found = mq.load_result(out, method=ALONE, model=network())
    assert isinstance(found, mq.Result)
    assert json_of(found) == json_of(made)
    for client in (0, 2, 5):
        assert torch.equal(found.client(client).predict(X), made.client(client).predict(X))


def test_what_the_command_made_is_loaded_with_its_models(command: Path, tmp_path: Path) -> None:
    found = mq.load_result(command)
    assert isinstance(found, mq.Comparison)
    # The order is the command's, though two rows are of one training.
    assert [each.method for each in found.summaries] == ["fedavg", "local", "fedavg_ft"]
    assert [len(each.summaries) for each in found.results] == [2, 1]
    (run,) = command.glob("local*")
    loaded = mq.load_result(run)
    assert isinstance(loaded, mq.Result)
    mine = loaded.client(2)
    options = ["--client", "2", "--out", str(tmp_path / "theirs"), "--compare", "--quiet"]
    app(["export", str(run), *options], standalone_mode=False)
    mine.export(tmp_path / "ours", compare=True)
    for name in ("card.md", "manifest.json", "model.onnx", "dense.onnx"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    loaded.save(tmp_path / "saved")
    again = mq.load_result(tmp_path / "saved")
    assert isinstance(again, mq.Result)
    x = np.load(command.parent / "mine.npz")["x"][:3]
    assert torch.equal(again.client(2).predict(x), mine.predict(x))


def test_tables_of_the_command_need_neither_its_data_nor_its_runs(
    command: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(command, tmp_path / "both")
    for folder in path.glob("*-seed1"):
        shutil.rmtree(folder)
    found = mq.load_result(path)
    assert json_of(found) == json_of(mq.load_result(command))
    found.report(tmp_path / "page.html")
    assert "FedAvg+FT" in (tmp_path / "page.html").read_text()
    assert isinstance(found, mq.Comparison)
    with raises("E408"):
        found.results[0].client(0)


def test_initial_weights_that_are_drawn_otherwise_now_are_noticed(
    command: Path, tmp_path: Path
) -> None:
    (run,) = command.glob("local*")
    path = shutil.copytree(run, tmp_path / "run")
    text = (path / "data.json").read_text()
    number = next(line for line in text.splitlines() if '"initial"' in line)
    (path / "data.json").write_text(text.replace(number, ' "initial": 3,'))
    reseal(path)
    loaded = mq.load_result(path)
    assert isinstance(loaded, mq.Result)
    with raises("E402"):
        loaded.client(0)


def test_a_page_says_what_was_run_and_is_that_of_the_directory(tmp_path: Path) -> None:
    data = mq.partition(mq.from_arrays(X.repeat(5, 1), torch.arange(20) % 2), 2, mq.IID(), seed=7)
    model = nn.Linear(X.shape[1], 2)
    made = mq.run(METHOD, model, data, 1, batch_size=4, out=tmp_path / "run")
    made.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page == (tmp_path / "run" / "report.html").read_text()
    for fact in ("Linear", "IID() over 2 clients, seed 7", mq.__version__, "FedAvg+FT"):
        assert fact in page
    made.report(tmp_path / "page.html")
    with raises("E502"):
        made.report(tmp_path / "nowhere" / "page.html")


def test_the_page_of_a_comparison_says_what_auto_was(command: Path, tmp_path: Path) -> None:
    found = mq.load_result(command)
    found.report(tmp_path / "page.html")
    written = (command / "report.html").read_text()
    assert (tmp_path / "page.html").read_text() == written
    assert "partition dirichlet:0.3 ·" in written
    text = html.unescape(written)
    for setting in ('partition = "dirichlet:0.3"', 'model = "mlp"', 'engine = "'):
        assert setting in text
    for setting in ("partition", "model", "engine"):
        assert f'{setting} = "auto"' not in text
    # On the disk is what was asked for, and the one partition of all trainings.
    settings = (command / "config.toml").read_text()
    assert 'partition = "dirichlet:0.3"' in settings
    assert 'model = "auto"' in settings


def test_names_of_classes_and_columns_come_back(tmp_path: Path) -> None:
    features = (Feature("age"), Feature("ward", ("east", "west")))
    x = torch.tensor([[30.0, 0.0], [60.0, 1.0]]).repeat(10, 1)
    whole = mq.partition(mq.from_arrays(x, torch.arange(20) % 2), 2, mq.IID())
    data = replace(whole, class_names=("well", "ill"), features=features)
    # An age, and one number for each ward.
    model = nn.Linear(3, 2)
    made = mq.run(ALONE, model, data, 1, batch_size=4)
    made.save(tmp_path / "saved")
    found = mq.load_result(tmp_path / "saved", method=ALONE, model=model)
    assert isinstance(found, mq.Result)
    frame = pandas.DataFrame({"ward": ["west", "east"], "age": [60, 30]})
    mine = found.client(0)
    assert torch.equal(mine.predict(frame), made.client(0).predict([[60.0, 1.0], [30.0, 0.0]]))
    best = mine.predict(frame).argmax(-1).tolist()
    assert mine.predict_label(frame).tolist() == [("well", "ill")[each] for each in best]


def test_a_program_s_loaded_model_checks_rows_as_the_one_in_memory_does(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "age": draw.normal(60, 9, 80),
            "pressure": draw.normal(130, 9, 80),
            "site": ["east", "west"] * 40,
            "outcome": [0, 0, 1, 1] * 20,
        }
    )
    data = mq.partition(mq.from_frame(frame, label="outcome", client="site"))
    made = mq.run(ALONE, nn.Linear(2, 2), data, 1)
    made.save(tmp_path / "saved")
    found = mq.load_result(tmp_path / "saved", method=ALONE, model=nn.Linear(2, 2))
    for result in (made, found):
        west = result.client("west")
        assert west.schema == made.client("west").schema != made.client("east").schema
        with raises("E302", "age", "pressure"):
            west.predict(frame.rename(columns={"age": "pressure", "pressure": "age"})[1::2])
        with warns("W308", "age"):
            west.predict(frame.assign(age=frame["age"] * 12)[1::2])
    facts = json.loads((tmp_path / "saved" / "data.json").read_text())
    for wrong in (facts["ranges"][:1], [each[:1] for each in facts["ranges"]]):
        with raises("E401", "data.json"):
            DataFacts.from_bytes(json.dumps(facts | {"ranges": wrong}).encode())


def test_constants_of_each_client_are_not_taken_for_everybodys(tmp_path: Path) -> None:
    preprocess = mq.Standardize(per_client=True)
    model = nn.Linear(6, 3)
    task = mq.Task(model, preprocess=preprocess)
    evaluate = mq.Evaluate(every=0, degrees=(0,))
    made = mq.run(ALONE, task, federation(), 1, batch_size=4, evaluate=evaluate)
    made.save(tmp_path / "saved")
    with raises("E202"):
        mq.load_result(tmp_path / "saved", method=ALONE, model=model)
