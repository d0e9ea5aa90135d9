"""Metrics that need a whole test set: F1, AUROC and the like; one of a sample is the task's own."""

from masquerade.metrics.registry import METRICS, PER_CLASS

__all__ = ["METRICS", "PER_CLASS"]
