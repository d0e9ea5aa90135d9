"""A bundle out of a run: what is in it, what it answers without torch, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import masquerade as mq
from masquerade.export import bundle, timing
from masquerade.export import from_run as exporting
from masquerade.export import predict as session
from masquerade.export.bundle import NEEDED, Card, Model
from masquerade.export.model_card import describe
from masquerade.storage import atomic
from masquerade.storage.manifest import fingerprint, seal
from masquerade.storage.results import read_results
from tests.messages import Golden
from tests.support import raises

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from masquerade.cli.app import app

SETTINGS = [
    "--set",
    "train.batch_size=50",
    "--set",
    "method.first_dense=false",
    "--set",
    "method.local_epochs=1",
    "--set",
    "data.novel=0.25",
]


def call(*words: object) -> None:
    """Run the command in this process; an error is raised, not printed."""
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DM-PFL on digits by eight clients, two of which are novel."""
    path = tmp_path_factory.mktemp("runs") / "dmpfl-1"
    options = ["--method", "dmpfl", "--rounds", 3, "--clients", 8, "--model", "mlp"]
    call("run", *options, *SETTINGS, "--out", path, "--quiet")
    return path


@pytest.fixture(scope="module")
def client(run: Path) -> int:
    """The last client that has a model; clients before it are novel."""
    ids = json.loads((run / "summary.json").read_text())[0]["per_client"]["ids"]
    assert ids != list(range(len(ids)))
    return int(ids[-1])


@pytest.fixture(scope="module")
def made(run: Path, client: int) -> Path:
    """The bundle of its adaptive view."""
    path = run.parent / "bundle"
    call("export", run, "--client", client, "--view", "adaptive", "--out", path, "--quiet")
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    digits = mq.load("digits")
    path = tmp_path / "samples.npz"
    np.savez(path, x=digits.x[:40].numpy())
    return path


WITHOUT_TORCH = """
import sys
import tomllib

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {there}:
            raise ModuleNotFoundError(name + " is not installed", name=name)

sys.meta_path.insert(0, Bare())
from masquerade.cli.app import main
sys.argv = ["masquerade", *{words}]
main()
"""


def installed(requirements: str) -> set[str]:
    """Modules that an environment has once these requirements are installed, and what they need."""
    waiting = [line for line in requirements.splitlines() if not line.startswith("#")]
    found: set[str] = set()
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        if name not in found:
            found.add(name)
            with suppress(metadata.PackageNotFoundError):
                needed = metadata.requires(name) or []
                waiting += [each for each in needed if "extra ==" not in each]
    modules = metadata.packages_distributions().items()
    of_them = {
        module
        for module, names in modules
        if found & {each.lower().replace("_", "-") for each in names}
    }
    return of_them | set(sys.stdlib_module_names) | {"masquerade"}


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that has what the requirements of a bundle name, no more."""
    text = WITHOUT_TORCH.format(there=installed(NEEDED), words=[str(word) for word in words])
    path = str(Path(mq.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_a_bundle_says_what_answering_needs(made: Path) -> None:
    assert (made / session.REQUIREMENTS).read_text() == NEEDED
    there = installed(NEEDED)
    assert {"numpy", "onnxruntime", "typer", "click", "rich"} <= there
    assert not there & {"torch", "scipy", "sklearn", "onnx", "PIL", "pyarrow", "pandas", "narwhals"}
    # They are the versions that the package itself is tested with.
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    allowed = {*project["dependencies"], *project["optional-dependencies"]["export"]}
    assert {line for line in NEEDED.splitlines() if not line.startswith("#")} <= allowed


def test_what_reading_an_input_needs_further_is_named(made: Path, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"")
    done = without_torch("predict", made, "--input", tmp_path / "x.png")
    assert (done.returncode, done.stderr[:4]) == (2, "E202")
    assert "`PIL`" in done.stderr


def test_a_bundle_answers_as_its_model_without_torch(
    run: Path, client: int, made: Path, samples: Path, tmp_path: Path
) -> None:
    done = without_torch("predict", made, "--input", samples, "--out", tmp_path / "y.npy", "--json")
    assert done.returncode == 0, done.stderr
    model = exporting.find(run, client, "adaptive").model
    x = torch.from_numpy(np.load(samples)["x"])
    expected = model.predict(x)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-5)
    answers = json.loads(done.stdout)
    shares = expected.softmax(1)
    assert [each["class"] for each in answers] == expected.argmax(1).tolist()
    assert [each["label"] for each in answers] == [str(each["class"]) for each in answers]
    assert [each["probability"] for each in answers] == pytest.approx(shares.amax(1).tolist())
    # Both models of DM-PFL+ answer: neither alone gives these outputs.
    own = exporting.find(run, client, "personal").model
    differ = (own.predict(x) - expected).abs().amax(1) > 1e-3
    assert int(differ.sum()) > 0


def test_a_card_has_every_metric_its_unit_class_weights_and_test_samples(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 80).reshape(40, 2)
    data = mq.partition(mq.from_arrays(x, (x[:, 0] > 0.7).long()), 2, mq.IID())
    evaluate = mq.Evaluate(
        every=0, degrees=(0,), metrics=("balanced_accuracy", "log_loss", "recall")
    )
    more = {"evaluate": evaluate, "class_weights": "balanced"}
    result = mq.run(mq.methods.FedAvg(), torch.nn.Linear(2, 2), data, 1, **more)
    result.client(1).export(tmp_path / "bundle", x)
    facts = session.open_bundle(tmp_path / "bundle").manifest["card"]
    summary = result.summaries[0]
    listed, weights = summary.per_client, summary.class_weights
    assert listed is not None
    assert weights is not None
    tables = [name for name in facts if name.endswith("on test data")]
    assert tables == [
        "Balanced accuracy (%) on test data",
        "Accuracy (%) on test data",
        "Log loss on test data",
        "Recall (%) of every class on test data",
    ]
    assert facts["Balanced accuracy (%) on test data"]["this client"] == pytest.approx(
        listed.metrics["balanced_accuracy"].own[1]
    )
    assert facts["Accuracy (%) on test data"]["this client"] == pytest.approx(listed.own[1])
    assert list(facts["Recall (%) of every class on test data"]) == ["0", "1"]
    tested = facts["Test data of this client"]
    assert tested["test samples"] == tested["of class 0"] + tested["of class 1"] == listed.tests[1]
    said = facts["Model"]["class weights in the loss"]
    assert all(f"{label} {one:.3g}" in said for label, one in enumerate(weights.weights))
    # Another metric is put first, also on the card.
    result.by_metric("log_loss").client(1).export(tmp_path / "other", x)
    other = session.open_bundle(tmp_path / "other").manifest["card"]
    first, *_ = (name for name in other if name.endswith("on test data"))
    assert first == "Log loss on test data"


@pytest.mark.parametrize("name", ["y", "y.xlsx"])
def test_answers_are_written_into_files_of_a_known_kind_alone(
    made: Path, samples: Path, tmp_path: Path, name: str
) -> None:
    with raises("E201", name, ".csv", ".npy"):
        call("predict", made, "--input", samples, "--out", tmp_path / name)
    assert {each.name for each in tmp_path.iterdir()} == {samples.name}


def test_answers_are_printed_or_written(
    made: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("predict", made, "--input", samples)
    printed = capsys.readouterr().out.splitlines()
    assert (len(printed), printed[0][:7]) == (40, "row 0: ")
    call("predict", made, "--input", samples, "--out", tmp_path / "y.csv")
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'y.csv'}: 40 answers\n"


def test_a_card_says_what_the_run_found(run: Path, client: int, made: Path) -> None:
    summary = next(each for each in read_results(run) if each.view == "adaptive")
    own, listed = summary.accuracy.own, summary.per_client
    assert listed is not None
    place = listed.ids.index(client)
    card = (made / session.CARD).read_text()
    wanted = [
        f"| this client | {listed.own[place]:.4g} |",
        f"{own.mean:.4g} ± {own.std:.4g}",
        f"| 100 % of other clients' data | {summary.accuracy.shift['100'].mean:.4g} ±",
        f"| density, mean over clients | {summary.model.density:.4g} |",
        f"{listed.samples[place]} training samples",
        "DM-PFL+ (`dmpfl_plus`, view `adaptive`)",
        "sparsity=0.5",
        "| partition | `dirichlet:0.3` over 8 clients |",
        "| data seed | 1 |",
        "| training seed | 1 |",
    ]
    assert [line for line in wanted if line not in card] == []
    manifest = session.open_bundle(made).manifest
    assert manifest["labels"] == [str(digit) for digit in range(10)]
    assert manifest["input"]["shape"] == [1, 8, 8]
    assert str(Path.cwd()) not in card + json.dumps(manifest)


def test_a_bundle_of_which_a_byte_changed_is_refused(made: Path, tmp_path: Path) -> None:
    for name in (session.MODEL, session.MANIFEST, session.CARD):
        data = (made / name).read_bytes()
        places = {0, len(data) // 3, len(data) // 2, len(data) - 1}
        changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in places]
        for place, wrong in enumerate([*changed, data[:-1], data + b" ", b""]):
            copy = tmp_path / f"{name}-{place}"
            copy.mkdir()
            for each in (session.MODEL, session.MANIFEST, session.CARD):
                (copy / each).write_bytes(wrong if each == name else (made / each).read_bytes())
            with raises("E406"):
                session.open_bundle(copy)


def test_a_bundle_with_a_file_missing_or_of_another_version_is_refused(tmp_path: Path) -> None:
    with raises("E408"):
        session.open_bundle(tmp_path)
    manifest = {
        "version": session.VERSION,
        "input": {"shape": [2], "type": "float32"},
        "labels": None,
        "files": {"model.onnx": fingerprint(b"x")},
    }
    (tmp_path / session.MANIFEST).write_bytes(seal(manifest))
    with raises("E406", "model.onnx"):
        session.open_bundle(tmp_path)
    (tmp_path / session.MANIFEST).write_bytes(seal(manifest | {"version": 99}))
    with raises("E402"):
        session.open_bundle(tmp_path)


def test_a_bundle_of_the_first_format_is_to_be_exported_again(
    made: Path, tmp_path: Path, golden: Golden
) -> None:
    body = json.dumps(session.open_bundle(made).manifest | {"version": 1}, indent=1)
    digest = fingerprint(body.encode())["sha256"]
    old = shutil.copytree(made, tmp_path / "old")
    (old / session.MANIFEST).write_text(json.dumps({"sha256": digest, "manifest": body}))
    with raises("E402", 1, 3) as refusal:
        session.open_bundle(old)
    golden(refusal.value)
    for damaged in (b"[]", b"{}", b'"text"', b'{"manifest": {}}', b"\xff", b""):
        (old / session.MANIFEST).write_bytes(damaged)
        with raises("E406") as refusal:
            session.open_bundle(old)
    golden(refusal.value)


def test_a_bundle_that_was_sealed_again_with_something_else_is_refused(
    made: Path, samples: Path, tmp_path: Path
) -> None:
    manifest = session.open_bundle(made).manifest
    lacking = [
        {name: value for name, value in manifest.items() if name != lost}
        for lost in ("version", "input", "labels", "files")
    ]
    of_another_kind = [
        manifest | {"labels": 3},
        manifest | {"input": {"shape": [1, 8, 8], "type": "number"}},
        manifest | {"input": {"shape": "1", "type": "float32"}},
        manifest | {"files": {}},
        [],
    ]
    garbage = b"no model"
    forged = manifest | {"files": manifest["files"] | {session.MODEL: fingerprint(garbage)}}
    cases = [(wrong, None, ()) for wrong in lacking + of_another_kind]
    cases += [
        (manifest | {"labels": manifest["labels"][:3]}, None, (3, 10)),
        (forged, garbage, ("model.onnx",)),
    ]
    for place, (wrong, model, named) in enumerate(cases):
        copy = tmp_path / str(place)
        shutil.copytree(made, copy)
        (copy / session.MANIFEST).write_bytes(seal(wrong))
        if model is not None:
            (copy / session.MODEL).write_bytes(model)
        with raises("E406", *named):
            call("predict", copy, "--input", samples)
    with raises("E406", "model.onnx"):
        call("bench-model", copy)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("info",), "info"),
        (("predict", "lub", "--bogus"), "--bogus"),
        (("predict", "lub", "--csv", "ok.csv"), "--data, --from or --input"),
        (("bench-model", "lub"), "E201"),
        (("compare",), "E202"),
    ],
)
def test_without_torch_every_usage_error_is_said_in_a_few_words(
    words: tuple[str, ...], told: str
) -> None:
    done = without_torch(*words)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert told in said
    assert "Traceback" not in said
    if told == "E202":
        assert f"`{words[0]}` needs torch" in said


def test_the_command_ends_with_the_status_of_the_code(made: Path, tmp_path: Path) -> None:
    done = without_torch("predict", tmp_path, "--input", tmp_path / "none.npz")
    assert (done.returncode, done.stderr[:4]) == (4, "E408")


@pytest.fixture
def opened(made: Path) -> session.Bundle:
    return session.open_bundle(made)


def test_inputs_are_read_from_every_kind_of_file(opened: session.Bundle, tmp_path: Path) -> None:
    from PIL import Image

    x = np.load(_digits(tmp_path))["x"][:3]
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x.reshape(3, -1), delimiter=",")
    np.save(tmp_path / "one.npy", x[0])
    for name, expected in (("x.npy", x), ("x.csv", x), ("one.npy", x[:1])):
        np.testing.assert_array_equal(session.read_samples(opened, tmp_path / name).x, expected)
    pixels = (x[0, 0] * 255).round().astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    found = session.read_samples(opened, tmp_path / "x.png").x
    np.testing.assert_allclose(found[0, 0], pixels / 255, atol=1e-7)
    assert found.dtype == np.float32
    # The same bytes mean the same, whatever file they come in.
    np.save(tmp_path / "x.npy", pixels.reshape(found.shape))
    assert np.array_equal(session.read_samples(opened, tmp_path / "x.npy").x, found)


def _digits(folder: Path) -> Path:
    np.savez(folder / "digits.npz", x=mq.load("digits").x[:40].numpy())
    return folder / "digits.npz"


def wrong_inputs(folder: Path) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    def made(name: str, **arrays: Any) -> Path:
        np.savez(folder / name, **arrays)
        return folder / name

    yield made("a.npz", x=np.zeros((2, 7))), "E302", ("(2, 7)", "(1, 8, 8)")
    yield made("b.npz", x=np.full((1, 64), np.nan)), "E302", ()
    yield made("c.npz", z=np.zeros((1, 64))), "E301", ("`x`",)
    yield made("d.npz", x=np.zeros((0, 64))), "E302", ()
    yield made("e.npz", x=np.array([["a"] * 64])), "E302", ()
    yield folder / "none.npz", "E301", ("none.npz",)
    (folder / "x.txt").write_text("1")
    yield folder / "x.txt", "E301", (".npz",)
    (folder / "x.npy").write_bytes(b"\x80\x04.")
    yield folder / "x.npy", "E301", ()


def test_inputs_that_do_not_fit_are_refused(opened: session.Bundle, tmp_path: Path) -> None:
    for path, code, named in wrong_inputs(tmp_path):
        with raises(code, *named):
            session.read_samples(opened, path)


def test_pixels_stay_bytes(tmp_path: Path) -> None:
    manifest = {"input": {"shape": [2], "type": "uint8"}, "labels": None}
    opened = session.Bundle(tmp_path, manifest)
    np.save(tmp_path / "x.npy", np.array([[0.0, 255.0]]))
    assert session.read_samples(opened, tmp_path / "x.npy").x.dtype == np.uint8
    for wrong in ([[0.5, 1.0]], [[0, 256]], [[-1, 0]]):
        np.save(tmp_path / "x.npy", np.array(wrong))
        with raises("E302", "uint8"):
            session.read_samples(opened, tmp_path / "x.npy")
    assert session.answers(opened, np.array([[1.0, 2.0]])) == [{"output": [1.0, 2.0]}]


def test_nothing_is_overwritten_and_nothing_half_done_is_left(made: Path, tmp_path: Path) -> None:
    for path in (made, made / session.MODEL):
        with raises("E407"):
            bundle.place(path, b"")
    target = tmp_path / "bundle"
    with raises("E502"):
        bundle.appear(target, {"a": b"1", "no/such/folder": b"2"})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{atomic.TEMPORARY}bundle").mkdir()
    bundle.appear(target, {"a": b"1"})
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_disk_that_fails_after_the_end_is_not_said_to_have_left_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(atomic, "sync", failing)
    with raises("E502"):
        bundle.place(tmp_path / "model.onnx", b"1")


def test_weights_of_a_run_are_written_in_every_form(run: Path, client: int, tmp_path: Path) -> None:
    from masquerade.export import sparse

    found = {}
    for form in ("dense", "packed"):
        path = tmp_path / f"{form}.safetensors"
        call("export", run, "--client", client, "--format", form, "--out", path, "--quiet")
        found[form] = sparse.read(path)[0], path.stat().st_size
    model = exporting.find(run, client).model
    assert all(
        torch.equal(found["dense"][0][name], value) for name, value in model.networks()[0].items()
    )
    assert all(
        torch.equal(value, found["dense"][0][name]) for name, value in found["packed"][0].items()
    )
    assert found["packed"][1] < found["dense"][1]


def test_what_cannot_be_exported_is_refused(run: Path, client: int, tmp_path: Path) -> None:
    novel = min(
        set(range(8)) - set(json.loads((run / "summary.json").read_text())[0]["per_client"]["ids"])
    )
    faults: list[tuple[str, tuple[str, ...], list[Any]]] = [
        ("E202", (f"`{novel}`",), ["--client", novel]),
        ("E202", ("`8`",), ["--client", 8]),
        ("E201", ("--client", f"{client}"), []),
        ("E202", ("`global`",), ["--client", client, "--view", "global"]),
        ("E201", ("`slicd`", "`sliced`"), ["--client", client, "--format", "slicd"]),
        ("E202", ("FedMask",), ["--client", client, "--format", "seeded"]),
    ]
    for code, named, options in faults:
        with raises(code, *named):
            call("export", run, *options, "--out", tmp_path / "never")
    with raises("E408"):
        exporting.find(tmp_path, 0)
    with raises("E201"):
        call("bench-model", run)


def test_a_model_of_a_python_program_leaves_too(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 40).reshape(20, 2)
    data = mq.partition(mq.from_arrays(x, (x[:, 0] > 0.5).long()), 2, mq.IID())
    out = tmp_path / "run"
    result = mq.run(mq.methods.FedAvg(), torch.nn.Linear(2, 2), data, 1, out=out)
    model = result.client(1)
    for labels in (["low"], ["low", "mid", "high"]):
        with raises("E201", len(labels), 2):
            model.export(tmp_path / "bundle", x, labels)
    assert not (tmp_path / "bundle").exists()
    # No name leads to its network, and the settings say what it was.
    assert 'model = "Linear of the program"' in (out / "config.toml").read_text()
    model.export(tmp_path / "bundle", x, ["low", "high"])
    opened = session.open_bundle(tmp_path / "bundle")
    found = session.predict(opened, x.numpy())
    np.testing.assert_allclose(found, model.predict(x), rtol=1e-5, atol=1e-5)
    assert {each["label"] for each in session.answers(opened, found)} <= {"low", "high"}
    summary = read_results(out)[0]
    made = {"partition": data.partition}
    card = describe(summary, 1, Model(model.method, model.task, model.parts, x), made)
    assert opened.manifest["card"] == json.loads(json.dumps(card.facts))
    assert "Before you share it" in card.facts
    with raises("E202", "result.client(N).export"):
        exporting.find(out, 1)


def test_a_bundle_is_timed_by_what_it_holds(opened: session.Bundle) -> None:
    found = timing.measure(opened, repeats=10)
    assert list(found) == ["sliced"]
    figures = found["sliced"]
    assert figures.bytes == (opened.path / session.MODEL).stat().st_size
    assert all(seconds > 0 for seconds in figures.seconds.values())
    assert figures.memory > 0


def test_calls_are_timed_in_turn() -> None:
    order: list[str] = []
    found = timing.interleaved({name: lambda n=name: order.append(n) for name in "ab"}, 4)
    # Three turns warm up, four are timed.
    assert order == ["a", "b"] * 7
    assert [len(times) for times in found.values()] == [4, 4]


def test_energy_is_read_from_the_counter_where_there_is_one(tmp_path: Path) -> None:
    assert timing.energy(lambda: None, 1, tmp_path) is None
    (tmp_path / "max_energy_range_uj").write_text("1000000\n")
    counter = tmp_path / "energy_uj"
    counter.write_text("900000")

    def spend() -> None:
        # The counter begins anew at its end.
        counter.write_text(str((int(counter.read_text()) + 150_000) % 1_000_000))

    assert timing.energy(spend, 4, tmp_path) == pytest.approx(0.15)


def test_a_card_is_a_table() -> None:
    text = Card("A model", {"Run": {"rounds": 3, "share": 0.123456}}).text()
    assert text.splitlines()[0] == "# A model"
    assert "| rounds | 3 |" in text
    assert "| share | 0.1235 |" in text
