"""pFedGate: the method, the gate that chooses blocks, and blocks under a budget (a knapsack)."""

from masquerade.methods.pfedgate.method import ENTRIES, PFedGate

__all__ = ["ENTRIES", "PFedGate"]
