"""The columns of a table: what each feature of a sample is called, and what its numbers mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from masquerade.errors import MasqueradeError


@dataclass(frozen=True)
class Feature:
    """A column: a number, or a category that stands in a sample as its place among `categories`.

    What is missing is NaN in either.
    """

    name: str
    categories: tuple[str, ...] = ()
    """What the categories are called, in the order of their numbers; empty for a number."""

    @property
    def is_category(self) -> bool:
        """Tell categories from numbers."""
        return bool(self.categories)


def check_features(features: Sequence[Feature], width: int) -> None:
    """Refuse columns that are not as many as a sample has numbers, or that share a name."""
    if features and len(features) != width:
        text = f"there are {len(features)} features named for samples of {width} numbers"
        raise MasqueradeError("E302", f"{text}; name every column once")
    names = [feature.name for feature in features]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MasqueradeError("E302", f"more than one feature is named `{twice}`; rename one")
