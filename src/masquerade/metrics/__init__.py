"""Metrics that need a whole test set: F1, AUROC and the like; one of a sample is the task's own."""

from masquerade.metrics.registry import METRICS

__all__ = ["METRICS"]
