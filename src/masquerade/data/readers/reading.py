"""What a reader returns."""

from dataclasses import dataclass

from masquerade.data.dataset import Dataset


@dataclass(frozen=True)
class Reading:
    """A dataset, and what its files say beside it."""

    dataset: Dataset
    blocks: tuple[str, ...] = ()
    """Names of equally long, consecutive blocks of samples, where the data come in such."""
    format: str = ""
    """What the files were read as."""
