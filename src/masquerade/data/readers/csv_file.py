"""CSV files."""

from masquerade.data.readers.files import Files
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.reading import Reading
from masquerade.data.readers.table import dataset_of
from masquerade.tables.csv_text import parsed


def read(files: Files, name: str, table: TableOptions) -> Reading:
    """Read a CSV file."""
    (path,) = files.names
    columns = parsed(
        files.read(path),
        str(files.path),
        sep=table.sep,
        encoding=table.encoding,
        drop=table.drop,
        missing=table.missing,
    )
    return Reading(dataset_of(columns, table, name))
