"""The privacy sheet lists whatever leaves a client: nothing leaves one that it does not list."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from masquerade.core import Task, tree
from masquerade.report import privacy
from masquerade.results import PrivacySheet
from masquerade.results.privacy import FILE, UP
from masquerade.simulation.class_weights import Weighting
from masquerade.simulation.fitting import Fitting
from masquerade.simulation.privacy_sheet import sheet_of
from masquerade.storage.results import read_sheets
from masquerade.storage.saved_folder import sealed, write
from masquerade.wire import encode
from masquerade.wire.message_size import count
from masquerade.wire.session import moved, versions
from tests.support import METHOD_TABLE, advance, network, restored, simulation

GOLDEN = Path(__file__).parents[1] / "golden" / "privacy.md"


@dataclass
class Watched:
    """An engine that writes every upload as bytes, and notes what they say."""

    engine: object
    bytes: int = 0
    held: dict = field(default_factory=lambda: defaultdict(set))
    """What uploads had: (part, tensor, whether with a mask)."""

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def work(self, job):
        outcome = self.engine.work(job)
        for place in range(len(job.ids)):
            row, session = tree.take(job.rows, place), tree.take(job.session, place)
            context = self.engine.context
            sent = context.method.download(context.task, job.server, row, job.round)
            fresh = versions(sent, 0)
            known = moved(session | fresh, "down", count(sent, session).masks)
            upload = tree.take(outcome.uploads, place)
            self.bytes += len(encode(upload, None, known)) if upload else 0
            for part, own in upload.items():
                self.held[part] |= {(name, name in own.keep) for name in own.values}
        return outcome


def sheet(made, state):
    fitting = Fitting(made.server.task.preprocess)
    return sheet_of(made.server, state, "Method", 5, fitting, Weighting(), ("accuracy",))


@pytest.mark.parametrize("name", METHOD_TABLE)
def test_nothing_leaves_a_client_that_the_sheet_does_not_list(name):
    made = simulation(METHOD_TABLE[name], rounds=3)
    watched, state = Watched(made.engine), made.begin()
    made = type(made)(**vars(made) | {"engine": watched})
    while state.number < 3:
        advance(made, state)
    listed = defaultdict(set)
    up = [each for each in sheet(made, state).lines if each.direction == UP]
    for each in up:
        masked = set(each.kinds.get("mask", ()))
        for kind, names in each.kinds.items():
            if kind != "mask":
                listed[each.name] |= {(tensor, tensor in masked) for tensor in names}
    for part, held in watched.held.items():
        assert held <= listed[part]
    counted = sum(each.bytes for each in up if each.bytes is not None)
    assert counted * len(made.server.known) == pytest.approx(watched.bytes, abs=1e-6)


def test_what_was_sent_survives_a_resume():
    made = simulation(METHOD_TABLE["fedmask"], rounds=2)
    state = made.begin()
    advance(made, state)
    again = restored(made, state.number, state.tensors(), state.facts())
    assert sheet(made, again) == sheet(made, state)
    advance(made, again)
    assert sheet(made, again) != sheet(made, state)


def test_a_sheet_says_how_few_clients_a_number_is_made_of():
    whole, masked = (simulation(METHOD_TABLE[name], rounds=3) for name in ("fedavg", "dmpfl"))
    least = {}
    for name, made in (("whole", whole), ("masked", masked)):
        state = made.begin()
        advance(made, state)
        lines = [each for each in sheet(made, state).lines if each.name == "params"]
        least[name] = {each.direction: each.contributors for each in lines}
    assert least == {"whole": {"up": 1, "down": 4}, "masked": {"up": 1, "down": 1}}


def small():
    """The sheet of a round of FedMask, which sends bits, masks and a setup."""
    made = simulation(METHOD_TABLE["fedmask"], rounds=2, task=Task(network(torch.float32)))
    state = made.begin()
    advance(made, state)
    return sheet(made, state)


def test_a_sheet_reads_as_its_golden_file(tmp_path):
    found = small()
    write(tmp_path / "run", sealed([(FILE, found.to_bytes())]))
    assert read_sheets(tmp_path / "run") == (found,)
    assert PrivacySheet.from_bytes(found.to_bytes()) == found
    assert privacy.markdown([found]) == GOLDEN.read_text(encoding="utf-8")
