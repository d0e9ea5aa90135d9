"""The folder `attacks`: every file is refused for its own reason, at once and in little memory."""

import json
from pathlib import Path

import pytest

from attacks.make import HERE, attacks
from tests.support import raises
from tests.wire.samples import SAMPLES
from tests.wire.test_hostile import peak

TABLE = json.loads((HERE / "attacks.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_every_attack_is_refused_for_its_reason(name: str) -> None:
    receiver, data = SAMPLES[TABLE[name]["receiver"]], (HERE / f"{name}.bin").read_bytes()
    with raises("E605") as refusal:
        receiver.decode(data)
    assert TABLE[name]["says"] in str(refusal.value)
    assert peak(receiver, data) < 200_000


def test_the_folder_holds_what_its_script_writes() -> None:
    made = attacks()
    assert len(made) >= 40
    assert made.keys() == TABLE.keys() == {path.stem for path in Path(HERE).glob("*.bin")}
    for name, (receiver, data, text) in made.items():
        assert (HERE / f"{name}.bin").read_bytes() == data
        assert TABLE[name] == {"receiver": receiver, "says": text}
