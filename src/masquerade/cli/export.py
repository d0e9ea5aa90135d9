"""The commands that take a model out of a run and use it: export, predict, bench-model."""

import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from masquerade.cli.options import AsJson, Debug, OwnMethods, OwnModel, Quiet, Sep
from masquerade.cli.progress import echo
from masquerade.cli.train import import_code
from masquerade.errors import MasqueradeError, counted, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from masquerade.export.timing import Figures

View = Annotated[str | None, typer.Option(help="The view; by default the method's first.")]


def export(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    client: Annotated[
        str | None, typer.Option(help="The client whose model it is: its number, or its name.")
    ] = None,
    view: View = None,
    format: Annotated[
        str, typer.Option(help="bundle, onnx, sliced, dense, packed or seeded.")
    ] = "bundle",
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default it is named after the run.")
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Put the dense and the masked network into the bundle, too.")
    ] = False,
    method: OwnMethods = None,
    model: OwnModel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take the model of one client out of a run.

    A bundle is a folder with everything that `masquerade predict` needs. `onnx` is the model with
    zeros where its masks are, `sliced` without what they removed; `dense`, `packed` (values and a
    mask of bits) and `seeded` (FedMask: a seed and bits) are weights as safetensors.

    Example: masquerade export out/dmpfl-1 --client 3
    """
    from masquerade.export import formats, from_run

    formats.check(format)
    import_code(method, model)
    if client is None:
        text = f"whose model is it? Give --client: there are the {from_run.clients_of(run)}"
        raise MasqueradeError("E201", text)
    found = from_run.find(run, client, view)
    suffix = SUFFIXES.get(format, ".safetensors")
    called = re.sub(r"[^\w.-]", "_", client)
    target = out or Path(f"{run.resolve().name}-client{called}{suffix}")
    sizes = formats.write(found, target, format, compare)
    if as_json:
        typer.echo(json.dumps({"path": str(target), "files": sizes}))
    elif not quiet:
        for name, size in sizes.items():
            typer.echo(f"{name}: {size:,} bytes")
        typer.echo(f"Wrote {target}")


SUFFIXES = {"bundle": "", "onnx": ".onnx", "sliced": ".onnx"}
"""How names end; all other forms are safetensors."""


def predict(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder that export wrote.")],
    input: Annotated[
        Path,
        typer.Option(help="Samples: a csv, tsv, parquet, npz (`x`), npy, png or jpg file."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write answers to this .csv file, or the model's outputs to this .npy."),
    ] = None,
    own_rows: Annotated[
        bool, typer.Option("--own-rows", help="Of a table: leave out rows of other clients.")
    ] = False,
    sep: Sep = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Of a CSV file: latin-1, cp1252, utf-8; found if not given."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer samples with an exported model; it needs onnxruntime and no torch.

    Rows of a table are read by the names of their columns, in any order. Answers say in which line
    of the file their row begins; a .csv file of them has columns that the model does not read, too.

    Example: masquerade predict aachen --input patients.csv --out answers.csv
    """
    from masquerade.export import predict as answering

    if out is not None:
        answering.check_answers(out)
    bundle = answering.open_bundle(path)
    asked = answering.Asked(sep or "", encoding or "", own_rows)
    samples = answering.read_samples(bundle, input, asked)
    found = answering.predict(bundle, samples.x)
    answering.check_finite(bundle, found, samples.places)
    answers = answering.answers(bundle, found)
    if out is not None:
        answering.write_answers(bundle, out, samples, found)
    places = samples.places
    if as_json:
        rows = zip(places.numbers.tolist(), answers, strict=True)
        typer.echo(json.dumps([{places.word: number} | answer for number, answer in rows]))
    elif out is not None and not quiet:
        typer.echo(f"Wrote {out}: {counted(len(answers), 'answer')}")
    elif not quiet:
        for number, answer in zip(places.numbers, answers, strict=True):
            typer.echo(printable(f"{places.word} {number}: {_said(answer)}"))


def _said(answer: "Mapping[str, Any]") -> str:
    if "label" in answer:
        return f"{answer['label']} ({answer['probability']:.1%})"
    import numpy as np

    # Models answer in float32, which has so many digits.
    return ", ".join(f"{value:.6g}" for value in np.ravel(answer["output"]))


def bench_model(
    path: Annotated[Path, typer.Argument(help="A bundle, or the directory of a finished run.")],
    client: Annotated[
        str | None, typer.Option(help="The client whose model of a run is measured.")
    ] = None,
    view: View = None,
    repeats: Annotated[int, typer.Option(min=10, help="Calls that are timed.")] = 200,
    method: OwnMethods = None,
    model: OwnModel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure a model dense, masked and sliced: latency on one thread, memory, size, energy.

    A bundle holds all three where it was exported with --compare; of a run they are made.

    Example: masquerade bench-model out/fedmask-1 --client 0
    """
    from masquerade.export import predict as answering
    from masquerade.export import timing

    if (path / answering.MANIFEST).is_file():
        if client is not None or view is not None:
            text = f"{path} is the bundle of one model; --client and --view choose in a run"
            raise MasqueradeError("E201", text)
        found = timing.measure(answering.open_bundle(path), repeats)
    else:
        if client is None:
            text = f"{path} is no bundle; of a run, name a client with --client"
            raise MasqueradeError("E201", text)
        from masquerade.export import bundle, from_run

        import_code(method, model)
        source = from_run.find(path, client, view)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "bundle"
            bundle.write(made, source.model, source.card, source.labels, compare=True)
            found = timing.measure(answering.open_bundle(made), repeats)
    if as_json:
        typer.echo(json.dumps({form: asdict(figures) for form, figures in found.items()}))
    elif not quiet:
        _draw(found)


def _draw(found: "dict[str, Figures]") -> None:
    from rich.table import Table

    from masquerade.export.timing import BATCHES

    counted = all(figures.joules is not None for figures in found.values())
    energy = "" if counted else "; energy is absent: this machine lets nobody read a counter"
    note = f"medians on one thread; dense is one network, also of a model of several{energy}"
    forms = f", {len(found)} forms" if len(found) > 1 else ""
    drawn = Table(title=f"One model{forms}", caption=note)
    drawn.add_column("form")
    columns = [f"ms, batch {size}" for size in BATCHES] + ["memory, MB", "file, MB"]
    for column in columns + ["mJ per answer"] * counted:
        drawn.add_column(column, justify="right")
    for form, each in found.items():
        cells = [f"{each.seconds[size] * 1e3:.3f}" for size in BATCHES]
        cells += [f"{each.memory / 1e6:.1f}", f"{each.bytes / 1e6:.3f}"]
        drawn.add_row(form, *cells, *([f"{(each.joules or 0) * 1e3:.3f}"] * counted))
    echo(drawn)
    if len(found) < 3:
        typer.echo("For dense and masked beside it, export with --compare.")
