"""Get files from where they were published, or from the user, and put them into the cache."""

import dataclasses
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from masquerade.data import cache, readers
from masquerade.data.cache import Manifest
from masquerade.data.named import NAMED, File, Named
from masquerade.errors import MasqueradeError, nearest

Watch = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that have come, and how many there are, if known."""

CHUNK = 1 << 18
PATIENCE = (10, 60)
"""Seconds to wait for a host to answer, and for it to go on."""


def add(name: str, path: Path, format: str | None = None, replace: bool = False) -> Manifest:
    """Read a user's files into the cache, under the name of a known dataset or a new one."""
    cache.check_name(name)
    named = NAMED.get(name)
    if named is not None and format in (None, named.format):
        return _keep(name, named, path, replace)
    reading = readers.read(path, name, format)
    return cache.write(name, reading, replace, origin=f"added from {path.resolve()}")


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
    folder.mkdir(parents=True, exist_ok=True)
    for file in named.files:
        _download(file, folder, watch)
    (only, *others) = named.files
    manifest = _keep(name, named, folder if others else folder / only.name, replace)
    shutil.rmtree(folder)
    return manifest


def _keep(name: str, named: Named, path: Path, replace: bool) -> Manifest:
    """Read the files of a known dataset, see that nothing is missing, and put them away."""
    reading = readers.read(path, name, named.format, named.options)
    dataset = reading.dataset
    found: dict[str, int | None] = {"samples": len(dataset.y), "classes": dataset.classes}
    if dataset.client is not None:
        found["clients"] = int(dataset.client.max()) + 1
    for what, count in found.items():
        wanted = getattr(named, what)
        if wanted not in (None, count):
            raise MasqueradeError(
                "E301",
                f"{path} holds {count} {what}, and {named.title} has {wanted}; add what is "
                f"missing, or use another name and --format {named.format}",
            )
    class_names = reading.class_names or named.class_names
    return cache.write(
        name,
        dataclasses.replace(reading, class_names=class_names),
        replace,
        origin=named.origin,
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
            os.replace(part, output)
            return
        answer.raise_for_status()
        goes_on = answer.status_code == requests.codes.partial_content
        done = begun if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if goes_on else "wb") as file:
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                done += len(chunk)
                watch(part.stem, done, total)
    os.replace(part, output)
