"""The methods: one paper, one file, one line of the table."""

from dataclasses import dataclass
from typing import Any

from masquerade.core.method import Method
from masquerade.methods.bnn import BNN
from masquerade.methods.dmpfl import DMPFL
from masquerade.methods.fedavg import FedAvg
from masquerade.methods.fedem import FedEM
from masquerade.methods.fedprox import FedProx
from masquerade.methods.local import Local
from masquerade.methods.topk import TopK


@dataclass(frozen=True)
class Named:
    """A line of the table: a class, the view it is judged by, and settings that differ."""

    method: type[Method]
    view: str
    title: str
    paper: str
    personal: str
    """What differs from client to client."""
    sent: str
    settings: tuple[tuple[str, Any], ...] = ()
    variant: str = ""
    """The kind of network it needs: of a network NAME it takes NAME_variant."""
    like: str = ""
    """The method that it costs as many FLOPs as unless a configuration names another; its setting
    `spend` is computed by that."""


METHODS: dict[str, Named] = {
    "local": Named(Local, "personal", "Local", "no federation", "everything", "nothing"),
    "local_flops": Named(
        Local,
        "personal",
        "Local, equal FLOPs",
        "no federation",
        "everything",
        "nothing",
        like="fedavg",
    ),
    "fedavg": Named(FedAvg, "global", "FedAvg", "McMahan et al., 2017", "nothing", "all weights"),
    "fedavg_ft": Named(
        FedAvg, "tuned", "FedAvg+FT", "Wang et al., 2019", "a fine-tuned copy", "all weights"
    ),
    "fedprox": Named(FedProx, "global", "FedProx", "Li et al., 2020", "nothing", "all weights"),
    "dmpfl": Named(
        DMPFL,
        "personal",
        "DM-PFL",
        "Zhang et al., 2023",
        "mask, and weights outside the global mask",
        "weights inside a mask, and the mask",
    ),
    "dmpfl_plus": Named(
        DMPFL,
        "adaptive",
        "DM-PFL+",
        "Zhang et al., 2023",
        "as DM-PFL, beside the global model",
        "as DM-PFL",
    ),
    "fedem": Named(
        FedEM,
        "personal",
        "FedEM",
        "Marfoq et al., 2021",
        "the mixture of the shared models",
        "all weights of every model",
    ),
    "topk": Named(
        TopK,
        "global",
        "Top-k",
        "Aji and Heafield, 2017",
        "nothing",
        "all weights down, the largest changes up",
    ),
    "bnn": Named(
        BNN,
        "global",
        "BNN-FedAvg",
        "Hubara et al., 2016",
        "nothing",
        "one bit per weight, and norms",
        variant="binary",
    ),
}

__all__ = ["BNN", "DMPFL", "METHODS", "FedAvg", "FedEM", "FedProx", "Local", "Named", "TopK"]
