"""The methods: one paper, one file, one line of the table."""

from dataclasses import dataclass
from typing import Any

from masquerade.core.method import Method
from masquerade.methods.dmpfl import DMPFL
from masquerade.methods.fedavg import FedAvg
from masquerade.methods.fedmask import FedMask
from masquerade.methods.fedprox import FedProx
from masquerade.methods.local import Local


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


METHODS: dict[str, Named] = {
    "local": Named(Local, "personal", "Local", "no federation", "everything", "nothing"),
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
    "fedmask": Named(
        FedMask,
        "personal",
        "FedMask",
        "Li et al., 2021",
        "bits over frozen weights, a structure of the last layers",
        "one bit per weight",
    ),
}

__all__ = ["DMPFL", "METHODS", "FedAvg", "FedMask", "FedProx", "Local", "Named"]
