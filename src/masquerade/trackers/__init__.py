"""Experiment trackers as callbacks: TensorBoard, MLflow, Weights & Biases."""

from masquerade.trackers.mlflow import MLflow
from masquerade.trackers.tensorboard import TensorBoard
from masquerade.trackers.tracker import Tracker
from masquerade.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
