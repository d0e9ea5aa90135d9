"""What a reader returns."""

from dataclasses import dataclass

from masquerade.data.dataset import Dataset


class Unfit(ValueError):
    """Files that are as they should be, and cannot be used so; the text says what to do."""


@dataclass(frozen=True)
class Reading:
    """A dataset, and what its files say beside it."""

    dataset: Dataset
    blocks: tuple[str, ...] = ()
    """Names of equally long, consecutive blocks of samples, where the data come in such."""
    format: str = ""
    """What the files were read as."""
