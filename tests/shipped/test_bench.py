"""The scripts under `bench`: what they choose, and what they write."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from masquerade.config.resolve import federations_of
from masquerade.config.toml import parse, read_file
from masquerade.core.part import Part
from masquerade.reproduce import jobs, raw
from masquerade.reproduce.record import Circumstances, RowRecord
from masquerade.results import Summary
from masquerade.results.costs import Parts
from tests.report.invented import accuracy, costs, result, spent

ROOT = Path(__file__).parents[2]

TINY = """
methods = ["fedavg", "fedavg_ft", "fedprox"]
[data]
clients = 3
[train]
model = "logistic"
rounds = 1
[method.fedprox]
mu = 0.5
[method.fedavg]
local_epochs = 1
"""


def chosen_by(path: Path, rates: tuple[float, ...]) -> dict:
    """Run the search on some rates; return the tables of the file that it writes."""
    bench = runpy.run_path(str(ROOT / "bench" / "choose.py"))
    bench["main"](path, 1, rates)
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_the_best_rate_on_validation_data_is_chosen_and_other_settings_stay(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    found = chosen_by(path, (1e-9, 0.1))
    assert found["method"]["fedprox"] == {"mu": 0.5, "lr": 0.1}
    assert found["method"]["fedavg"]["local_epochs"] == 1
    assert found["method"]["fedavg"]["lr"] == 0.1
    assert {"tune_lr", "tune_epochs"} <= found["method"]["fedavg"].keys()
    assert found["train"] == {"model": "logistic", "rounds": 1}
    text = path.read_text(encoding="utf-8")
    # Two tries for each training and twice as many for the fine-tuning, each with its score.
    assert text.count("#   fed") == 8
    assert "--rates 1e-09,0.1" in text
    assert parse(read_file(path))


def test_the_choice_reads_no_test_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in the test data change no try; other labels in validation data do."""

    def tries(spoil: str) -> list[str]:
        def spoiled(data, seeds):
            made, resolved = federations_of(data, seeds)
            federation = made[seeds[0]]
            y = federation.y.clone()
            for index in getattr(federation, spoil) if spoil else ():
                y[index] = (y[index] + 1) % 10
            return dict.fromkeys(seeds, replace(federation, y=y)), resolved

        monkeypatch.setattr("masquerade.config.resolve.federations_of", spoiled)
        path = tmp_path / f"tiny{spoil}.toml"
        path.write_text(TINY, encoding="utf-8")
        chosen_by(path, (0.1,))
        lines = path.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith("#   fed")]

    plain = tries("")
    assert tries("test") == plain
    assert tries("validation") != plain


def test_a_summary_of_0_1_is_migrated_figure_by_figure() -> None:
    migrated = runpy.run_path(str(ROOT / "bench" / "migrate.py"))["summary"]
    parts = Parts({"params": 1.0}, {"params": 2.0})
    summary = result(
        costs=costs(spent(parts=parts), adapt=spent()),
        global_view=accuracy(84.0),
        per_client=None,
    )
    now = summary.to_json()
    old = {key: value for key, value in now.items() if key not in ("schema", "global_view")}
    # 0.1 had costs, sizes and participations at the top, and one sum of all seconds.
    spending, size, asked = (old.pop(key) for key in ("costs", "model", "participation"))
    old |= spending.pop("train") | size | {"time": spending.pop("seconds"), "seconds": 13.3}
    old |= spending | {"participations": asked.pop("mean"), **asked}
    old |= {"accuracy": now["accuracy"] | {"global": now["global_view"]}, "diverged": None}
    assert Summary.from_json(migrated(old)) == summary
    assert migrated(now) == now


def test_clients_of_earlier_days_become_counts(tmp_path: Path) -> None:
    migrated = runpy.run_path(str(ROOT / "bench" / "migrate.py"))["clients"]
    made = Circumstances("2026-11-18", "0.2", "3.11", "2.11", "2.5", "CPU", {}, 1, 1.0)
    described = replace(accuracy(), shift={"0": accuracy().own}, pooled={})
    record = RowRecord("paper/table9", "fedavg", made, result(accuracy=described), {})
    jobs.write(tmp_path / "row.json", record)
    figures = np.array([75.0, 100 / 3], dtype=np.float32)
    degrees = {"shift": figures[None], "shift_degrees": np.array(["0"])}
    none = {"pooled": np.array([]), "pooled_degrees": np.array([], dtype=str)}
    counts = {"ids": np.array([0, 1]), "samples": np.array([9, 8]), "tests": np.array([4, 3])}
    np.savez(tmp_path / "row.npz", **counts, own=figures, **degrees, **none)
    assert migrated(tmp_path / "row.npz")
    found = raw.read(tmp_path / "row.json", record.result).per_client
    assert found is not None
    assert found.shift == {"0": found.own}
    assert found.own == pytest.approx((75.0, 100 / 3))
    with np.load(tmp_path / "row.npz", allow_pickle=False) as held:
        assert held["right"].tolist() == [[3, 1]]
    assert not migrated(tmp_path / "row.npz")


def test_the_page_of_defaults_is_what_its_files_say() -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "defaults.py"))
    page = (ROOT / "docs/results/defaults.md").read_text(encoding="utf-8")
    assert page == bench["page"]()


RELIABILITY = runpy.run_path(str(ROOT / "bench" / "reliability.py"))


def test_the_page_of_reliability_is_what_its_files_say() -> None:
    page = (ROOT / "docs/results/reliability.md").read_text(encoding="utf-8")
    assert page == RELIABILITY["page"]()


def test_what_was_not_drilled_often_enough_or_at_all_is_said(tmp_path: Path) -> None:
    record = {"command": "pytest x", "date": "2026-11-19", "commit": "abc", "figures": {"kills": 9}}
    for name in ("kills-methods", "kills-engines", "never-asked-for"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    page = RELIABILITY["page"](tmp_path)
    assert "| 1,000 | 18, short of it | 2026-11-19, abc |" in page
    assert "| 5,000,000 | missing |  |" in page
    assert "Not counted yet: `kills-comparison`, `io-error`" in page
    assert "never-asked-for.json" in page.partition("### Further drills")[2]


MUTANTS = runpy.run_path(str(ROOT / "bench" / "mutants.py"))
CODE = '''
LEAST = 3

def read(a):
    """Read 1 of 2."""
    if a < LEAST and a:
        raise ValueError(f"{a + 1} is too little")
    return min(a, 1) << LEAST
'''


def test_a_mutant_is_one_small_change_of_what_code_does() -> None:
    found = [each.name.partition(": ")[2] for each in MUTANTS["mutants"]("some", CODE)]
    assert found == [
        "`3` → `4`",
        "`3` → `2`",
        "`if a < LEAST and a:` → `if not (a < LEAST and a):`",
        "`if a < LEAST and a:` → `if False:`",
        "`if a < LEAST and a:` → `if True:`",
        "`a < LEAST and a` → `a < LEAST or a`",
        "`a < LEAST and a` → `a`",
        "`a < LEAST and a` → `a < LEAST`",
        "`a < LEAST` → `a <= LEAST`",
        "`a < LEAST` → `a >= LEAST`",
        "`raise ValueError(f'{a + 1} is too little')` → `pass`",
        "`min(a, 1) << LEAST` → `min(a, 1) >> LEAST`",
        "`min(a, 1)` → `max(a, 1)`",
        "`1` → `2`",
        "`1` → `0`",
    ]


def test_mutants_that_nothing_can_notice_are_there() -> None:
    named = {each.name for each in MUTANTS["chosen"](None, 1)}
    assert MUTANTS["EQUIVALENT"].keys() - named == set()


ATTACKS = runpy.run_path(str(ROOT / "bench" / "attacks.py"))


def test_the_page_of_attacks_is_what_its_files_say() -> None:
    page = (ROOT / "docs/results/attacks.md").read_text(encoding="utf-8")
    given = read_file(ROOT / "runs/attacks.toml")
    assert page == ATTACKS["page"](given, ROOT / "docs/results/attacks")


ONE_METHOD = ATTACKS["configuration"].merged(
    read_file(ROOT / "runs/attacks.toml"), {"methods": ["fedavg"]}
)


def invented(folder: Path, losses: dict[tuple[str, str, str], float]) -> str:
    """Return the page of trainings that reach 90 % in every cell that loses nothing."""
    every = ATTACKS["cells"](parse(ONE_METHOD), list(ATTACKS["DEFENCES"]))
    made = {"refused": 0, "thin": 0.0, "date": "2026-11-19", "torch": "2.13.0", "device": "CPU"}
    found = {}
    for cell in every:
        figures = {
            split: [90 + cell.seed - losses.get((split, cell.defence, cell.attack), 0), None]
            for split in ATTACKS["SPLITS"]
        }
        found[cell] = figures | made
    ATTACKS["save"](folder, "fedavg", found)
    return " ".join(ATTACKS["page"](ONE_METHOD, folder).split())


def test_validation_data_choose_the_defence_and_test_data_say_what_it_is_worth(
    tmp_path: Path,
) -> None:
    losses = {("validation", name, "sign flip"): 5.0 for name in ATTACKS["DEFENCES"]}
    losses["validation", "trimmed mean, clip", "sign flip"] = 2.0
    losses["test", "trimmed mean, clip", "label flip"] = 4.0
    losses["test", "none", "×100"] = 80.0
    page = invented(tmp_path, losses)
    assert "| **trimmed mean, clip** | 2.0 (± 0.0) | FedAvg, sign flip |" in page
    assert "do not stay within 3 points of the clean run under 1 of 4 attacks" in page
    assert "The largest mean loss is 4.0 (± 0.0) points (FedAvg, label flip)" in page
    assert "without a defence it is 80.0 (± 0.0) (FedAvg, ×100)" in page
    assert "| FedAvg | label flip | 92.0 | +0.0 (± 0.0) | 88.0 | -4.0 (± 0.0) | missed |" in page
    assert "stay within 3 points of the clean run under all 4 attacks" in invented(tmp_path, {})


def test_attacks_are_trained_side_by_side_and_only_where_they_are_missing(tmp_path: Path) -> None:
    """The command, at its smallest: two processes, one method, both files and the page."""
    source, page = tmp_path / "attacks.toml", tmp_path / "page.md"
    text = (ROOT / "runs/attacks.toml").read_text(encoding="utf-8")
    source.write_text(re.sub("methods = .*", 'methods = ["fedavg"]', text), encoding="utf-8")
    command = [sys.executable, str(ROOT / "bench/attacks.py"), str(source), "--quick"]
    command += ["--jobs", "2", "--out", str(page)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    saved = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    assert "20/20" in saved
    given = ATTACKS["configuration"].merged(read_file(source), ATTACKS["QUICK"])
    defences = ATTACKS["QUICK_DEFENCES"]
    assert page.read_text(encoding="utf-8") == ATTACKS["page"](given, tmp_path / "page", defences)
    file = tmp_path / "page/fedavg.json"
    before = file.read_bytes()
    assert len(before.splitlines()) == 22
    every = ATTACKS["cells"](parse(given), defences)
    ATTACKS["run"](given, file.parent, every, 1, 0.0)
    assert file.read_bytes() == before


def test_nothing_is_begun_after_the_time(tmp_path: Path) -> None:
    cell = ATTACKS["Cell"]("fedavg", "none", "none", 1)
    assert ATTACKS["bounded"](0.0, ONE_METHOD, cell) is None


def test_a_method_that_lacks_trainings_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no method has all"):
        ATTACKS["page"](ONE_METHOD, tmp_path)
    invented(tmp_path, {})
    both = ATTACKS["configuration"].merged(ONE_METHOD, {"methods": ["fedavg", "dmpfl"]})
    page = " ".join(ATTACKS["page"](both, tmp_path).split())
    assert "Not judged here, nor in the choice of a defence: DM-PFL (63 trainings left)." in page
    assert "under all 4 attacks" in page


def test_an_attack_changes_what_a_method_sends_where_it_has_a_place() -> None:
    sent = {
        "fedavg": Part({"w": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}),
        "fedmask": Part({"w": torch.tensor([[True, False] * 8])}),
    }
    for method, part in sent.items():
        for attack in ATTACKS["ATTACKS"].keys() - {"none", "label flip"}:
            value = ATTACKS["spoiled"](part, {}, [0], attack, 0).values["w"]
            placed = attack not in ATTACKS["NO_PLACE"][method]
            assert not placed or not torch.equal(value, part.values["w"])


def test_attackers_send_what_the_page_says() -> None:
    """Client 1 attacks and client 0 does not; the server had ones, and client 1 holds two."""
    keep = torch.tensor([[True, True, True, True], [False, True, False, True]])
    values = {
        "w": torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 0.0, 0.5]]),
        "b": torch.tensor([[True, False], [True, True]]),
    }
    server = {"w": torch.ones(4)}
    found = {
        attack: ATTACKS["spoiled"](Part(values, {"w": keep}), server, [1], attack, 0)
        for attack in ATTACKS["ATTACKS"]
    }
    for part in found.values():
        assert part.values["w"][0].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert part.keep["w"][0].all()
    sent = {name: part.values["w"][1][keep[1]].tolist() for name, part in found.items()}
    assert sent["none"] == sent["label flip"] == [2.0, 0.5]
    assert sent["sign flip"] == [0.0, 1.5]
    assert sent["×100"] == [101.0, -49.0]
    assert sent["one 1e38"] == pytest.approx([2.0, 1e38])
    assert found["mask inflation"].keep["w"].all()
    shuffled = found["random masks"]
    assert shuffled.keep["w"][1].sum() == 2
    assert sorted(shuffled.values["w"][1][shuffled.keep["w"][1]].tolist()) == [0.5, 2.0]
    assert found["sign flip"].values["b"][1].tolist() == [False, False]
