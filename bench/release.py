"""Build the wheel, the same to the byte wherever it is built, and what it consists of beside it.

    python -m bench.release dist    # also `make wheel`

Times in the wheel are that of the last commit. The list is CycloneDX: the wheel with its hash, and
all that it needs or can use, in the versions of `requirements.lock`.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def build(folder: Path, source: Path = ROOT, epoch: int | None = None) -> Path:
    """Build the wheel of a source tree; return its path."""
    if epoch is None:
        command = ["git", "log", "-1", "--format=%ct"]
        epoch = int(subprocess.check_output(command, cwd=source, text=True))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        check=True,
    )
    (made,) = folder.glob("*.whl")
    return made


def locked() -> dict[str, str]:
    """Return the versions of the lock, by name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {str(canonicalize_name(name)): version for name, version in pairs}


def needed(texts: list[str]) -> set[str]:
    """Name all that some requirements need, and what these need, as installed here."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in texts]
    seen = set()
    while waiting:
        each, extra = waiting.pop()
        name = str(canonicalize_name(each.name))
        if (name, extra, *each.extras) in seen or (
            each.marker and not each.marker.evaluate({"extra": extra})
        ):
            continue
        seen.add((name, extra, *each.extras))
        found.add(name)
        try:
            inner = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        waiting += [(one, own) for one in inner for own in ("", *sorted(each.extras))]
    return found


def bill(wheel: Path) -> dict[str, Any]:
    """Return what a wheel consists of, as CycloneDX has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = needed(project["dependencies"])
    extras = {
        name: needed(texts)
        for name, texts in project["optional-dependencies"].items()
        if name != "dev"
    }
    versions = locked()
    every = sorted((required | set().union(*extras.values())) & versions.keys())
    own = f"pkg:pypi/masquerade@{project['version']}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "masquerade",
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
                "hashes": [
                    {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
                ],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{versions[name]}",
                "name": name,
                "version": versions[name],
                "purl": f"pkg:pypi/{name}@{versions[name]}",
                "scope": "required" if name in required else "optional",
            }
            for name in every
        ],
        "dependencies": [
            {
                "ref": own,
                "dependsOn": [
                    f"pkg:pypi/{name}@{versions[name]}"
                    for name in sorted(_direct(project["dependencies"]) & versions.keys())
                ],
            }
        ],
    }


def _direct(texts: list[str]) -> set[str]:
    return {str(canonicalize_name(re.split(r"[\[<>=~! ;]", text)[0])) for text in texts}


def main() -> None:
    """Write both into the folder that is named."""
    wheel = build(Path(sys.argv[1]))
    beside = wheel.with_suffix(".cdx.json")
    beside.write_text(json.dumps(bill(wheel), indent=1) + "\n", encoding="utf-8")
    print(wheel)
    print(beside)


if __name__ == "__main__":
    main()
