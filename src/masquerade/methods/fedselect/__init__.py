"""FedSelect: the method, and models whose entries are a client's own or shared."""

from masquerade.methods.fedselect.method import ENTRIES, FedSelect

__all__ = ["ENTRIES", "FedSelect"]
