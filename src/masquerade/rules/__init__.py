"""Rules on outputs by name: what a client's label mix says at decision time."""

from masquerade.rules.prior import PRIORS

__all__ = ["PRIORS"]
