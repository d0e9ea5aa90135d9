"""Tables in parquet, read piece by piece so that a few bytes cannot ask for all memory."""

from typing import Any

from masquerade.storage.regular import LARGEST

CELLS = 1 << 29
"""Values of a table, at most."""
ROWS = 4096
"""Rows that are unpacked at a time."""


def read_table(data: bytes, most: int = LARGEST) -> Any:
    """Return the table of Arrow that a file holds; ValueError says why it is not read."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(pyarrow.BufferReader(data))
    facts = file.metadata
    if facts.num_rows * max(1, facts.num_columns) > CELLS:
        raise ValueError(f"it says it has {facts.num_rows} rows of {facts.num_columns} columns")
    pieces, size = [], 0
    # A value that comes often is stored once: what is unpacked may be far larger than the file.
    for piece in file.iter_batches(batch_size=ROWS, use_threads=False):
        size += piece.nbytes
        if size > most:
            raise ValueError(f"it has more than {most} bytes when it is unpacked")
        pieces.append(piece)
    return pyarrow.Table.from_batches(pieces, file.schema_arrow)
