"""What devices can hold: the share of a network's parameters that each client has room for."""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice

from masquerade.core.method import Method
from masquerade.core.random import Label, fold, uniform
from masquerade.errors import MasqueradeError, warn

FORM = "random:LOW:HIGH"
"""Budgets drawn evenly between two shares."""

Budgets = Sequence[float] | str


def budgets_of(given: Budgets, clients: int, seed: int) -> list[float]:
    """Return every client's budget: drawn by a rule, or those given, which clients take in turn."""
    if isinstance(given, str):
        low, high = _limits(given)
        drawn = uniform(fold(seed, Label.BUDGETS), (clients,)).double()
        return [low + (high - low) * share for share in drawn.tolist()]
    check(given)
    if len(given) > clients:
        text = (
            f"`budgets` are {len(given)}, and there are {clients} clients; give that many or fewer"
        )
        raise MasqueradeError("E201", text)
    return list(islice(cycle(map(float, given)), clients))


def check(given: Budgets) -> None:
    """Refuse what are no shares, and a text that is no rule."""
    if isinstance(given, str):
        _limits(given)
    elif not given or not all(0 < share <= 1 for share in given):
        raise _refusal(given)


def _refusal(given: Budgets) -> MasqueradeError:
    shown = repr(given) if isinstance(given, str) else list(given)
    text = "list shares above 0 and at most 1, which clients take in turn, or write"
    return MasqueradeError("E201", f"`budgets` is {shown}; {text} {FORM}")


def _limits(text: str) -> tuple[float, float]:
    """Read the least and the most budget of a rule."""
    try:
        match text.split(":"):
            case ["random", low, high] if 0 < float(low) <= float(high) <= 1:
                return float(low), float(high)
    except ValueError:
        pass
    raise _refusal(text)


def warn_of_budgets(methods: Iterable[tuple[str, Method]], given: Budgets) -> None:
    """Say once which methods, by their titles, have whole models on small devices."""
    if not isinstance(given, str) and all(share >= 1 for share in given):
        return
    deaf = dict.fromkeys(title for title, method in methods if not method.budgeted)
    if deaf:
        warn(
            f"W303 budgets are not followed by {', '.join(deaf)}: the models of small devices are "
            "as large as all others",
        )
