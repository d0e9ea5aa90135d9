"""A client's model comes back from its file as it was: values, masks, and what a bit covers."""

from pathlib import Path

import pytest
import torch

from masquerade.core.part import Axis, Blocks, Entry, Message, Part
from masquerade.core.tree import named
from masquerade.storage import model_files as parts
from masquerade.storage.run_directory import RunDirectory
from tests.support import METHOD_TABLE, measure, simulate


def through_a_file(path: Path, message: Message) -> Message:
    with RunDirectory.create(path, "") as directory:
        directory.write_file("clients/0.safetensors", parts.encode(message))
    return parts.decode((path / "clients/0.safetensors").read_bytes(), "0.safetensors")


def assert_same(one: Message, other: Message) -> None:
    left, right = named(one), named(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for name, part in one.items():
        assert part.dtype == other[name].dtype
        for tensor in part.values:
            assert part.grain_of(tensor) == other[name].grain_of(tensor)
            held = part.held(tensor)
            if held is not None:
                assert torch.equal(held, other[name].held(tensor))


def test_every_grain_and_rounding_comes_back(tmp_path: Path) -> None:
    values = {name: torch.arange(6.0).reshape(2, 3) for name in "abcd"}
    keep = {"a": torch.tensor([True, False]), "b": torch.tensor([False, True, True])}
    keep |= {"c": torch.tensor([True, False]), "d": values["d"] > 2}
    grain = {"a": Axis(0), "b": Axis(1), "c": Blocks((2, 4)), "d": Entry()}
    part = Part(values, keep, grain)
    message = {"params": part, "rounded": part.to("int8", 3), "nothing": Part({})}
    assert_same(message, through_a_file(tmp_path / "run", message))


@pytest.mark.parametrize("name", ["pfedgate", "fedmask", "dmpfl", "fedem"])
def test_models_of_methods_come_back(tmp_path: Path, name: str) -> None:
    made, progress = simulate(METHOD_TABLE[name], rounds=1)
    for view in made.spec.views:
        some = [torch.arange(2)] * made.federation.clients
        (model, *_) = measure(made, progress, view, some).models
        assert_same(model, through_a_file(tmp_path / view, model))
