"""Files of Arrow: parquet, and folders that Hugging Face `datasets` wrote with `save_to_disk`."""

import json
from dataclasses import replace
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np
import torch

from masquerade.data.dataset import Array
from masquerade.data.readers.files import Files
from masquerade.data.readers.images import decoded
from masquerade.data.readers.options import TableOptions
from masquerade.data.readers.reading import Reading, Unfit
from masquerade.data.readers.table import dataset_of
from masquerade.errors import MasqueradeError
from masquerade.storage import parquet
from masquerade.tables.frame import table_of

STATE, INFO = "state.json", "dataset_info.json"
"""What `save_to_disk` writes beside the samples of every split."""


def read_parquet(files: Files, name: str, table: TableOptions) -> Reading:
    """Read a parquet file."""
    _pyarrow()
    (path,) = files.names
    frame = parquet.read_table(files.read(path))
    return Reading(dataset_of(table_of(frame, str(files.path), table.missing), table, name))


def read_saved(files: Files, name: str, table: TableOptions) -> Reading:
    """Read what `save_to_disk` wrote: one dataset, or one in a folder for each split.

    Its label is the only column of type ClassLabel, unless one is named. Samples of a split `test`
    are the original test part. Of samples with an image, all other columns are left out.
    """
    arrow = _pyarrow()
    folders = [path.parent for path in map(PurePosixPath, files.names) if path.name == STATE]
    splits = {folder.name: _split(arrow, files, folder) for folder in folders}
    if not splits:
        raise ValueError(f"there is no `{STATE}` in it, as `save_to_disk` writes")
    kinds = json.loads(files.read(str(folders[0] / INFO)))["features"]
    frame = _with_class_names(arrow, arrow.concat_tables(splits.values()), kinds)
    classes = [key for key in kinds if _type(kinds[key]) == "ClassLabel"]
    if not table.label and "y" not in kinds and len(classes) == 1:
        table = replace(table, label=classes[0])
    pictures = [key for key in kinds if _type(kinds[key]) == "Image" and key not in table.drop]
    if len(pictures) > 1:
        raise Unfit(f"columns {' and '.join(pictures)} hold images; --drop all but one")
    images = _images(frame[pictures[0]].to_pylist()) if pictures else None
    if pictures:
        frame = frame.drop_columns(pictures)
    dataset = dataset_of(table_of(frame, str(files.path), table.missing), table, name, images)
    if "test" in splits and len(splits) > 1:
        part = np.repeat([split != "test" for split in splits], [*map(len, splits.values())])
        dataset = replace(dataset, train=torch.from_numpy(part))
    return Reading(dataset)


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        text = "files of Arrow are read with the package `pyarrow`; pip install pyarrow"
        raise MasqueradeError("E301", text) from None
    found: ModuleType = pyarrow
    return found


def _type(kind: Any) -> str:
    # Lists have their kind in a list.
    return str(kind.get("_type", "")) if isinstance(kind, dict) else ""


def _split(arrow: ModuleType, files: Files, folder: PurePosixPath) -> Any:
    """Read the samples of one split, from the files that its state names."""
    state = json.loads(files.read(str(folder / STATE)))
    paths = [str(folder / each["filename"]) for each in state["_data_files"]]
    # Only files of this folder are read, whatever is named.
    strange = [path for path in paths if path not in files.names]
    if strange:
        raise ValueError(f"`{strange[0]}` is not there")
    streams = (arrow.ipc.open_stream(arrow.BufferReader(files.read(path))) for path in paths)
    return arrow.concat_tables([stream.read_all() for stream in streams])


def _with_class_names(arrow: ModuleType, frame: Any, kinds: dict[str, Any]) -> Any:
    """Put the names of classes in the place of their numbers; one below 0 is missing."""
    for key, kind in kinds.items():
        if _type(kind) == "ClassLabel" and kind.get("names"):
            numbers = [None if n is None or n < 0 else n for n in frame[key].to_pylist()]
            words = arrow.DictionaryArray.from_arrays(
                arrow.array(numbers, arrow.int32()), arrow.array(map(str, kind["names"]))
            )
            frame = frame.set_column(frame.schema.get_field_index(key), key, words)
    return frame


def _images(cells: list[Any]) -> Array:
    """Decode images, which have to be in the file itself."""
    contents: dict[str, bytes] = {}
    for place, cell in enumerate(cells):
        if not cell or cell.get("bytes") is None:
            raise ValueError(f"image {place} is not in the file, and no other file is read")
        contents[f"image {place}"] = cell["bytes"]
    return decoded(list(contents), contents.__getitem__)
