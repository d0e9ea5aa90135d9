"""Tables of Arrow, in parquet and as streams: a few bytes cannot ask for all memory."""

import struct
from collections.abc import Iterable
from typing import Any

from masquerade.storage.regular import LARGEST

CELLS = 1 << 29
"""Values of a table, at most."""
FEW = 1 << 22
"""Values that any file may have: those that are all alike take no bytes."""
ALIKE = 100
"""How many values one byte may stand for in a larger one."""
ROWS = 4096
"""Rows that are unpacked at a time."""


def read_table(data: bytes, most: int = LARGEST) -> Any:
    """Return the table of Arrow that a parquet file holds; ValueError says why it is not read."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(pyarrow.BufferReader(data))
    facts = file.metadata
    _check_cells(facts.num_rows, facts.num_columns, len(data))
    # A value that comes often is stored once: what is unpacked may be far larger than the file.
    pieces = file.iter_batches(batch_size=ROWS, use_threads=False)
    return pyarrow.Table.from_batches(_held(pieces, len(data), most), file.schema_arrow)


def read_stream(data: bytes, most: int = LARGEST) -> Any:
    """Return the table of a stream of Arrow, which is not packed; ValueError as above."""
    import pyarrow

    for message in pyarrow.ipc.MessageReader.open_stream(pyarrow.BufferReader(data)):
        if _is_packed(message.metadata.to_pybytes()):
            raise ValueError("it is packed, which `save_to_disk` does not do")
    stream = pyarrow.ipc.open_stream(pyarrow.BufferReader(data))
    found = pyarrow.Table.from_batches(_held(stream, len(data), most), stream.schema)
    # Places that lie outside of their column would be read all the same.
    found.validate(full=True)
    return found


def _held(pieces: Iterable[Any], size: int, most: int) -> list[Any]:
    """Return all pieces of a table that a file of some size has, if there is room for them."""
    found, rows, left = [], 0, most
    for piece in pieces:
        rows += piece.num_rows
        _check_cells(rows, piece.num_columns, size)
        left -= piece.nbytes
        if left < 0:
            raise ValueError(f"it has more than {most} bytes when it is unpacked")
        found.append(piece)
    return found


def _check_cells(rows: int, columns: int, size: int) -> None:
    if rows * max(1, columns) > min(CELLS, max(FEW, ALIKE * size)):
        raise ValueError(f"it says it has {rows} rows of {columns} columns")


def _is_packed(head: bytes) -> bool:
    """Tell whether a message's values are packed, which says how long they claim to be.

    The head is a flatbuffer: a message has its kind in field 1 (2 for a dictionary, 3 for rows) and
    itself in field 2; a dictionary its rows in field 1; rows how they are packed in field 3.
    """

    def field(table: int, number: int) -> int:
        """Return where a field of a table is; 0 where it is not there."""
        fields = table - struct.unpack_from("<i", head, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", head, fields)[0]:
            return 0
        place: int = struct.unpack_from("<H", head, fields + 4 + 2 * number)[0]
        return place and table + place

    def follow(place: int) -> int:
        """Return where a table is that something leads to."""
        return place + int(struct.unpack_from("<I", head, place)[0])

    message = follow(0)
    kind = field(message, 1)
    if not kind or head[kind] not in (2, 3):
        return False
    rows = follow(field(message, 2))
    if head[kind] == 2:
        rows = follow(field(rows, 1))
    return bool(field(rows, 3))
