"""A server and clients as real processes over Flower, with TLS and keys, are what is simulated."""

import json
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from masquerade.deploy.replay import replay
from tests.deploy.machines import Machines, alone

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli.app import app

pytest.importorskip("flwr")


@pytest.fixture(autouse=True)
def _one_test_at_a_time() -> Iterator[None]:
    with alone():
        yield


@pytest.mark.timeout(600)
def test_a_federation_of_real_processes_is_what_is_simulated_bit_for_bit(tmp_path: Path) -> None:
    with ExitStack() as stack:
        # Side by side: most of a round is waiting for Flower's nodes to ask.
        both = [
            stack.enter_context(Machines(tmp_path / method, method))
            for method in ("dmpfl", "fedmask")
        ]
        for one in both:
            one.finish(540.0)
        with urllib.request.urlopen(f"http://127.0.0.1:{both[0].health}/") as answer:
            health = json.load(answer)
        assert health["well"]
        assert [client["state"] for client in health["clients"]] == ["connected"] * 2
        told = CliRunner().invoke(app, ["deploy", "status", str(both[0].folder), "--json"])
        assert json.loads(told.stdout)["status"] == health["status"]
        client = CliRunner().invoke(
            app, ["deploy", "status", str(both[0].home("client-1")), "--json"]
        )
        found = json.loads(client.stdout)
        assert (found["well"], found["status"]["round"]) == (True, 2)
    for one in both:
        found = replay(one.folder)
        assert (found.rounds, found.differences) == (2, [])
        assert found.compared > 10
