"""Tables of Arrow that claim more than they have: refused before memory is asked for."""

import io
import tracemalloc
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from masquerade.storage.parquet import read_stream, read_table
from tests.fuzzing import timed

MANY = 10**9
NOTHING = pyarrow.nulls(MANY)
TABLES: dict[str, Any] = {
    "nothing": NOTHING,
    "one value": pyarrow.RunEndEncodedArray.from_arrays(pyarrow.array([MANY], "int64"), [1.0]),
    "no fields": pyarrow.Array.from_buffers(pyarrow.struct([]), MANY, [None]),
}


def stream(column: Any, packed: str | None = None) -> bytes:
    """A stream of one column."""
    table = pyarrow.Table.from_batches([pyarrow.record_batch([column], names=["x"])])
    out = io.BytesIO()
    options = pyarrow.ipc.IpcWriteOptions(compression=packed)
    with pyarrow.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize("name", TABLES)
def test_rows_that_take_no_bytes_are_bounded(name: str) -> None:
    data = stream(TABLES[name])

    def reading() -> str:
        with pytest.raises(ValueError, match=str(MANY)):
            read_stream(data)
        return ""

    tracemalloc.start()
    assert timed(reading)[1] < 1
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_is_packed_is_not_unpacked() -> None:
    numbers, texts = pyarrow.array(np.zeros(1 << 20)), pyarrow.array(["a" * 500, "b" * 500])
    for column in (numbers, texts.dictionary_encode()):
        assert read_stream(stream(column)).num_rows == len(column)
        with pytest.raises(ValueError, match="packed"):
            read_stream(stream(column, "zstd"))


def test_no_table_is_larger_than_it_may_be() -> None:
    data = stream(pyarrow.array(np.zeros(1 << 12)))
    assert read_stream(data, most=1 << 15).num_rows == 1 << 12
    with pytest.raises(ValueError, match="more than"):
        read_stream(data, most=(1 << 15) - 1)


def test_places_outside_of_a_column_are_refused() -> None:
    data = bytearray(stream(pyarrow.array(["ab", "cd", "ef"])))
    place = data.index(np.array([0, 2, 4, 6], np.int32).tobytes())
    data[place + 12 : place + 16] = np.int32(1 << 30).tobytes()
    with pytest.raises(pyarrow.ArrowInvalid):
        read_stream(bytes(data))


def test_rows_of_parquet_that_take_no_bytes_are_bounded() -> None:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.nulls(1 << 23)}), out)
    with pytest.raises(ValueError, match=str(1 << 23)):
        read_table(out.getvalue())
