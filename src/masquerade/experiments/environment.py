"""What this process runs on, and the file of a run that says so."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy
import torch

from masquerade import __version__
from masquerade.errors import MasqueradeError
from masquerade.results import Environment
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.storage.saved_folder import Folder

FILE = "environment.json"
"""Its name in a directory."""


def here() -> Environment:
    """Return what this process runs on, now."""
    cuda = torch.cuda.is_available()
    return Environment(
        masquerade=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
        system=f"{platform.system()} {platform.release()}",
        device=torch.cuda.get_device_name() if cuda else _processor(),
        cores=os.cpu_count() or 1,
        date=datetime.now(UTC).date().isoformat(),
        command=_command(sys.argv),
    )


def _processor() -> str:
    """Name the processor as its maker does, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _command(words: list[str]) -> str:
    """Write the command as it was typed, if this program is the command."""
    name = Path(words[0]).stem if words else ""
    module = name == "__main__" and Path(words[0]).parent.name == "masquerade"
    return shlex.join(["masquerade", *words[1:]]) if name == "masquerade" or module else ""


def to_bytes(found: Environment) -> bytes:
    """Write it as JSON."""
    return json.dumps(to_json(found), indent=1).encode()


def first_command(path: Path) -> str:
    """Return the command that began a comparison: that of the first of its runs to end.

    A comparison that was stopped is ended by `resume`, which does not say what was asked for.
    """
    files = sorted(path.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime_ns)
    first = read(files[0].parent) if files else None
    return first.command if first else ""


def read(path: Path) -> Environment | None:
    """Read that of a directory, or of the first of its runs; older ones have none."""
    for file in (path / FILE, *sorted(path.glob(f"*/{FILE}"))):
        if file.is_file():
            try:
                return from_json(Environment, parsed(Folder.open(file.parent).read(FILE)))
            except ValueError as error:
                text = f"{file} is damaged ({error}); remove it"
                raise MasqueradeError("E401", text) from None
    return None
