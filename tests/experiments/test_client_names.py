"""Clients with names: a person gets the model that is theirs, by name or by number."""

import html
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import masquerade as mq
from masquerade.experiments.result import Result
from masquerade.export import from_run as exporting
from masquerade.report import clients
from masquerade.results import Accuracy, ClientFigures, Novel, Statistics
from tests.support import raises, summary

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

NAMES = ("dot", "ann [x]", "cid", "bob", "eve|")
"""In the order in which the data have them, which is not the alphabet's."""
SETTINGS = ["train.model=logistic", "method.local_epochs=1", "data.novel=0.2", "data.seed=3"]


def call(*words: object) -> None:
    """Run the command in this process; an error is raised, not printed."""
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five clients, whose inputs lie around five different places."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(5), 12)
    x = (rng.normal(size=(60, 3)) + owner[:, None]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "named.npz"
    y = np.array(["sick|", "well"])[rng.integers(0, 2, 60)]
    np.savez(path, x=x, y=y, client=np.array(NAMES)[owner])
    return path


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """A run of Local, in which everybody has a model of their own, and one client is novel."""
    sets = [word for each in SETTINGS for word in ("--set", each)]
    out = data.parent / "run"
    options = ["--rounds", 2, "--engine", "loop", *sets, "--out", out, "--quiet"]
    call("run", "--method", "local", "--data", data, *options)
    return out


def result(data: Path, novel: tuple[int, ...] = ()) -> Result:
    federation = mq.partition(mq.load(str(data)), None, mq.ByClient(), seed=3)
    method = mq.methods.Local(local_epochs=1)
    model = mq.models.build("logistic", (3,), 2, seed=1)
    return mq.run(method, model, federation, 1, novel=novel)


def test_a_name_gets_the_model_of_its_own_samples(finished: Path, data: Path) -> None:
    listed = exporting.read_results(finished)[0].per_client
    assert listed is not None
    arrays = np.load(data)
    for id, name in zip(listed.ids, listed.names, strict=True):
        by_name, by_number = (exporting.find(finished, who) for who in (name, str(id)))
        theirs = {tuple(row) for row in arrays["x"][arrays["client"] == name].tolist()}
        assert {tuple(row) for row in by_name.model.x.tolist()} <= theirs
        assert torch.equal(by_name.model.x, by_number.model.x)
        assert f"client {id} ({name})" in by_name.card.title


def test_a_bundle_and_its_card_bear_the_name(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call("export", finished, "--client", "eve|", "--quiet")
    card = Path("run-clienteve_/card.md").read_text()
    assert r"| client | 4 (eve\|), with" in card
    assert r"| classes | sick\|, well |" in card


def test_an_unknown_client_is_told_who_there_is(finished: Path) -> None:
    found = exporting.read_results(finished)[0]
    assert found.novel is not None
    assert found.per_client is not None
    (kept_out,) = found.novel.clients.names
    assert {*found.per_client.names, kept_out} == set(NAMES)
    known = ", ".join(found.per_client.names)
    for who in ("cib", "7", kept_out):
        with raises("E202", f"`{who}`", known):
            exporting.find(finished, who)


def test_reports_name_clients(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("report", finished, "--clients")
    out = capsys.readouterr().out
    found = clients.names(exporting.read_results(finished))
    assert found == dict(enumerate(sorted(NAMES)))
    assert all(f"{id}: {name}" in out for id, name in found.items())
    text = (finished / "report.html").read_text(encoding="utf-8")
    assert all(f"{id}: {html.escape(name)}" in text for id, name in found.items())
    call("data", "show", finished.parent / "named.npz")
    assert "ann [x]" in capsys.readouterr().out


def test_a_result_gives_a_client_by_number_or_name_where_some_are_novel(data: Path) -> None:
    whole, part = result(data), result(data, novel=(1,))
    for who in (0, 2, 4, "cid", "4"):
        x = torch.ones(2, 3)
        torch.testing.assert_close(part.client(who).predict(x), whole.client(who).predict(x))
    assert not torch.equal(part.client(2).predict(x), part.client("dot").predict(x))
    for who in (1, "bob", -1, 5):
        with raises("E202", "0, 2, 3, 4", "ann"):
            part.client(who)


def listed(ids: tuple[int, ...], *names: str) -> ClientFigures:
    """Clients with names, and figures that mean nothing."""
    return ClientFigures(ids, samples=(9,) * len(ids), own=(80.0,) * len(ids), names=names)


def test_a_number_is_not_taken_for_another_clients_name() -> None:
    # Subjects 1 to 3 are clients 0 to 2: `1` is the subject, and nobody is called `0`.
    found = summary(per_client=listed((0, 1, 2), "1", "2", "3"))
    assert [found.place_of(who) for who in ("1", "3", 1)] == [0, 2, 1]
    with raises("E202", "`0`"):
        found.place_of("0")


def test_the_name_of_a_novel_client_is_nobody_elses_number() -> None:
    novel = Novel(listed((2,), "3"), Accuracy(Statistics(70.0, 0.0)), gap=10.0)
    found = summary(per_client=listed((0, 1, 3), "a", "b", "d"), novel=novel)
    assert found.place_of(3) == 2
    with raises("E202", "`3`"):
        found.place_of("3")
