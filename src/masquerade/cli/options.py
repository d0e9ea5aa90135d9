"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

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
    Path | None, typer.Option("--config", "-c", help="TOML file; flags stand over it.")
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data", help="Dataset: a name of `masquerade data list`, or the path of an .npz file."
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
EngineName = Annotated[str | None, typer.Option("--engine", help="auto, loop or batched.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="tensorboard:DIR, mlflow, mlflow:EXPERIMENT or wandb:PROJECT; repeatable."
    ),
]
