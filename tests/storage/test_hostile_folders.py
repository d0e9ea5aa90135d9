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
from masquerade.core.part import Part
from masquerade.data.fetch import add
from masquerade.experiments import run as experiment
from masquerade.experiments.report_page import write_report
from masquerade.export import from_run
from masquerade.report import plots
from masquerade.storage import model_files
from masquerade.storage.manifest import fingerprint, seal, unseal
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import RunDirectory, decode_tensors, encode_tensors
from masquerade.storage.saved_folder import damages
from tests.experiments.test_resume import complete
from tests.experiments.test_sealed_results import config_of
from tests.fuzzing import code_of, timed, watched
from tests.messages import Golden
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


def another(values: dict[str, torch.Tensor], **masks: torch.Tensor) -> Harm:
    """A model that is intact, and of another network or method than the run."""
    return holding(MODEL, model_files.encode({"params": Part(values, masks)}))


def committed(change: Callable[[dict[str, torch.Tensor]], object]) -> Harm:
    """Other tensors in the last commit, with their hash."""

    def harm(path: Path) -> None:
        folder = path / "rounds" / "00000003"
        tensors = decode_tensors((folder / "state.safetensors").read_bytes(), "state")
        change(tensors)
        data, manifest = encode_tensors(tensors), unseal((folder / "manifest.json").read_bytes())
        manifest["files"] = {"state.safetensors": fingerprint(data)}
        (folder / "state.safetensors").write_bytes(data)
        (folder / "manifest.json").write_bytes(seal(manifest))

    return harm


def told_by_clients(change: Callable[[dict[str, torch.Tensor]], object]) -> Harm:
    """Other states of clients, with their hash."""

    def harm(path: Path) -> None:
        folder = path / "rounds" / "00000003"
        manifest = unseal((folder / "manifest.json").read_bytes())
        for name in manifest["pieces"]:
            tensors = decode_tensors((path / "states" / name).read_bytes(), name)
            change(tensors)
            (path / "states" / name).write_bytes(encode_tensors(tensors))
            manifest["pieces"][name] = fingerprint((path / "states" / name).read_bytes())
        (folder / "manifest.json").write_bytes(seal(manifest))

    return harm


def facts(change: Callable[[dict[str, Any]], object], of: str = "state") -> Harm:
    """Other facts in the last commit, with their hash."""

    def harm(path: Path) -> None:
        file = path / "rounds" / "00000003" / "manifest.json"
        manifest = unseal(file.read_bytes())
        change(manifest["facts"][of] if of else manifest)
        file.write_bytes(seal(manifest))

    return harm


def renumbered(number: int) -> Harm:
    """The last commit under another number, which it says itself."""

    def harm(path: Path) -> None:
        facts(lambda manifest: manifest.update(number=number), "")(path)
        (path / "rounds" / "00000003").rename(path / "rounds" / f"{number:08d}")

    return harm


def other_facts(path: Path) -> None:
    file = path / "rounds" / "00000003" / "manifest.json"
    manifest = unseal(file.read_bytes())
    file.write_bytes(seal(manifest | {"facts": {"origin": 3}}))


NARROW = {"layers.0.weight": torch.ones(3, 4), "layers.0.bias": torch.ones(3)}
WIDE = {"layers.0.weight": torch.ones(64, 4), "layers.0.bias": torch.ones(64)}
WHOLE = WIDE | {"layers.1.weight": torch.ones(3, 64), "layers.1.bias": torch.ones(3)}
WEIGHT, SAMPLED = "server/params/layers.0.weight", "participation/sampled"
NESTED = b"[" * 100_000
COMMITTED = [f"rounds/00000003/{name}" for name in ("manifest.json", "state.safetensors")]
FILES = ("summary.json", "metrics.jsonl", "config.toml", "hashes.json", MODEL, *COMMITTED)
JSON = ("summary.json", "data.json", "privacy.json", "environment.json")
WORDS = (NESTED, b"", b"null", b"{}", b"[]", b"[1]", b"\xff", b'[{"a":%s}]' % (b"9" * 5000))
FORGED: dict[str, Harm] = {
    **{
        f"without {name}": facts(lambda state, name=name: state.pop(name))
        for name in ("costs", "layers", "history", "seconds", "memory", "refused")
    },
    "of no costs": facts(lambda state: state["costs"].clear()),
    "of no cost": facts(lambda state: state["costs"]["train"].clear()),
    "without bytes": facts(lambda state: state["costs"]["train"].pop("down")),
    "of other costs": facts(lambda state: state["costs"].update(other={})),
    "of no costs of a layer": facts(
        lambda state: [one.clear() for each in state["layers"].values() for one in each.values()]
    ),
    "of noise for nobody": facts(lambda state: state.update(noised={"x": 1})),
    "of a round that never comes": renumbered(4),
    "of a round of twenty digits": renumbered(10**20),
    "not finite": committed(lambda held: held[WEIGHT].fill_(torch.inf)),
}
"""Commits that say what none says, with a hash that fits."""
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
    "a model of another network": another(NARROW),
    "a model that lacks a layer": another(WIDE),
    "a model with a layer more": another(WHOLE | {"layers.2.bias": torch.ones(3)}),
    "a model that would be broadcast": another(WHOLE | {"layers.1.bias": torch.ones(1)}),
    "a model of other numbers": another({n: v.double() for n, v in WHOLE.items()}),
    "a model with a mask": another(WHOLE, **{"layers.1.bias": torch.ones(3, dtype=torch.bool)}),
    "a model with a narrow mask": another(WHOLE, **{"layers.1.bias": torch.ones(1).bool()}),
    "a commit of another network": committed(lambda held: held.update({WEIGHT: torch.ones(3, 4)})),
    "a commit that lacks a layer": committed(lambda held: held.pop(WEIGHT)),
    "a commit with other facts": other_facts,
    **{f"a commit: {name}": harm for name, harm in FORGED.items()},
    "states of nobody": told_by_clients(lambda held: held.pop("ids")),
    "states of clients that are not": told_by_clients(lambda held: held["ids"].add_(9)),
    "states of one client twice": told_by_clients(lambda held: held["ids"].zero_()),
    "states of fewer clients": told_by_clients(lambda h: h.update({SAMPLED: h[SAMPLED][:-1]})),
    "states that no session has": told_by_clients(lambda held: held.pop("session/version/")),
    "a session of one client": told_by_clients(
        lambda held: held.update({"session/down/x": torch.ones(1)})
    ),
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


def test_the_model_of_another_network_is_told_by_its_tensors(
    done: Path, tmp_path: Path, golden: Golden
) -> None:
    path = shutil.copytree(done, tmp_path / "run")
    another(NARROW)(path)
    for read in (READERS["export"], READERS["model"]):
        with raises("E401", MODEL, "params/values/layers.0.weight", [64, 4], [3, 4]) as refusal:
            read(path)
    golden(refusal.value)
    assert read_results(path)


def test_the_state_of_another_network_is_told_by_its_tensors(
    done: Path, tmp_path: Path, golden: Golden
) -> None:
    path = shutil.copytree(done, tmp_path / "run")
    (path / "hashes.json").unlink()
    HARMS["a commit of another network"](path)
    with raises("E401", WEIGHT, [64, 4], [3, 4]) as refusal:
        experiment.resume(path)
    golden(refusal.value)


@pytest.mark.parametrize("name", FORGED)
def test_a_commit_that_says_what_none_says_is_damaged(
    done: Path, tmp_path: Path, name: str, golden: Golden
) -> None:
    path = shutil.copytree(done, tmp_path / "run")
    (path / "hashes.json").unlink()
    FORGED[name](path)
    with raises("E401") as refusal:
        experiment.resume(path)
    golden(refusal.value)


def test_a_link_that_leads_to_itself_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with raises("E301", "circle"):
        add("mine", tmp_path / "circle")
