"""Folders of results that were made to harm whoever reads them: refused with a code, at once."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import masquerade as mq
from masquerade.data.fetch import add
from masquerade.experiments import run as experiment
from masquerade.experiments.report_page import write_report
from masquerade.export import from_run
from masquerade.report import plots
from masquerade.storage.manifest import fingerprint, seal, unseal
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import RunDirectory, encode_tensors
from masquerade.storage.saved_folder import damages
from tests.experiments.test_resume import complete
from tests.experiments.test_sealed_results import config_of
from tests.fuzzing import code_of, timed, watched
from tests.support import raises

pytestmark = [
    pytest.mark.usefixtures("plain_pages"),
    pytest.mark.filterwarnings("ignore::masquerade.errors.MasqueradeWarning"),
]
CODES = ("E201", "E401", "E402", "E403", "E405", "E408", "E502")
MODEL = "clients/1-global.safetensors"


def opened(path: Path) -> None:
    with RunDirectory.open(path) as run:
        run.latest()


READERS: dict[str, Callable[[Path], object]] = {
    "results": read_results,
    "result": mq.load_result,
    "model": lambda path: mq.load_result(path).client(1),  # type: ignore[union-attr]
    "export": lambda path: from_run.find(path, 1),
    "page": lambda path: write_report(path, read_results(path)),
    "damages": damages,
    "commits": opened,
    "resume": experiment.resume,
}
Harm = Callable[[Path], object]


def waiting(name: str) -> Harm:
    """A pipe, which nobody writes to."""

    def harm(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return harm


def endless(name: str) -> Harm:
    def harm(path: Path) -> None:
        (path / name).unlink()
        (path / name).symlink_to("/dev/zero")

    return harm


def sealed(change: Callable[[dict[str, Any]], object]) -> Harm:
    """Other hashes, under a seal that fits."""

    def harm(path: Path) -> None:
        hashes = unseal((path / "hashes.json").read_bytes())
        change(hashes)
        (path / "hashes.json").write_bytes(seal(hashes))

    return harm


def naming(name: str) -> Harm:
    return sealed(lambda hashes: hashes["files"].update({name: fingerprint(b"x")}))


def holding(name: str, data: bytes) -> Harm:
    """Other content, with its hash."""

    def harm(path: Path) -> None:
        (path / name).write_bytes(data)
        sealed(lambda hashes: hashes["files"].update({name: fingerprint(data)}))(path)

    return harm


def model(facts: object, name: str = "params/values/x") -> Harm:
    return holding(MODEL, encode_tensors({name: torch.ones(2)}, {"message": json.dumps(facts)}))


def grain(stated: object) -> Harm:
    return model({"params": {"dtype": "", "grain": {"x": stated}}})


NESTED = b"[" * 100_000
COMMITTED = [f"rounds/00000003/{name}" for name in ("manifest.json", "state.safetensors")]
FILES = ("summary.json", "metrics.jsonl", "config.toml", "hashes.json", MODEL, *COMMITTED)
JSON = ("summary.json", "data.json", "privacy.json", "environment.json")
WORDS = (NESTED, b"", b"null", b"{}", b"[]", b"[1]", b"\xff", b'[{"a":%s}]' % (b"9" * 5000))
HARMS: dict[str, Harm] = {
    **{f"{name} waits": waiting(name) for name in FILES},
    **{f"{name} has no end": endless(name) for name in FILES},
    **{f"names {name!r}": naming(name) for name in ("/dev/zero", "../away", "a\0b", "", "a//b")},
    "hashes that are none": sealed(lambda hashes: hashes.update(files={"summary.json": 3})),
    "hashes of nothing": sealed(lambda hashes: hashes.pop("files")),
    **{f"{n}: {words[:9]!r}": holding(n, words) for n in JSON for words in WORDS},
    **{f"config: {w[:9]!r}": holding("config.toml", w) for w in (NESTED, b"\xff", b"9")},
    **{f"metrics: {w[:9]!r}": holding("metrics.jsonl", w) for w in (NESTED, b"\xff\n", b"{}\n")},
    **{f"model: {w[:9]!r}": holding(MODEL, w) for w in (b"", b"\5", b"\xff" * 8, b"\0" * 8)},
    "a model of no part": model({}, "x"),
    "a model of no facts": model([1]),
    "a model of no field": model({}, "params/vaues/x"),
    **{f"grain {s!r}": grain(s) for s in (3, [], ["axis"], ["blocks", "a"], ["axis", 1, 2], ["x"])},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "figures", lambda *given: {})
        complete(config_of(folder, "fedavg"), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("name", HARMS)
def test_a_hostile_folder_is_refused_with_a_code_at_once(
    done: Path, tmp_path: Path, name: str
) -> None:
    refused = []
    for reader, read in READERS.items():
        path = shutil.copytree(done, tmp_path / reader)
        HARMS[name](path)

        def reading(read: Callable[[Path], object] = read, path: Path = path) -> str:
            return code_of(lambda: read(path), CODES)

        with watched():
            refused.append(timed(reading)[0])
    assert set(refused) != {"read"} or name.startswith(("metrics", "rounds"))


def test_a_link_that_leads_to_itself_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with raises("E301", "circle"):
        add("mine", tmp_path / "circle")
