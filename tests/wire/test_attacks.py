"""The folder `attacks`: every file is refused for its own reason, at once and in little memory."""

import json
import re
from pathlib import Path

import pytest

from attacks.make import HERE, attacks
from masquerade.errors import MasqueradeError
from tests.wire.samples import SAMPLES
from tests.wire.test_hostile import peak

TABLE = json.loads((HERE / "attacks.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_every_attack_is_refused_for_its_reason(name: str) -> None:
    receiver, data = SAMPLES[TABLE[name]["receiver"]], (HERE / f"{name}.bin").read_bytes()
    with pytest.raises(MasqueradeError, match=re.escape(TABLE[name]["says"])) as refusal:
        receiver.decode(data)
    assert refusal.value.code == "E605"
    assert peak(receiver, data) < 200_000


def test_the_folder_holds_what_its_script_writes() -> None:
    made = attacks()
    assert len(made) >= 40
    assert made.keys() == TABLE.keys() == {path.stem for path in Path(HERE).glob("*.bin")}
    for name, (receiver, data, text) in made.items():
        assert (HERE / f"{name}.bin").read_bytes() == data
        assert TABLE[name] == {"receiver": receiver, "says": text}
