"""The setting `data.normalize`: what is done to samples before the network reads them."""

import json

import torch

from masquerade.config.settings import Data
from masquerade.core.features import Feature
from masquerade.core.preprocess import Normalize, Preprocess, Raw, Scale, Standardize, Unfitted
from masquerade.core.table import FittedTabular, Tabular, TabularHistograms, check_complete
from masquerade.core.task import Task
from masquerade.data import Federation
from masquerade.errors import MasqueradeError, nearest

# Mean and std of every channel over all pixels of the original training part, pixels being from 0
# to 1. ImageNet's are those that torchvision's pretrained networks expect; the others are the
# figures that programs for these data commonly state, rounded as they state them.
CONSTANTS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
}
WORDS = ("auto", "table", "unit", "none", "standard", *CONSTANTS)
FITTED, HISTOGRAMS = "table:", "table_histograms:"
"""What begins the text of preprocessing of a table that is fitted, or is yet to have histograms."""


LARGEST = 1e30
"""What means, and what standard deviations divide by, may be at most."""


def check(text: str) -> None:
    """Refuse what is no value of the setting."""
    if text not in ("auto", "table"):
        parse(text)


def parse(text: str) -> Preprocess:
    """Return the preprocessing that a text names, or spells as MEAN:STD.

    Both may be lists such as 0.5,0.4:0.2,0.2, a number for every channel or feature.
    """
    match text:
        case "unit":
            return Scale()
        case "none":
            return Raw()
        case "standard":
            return Standardize()
        case _ if text in CONSTANTS:
            return Normalize(*CONSTANTS[text])
    try:
        if text.startswith((FITTED, HISTOGRAMS)):
            return _table(text)
        mean, std = ([float(one) for one in each.split(",")] for each in text.split(":"))
        # What float32 does not hold would be zero or infinite.
        if not all(abs(each) <= LARGEST for each in (*mean, *(1 / each for each in std))):
            raise ValueError
        return Normalize(mean, std)
    except (ValueError, KeyError, TypeError, ZeroDivisionError, MasqueradeError):
        known = f"{', '.join(WORDS)}, or MEAN:STD such as 0.5:0.5, STD above 0"
        problem = f"`data.normalize` is {text!r}{nearest(text, WORDS)}; write one of {known}"
        raise MasqueradeError("E201", problem) from None


def resolved(text: str, is_table: bool) -> str:
    """Return what "auto" means: "table" for tables, "unit" for everything else."""
    return ("table" if is_table else "unit") if text == "auto" else text


def preprocess_for(data: Data, federation: Federation) -> Preprocess:
    """Return the preprocessing that settings name; refuse what does not fit the samples."""
    text = resolved(data.normalize, bool(federation.features))
    _check_channels(text, list(federation.x.shape[1:]))
    if federation.features and (text != "table" or not federation.impute):
        check_complete(federation.x, federation.features)
    if text == "table":
        _check_table(federation)
        return Tabular(federation.features, federation.impute, data.normalize_per_client)
    made = parse(text)
    if data.normalize_per_client and not isinstance(made, Unfitted):
        raise MasqueradeError(
            "E202",
            f"`data.normalize_per_client` is on, and `data.normalize` is {text}, for which nothing "
            "is fitted; write standard (of tables: table), or turn it off",
        )
    return Standardize(data.normalize_per_client) if text == "standard" else made


def with_default(task: Task, federation: Federation) -> Task:
    """Return a task with the default preprocessing of its data, unless it has its own."""
    if not task.preprocess_is_default or not federation.features:
        return task
    return task.with_preprocess(preprocess_for(Data(), federation))


def _check_channels(text: str, shape: list[int]) -> None:
    """Refuse constants of other channels."""
    if text in CONSTANTS:
        channels = len(CONSTANTS[text][0])
        if len(shape) != 3 or shape[0] != channels:
            raise MasqueradeError(
                "E202",
                f"`data.normalize` is {text}, which is for images of {channels} channels, and "
                f"samples have the shape {shape}; write standard, unit or MEAN:STD",
            )


def _check_table(federation: Federation) -> None:
    if not federation.features:
        text = f"`data.normalize` is table, and `{federation.name}` has no named columns"
        raise MasqueradeError("E202", f"{text}; write standard, unit or MEAN:STD")


def spelled(preprocess: Preprocess) -> str:
    """Return the text that `parse` makes the same preprocessing of, to the bit."""
    if isinstance(preprocess, Normalize):
        mean, std = (
            ",".join(map(repr, each.tolist())) for each in (preprocess.mean, preprocess.std)
        )
        return f"{mean}:{std}"
    if isinstance(preprocess, FittedTabular | TabularHistograms):
        constants = {name: each.tolist() for name, each in preprocess.state_dict().items()}
        columns = [[each.name, each.categories] for each in preprocess.features]
        begun = FITTED if isinstance(preprocess, FittedTabular) else HISTOGRAMS
        return begun + json.dumps({"columns": columns, "impute": preprocess.impute} | constants)
    for text in ("unit", "none", "standard"):
        if type(preprocess) is type(parse(text)):
            return text
    name = getattr(preprocess, "__name__", type(preprocess).__name__)
    raise MasqueradeError(
        "E202", f"the preprocessing `{name}` is code of your own, which no text spells"
    )


def _table(text: str) -> FittedTabular | TabularHistograms:
    """Read what `spelled` wrote of a table."""
    begun, _, constants = text.partition(":")
    given = json.loads(constants)
    features = [Feature(name, tuple(categories)) for name, categories in given["columns"]]
    mean, std, fill = (
        torch.tensor(given[name], dtype=torch.float64) if name in given else None
        for name in ("mean", "std", "fill")
    )
    if mean is None or std is None:
        raise ValueError
    if f"{begun}:" == FITTED:
        return FittedTabular(features, mean, std, fill, given["impute"])
    if fill is None:
        raise ValueError
    return TabularHistograms(features, mean, std, fill, given["impute"])
