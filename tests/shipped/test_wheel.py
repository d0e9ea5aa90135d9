"""The wheel: what is in it, and that it runs where the repository is not."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of this tree."""
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    return Path(built)


def test_a_wheel_holds_the_command_types_and_the_pages_of_the_methods(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    names = set(files.namelist())
    pages = {f"masquerade/pages/{path.name}" for path in (ROOT / "docs/methods").glob("*.md")}
    assert pages
    assert names >= {*pages, "masquerade/py.typed", "masquerade/__main__.py"}
    (entry,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "masquerade = masquerade.__main__:main" in files.read(entry).decode()
    assert all(name.startswith(("masquerade/", "masquerade-")) for name in names)


@pytest.mark.drill
def test_a_wheel_runs_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment; the package is the wheel's."""
    home = tmp_path / "fresh"
    venv.create(home, with_pip=True)
    (own,) = home.glob("lib/*/site-packages")
    pip = [home / "bin/pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True)
    others = [path for path in sys.path if path.endswith("site-packages")]
    (own / "others.pth").write_text("\n".join(others))

    def told(program: str, *words: str) -> str:
        done = subprocess.run(
            [home / "bin" / program, *words],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MASQUERADE_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import masquerade; print(masquerade.__file__)"
    assert Path(told("python", "-c", where).strip()).is_relative_to(own)
    assert told("masquerade", "--version").strip()
    assert "KDD 2023" in told("masquerade", "methods", "dmpfl")
    told("masquerade", "run", "--method", "dmpfl", "--rounds", "1", "--clients", "4", "--out", "r")
    assert (tmp_path / "r/report.html").is_file()
