"""Whatever step of a writer fails, the old is there or the new: of all that is no commit.

Commits and results of runs have the same loop in `tests/storage/test_run_directory.py`.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from masquerade.data import cache
from masquerade.data.dataset import Dataset
from masquerade.data.readers.reading import Reading
from masquerade.deploy import participant
from masquerade.deploy.client import Client
from masquerade.engine.remote import Call
from masquerade.errors import MasqueradeError
from masquerade.experiments import report_page
from masquerade.experiments import run as experiment
from masquerade.export import bundle
from masquerade.storage import saved_folder, sealed
from masquerade.storage.run_directory import RunDirectory
from masquerade.storage.saved_folder import Folder
from tests.deploy.test_bytes import far, simulated, trained
from tests.reliability import publish
from tests.storage.disk import Killed
from tests.storage.test_run_directory import FAULTS
from tests.support import METHOD_TABLE, summary

Content = object


class Writer(NamedTuple):
    """What writes an artefact at a path, and what reads it: None where there is none."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], Content]
    new_only: bool = False
    """Whether it refuses to write over another."""
    between: bool = False
    """Whether the old may be gone before the new is there; whoever reads is told."""


def add_data(path: Path, number: int) -> None:
    data = Dataset("mine", torch.full((9, 2), float(number)), torch.arange(9) % 3, 3)
    cache.write("mine", Reading(data), replace=True)


def read_data(path: Path) -> Content:
    return cache.read("mine").x.unique().tolist() if cache.holds("mine") else None


def in_folder(path: Path) -> Content:
    return {each.name: each.read_bytes() for each in path.iterdir()} if path.is_dir() else None


def in_file(path: Path) -> Content:
    return path.read_bytes() if path.is_file() else None


def files(number: int) -> list[tuple[str, bytes]]:
    return [("a", b"%d" % number), ("clients/1.safetensors", b"%d" % number)]


def in_saved(path: Path) -> Content:
    if not path.exists():
        return None
    folder = Folder.open(path)
    folder.check()
    return [folder.read(name) for name, _ in files(0)]


def write_comparison(path: Path, number: int) -> None:
    made = (path / "config.toml").exists()
    opened = RunDirectory.open(path) if made else RunDirectory.create(path, "", "comparison")
    with opened as directory:
        experiment.write_comparison(directory, [summary(seed=number)])


def in_comparison(path: Path) -> Content:
    """What is damaged is of the old, and read no more."""
    if saved_folder.damages(path):
        return None
    return Folder.open(path).read("results.json") if (path / "hashes.json").is_file() else None


def write_record(path: Path, number: int) -> None:
    sealed.write_record(path, "ann", participant.LastQuestion((1, number)))


def in_record(path: Path) -> Content:
    if not path.exists():
        return None
    return sealed.read_record(participant.LastQuestion, path, "ann", "").order


WRITERS = {
    "a dataset of the cache": Writer(add_data, read_data),
    "an exported bundle": Writer(
        lambda path, number: bundle.appear(path, dict(files(number)[:1])), in_folder, new_only=True
    ),
    "an exported file": Writer(
        lambda path, number: bundle.place(path, b"%d" % number), in_file, new_only=True
    ),
    "a report page": Writer(
        lambda path, number: report_page.write_page(path, [], str(number), ""), in_file
    ),
    "a saved result": Writer(
        lambda path, number: saved_folder.write(path, saved_folder.sealed(files(number))),
        in_saved,
        new_only=True,
    ),
    "the results of a comparison": Writer(write_comparison, in_comparison, between=True),
    "a client's record": Writer(write_record, in_record),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_failing_step_of_a_writer_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(report_page, "text_of", lambda results, settings, *more: settings)
    monkeypatch.setattr(experiment, "write_report", lambda path, results: None)
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "here"))

    def steps(kind: str) -> int:
        at, is_last = 0, False
        while not is_last:
            at += 1
            is_last = step(WRITERS[name], tmp_path / "here", kind, at)
            shutil.rmtree(tmp_path / "here")
        return at - 1

    told(name, {kind: steps(kind) for kind in FAULTS})


def step(writer: Writer, folder: Path, kind: str, at: int) -> bool:
    """Write over the old with a fault at a step; tell whether there is none so late."""
    path, fault = folder / "x", None
    folder.mkdir()
    if not writer.new_only:
        writer.write(path, 1)
    old = writer.read(path)
    with pytest.MonkeyPatch.context() as patch:
        disk = FAULTS[kind](at)
        disk.mount(patch.setattr)
        try:
            writer.write(path, 2)
        except (MasqueradeError, OSError, Killed) as met:
            fault = met
    found = writer.read(path)
    if found == old or (writer.between and found is None):
        assert fault is not None
        writer.write(path, 2)
    new = writer.read(path)
    assert new not in (old, None)
    assert found in (old, new) or (writer.between and found is None)
    assert fault is None or kind != "short"
    return disk.count < at


def told(what: str, steps: Mapping[str, int]) -> None:
    """Publish at how many steps each fault came."""
    assert min(steps.values()) > 6
    publish(
        f"io-{what.replace(' ', '-').replace(chr(39), '')}",
        "pytest tests/storage/test_every_step.py",
        {"of": what, "steps at which it came": sum(steps.values()), **steps},
    )


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, Call]:
    """A client, the last question that it was asked, and the state that this builds on."""
    made, transport = far(simulated(METHOD_TABLE["ditto"]), tmp_path_factory.mktemp("clients"))
    trained(made)
    call = [each for each in transport.calls if each.kind == "train"][-1]
    client = transport.clients[call.client]
    for file in client.folder.iterdir():
        if file.stem != f"{call.base:016x}":
            file.unlink()
    assert list(client.folder.iterdir())
    return client, call


def test_every_failing_step_of_a_clients_state_leaves_one_that_answers_alike(
    tmp_path: Path, asked: tuple[Client, Call]
) -> None:
    """Who met a fault is asked again, and answers as one that met none."""
    whole, call = asked

    def copied(name: str) -> Client:
        return replace(whole, folder=shutil.copytree(whole.folder, tmp_path / name))

    expected = copied("whole").answer(call)

    def steps(kind: str) -> int:
        disk, at = None, 0
        while disk is None or disk.count >= at:
            at, client = at + 1, copied(f"{kind}-{at}")
            with pytest.MonkeyPatch.context() as patch:
                disk = FAULTS[kind](at)
                disk.mount(patch.setattr)
                with suppress(OSError, Killed):
                    client.answer(call)
            assert client.answer(call) == expected
        return at - 1

    told("a client's state", {kind: steps(kind) for kind in FAULTS})
