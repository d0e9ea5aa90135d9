"""Compare the versions of `requirements.lock` with a database of known vulnerabilities.

    python -m bench.audit    # also `make audit`

It ends with 0 where all were compared and none is known, with 1 where one is, and with 2 where
not all could be compared: `pip-audit` itself is content with that.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OPTIONS = ("--progress-spinner", "off", "--disable-pip", "--no-deps", "--format", "json")


def verdict(found: Mapping[str, Any]) -> tuple[str, int]:
    """Say what an audit found, and the status to end with."""
    every = found["dependencies"]
    bad = [each for each in every if each.get("vulns")]
    skipped = [each["name"] for each in every if "skip_reason" in each]
    lines = [
        f"{each['name']} {each['version']}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in bad
    ]
    compared = len(every) - len(skipped)
    lines.append(f"{compared} of {len(every)} packages compared, {len(bad)} with known faults")
    if skipped:
        lines.append(f"NOT compared, as the database was not reached or lacks them: {len(skipped)}")
    return "\n".join(lines), 1 if bad else 2 if skipped or not every else 0


def main() -> None:
    """Audit the lock."""
    uvx = shutil.which("uvx", path=str(Path(sys.executable).parent)) or "uvx"
    command = [uvx, "--quiet", "pip-audit", *OPTIONS, "-r", str(ROOT / "requirements.lock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        text, status = verdict(json.loads(done.stdout))
    except ValueError:
        text, status = "NOTHING was compared: pip-audit or its database cannot be reached here", 2
    print(text)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
