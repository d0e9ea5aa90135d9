"""Whether statistics over clients are those that clients' figures give."""

from dataclasses import asdict

import pytest

from masquerade.results import Accuracy, Statistics, Summary

NEAR = 1e-4
"""Percentage points: figures of clients are kept with seven digits."""


def assert_same(summary: Summary, again: Summary) -> None:
    """Compare all statistics of a summary, and of its rules, with those that were recomputed."""
    _assert_accuracy(summary.accuracy, again.accuracy)
    for name, rule in summary.rules.items():
        _assert_accuracy(rule.accuracy, again.rules[name].accuracy)


def _assert_accuracy(one: Accuracy, other: Accuracy) -> None:
    _assert_statistics(one.own, other.own)
    for kind in ("shift", "pooled"):
        described, again = getattr(one, kind), getattr(other, kind)
        assert described.keys() == again.keys()
        for step, found in described.items():
            _assert_statistics(found, again[step])


def _assert_statistics(one: Statistics, other: Statistics) -> None:
    """Compare what is known of one."""
    known = {key: value for key, value in asdict(one).items() if value is not None}
    again = asdict(other)
    assert known == pytest.approx({key: again[key] for key in known}, abs=NEAR, nan_ok=True)
