"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Clients = Annotated[
    int | None, typer.Option(help="Number of clients; by default the dataset's own, or 20.")
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="iid, dirichlet:0.3, pathological, shards:2, client, fedselect:2, lottery:20:0.25, "
        "groups:5, outliers:5; a name alone lists its forms."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file of settings; flags go before it.")
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Dataset: a name of `masquerade data list`, or the path of a file or folder "
        "(.csv, .parquet, .npz, images).",
    ),
]
Label = Annotated[
    str | None, typer.Option("--label", help="Of a table: the column of the labels; y by default.")
]
ClientColumn = Annotated[
    str | None,
    typer.Option("--client", help="Of a table: the column that names the client of a row."),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Of a table: columns to leave out, separated by commas."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option("--categorical", help="Of a table: columns of categories, separated by commas."),
]
Impute = Annotated[
    str | None,
    typer.Option(
        "--impute",
        help="Of a table: what stands in for missing values: mean, median or most_frequent.",
    ),
]
Sep = Annotated[
    str | None,
    typer.Option("--sep", help="Of a CSV file: what separates fields; guessed if not given."),
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="Of a CSV file: latin-1, cp1252; else UTF-8.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        help="Of a table: texts that mean a missing value, separated by commas, besides an empty "
        "field, NA, N/A, NaN, null and ?.",
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="What labels are: classification or regression; by their values if not given.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Network: a name of `masquerade models`, or path.py:function."),
]
OwnMethods = Annotated[
    list[str] | None,
    typer.Option("--method", help="path.py:Class, where the run has a method of yours."),
]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", help="path.py:function, where the run has a network of yours."),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training.")]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", help="Seed; give several for several runs.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value, for instance method.mu=0.5; repeatable."),
]
Out = Annotated[
    Path | None, typer.Option(help="Directory for results; a fresh one under out/ by default.")
]
Processes = Annotated[
    int | None,
    typer.Option(help="Processes that share the clients of a round; torchrun starts them on GPUs."),
]
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, loop or batched.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="tensorboard:DIR, mlflow, mlflow:EXPERIMENT or wandb:PROJECT; repeatable."
    ),
]


def column_options(
    label: str | None,
    client: str | None,
    drop: list[str] | None,
    categorical: list[str] | None,
    impute: str | None,
    sep: str | None,
    encoding: str | None,
    missing: list[str] | None,
    task: str | None,
) -> dict[str, Any]:
    """Return the options of a table that were given."""
    from masquerade.tables.words import words_in

    names = {"drop": drop, "categorical": categorical, "missing": missing}
    several = {
        option: tuple(word for text in given for word in words_in(text))
        for option, given in names.items()
        if given
    }
    texts = {"label": label, "client": client, "impute": impute, "sep": sep}
    texts |= {"encoding": encoding, "task": task}
    return several | {option: text for option, text in texts.items() if text is not None}
