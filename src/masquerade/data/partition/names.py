"""Partition rules as texts: what the command and configurations write, such as `dirichlet:0.3`."""

import math

from masquerade.data.partition.papers import AnyRule, Groups, Lottery, Outliers, PerClass
from masquerade.data.partition.rules import IID, ByClient, Dirichlet, Pathological, Shards
from masquerade.errors import MasqueradeError, nearest

FORMS = (
    "iid",
    "client",
    "client:LEAST",
    "dirichlet:ALPHA",
    "dirichlet:ALPHA:LEAST",
    "dirichlet:ALPHA:capped",
    "pathological",
    "pathological:CLASSES",
    "pathological:unbalanced",
    "shards:COUNT",
    "fedselect:CLASSES",
    "fedselect:CLASSES:TRAIN:TEST",
    "fedselect:CLASSES:TRAIN:TEST:VALIDATION",
    "lottery:VOLUME:BALANCE",
    "lottery:VOLUME:BALANCE:CLASSES",
    "groups:COUNT",
    "groups:COUNT:ALPHA",
    "outliers:COUNT",
    "outliers:COUNT:ALPHA",
)
"""How a rule can be written."""


LARGEST = 10**6
"""What numbers of a partition may be at most."""


def parse(text: str) -> AnyRule:
    """Return the partition rule that a text such as `dirichlet:0.3` names."""
    rule = _read(text.split(":"))
    if rule is None:
        word, forms = text.split(":")[0], dict[str, list[str]]()
        for form in FORMS:
            forms.setdefault(form.split(":")[0], []).append(form)
        if word in forms:
            then = f"; write {' or '.join(forms[word])}"
        else:
            shortest = ", ".join(each[0] for each in forms.values())
            then = f"{nearest(text, FORMS)}; there are {shortest}; docs/data.md has all forms"
        raise MasqueradeError("E201", f"unknown partition `{text}`{then}")
    return rule


def _read(words: list[str]) -> AnyRule | None:
    try:
        match words:
            case ["iid"]:
                return IID()
            case ["client", *least] if len(least) <= 1:
                return ByClient(*map(_count, least))
            case ["dirichlet", alpha, "capped"]:
                return Dirichlet(_share(alpha), cap=True, least=40)
            case ["dirichlet", alpha, least]:
                return Dirichlet(_share(alpha), least=_count(least))
            case ["dirichlet", alpha]:
                return Dirichlet(_share(alpha))
            case ["pathological", "unbalanced"]:
                return Pathological(balanced=False)
            case ["pathological"]:
                return Pathological()
            case ["pathological", classes]:
                return Pathological(_count(classes))
            case ["shards", count]:
                return Shards(_count(count))
            case ["fedselect", *counts] if len(counts) in (1, 3, 4):
                return PerClass(*map(_count, counts))
            case ["lottery", volume, balance, *classes] if len(classes) <= 1:
                return Lottery(_count(volume), _share(balance), *map(_count, classes))
            case ["groups", count, *alpha] if len(alpha) <= 1:
                return Groups(_count(count), *map(_share, alpha))
            case ["outliers", count, *alpha] if len(alpha) <= 1:
                return Outliers(_count(count), *map(_share, alpha))
    except ValueError:
        pass
    return None


def _count(text: str) -> int:
    """Read a number of clients, classes or samples; none has more than a million."""
    count = int(text)
    if abs(count) > LARGEST:
        raise ValueError(f"{count} is too large")
    return count


def _share(text: str) -> float:
    """Read a number that is not so large that sums overflow; rules refuse what is no number."""
    share = float(text)
    if LARGEST < abs(share) < math.inf:
        raise ValueError(f"{share} is too large")
    return share


def describe(rule: AnyRule) -> str:
    """Return the shortest text that `parse` reads as this rule, or its `repr` if there is none."""
    texts = [text.split(":") for text in _texts(rule)]
    return next((":".join(words) for words in texts if _read(words) == rule), repr(rule))


def _texts(rule: AnyRule) -> list[str]:
    """Return what the rule may be written as, the shortest first."""
    match rule:
        case IID():
            return ["iid"]
        case ByClient(least):
            return ["client", f"client:{least}"]
        case Dirichlet(alpha, _, least):
            return [f"dirichlet:{alpha}{end}" for end in ("", f":{least}", ":capped")]
        case Pathological(classes):
            return [f"pathological{end}" for end in ("", f":{classes}", ":unbalanced")]
        case Shards(count):
            return [f"shards:{count}"]
        case PerClass(classes, train, test, validation):
            few = f"fedselect:{classes}"
            return [few, f"{few}:{train}:{test}", f"{few}:{train}:{test}:{validation}"]
        case Lottery(volume, balance, classes):
            return [f"lottery:{volume}:{balance}{end}" for end in ("", f":{classes}")]
        case Groups(count, alpha):
            return [f"groups:{count}{end}" for end in ("", f":{alpha}")]
        case Outliers(count, alpha):
            return [f"outliers:{count}{end}" for end in ("", f":{alpha}")]
    return []
