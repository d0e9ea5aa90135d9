"""The command: exit statuses, what is printed where, files for programs, stops that resume."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from masquerade.config.settings import Config
from masquerade.config.toml import parse, read_file
from masquerade.errors import warn
from masquerade.experiments.checkpoints import FREE
from masquerade.methods import METHODS
from masquerade.storage.results import read_results
from masquerade.storage.run_directory import RunDirectory
from tests.messages import Golden

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli import app as cli
    from masquerade.cli import train as training

pytestmark = pytest.mark.usefixtures("plain_pages")
COMMANDS = ["run", "compare", "sweep", "resume", "report", "methods", "models", "reproduce"]
COMMANDS += ["watch", "check", "export", "predict", "bench-model"]
COMMANDS += ["data fetch", "data add", "data list", "data show"]
TINY = ["--partition", "client", "--clients", "0", "--rounds", "3", "--engine", "loop"]
TINY += [
    "--set",
    "train.model=logistic",
    "--set",
    "method.local_epochs=2",
    "--set",
    "evaluate.every=1",
]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
"""Where the command is found, installed or not."""


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


Call = Callable[..., Ended]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """Call the command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["masquerade", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        status = end.value.code or 0
        assert isinstance(status, int)
        return Ended(status, *capsys.readouterr())

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own data: six clients, four features, three classes, in some order of clients."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    client = np.array(["ann", "bob", "cid", "dot", "eve", "fay"])[rng.permutation(120) % 6]
    np.savez(path, x=x, y=(x @ rng.normal(size=(4, 3))).argmax(1), client=client)
    return path


def strict(text: str) -> Any:
    """Read JSON as other languages do: without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def finished(call: Call, mine: Path, tmp_path: Path) -> Path:
    """The directory of a run of FedAvg and its tuned view."""
    assert call("run", "--data", mine, *TINY, "--quiet", "--out", tmp_path / "done") == (0, "", "")
    return tmp_path / "done"


def test_a_sweep_takes_its_data_and_methods_as_run_does(call: Call, mine: Path) -> None:
    options = ["--data", mine, "--method", "fedavg", "--model", "logistic", "--rounds", "1"]
    over = ["--over", "method.lr=.1,.3", "--engine", "loop", "--out", "s", "--json"]
    rows = strict(call("sweep", *options, *over).out)
    assert [row["settings"] for row in rows] == [{"method.lr": 0.1}, {"method.lr": 0.3}]


def test_a_sweep_is_reported_resumed_and_run_from_its_best_configuration(
    call: Call, mine: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(f'[data]\nname = "{mine}"', encoding="utf-8")
    small = ["train.rounds=1", "train.model=logistic", "evaluate.every=0", "compute.engine=loop"]
    options = [word for each in small for word in ("--set", each)]
    over = ["--over", "method.lr=0.001,0.3", "--out", "s"]
    status, out, err = call("sweep", "mine.toml", *over, *options)
    assert status == 0
    assert "on validation data" in err.splitlines()[0]
    assert "Best configuration: s/best.toml" in out
    rows = strict(call("report", "s", "--json").out)
    assert [row["settings"] for row in rows] == [{"method.lr": 0.001}, {"method.lr": 0.3}]
    assert rows[1]["standing"] == "best"
    # The same command, and `resume`, find nothing left to do; another sweep is refused.
    again = ["mine.toml", *over, *options, "--json"]
    assert strict(call("sweep", *again).out) == strict(call("resume", "s", "--json").out) == rows
    assert call("sweep", *again, "--seeds", "2").status == 4
    assert call("report", "s", "--clients").status == 2
    assert call("report", Path("s") / rows[0]["runs"][0], "--quiet").status == 0
    assert call("run", "--config", "s/best.toml", "--quiet").status == 0


def test_a_command_tracks_what_it_trains(call: Call, mine: Path, tmp_path: Path) -> None:
    tracked = ["--track", "tensorboard:logs"]
    assert call("compare", "--methods", "local", "--data", mine, *TINY, *tracked).status == 0
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["local-seed1"]
    assert call("run", "--data", mine, *TINY, "--track", "tensorboard").status == 2


def test_the_first_line_says_what_is_trained(call: Call, mine: Path) -> None:
    named = ["--method", "local", "--seed", "4"]
    for options, said in (
        (
            [],
            r"Training FedAvg, FedAvg\+FT on [^ ]*: 3 rounds, seed 1. No method was named; ",
        ),
        (named, "Training Local on [^ ]*: 3 rounds, seed 4.$"),
    ):
        first = call("run", "--data", mine, *TINY, *options).err.splitlines()[0]
        assert re.match(said, first)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(call: Call, command: str) -> None:
    status, out, _ = call(*command.split(), "--help")
    assert status == 0
    assert f"Example: masquerade {command}" in re.sub(r"\s+", " ", out)


def test_every_command_is_known_here() -> None:
    groups = {"data": cli.data_app, "": cli.app}
    names = [
        f"{group} {each.name or getattr(each.callback, '__name__', '')}".strip()
        for group, app in groups.items()
        for each in app.registered_commands
    ]
    assert sorted(names) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["run", "--nonsense"], 2, "--nonsense"),
        (["run", "--rounds", "many"], 2, "many"),
        (["dance"], 2, "dance"),
        (["run", "--set", "train.rouns=3"], 2, "E201"),
        (["run", "--method", "fedagv"], 2, "E201"),
        (["compare", "--methods", "local,dmfpl"], 2, "E201"),
        (["methods", "fedporx"], 2, "E201"),
        (["check", "fedagv"], 2, "E201"),
        (["check", "no.py:Mine"], 2, "E201"),
        (["check", "fedavg", "--set", "method.mu=1"], 2, "E201"),
        (["check", "fedavg", "--set", "train.rounds=1"], 2, "E201"),
        (["run", "--config", "no.toml"], 2, "E201"),
        (["run", "--partition", "dirichlett:1"], 2, "E201"),
        (["run", "--set", "train.model=mpl"], 2, "E201"),
        (["run", "--set", "evaluate.bandwidth=10"], 2, "E201"),
        (["run", "--set", "evaluate.bandwidth=fast"], 2, "E201"),
        (["run", "--set", "train.seeds=[1,2]"], 2, "E201"),
        (["run", "--method", "ditto,local"], 2, "`compare`"),
        (["run", "--methods", "ditto", "--set", "metrics=auroc"], 2, "`evaluate.metrics`"),
        (["run", "--set", "class_weights=balanced"], 2, "`train.class_weights`"),
        (["sweep", "--method", "ditto", "--over", "lam=0.1,1"], 2, "`method.lam`"),
        (["sweep", "--over", "method.lr=0.1,1"], 2, "--method"),
        (["sweep", "a.toml", "--config", "b.toml", "--over", "method.lr=1"], 2, "b.toml"),
        (["run", "--data", "digit"], 3, "E301"),
        (["run", "--data", "no.npz"], 3, "E301"),
        (["run", "--data", "cifar10"], 3, "E301"),
        (["data", "fetch", "cifra10"], 3, "E301"),
        (["data", "add", "mine", "--from", "no"], 3, "E301"),
        (["data", "add", "../mine", "--from", "."], 2, "E203"),
        (["data", "show", "torn.npz"], 3, "E301"),
        (["run", "--clients", "5000"], 3, "E303"),
        (["run", "--out", "a" * 300], 2, "E203"),
        (["run", "--data", "a" * 300], 2, "E203"),
        (["run", "--set", "method.lr=1e308"], 2, "E201"),
        (["resume", "nowhere"], 4, "E408"),
        (["report", "nowhere"], 4, "E408"),
    ],
    ids=lambda given: " ".join(given)[:40] if isinstance(given, list) else None,
)
def test_a_refusal_has_a_status_and_one_line(
    call: Call, tmp_path: Path, arguments: list[str], status: int, word: str, golden: Golden
) -> None:
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
    ended = call(*arguments, *(["--quiet"] if arguments[0] in ("run", "resume") else []))
    assert ended.status == status
    assert ended.out == ""
    assert word in ended.err
    assert "Traceback" not in ended.err
    if word.startswith("E"):
        (line,) = ended.err.splitlines()
        golden(line)
    assert list(tmp_path.iterdir()) == [tmp_path / "torn.npz"]


@pytest.mark.parametrize(("y", "said"), [([0, -1], "label -1"), ([0, 1, 2], "`y`")])
def test_data_that_cannot_be_right_are_refused(
    call: Call, tmp_path: Path, y: list[int], said: str
) -> None:
    np.savez(tmp_path / "bad.npz", x=np.zeros((2, 3), np.float32), y=np.array(y))
    status, _, err = call("run", "--data", "bad.npz", "--quiet")
    assert status == 3
    assert err.startswith("E302 ")
    assert said in err


def test_an_unforeseen_error_is_one_line_and_a_hint(
    call: Call, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def go(*arguments: Any, **more: Any) -> None:
        error = ZeroDivisionError("by nothing")
        error.add_note("in client 3")
        raise error

    monkeypatch.setattr(training, "follow_training", go)
    status, out, err = call("run")
    assert (status, out) == (1, "")
    golden(err.splitlines()[0])
    assert "--debug" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("bytes", [0, 1 << 60])
def test_too_little_memory_has_its_own_status(
    call: Call, monkeypatch: pytest.MonkeyPatch, golden: Golden, bytes: int
) -> None:
    def go(*arguments: Any, **more: Any) -> None:
        # torch says so by an error that is no MemoryError.
        torch.empty(bytes, dtype=torch.uint8)
        raise MemoryError

    monkeypatch.setattr(training, "follow_training", go)
    status, out, err = call("run")
    assert (status, out) == (5, "")
    golden(err)


def test_a_run_is_not_written_over_another(call: Call, mine: Path, finished: Path) -> None:
    before = (finished / "summary.json").read_bytes()
    for command in ("run", "compare"):
        status, _, err = call(command, "--data", mine, *TINY, "--quiet", "--out", finished)
        assert status == 4
        assert err.startswith("E407 ")
        assert f"masquerade resume {finished}" in err
    assert (finished / "summary.json").read_bytes() == before


def test_a_finished_run_is_given_more_rounds(call: Call, finished: Path) -> None:
    more = ("--rounds", "4", "--allow-change", "evaluate.bandwidth=1MB/s", "--quiet")
    status, _, err = call("resume", finished, *more)
    assert status == 0
    assert "W403" in err
    assert read_results(finished)[0].rounds == 4


def test_settings_that_may_change_are_listed(call: Call, finished: Path, golden: Golden) -> None:
    for wrong in ("method.lr=1", "data.seed=3"):
        status, _, err = call("resume", finished, "--allow-change", wrong, "--quiet")
        assert status == 4
        assert err.startswith("E402 ")
        for key in FREE:
            assert key in err
    golden(err)
    status, _, err = call("resume", finished, "--allow-change", "method.lrr=1", "--quiet")
    assert (status, err[:5]) == (2, "E201 ")
    listed = call("resume", "--help").out
    for key in FREE:
        assert key in listed


def test_a_run_in_use_is_left_alone(call: Call, finished: Path) -> None:
    with RunDirectory.open(finished):
        status, _, err = call("resume", finished, "--quiet")
    assert status == 4
    assert err.startswith("E404 ")
    assert f"process {os.getpid()}" in err


OWN = {"mean", "std", "weighted", "bottom_decile", "defined"}
DEGREES = {"0", "20", "40", "60", "80", "100"}


def check_accuracy(found: dict[str, Any]) -> None:
    assert set(found) == {"own", "shift", "pooled"}
    assert set(found["own"]) == OWN
    for shifted in (found["shift"], found["pooled"]):
        assert set(shifted) == {*DEGREES, "averaged"}
        assert all(set(entry) == {"mean", "std"} for entry in shifted.values())
        assert shifted["0"]["mean"] == found["own"]["mean"]
        means = [shifted[degree]["mean"] for degree in DEGREES]
        assert shifted["averaged"]["mean"] == pytest.approx(sum(means) / 6)
        assert all(0 <= mean <= 100 for mean in means)
        assert max(means) > 1, "accuracies are in percent"


def check_result(result: dict[str, Any]) -> None:
    """See that a result has what programs rely on."""
    assert (result["schema"], result["data"]) == (2, "mine")
    assert (result["seed"], result["rounds"], result["clients"]) == (1, 3, 6)
    check_accuracy(result["accuracy"])
    line = METHODS[result["method"]]
    assert ("global_view" in result) == ("global" in line.method.views)
    if "global_view" in result:
        check_accuracy(result["global_view"])
    costs, model = result["costs"], result["model"]
    for spent in (costs["train"], costs.get("adapt", costs["train"])):
        assert set(spent["bytes"]) == {"down", "up"}
        assert set(spent["flops"]) == {"dense", "masked", "executed"}
    # Local's model lies with its client; all others need what the server has before they are used.
    assert ("adapt" in costs) == (result["method"] != "local")
    if "adapt" in costs:
        assert costs["adapt"]["bytes"]["down"] > costs["adapt"]["bytes"]["up"] == 0
        assert (costs["adapt"]["flops"]["dense"] > 0) == (line.view in ("tuned", "adaptive"))
    assert 0 < model["density"] <= 1
    assert model["kept"] == pytest.approx(model["density"] * model["parameters"])
    assert costs["storage"]["model"] > 0
    assert set(costs["seconds"]) == {"start-up", "training", "evaluation", "commits"}
    assert min(costs["seconds"].values()) > 0
    assert costs["memory"]["process"] > 1e7


def requests(page: str) -> list[str]:
    """List what a browser would ask of the network for a page, its own scripts apart."""
    page = re.sub(
        r"<script( type=\"application/json\" id=\"charts\")?>.*?</script>", "", page, flags=re.S
    )
    found = re.findall(r"""(?:src|srcset|href|action|data)=["']([^"']*)""", page)
    found += re.findall(r"url\(([^)]*)\)", page) + re.findall(r"@import.*|<script.*|<link.*", page)
    return [target for target in found if not target.startswith("#")]


def test_a_warning_that_is_the_same_for_every_seed_is_shown_once(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(**_: object) -> None:
        for text in ("W506 a", "W506 b", "W506 a"):
            warn(text)
        raise SystemExit(0)

    monkeypatch.setattr(cli, "app", warned)
    # The next command shows it again.
    assert [call("run").err for _ in range(2)] == ["W506 a\nW506 b\n"] * 2


def test_a_comparison_of_own_data_is_written_for_programs_and_people(
    call: Call, mine: Path, tmp_path: Path, drawn_pages: None, golden: Golden
) -> None:
    names = ["local", "fedavg_ft", "dmpfl", "fedavg", "dmpfl_plus"]
    status, out, err = call(
        "compare", "--data", mine, *TINY, "--methods", ",".join(names), "--json", "--out", "both"
    )
    assert status == 0
    # A network of one layer, which DM-PFL leaves dense: that is said once, and nothing else but
    # that so short a training is alarming.
    said = [line for line in err.splitlines() if not line.startswith(("W310 ", "W311 "))]
    assert len(said) == err.count("W506 ") == 1
    golden("\n".join(said))
    printed = strict(out)
    assert printed == strict((tmp_path / "both" / "results.json").read_text())
    assert [result["method"] for result in printed] == names
    for result in printed:
        check_result(result)
    runs = sorted(path.parent.name for path in tmp_path.glob("both/*/summary.json"))
    assert runs == ["dmpfl-seed1", "fedavg_ft-seed1", "local-seed1"], "views share a training"
    assert requests((tmp_path / "both" / "report.html").read_text()) == []

    status, out, _ = call("report", "both", "--format", "markdown")
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("|")]
    assert "DM-PFL+" in out

    status, out, _ = call("report", "both", "--difference", "fedavg_ft,local", "--json")
    gains = strict(out)
    own = {result["method"]: result["per_client"]["own"] for result in printed}
    expected = [a - b for a, b in zip(own["fedavg_ft"], own["local"], strict=True)]
    assert status == 0
    assert list(gains["clients"]["accuracy"].values()) == pytest.approx(sorted(expected))
    # Six clients of one seed are too few for an interval.
    assert gains["columns"] == {}
    # What is asked for comes in Markdown too, and one report at a time.
    written = call("report", "both", "--difference", "fedavg_ft,local", "--format", "markdown").out
    assert "| client | test samples" in written
    listed = call("report", "both", "--clients", "--format", "markdown").out
    assert "Accuracy (%) of each client" in listed
    assert call("report", "both", "--metric", "auroc").status == 2
    assert call("report", "both", "--clients", "--costs").status == 2
    # The settings say what `auto` and 0 clients were.
    assert read_file(tmp_path / "both" / "config.toml")["data"]["clients"] == 6


def test_a_run_is_written_for_programs_and_people(call: Call, finished: Path) -> None:
    summaries = strict((finished / "summary.json").read_text())
    assert [summary["method"] for summary in summaries] == ["fedavg", "fedavg_ft"]
    for summary in summaries:
        check_result(summary)
    assert requests((finished / "report.html").read_text()) == []
    for command in ("report", "resume"):
        status, out, _ = call(command, finished, "--json")
        assert (status, strict(out)) == (0, summaries)
        assert call(command, finished, "--quiet") == (0, "", "")
    assert call("report", finished, "--format", "latex").out.count(r"\begin{tabular}") == 1
    assert call("report", finished, "--format", "csv").out.startswith("method,title,view,seed,")
    assert call("report", finished, "--format", "word").err.startswith("E201")
    costs = call("report", finished, "--costs", "--bandwidth", "8kbps:4kbps", "--json")
    (first, _) = strict(costs[1])
    sent = summaries[0]["costs"]["train"]["bytes"]
    seconds = sent["down"] / 1000 + sent["up"] / 500
    assert first["s to send, in all"] == pytest.approx(seconds)
    assert first["s to send, a round"] == pytest.approx(seconds / 3)
    page = finished / "report.html"
    assert "8 kbps down, 4 kbps up" in page.read_text()
    # Unasked, the page has the bandwidth of its run.
    call("resume", finished, "--allow-change", "evaluate.bandwidth=20Mbps", "--quiet")
    assert call("report", finished, "--quiet")[0] == 0
    assert "20 Mbps both ways" in page.read_text()
    for wrong in (("--bandwidth", "10"), ("--convention", "papers")):
        assert call("report", finished, "--costs", *wrong)[0] == 2
    assert "As papers count" in call("report", finished, "--costs", "--convention", "paper")[1]
    status, out, _ = call("report", finished)
    assert status == 0
    assert "FedAvg+FT" in out
    assert str(finished / "report.html") in out


def test_clients_with_next_to_nothing_do_not_stop_a_run(call: Call, tmp_path: Path) -> None:
    """One sample, two samples, one class: no figure where there is no test sample, no zero."""
    sizes = [1, 2, 20, 20]
    x = np.random.default_rng(5).normal(size=(sum(sizes), 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    y[3:23] = 1
    np.savez(tmp_path / "odd.npz", x=x, y=y, client=np.repeat(np.arange(4), sizes))
    names = "local,fedavg_ft,fedprox,dmpfl,dmpfl_plus"
    status, out, _ = call("compare", "--methods", names, "--data", "odd.npz", *TINY, "--json")
    assert status == 0
    for result in strict(out):
        assert result["per_client"]["samples"] == [1, 1, 12, 12]
        alone, *others = result["per_client"]["own"]
        assert alone is None
        assert result["accuracy"]["own"]["mean"] == pytest.approx(sum(others) / 3)


def test_progress_is_told_beside_the_results(call: Call, mine: Path) -> None:
    status, out, err = call("run", "--method", "local", "--data", mine, *TINY)
    assert status == 0
    assert "round 3 of 3" in err
    assert "on own data" in err
    assert "Local" in out
    assert "out/local-1/report.html" in out


def test_a_view_with_settings_of_its_own_is_run_for_itself(
    call: Call, mine: Path, tmp_path: Path
) -> None:
    """`run` evaluates all views of one training, so views that train apart must not stop it."""
    apart = ["--set", "method.fedavg.lr=0.1", "--set", "method.fedavg_ft.lr=0.2"]
    ended = call("run", "--data", mine, *TINY, *apart, "--quiet", "--out", tmp_path / "apart")
    assert ended == (0, "", "")
    (summary,) = strict((tmp_path / "apart" / "summary.json").read_text())
    assert summary["method"] == "fedavg"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Collect the configurations that commands would run."""
    found: list[Config] = []

    def stopping(config: Config, *rest: Any, **more: Any) -> None:
        found.append(config)
        raise cli.Stopped(1)

    monkeypatch.setattr(training, "follow_training", stopping)
    return found


def test_flags_stand_over_the_file_and_settings_over_both(
    call: Call, tmp_path: Path, parsed: list[Config]
) -> None:
    (tmp_path / "a.toml").write_text(
        'methods = ["local"]\n[train]\nrounds = 3\nbatch_size = 7\n[data]\nclients = 4\n'
    )
    flags = (
        "--rounds 5 --clients 6 --partition iid --engine loop --seed 2 --seed 3 --methods fedavg"
    )
    call("compare", "--config", "a.toml", *flags.split(), "--set", "train.rounds=9")
    (config,) = parsed
    assert (config.train.batch_size, config.train.rounds, config.train.seeds) == (7, 9, (2, 3))
    assert (config.data.clients, config.data.partition) == (6, "iid")
    assert (config.compute.engine, config.methods) == ("loop", ("fedavg",))


def test_without_flags_the_file_stands(call: Call, tmp_path: Path, parsed: list[Config]) -> None:
    (tmp_path / "a.toml").write_text('methods = ["local", "fedprox"]\n[train]\nrounds = 3\n')
    call("compare", "-c", "a.toml")
    (config,) = parsed
    assert (config.methods, config.train.rounds) == (("local", "fedprox"), 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_evaluates_every_named_view_of_its_training(
    call: Call, parsed: list[Config], name: str
) -> None:
    call("run", "--method", name)
    (config,) = parsed
    assert name in config.methods
    assert {METHODS[other].method for other in config.methods} == {METHODS[name].method}


def test_methods_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    # What they cost is forecast in other tests.
    costs = dict.fromkeys(METHODS, (1.0, 1.0))
    monkeypatch.setattr("masquerade.cli.listings.relative_costs", lambda: costs)
    status, out, _ = call("methods")
    assert status == 0
    for name, line in METHODS.items():
        assert re.search(rf"{name}\b.*{re.escape(line.title)}", out)
    assert [line["name"] for line in strict(call("methods", "--json").out)] == list(METHODS)


def test_the_settings_of_a_method_are_listed(call: Call) -> None:
    out = re.sub(r"[\s│]+", " ", call("methods", "dmpfl").out)
    assert "sparsity 0.5 Share of the weights of every masked layer that are zero" in out
    assert "lr 0.1 Learning rate" in out
    listed = {each["name"]: each for each in strict(call("methods", "dmpfl", "--json").out)}
    assert listed["iterations"]["default"] == 2
    assert "three phases" in listed["iterations"]["meaning"]


def test_data_are_listed_and_shown(call: Call, mine: Path) -> None:
    listed = call("data", "list").out
    assert re.search(r"digits +│ yes", listed)
    assert re.search(r"cifar10 +│ +│", listed)
    assert "digits" in strict(call("data", "list", "--json").out)
    shown = call("data", "show", mine, "--partition", "client", "--clients", "0")
    assert shown.status == 0
    assert "mine: training samples by client and class" in shown.out
    counted = strict(
        call("data", "show", mine, "--partition", "iid", "--clients", "3", "--json").out
    )
    assert len(counted["clients"]) == 3


def test_what_comes_along_says_where_it_is_from(call: Call) -> None:
    shown = call("data", "show", "digits", "--clients", "3").out
    for words in ("samples +│ 1,797", "license +│ CC BY 4.0", "origin +│ https", "citation +│"):
        assert re.search(words, shown)
    listed = strict(call("data", "list", "--json").out)
    assert all(record["origin"] and record["license"] for record in listed.values())


def test_a_partition_is_drawn_into_a_file(call: Call) -> None:
    words = ("data", "show", "digits", "--partition", "groups:2", "--clients", "4")
    assert call(*words, "--out", "groups.svg").status == 0
    assert Path("groups.svg").read_text(encoding="utf-8").startswith("<svg ")
    assert call(*words, "--out", "groups.jpg").err.startswith("E201")
    assert call(*words, "--out", "no/groups.svg").err.startswith("E502")


def test_networks_are_listed_with_their_sizes(call: Call) -> None:
    assert re.search(r"cifar_cnn +│ DM-PFL's.* 797,962 │", call("models").out)
    listed = {each["name"]: each for each in strict(call("models", "--json").out)}
    assert listed["leaf_cnn"]["parameters"] == 2_278_334
    assert listed["leaf_cnn"]["takes"] == "images"


def test_added_data_are_listed_shown_and_trained_on(call: Call, mine: Path) -> None:
    added = call("data", "add", "ours", "--from", mine)
    assert added.status == 0
    assert re.search(r"samples +│ 120", added.out)
    assert re.search(r"origin +│ added from .*mine.npz", added.out)
    assert re.search(r"ours +│ yes +│ +120 │ +3 │ +6 │", call("data", "list").out)
    shown = call("data", "show", "ours").out
    assert re.search(r"clients +│ 6", shown)
    assert "ours: training samples by client and class" in shown
    about = strict(call("data", "show", "ours", "--json").out)["about"]
    assert (about["samples"], about["clients"]) == (120, 6)
    assert call("run", "--data", "ours", *TINY, "--quiet", "--out", "done") == (0, "", "")
    again = call("data", "add", "ours", "--from", mine)
    assert (again.status, again.err[:4]) == (2, "E201")
    assert strict(call("data", "add", "ours", "--from", mine, "--force", "--json").out)["sha256"]
    assert call("data", "add", "ours", "--from", mine, "--force", "--quiet") == (0, "", "")


def test_a_share_of_the_data_can_be_trained_on(call: Call, mine: Path) -> None:
    half = ["--set", "data.fraction=0.5"]
    assert call("run", "--data", mine, *TINY, *half, "--quiet", "--out", "half").status == 0
    config = parse(read_file(Path("half") / "config.toml"))
    assert (config.data.fraction, config.data.clients) == (0.5, 3)
    apart = call("run", "--data", mine, *TINY, "--set", "data.merge=false", "--quiet")
    assert (apart.status, apart.err[:4]) == (2, "E202")


def script() -> list[str]:
    """Return the installed command, or how to start it without installation."""
    installed = Path(sys.executable).with_name("masquerade")
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "from masquerade.cli.app import main; main()"]


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the command ended by itself"
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_is_watched_once_where_nobody_looks_on(call: Call, finished: Path) -> None:
    (told,) = strict(call("watch", finished, "--json").out)
    assert (told["title"], told["done"], told["rounds"], told["left"]) == ("FedAvg", 3, 3, 0.0)
    assert "3/3" in call("watch", finished).out
    assert call("watch", "nowhere").err.startswith("E408")


def test_figures_of_a_run_are_written_as_files(
    call: Call, finished: Path, tmp_path: Path, drawn_pages: None
) -> None:
    assert call("report", finished, "--figures", tmp_path / "figs", "--as", "svg,png").status == 0
    written = sorted(each.name for each in (tmp_path / "figs").iterdir())
    assert {"rounds.png", "rounds.svg", "clients.svg"} <= set(written)
    assert call("report", finished, "--figures", tmp_path / "figs", "--as", "gif").status == 2


@pytest.mark.parametrize(
    ("number", "status", "processes"), [(signal.SIGTERM, 75, 1), (signal.SIGINT, 130, 2)]
)
def test_a_stopped_run_says_how_to_resume_and_then_ends_well(
    call: Call, mine: Path, tmp_path: Path, number: int, status: int, processes: int
) -> None:
    out = tmp_path / "stopped"
    command = [*script(), "run", "--data", str(mine), *TINY, "--rounds", "40", "--out", str(out)]
    command += ["--set", "compute.commit_every=0", "--set", f"compute.processes={processes}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
        process.send_signal(number)
        printed, said = process.communicate(timeout=5)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status
    assert printed == ""
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last == f"Stopped at your request. Resume with: masquerade resume {out}"
    assert len(metrics.read_text().splitlines()) < 40
    assert call("resume", out, "--quiet") == (0, "", "")
    assert strict((out / "summary.json").read_text())[0]["rounds"] == 40


def test_a_stop_is_nothing_that_work_handles_as_an_error() -> None:
    """Work catches `Exception` where it tries things; a stop must pass through it."""
    assert not issubclass(cli.Stopped, Exception)


def test_a_stop_before_anything_was_written_says_so(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("masquerade.experiments.run.start", start)
    status, out, err = call("run", "--quiet")
    assert (status, out) == (75, "")
    assert err == "Stopped at your request. Nothing had been started.\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("module", ["typer", "click", "masquerade.cli.app", "torch"])
def test_a_stop_while_modules_are_imported_ends_without_a_traceback(
    tmp_path: Path, number: signal.Signals, status: int, module: str
) -> None:
    """What is found first on the path sends the signal as soon as a module is asked for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Stopping:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Stopping())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "masquerade", "check", "fedavg"],
        env=ENVIRONMENT | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr == "Stopped at your request. Nothing had been started.\n"


def test_a_stop_after_the_work_ends_without_a_traceback() -> None:
    program = (
        "import atexit, os, signal, sys; sys.argv[1:] = ['--version'];"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT);"
        "from masquerade.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_debug_prints_the_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [*script(), "report", "nowhere", "--debug"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "E408" in done.stderr


def test_a_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = {"_MASQUERADE_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words)}
        asked["COMP_CWORD"] = str(len(words) - 1)
        text = "import sys; sys.argv[0] = 'masquerade'; from masquerade.cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", text], env=ENVIRONMENT | asked, capture_output=True, text=True
        )
        return done.stdout.split()

    assert completed("masquerade", "sw") == ["sweep"]
    assert completed("masquerade", "run", "--ro") == ["--rounds"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--lr", "0.1"], "`method.lr` for local"),
        (["run", "--learning-rate=0.1"], "`learning_rate` is `method.lr` here"),
        (["compare", "--global-rounds", "3"], "`global_rounds` is `train.rounds` here"),
        (["run", "--batch-size", "3"], "`train.batch_size`"),
        (["reproduce", "--again"], "take --rerun"),
        (["data", "add", "x", "--file", "x.csv"], "take --data, --from or --input"),
        (["run", "--delimiter", ";"], "take --sep"),
        (["run", "--target=out"], "take --label"),
    ],
)
def test_an_option_that_is_a_setting_or_has_another_name_gets_a_hint(
    call: Call, words: list[str], told: str
) -> None:
    status, _, err = call(*words)
    assert status == 2
    assert told in err
