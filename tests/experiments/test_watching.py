"""Watching a run: what its files tell while it is under way, and to whom it is told."""

import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from masquerade.experiments import live_server
from masquerade.experiments.watching import finished, so_far, watch
from masquerade.report import live
from masquerade.results import EvaluationRecord, RoundRecord, Statistics
from masquerade.results.json_records import to_json
from masquerade.storage.run_directory import HASHES
from tests.support import raises

CONFIG = """
methods = ["{0}"]
[data]
name = "digits"
clients = 4
[train]
rounds = 10
seeds = [{1}]
"""


def line(number: int, own: float | None = None) -> str:
    measured = None
    if own is not None:
        views = {"global": Statistics(own, 2.0), "tuned": Statistics(99.0, 1.0)}
        measured = EvaluationRecord(number, views, 1e6 * number, 0.0, 1e6)
    return json.dumps(to_json(RoundRecord(number, (0, 1), {}, evaluation=measured))) + "\n"


def begin(folder: Path, method: str = "fedavg", seed: int = 1, text: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG.format(method, seed))
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_a_run_tells_its_rounds_and_the_curve_of_its_first_view(tmp_path: Path) -> None:
    begin(tmp_path, text=line(1) + line(2, 50.0) + line(3) + line(4, 60.0) + '{"round": 5, "cl')
    (found,) = watch(tmp_path)
    assert (found.title, found.seed, found.done, found.rounds) == ("FedAvg", 1, 4, 10)
    assert [(point.round, point.own) for point in found.points] == [(2, 50.0), (4, 60.0)]
    assert found.left == pytest.approx(found.seconds / 4 * 6)
    assert not finished(tmp_path)
    (summary,) = so_far([found])
    assert [point.own for point in summary.history] == [50.0, 60.0]


def test_of_a_run_without_a_round_nothing_is_said(tmp_path: Path) -> None:
    (found,) = watch(begin(tmp_path))
    assert found.done == 0
    assert math.isnan(found.left)
    assert so_far([found]) == []
    assert live.duration(found.left) == "–"


def test_a_comparison_has_a_row_for_every_training_begun_or_not(tmp_path: Path) -> None:
    begin(tmp_path, 'local", "fedprox')
    (tmp_path / "comparison").touch()
    for place, method in enumerate(("local", "dmpfl")):
        begin(tmp_path / f"{method}-seed{place}", method, place, line(1, 50.0))
    (tmp_path / "local-seed0" / HASHES).touch()
    assert [(each.title, each.finished) for each in watch(tmp_path)] == [
        ("Local", True),
        ("DM-PFL", False),
        ("Local", False),
        ("FedProx", False),
    ]
    waiting = watch(tmp_path)[-1]
    assert (waiting.seed, waiting.done, waiting.rounds) == (1, 0, 10)
    assert math.isnan(waiting.left)
    assert not finished(tmp_path)
    (tmp_path / HASHES).touch()
    assert finished(tmp_path)


def test_where_there_is_no_run_there_is_nothing_to_watch(tmp_path: Path) -> None:
    with raises("E408", str(tmp_path)):
        watch(tmp_path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0:00"), (75.4, "1:15"), (3599.9, "1 h 00 min"), (9e3, "2 h 30 min")],
)
def test_durations_are_those_of_a_person(seconds: float, text: str) -> None:
    assert live.duration(seconds) == text


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Serve a run without a figure, which needs no large script."""
    served = live_server.server(begin(tmp_path, text=line(1)))
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served.server_port
    served.shutdown()
    thread.join()
    served.server_close()


def asked(port: int, path: str, host: str = "") -> tuple[int, str, str]:
    """Return status, policy of loading and body of an answer."""
    headers = {"Host": host or f"127.0.0.1:{port}"}
    question = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(question, timeout=30) as answer:
            return answer.status, answer.headers["Cache-Control"], answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers["Cache-Control"], refusal.read().decode()


def test_a_page_and_what_is_new_are_told_and_nothing_else(port: int, tmp_path: Path) -> None:
    status, kept, text = asked(port, "/")
    assert (status, kept) == (200, "no-store")
    assert "connect-src 'self'" in text
    assert "1 of 10" in text
    status, _, text = asked(port, "/progress.json")
    assert status == 200
    assert json.loads(text)["charts"] == {}
    for path in ("/config.toml", "/../config.toml", "/metrics.jsonl"):
        assert asked(port, path)[0] == 404
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.toml", "metrics.jsonl"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80"])
def test_who_asks_for_another_machine_is_told_nothing(port: int, host: str) -> None:
    status, _, text = asked(port, "/", host)
    assert status == 403
    assert "FedAvg" not in text


def test_a_port_that_is_taken_is_refused(port: int, tmp_path: Path) -> None:
    with raises("E502", str(port)):
        live_server.server(tmp_path, port)
