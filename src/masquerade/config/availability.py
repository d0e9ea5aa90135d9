"""The setting `train.available`: when a client can be sampled."""

from masquerade.config.settings import MOST
from masquerade.errors import MasqueradeError

FORMS = ("always", "cycle:GROUPS", "random:SHARE")
"""When a client can be sampled."""


def check(available: str, clients: int | None = None) -> None:
    """Refuse a text that is none of the forms, and more groups than clients where these are known.

    A group without clients would be a round that changes nothing, in every cycle.
    """
    try:
        match available.split(":"):
            case ["always"]:
                return
            case ["cycle", groups] if 1 <= int(groups) <= MOST[int]:
                if clients is None or int(groups) <= clients:
                    return
                text = f"`train.available` is {available!r}, and there are {clients} clients"
                raise MasqueradeError("E201", f"{text}; give no more groups than clients")
            case ["random", share] if 0 < float(share) <= 1:
                return
    except ValueError:
        pass
    known = ", ".join(FORMS)
    raise MasqueradeError("E201", f"`train.available` is {available!r}; write one of {known}")
