"""Words of older versions and of other frameworks, for hints: what each of them is called here."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from masquerade.errors import MasqueradeError, listed, nearest

RENAMED: dict[str, dict[str, str]] = {
    "train": {
        "batch": "batch_size",
        "cohort": "clients_per_round",
        "rate_decay": "lr_decay",
        "wire": "message_dtype",
    },
    "compute": {"width": "clients_per_chunk", "workers": "processes"},
    "method": {
        "rate": "lr",
        "epochs": "local_epochs",
        "gate_rate": "gate_lr",
        "inner_rate": "inner_lr",
        "personal_rate": "personal_lr",
        "refine_rate": "refine_lr_scale",
        "tune_rate": "tune_lr",
    },
    "method.ditto": {"pull": "lam"},
    "method.fedmask": {"group_pull": "group_lasso", "keep": "density"},
    "method.fedprox": {"pull": "mu"},
    "method.pfedme": {"pull": "lam"},
    "stage": {"keep": "masks", "slim": "sliceable"},
}
"""What settings of 0.1 are called since 0.2, by section; `bench/migrate.py` rewrites files."""

VALUES = {"train.message_dtype": {"full": "same"}}
"""What values of 0.1 are called since 0.2, by setting."""

ELSEWHERE = {
    "alpha": "data.partition=dirichlet:ALPHA",
    "batchsize": "train.batch_size",
    "num_workers": "compute.processes",
    "bs": "train.batch_size",
    "client_lr": "method.lr",
    "clients_per_cohort": "train.clients_per_round",
    "cohort_size": "train.clients_per_round",
    "comm_round": "train.rounds",
    "comm_rounds": "train.rounds",
    "dataset": "data.name",
    "e": "method.local_epochs",
    "eta": "method.lr",
    "frac": "train.participation",
    "fraction_fit": "train.participation",
    "fraction_train": "train.participation",
    "global_rounds": "train.rounds",
    "join_ratio": "train.participation",
    "lambda": "method.lam",
    "learning_rate": "method.lr",
    "local_batch_size": "train.batch_size",
    "local_bs": "train.batch_size",
    "local_ep": "method.local_epochs",
    "local_learning_rate": "method.lr",
    "local_lr": "method.lr",
    "local_num_epochs": "method.local_epochs",
    "n_clients": "data.clients",
    "n_epochs": "method.local_epochs",
    "num_clients": "data.clients",
    "num_epochs": "method.local_epochs",
    "num_rounds": "train.rounds",
    "num_server_rounds": "train.rounds",
    "num_users": "data.clients",
    "participation_rate": "train.participation",
    "proximal_mu": "method.mu",
    "sample_rate": "train.participation",
    "wd": "method.weight_decay",
}
"""What settings of other frameworks and papers are called here."""


IN_PYTHON = {
    "data.clients": "mq.partition(clients=...)",
    "data.name": "mq.load(NAME)",
    "data.partition=dirichlet:ALPHA": "mq.partition(by=mq.Dirichlet(ALPHA))",
}
"""How Python code says what settings of data say."""


def hint(section: str, key: str, spelled: Callable[[str], str] = str) -> str:
    """Say what a setting of another name is called here; empty where nothing is known of it.

    `spelled` writes a setting with its section as the reader would.
    """
    every = {home: words[key] for home, words in RENAMED.items() if key in words}
    near = {home: word for home, word in every.items() if _family(home) == _family(section)}
    homes: dict[str, list[str]] = {}
    for home, word in (near or every).items():
        homes.setdefault(word, []).append(home)
    if not homes:
        there = ELSEWHERE.get(key.lower())
        return f"`{key}` is `{spelled(there)}` here" if there else ""
    if len(homes) == 1:
        word, (home, *_) = next(iter(homes.items()))
        return f"`{key}` is `{word if near else spelled(f'{_family(home)}.{word}')}` here"
    # One word has become several, each of its own methods.
    said = [
        f"`{word}` of {', '.join(home.removeprefix('method.') for home in some)}"
        for word, some in homes.items()
    ]
    return f"`{key}` is {' and '.join(said)} here"


def refuse_unknown(record: type[Any], section: str, given: Iterable[str]) -> None:
    """Refuse settings that a record does not have; say what they are called here, or what is."""
    known = [each.name for each in fields(record)]
    refuse_keywords(record.__name__, section, [key for key in given if key not in known], known)


def refuse_keywords(whose: str, section: str, unknown: Iterable[str], known: list[str]) -> None:
    """Refuse keywords that Python code gave; say what they are called there."""

    def spelled(there: str) -> str:
        home, _, word = there.partition(".")
        calls = {"train": "mq.run", "method": "mq.methods.FedAvg", "compute": "mq.Compute"}
        call = f"{calls.get(home, 'mq.Stage')}({word}=...)"
        return word if home == section else IN_PYTHON.get(there, call)

    wrong = [
        f"unknown setting `{key}`"
        + (f"; {told}" if (told := hint(section, key, spelled)) else nearest(key, known, most=3))
        for key in unknown
    ]
    if wrong:
        there = f"there are {listed(known, most=30)}"
        raise MasqueradeError("E201", f"{whose}: {'; '.join(wrong)}; {there}")


def _family(section: str) -> str:
    return section.split(".")[0]
