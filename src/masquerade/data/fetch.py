"""Get files from where they were published, or from the user, and put them into the cache."""

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from masquerade.data import cache, readers
from masquerade.data.cache import Manifest
from masquerade.data.dataset import Dataset
from masquerade.data.readers.options import AS_IT_IS, TableOptions
from masquerade.data.readers.reading import Reading
from masquerade.data.registry import NAMED, File, Named
from masquerade.errors import MasqueradeError, MasqueradeWarning, listed, nearest
from masquerade.storage import atomic

Watch = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that have come, and how many there are, if known."""

CHUNK = 1 << 18
COMPRESSED = {".gz", ".bz2", ".tgz", ".zip"}
PATIENCE = (10, 60)
"""Seconds to wait for a host to answer, and for it to go on."""


def add(
    name: str,
    path: Path,
    format: str | None = None,
    replace: bool = False,
    table: TableOptions = AS_IT_IS,
) -> Manifest:
    """Read a user's files into the cache, under the name of a known dataset or a new one."""
    cache.check_name(name)
    # Unlike `resolve`, this takes links that lead round in a circle.
    origin = f"added from {os.path.realpath(path)}"
    named = NAMED.get(name)
    if named is None:
        reading = readers.read(path, name, format, table=table)
        return cache.write(name, reading, replace, origin=origin)
    reading = _read(name, named, path, format or named.format, table)
    if _published(named, path, reading.dataset):
        origin = named.origin
    elif named.content:
        origin += ", other than the published samples, or in another order"
    else:
        origin += ", not compared with a published hash"
    return _keep(name, named, reading, replace, origin)


def _published(named: Named, path: Path, dataset: Dataset) -> bool:
    """Return whether files, or samples, are the published ones; refuse a file that only says so.

    Where nobody knows a hash of the samples, a file that was compressed anew is warned of: what it
    holds has been read and counted.
    """
    known = {file.name: file.known for file in named.files if file.known}
    here = sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]
    found = {each: _hash(each, known[each.name]) for each in here if each.name in known}
    other = {each: hash for each, hash in found.items() if hash != known[each.name]}
    # An archive that lies in a folder is not what was read.
    if len(found) == len(here) and not other and (path.is_file() or len(named.files) > 1):
        return True
    content = content_of(dataset)
    if named.content == content:
        return True
    for name, wrong in NAMED.items():
        if wrong.content == content:
            text = f"{path} holds {wrong.title}, and not {named.title}; add it as {name}"
            raise MasqueradeError("E301", text)
    if other and (named.content or not all(each.suffix in COMPRESSED for each in other)):
        differ = [
            f"{each.name} ({hash}, published is {known[each.name]})" for each, hash in other.items()
        ]
        text = f"{path} does not hold the published samples; other files are {listed(differ)}"
        how = f"get them again, or use another name and --format {named.format}"
        raise MasqueradeError("E301", f"{text}; {how}")
    for each, hash in other.items():
        text = f"W307 {each} was not compressed as the published file ({hash}, published is "
        text += f"{known[each.name]}); it was read, and its samples are as many as they should be"
        warnings.warn(MasqueradeWarning(text), stacklevel=2)
    return False


def content_of(dataset: Dataset) -> str:
    """Return the SHA-256 of samples and labels, in their order."""
    digest = hashlib.sha256(dataset.x.numpy().data)
    digest.update(dataset.y.numpy().astype("<i8").data)
    return digest.hexdigest()


def _hash(path: Path, like: str) -> str:
    """Return a file's hash of the kind that another has."""
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def fetch(name: str, replace: bool = False, watch: Watch = lambda *_: None) -> Manifest:
    """Download a known dataset into the cache; what has come is kept when the connection breaks."""
    if name not in NAMED:
        known = ", ".join(NAMED)
        text = f"unknown dataset `{name}`{nearest(name, NAMED)}; known are {known}"
        raise MasqueradeError("E301", text)
    named = NAMED[name]
    if cache.holds(name) and not replace:
        text = f"`{name}` is in the cache already ({cache.root() / name}); --force gets it anew"
        raise MasqueradeError("E201", text)
    folder = cache.root() / ".downloads" / name
    with cache.refusals(folder, "what has come is kept, and the cache is as it was"):
        folder.mkdir(parents=True, exist_ok=True)
        for file in named.files:
            _download(file, folder, watch)
    (only, *others) = named.files
    try:
        path = folder if others else folder / only.name
        reading = _read(name, named, path, named.format)
        manifest = _keep(name, named, reading, replace, named.origin)
    except MasqueradeError:
        # Without a hash, the next fetch would take a bad file for the right one again.
        for file in named.files:
            if not file.known:
                atomic.discard(folder / file.name)
        raise
    atomic.discard(folder)
    return manifest


def _read(
    name: str, named: Named, path: Path, format: str, table: TableOptions = AS_IT_IS
) -> Reading:
    """Read the files of a known dataset, and see that nothing is missing."""
    options = named.options if format == named.format else None
    reading = readers.read(path, name, format, options, table)
    dataset = reading.dataset
    clients = None if dataset.client is None else int(dataset.client.max()) + 1
    found = {"samples": len(dataset.y), "classes": dataset.classes, "clients": clients}
    for what, count in found.items():
        wanted = getattr(named, what)
        if wanted not in (None, count):
            raise MasqueradeError(
                "E301",
                f"{path} holds {count or 'no'} {what}, and {named.title} has {wanted}; add what "
                f"is missing, or use another name and --format {format}",
            )
    return reading


def _keep(name: str, named: Named, reading: Reading, replace: bool, origin: str) -> Manifest:
    """Put a known dataset away, with what is known of it."""
    class_names = reading.dataset.class_names or named.class_names
    dataset = dataclasses.replace(reading.dataset, class_names=class_names)
    return cache.write(
        name,
        dataclasses.replace(reading, dataset=dataset),
        replace,
        origin=origin,
        license=named.license,
        citation=named.citation,
    )


def _download(file: File, folder: Path, watch: Watch) -> None:
    """Get a file from the first of its hosts that has it, and compare its hash."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    faults = []
    for host in file.hosts:
        try:
            pooch.retrieve(
                host,
                file.known or None,
                file.name,
                folder,
                downloader=partial(_resume, part=folder / f"{file.name}.part", watch=watch),
            )
        except requests.RequestException as fault:
            faults.append(f"{host}: {fault}")
        except ValueError as fault:
            text = f"{file.name} from {host} is not the published file ({fault}); fetch it again"
            raise MasqueradeError("E301", text) from None
        else:
            return
    raise MasqueradeError(
        "E601",
        f"{file.name} could not be fetched ({'; '.join(faults)}); what has come is kept, so try "
        "again later, or get the file elsewhere and use `masquerade data add`",
    )


def _resume(url: str, output: Any, pooch: object, *, part: Path, watch: Watch) -> None:
    """Download what is still missing of a file; pooch calls this with where it wants it."""
    import requests

    begun = part.stat().st_size if part.exists() else 0
    asked = {"Range": f"bytes={begun}-"} if begun else {}
    with requests.get(url, headers=asked, stream=True, timeout=PATIENCE) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:
            # There is nothing behind what we have: the file is whole, and its hash will tell.
            atomic.move(part, Path(output))
            return
        answer.raise_for_status()
        goes_on = answer.status_code == requests.codes.partial_content
        done = begun if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with atomic.filling(part, append=goes_on) as file:
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                done += len(chunk)
                watch(part.stem, done, total)
    atomic.move(part, Path(output))
