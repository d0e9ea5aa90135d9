"""The methods: one paper, one file, one line of the table."""

from dataclasses import dataclass
from typing import Any

from masquerade.core.method import Method
from masquerade.methods.apfl import APFL
from masquerade.methods.bnn import BNN
from masquerade.methods.ditto import Ditto
from masquerade.methods.dmpfl import DMPFL
from masquerade.methods.fedavg import FedAvg
from masquerade.methods.fedbabu import FedBABU
from masquerade.methods.fedbn import FedBN
from masquerade.methods.feddst import FedDST
from masquerade.methods.fedem import FedEM
from masquerade.methods.fedmask import FedMask
from masquerade.methods.fedper import FedPer
from masquerade.methods.fedprox import FedProx
from masquerade.methods.fedrep import FedRep
from masquerade.methods.fedselect import FedSelect
from masquerade.methods.heterofl import HeteroFL
from masquerade.methods.lgfedavg import LGFedAvg
from masquerade.methods.local import Local
from masquerade.methods.lotteryfl import LotteryFL
from masquerade.methods.perfedavg import PerFedAvg
from masquerade.methods.pfedgate import PFedGate
from masquerade.methods.pfedme import PFedMe
from masquerade.methods.scaffold import Scaffold
from masquerade.methods.subfedavg import SubFedAvg
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
    "fedavg": Named(FedAvg, "global", "FedAvg", "McMahan et al., 2017", "nothing", "all weights"),
    "fedavg_ft": Named(
        FedAvg, "tuned", "FedAvg+FT", "Wang et al., 2019", "a fine-tuned copy", "all weights"
    ),
    "fedprox": Named(FedProx, "global", "FedProx", "Li et al., 2020", "nothing", "all weights"),
    "scaffold": Named(
        Scaffold,
        "global",
        "SCAFFOLD",
        "Karimireddy et al., 2020",
        "a control, beside one model for all",
        "all weights, and a control of as many numbers",
    ),
    "ditto": Named(Ditto, "personal", "Ditto", "Li et al., 2021", "a second model", "all weights"),
    "apfl": Named(
        APFL,
        "personal",
        "APFL",
        "Deng et al., 2020",
        "a second model, and its share in the mixture",
        "all weights",
    ),
    "pfedme": Named(
        PFedMe, "personal", "pFedMe", "Dinh et al., 2020", "a second model", "all weights"
    ),
    "perfedavg": Named(
        PerFedAvg, "tuned", "Per-FedAvg", "Fallah et al., 2020", "an adapted copy", "all weights"
    ),
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
    "fedper": Named(
        FedPer, "personal", "FedPer", "Arivazhagan et al., 2019", "the last layers", "the others"
    ),
    "lgfedavg": Named(
        LGFedAvg,
        "personal",
        "LG-FedAvg",
        "Liang et al., 2020",
        "all but the last layers",
        "all weights at first, then the last layers",
    ),
    "fedrep": Named(
        FedRep, "personal", "FedRep", "Collins et al., 2021", "the last layers", "the others"
    ),
    "fedbabu": Named(
        FedBABU,
        "tuned",
        "FedBABU",
        "Oh et al., 2022",
        "a fine-tuned copy",
        "all but the last layers",
    ),
    "fedbn": Named(
        FedBN,
        "personal",
        "FedBN",
        "Li et al., 2021",
        "norm layers and their statistics",
        "all other weights",
        variant="bn",
    ),
    "feddst": Named(
        FedDST,
        "global",
        "FedDST",
        "Bibikar et al., 2022",
        "nothing",
        "weights inside a mask, and the mask",
    ),
    "heterofl": Named(
        HeteroFL,
        "global",
        "HeteroFL",
        "Diao et al., 2021",
        "the width of the network",
        "weights inside the width",
    ),
    "lotteryfl": Named(
        LotteryFL,
        "personal",
        "LotteryFL",
        "Li et al., 2020",
        "mask",
        "weights inside a mask, and the mask",
    ),
    "subfedavg": Named(
        SubFedAvg,
        "personal",
        "Sub-FedAvg",
        "Vahidian et al., 2021",
        "mask",
        "weights inside a mask, and the mask",
    ),
    "subfedavg_hy": Named(
        SubFedAvg,
        "personal",
        "Sub-FedAvg (Hy)",
        "Vahidian et al., 2021",
        "mask of whole channels and rows",
        "weights inside a mask, and the mask",
        (("structured", True),),
    ),
    "local_flops": Named(
        Local,
        "personal",
        "Local, equal FLOPs",
        "no federation",
        "everything",
        "nothing",
        like="fedavg",
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
    "pfedgate": Named(
        PFedGate,
        "personal",
        "pFedGate",
        "Chen et al., 2023",
        "a gate that chooses and scales blocks",
        "all weights down, the chosen blocks up",
    ),
    "fedselect": Named(
        FedSelect,
        "personal",
        "FedSelect",
        "Tamirisa et al., 2023",
        "a mask, and the weights inside it",
        "weights outside the own mask, and the mask",
    ),
    "fedselect_grow": Named(
        FedSelect,
        "personal",
        "FedSelect, growing",
        "Tamirisa et al., 2024",
        "as FedSelect, in a mask that grows",
        "as FedSelect",
        (("select", "growth"),),
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

__all__ = [
    "APFL",
    "BNN",
    "DMPFL",
    "METHODS",
    "Ditto",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedDST",
    "FedEM",
    "FedMask",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSelect",
    "HeteroFL",
    "LGFedAvg",
    "Local",
    "LotteryFL",
    "Named",
    "PFedGate",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
    "SubFedAvg",
    "TopK",
]
