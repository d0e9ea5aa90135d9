"""Long drills are done in pieces: what an earlier call did is not done again."""

from collections import Counter
from pathlib import Path

import pytest

from tests import fuzzing
from tests.fuzzing import Found, over_processes


def once(seed: int) -> Found:
    """Count a seed, and leave a trace of having done so."""
    with (fuzzing.PIECES / "done").open("a") as file:
        file.write(f"{seed} ")
    return Counter(even=1 - seed % 2, odd=seed % 2), seed / 10


def test_a_drill_goes_on_where_it_was_and_begins_anew_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzing, "PIECES", tmp_path)
    monkeypatch.setattr(fuzzing.os, "cpu_count", lambda: 1)
    assert over_processes("toy", once, range(2)) == (Counter(even=1, odd=1), 0.1)
    monkeypatch.setattr(fuzzing, "SECONDS", -1)
    assert over_processes("toy", once, range(3)) == (Counter(), 0.0)
    (tmp_path / f"toy-{fuzzing.source()}" / "1.json").write_text('[{"odd": 1}, 0.1]')
    monkeypatch.setattr(fuzzing, "SECONDS", 9)
    assert over_processes("toy", once, range(3)) == (Counter(even=2, odd=1), 0.2)
    assert (tmp_path / "done").read_text().split() == ["0", "1", "0", "2"]
    assert not list(tmp_path.glob("toy*"))
