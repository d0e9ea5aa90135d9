"""Trackers as the command names them: `tensorboard:DIR`, `mlflow[:EXPERIMENT]`, `wandb:PROJECT`."""

from collections.abc import Iterable

from masquerade.errors import MasqueradeError, nearest
from masquerade.trackers.mlflow import MLflow
from masquerade.trackers.tensorboard import TensorBoard
from masquerade.trackers.tracker import Tracker
from masquerade.trackers.wandb import WandB

FORMS = {
    "tensorboard": "tensorboard:DIR",
    "mlflow": "mlflow or mlflow:EXPERIMENT",
    "wandb": "wandb:PROJECT",
}


def parse(names: Iterable[str]) -> list[Tracker]:
    """Make the trackers that a command names; refuse what is none."""
    return [_tracker(name) for name in names]


def _tracker(text: str) -> Tracker:
    kind, _, given = text.partition(":")
    if kind == "mlflow":
        return MLflow(given) if given else MLflow()
    if given and kind == "tensorboard":
        return TensorBoard(given)
    if given and kind == "wandb":
        return WandB(given)
    known = FORMS.get(kind) or ", ".join(FORMS.values())
    said = "" if kind in FORMS else nearest(kind, FORMS)
    raise MasqueradeError("E201", f"`--track {text}`{said}; write {known}")
