"""CSV files."""

from masquerade.data.readers.files import Files
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.reading import Reading
from masquerade.data.readers.table import dataset_of
from masquerade.tables.csv_text import parsed, warn_of_windows


def read(files: Files, name: str, table: TableOptions) -> Reading:
    """Read a CSV file."""
    (path,) = files.names
    data, source = files.read(path), str(files.path)
    warn_of_windows(data, source, table.encoding)
    columns = parsed(
        data,
        source,
        sep=table.sep,
        encoding=table.encoding,
        drop=table.drop,
        missing=table.missing,
        in_python=table.in_python,
    )
    return Reading(dataset_of(columns, table, name))
