"""Disks that are full: what is committed stays, and a resume goes on to the same bits.

Run as a program, this file is what fills a disk of its own, in a namespace where it may mount one:
`unshare -Urm python -m tests.drill.test_full_disk FOLDER LEVELS`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from masquerade.errors import MasqueradeError
from masquerade.report import plots
from tests.experiments.test_resume import complete, problem, same, write_data
from tests.reliability import publish

pytestmark = pytest.mark.drill
ROOT = Path(__file__).parents[2]
LEVELS = 50
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def test_a_full_disk_at_any_level_loses_nothing(tmp_path: Path) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a disk of his own")
    command = [*NAMESPACE, sys.executable, "-m", __name__, str(tmp_path), str(LEVELS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    publish("full-disk", "pytest -m drill tests/drill/test_full_disk.py", counted)
    assert counted["levels"] == LEVELS
    assert counted["refused at this level (E501)"] > LEVELS / 2


def mount(path: Path, size: int, again: bool = False) -> None:
    """Put a disk of so many bytes at a path, or give it so many."""
    options = f"{'remount,' if again else ''}size={size}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=True)


def refusal(work: Callable[[], object]) -> str:
    """Return the code of what work is refused by, empty where it ends well."""
    try:
        work()
    except MasqueradeError as error:
        return error.code
    return ""


def fill(folder: Path, levels: int) -> None:
    """Run on ever larger disks; where one is full, free space and resume, to the same bits."""
    plots.figures = lambda *given: {}
    config = problem(write_data(folder / "mine.npz"), "dmpfl", "dmpfl_plus")
    work = partial(complete, config)
    work(folder / "whole", ())
    used = sum(-(-file.stat().st_size // 4096) * 4096 for file in (folder / "whole").rglob("*"))
    disk, refused = folder / "disk", 0
    disk.mkdir()
    for level in range(levels):
        mount(disk, 4096 * max(1, used * (level + 1) // levels // 4096))
        code = refusal(partial(work, disk / "run", ()))
        assert code in ("", "E501")
        refused += bool(code)
        mount(disk, 16 * used, again=True)
        if not (disk / "run" / "config.toml").exists():
            shutil.rmtree(disk / "run", ignore_errors=True)
        work(disk / "run", ())
        same(disk / "run", folder / "whole")
        subprocess.run(["umount", str(disk)], check=True)
    counted = {"levels": levels, "refused at this level (E501)": refused}
    print(json.dumps(counted | {"resumed to the same bits": levels}))


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
