"""What metrics are called in tables."""

SHORT = ("auroc", "mae", "rmse")
"""Metrics whose names are abbreviations."""


def metric_title(name: str) -> str:
    """Write the name of a metric: "macro_f1" is "Macro F1", and "recall:cat" is "Recall, cat"."""
    words, _, label = name.partition(":")
    title = words.upper() if words in SHORT else words.replace("_", " ").replace(" f1", " F1")
    return title[:1].upper() + title[1:] + (f", {label}" if label else "")
