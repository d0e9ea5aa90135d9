"""Weights from files: what was saved is read, and no file is ever executed."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from masquerade.errors import MasqueradeError
from masquerade.models import load_weights
from masquerade.models.weights import read_weights
from tests.messages import Golden
from tests.support import raises


def network(classes: int = 3) -> nn.Module:
    """Return a small network with a norm and a last layer."""
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


def every_type() -> dict[str, Tensor]:
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    kinds += [torch.int16, torch.int8, torch.uint8, torch.bool]
    found = {str(kind): torch.tensor([[1, 0, 3], [0, 1, 7]]).to(kind) for kind in kinds}
    found["turned"] = torch.arange(6.0).reshape(2, 3).T
    found["part"] = torch.arange(9.0)[3:7]
    found["none"] = torch.empty(0, 3)
    found["scalar"] = torch.tensor(2.5)
    return found


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_state_dict_is_read_as_pytorch_wrote_it(
    tmp_path: Path, zipped: bool, nested: bool
) -> None:
    state: Any = OrderedDict(every_type())
    parameters = {"weight": nn.Parameter(torch.ones(2)), **state}
    content = {"state_dict": parameters, "epoch": 3} if nested else parameters
    path = tmp_path / "weights.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    same(read_weights(path), {"weight": torch.ones(2), **state})


@pytest.mark.parametrize("zipped", [True, False])
def test_a_modules_state_dict_with_its_notes_is_read(tmp_path: Path, zipped: bool) -> None:
    model = network()
    torch.save(model.state_dict(), tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    same(read_weights(tmp_path / "a.pth"), dict(model.state_dict()))


def test_safetensors_are_read_whatever_their_first_byte(tmp_path: Path) -> None:
    # The first byte is part of a length: some of these begin like a pickle.
    starts = set()
    for length in range(0, 256, 8):
        path = tmp_path / f"{length}.safetensors"
        save_file({"w" * (length + 1): torch.ones(2)}, path)
        starts.add(path.read_bytes()[:1])
        assert torch.equal(next(iter(read_weights(path).values())), torch.ones(2))
    assert b"\x80" in starts


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


def bomb() -> Any:
    """Return a tuple that takes forever to hash or print, and little room."""
    thing: Any = ()
    for _ in range(100):
        thing = (thing, thing)
    return thing


def as_zip(data: bytes, storages: dict[str, bytes] | None = None, kind: int = 0) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in (storages or {}).items():
            archive.writestr(f"archive/data/{name}", content)
    return stream.getvalue()


def refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with raises("E306"):
        read_weights(path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_file_is_refused_and_not_executed(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "was here"))
    for content in (Evil(), {"w": Evil()}, OrderedDict(w=Evil()), [Evil()]):
        data = pickle.dumps(content, protocol)
        for form in (data, as_zip(data)):
            refused(tmp_path / "evil.pth", form)
        torch.save(content, tmp_path / "evil2.pth")
        refused(tmp_path / "evil.pth", (tmp_path / "evil2.pth").read_bytes())
        torch.save(content, tmp_path / "evil3.pth", _use_new_zipfile_serialization=False)
        refused(tmp_path / "evil.pth", (tmp_path / "evil3.pth").read_bytes())
    assert not (tmp_path / "was here").exists()
    # The fixture is dangerous indeed.
    pickle.loads(pickle.dumps(Evil(), protocol))
    assert (tmp_path / "was here").exists()


def raw(shape: str, count: int = 4) -> bytes:
    """Write by hand the pickle of {"w": tensor of this shape and stride over `count` numbers}."""
    text = "ctorch._utils\n_rebuild_tensor_v2\n"
    storage = (
        "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    )
    body = f"{storage}J".encode() + count.to_bytes(4, "little", signed=True) + b"tQ"
    return (
        b"\x80\x02}X\x01\x00\x00\x00w"
        + text.encode()
        + b"("
        + body
        + shape.encode("latin1")
        + b"tRs."
    )


def test_views_must_lie_in_their_storage(tmp_path: Path) -> None:
    path, numbers = tmp_path / "view.pth", {"0": bytes(16)}
    good = "K\x00(K\x02K\x02t(K\x02K\x01t"  # Offset 0, shape (2, 2), stride (2, 1).
    path.write_bytes(as_zip(raw(good), numbers))
    assert torch.equal(read_weights(path)["w"], torch.zeros(2, 2))
    wrong = {
        "offset": "K\x01(K\x02K\x02t(K\x02K\x01t",
        "stride": "K\x00(K\x02K\x02t(K\x09K\x01t",
        "as large as all memory": "K\x00(J\x00\x00\x00\x40J\x00\x00\x00\x40t(K\x00K\x00t",
        "negative": "K\x00(J\xff\xff\xff\xffK\x02t(K\x02K\x01t",
        "no number": "K\x00(NK\x02t(K\x02K\x01t",
        "lengths": "K\x00(K\x02t(K\x02K\x01t",
    }
    for name, shape in wrong.items():
        assert raw(shape) != raw(good), name
        refused(path, as_zip(raw(shape), numbers))
    for count in (3, 5, 2**30, -4):
        refused(path, as_zip(raw(good, count), numbers))
    refused(path, as_zip(raw(good)))


def test_what_is_small_in_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pth"
    for content in (bomb(), {"w": bomb()}, {"state_dict": {"a": bomb()}}):
        refused(path, as_zip(pickle.dumps(content, 2)))
    # A key that is such a tuple, which Python itself could not even put into a dict.
    nested = pickle.dumps(bomb(), 2)[:-1]
    refused(path, as_zip(b"\x80\x02}" + nested[2:] + b"K\x01s."))
    refused(path, as_zip(bytes(10**6), kind=zipfile.ZIP_DEFLATED))


def test_what_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"PK\x03\x04", b"setup", b"\x80\x02\x8a\x0a", bytes(100)):
        refused(tmp_path / "no.pth", data)
    torch.save(network(), tmp_path / "module.pth")
    refused(tmp_path / "no.pth", (tmp_path / "module.pth").read_bytes())
    for content in ([torch.ones(2)], {"w": 3}, {}, {1: torch.ones(2)}, torch.ones(2)):
        torch.save(content, tmp_path / "other.pth")
        refused(tmp_path / "no.pth", (tmp_path / "other.pth").read_bytes())
    with raises("E306"):
        read_weights(tmp_path / "absent.pth")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder, found = tmp_path_factory.mktemp("saved"), []
    for zipped in (True, False):
        torch.save({"w": torch.ones(3)}, folder / "a.pth", _use_new_zipfile_serialization=zipped)
        found.append((folder / "a.pth").read_bytes())
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_harmless(
    saved: list[bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(data.draw(st.sampled_from(saved)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pth"
    path.write_bytes(bytes(content))
    # Nothing but a refusal may come out of it.
    with suppress(MasqueradeError):
        assert all(value.numel() <= len(content) for value in read_weights(path).values())


# Into a network


def test_a_network_is_filled_and_a_new_head_stays_new(tmp_path: Path) -> None:
    source, path = network(classes=10), tmp_path / "a.pth"
    torch.save(source.state_dict(), path)
    same(dict(load_weights(network(classes=10), path).state_dict()), dict(source.state_dict()))
    model = network(classes=3)
    fresh = model[2].weight.detach().clone()
    load_weights(model, path)
    assert torch.equal(model[0].weight, source[0].weight)
    assert torch.equal(model[2].weight, fresh)


def test_counters_of_batches_may_be_missing(tmp_path: Path) -> None:
    state = {k: v for k, v in network().state_dict().items() if "tracked" not in k}
    torch.save(state, tmp_path / "old.pth")
    filled = load_weights(network(), tmp_path / "old.pth").state_dict()
    assert len(state) < len(filled)
    assert all(torch.equal(filled[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"0.weight": torch.ones(9, 9)}, ("`0.weight`", "[9, 9]", "[5, 4]")),
        ({"0.weight": torch.full((5, 4), torch.nan)}, ("`0.weight`", "finite")),
        ({"other": torch.ones(1)}, ("`other`",)),
        ({"0.weight": None}, ("`0.weight`", "missing")),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_changed(
    tmp_path: Path, change: dict[str, Tensor | None], named: tuple[str, ...], golden: Golden
) -> None:
    given_state = {**network().state_dict(), **change}
    torch.save({k: v for k, v in given_state.items() if v is not None}, tmp_path / "a.pth")
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with raises("E306", *named) as refusal:
        load_weights(model, tmp_path / "a.pth")
    golden(refusal.value)
    same(dict(model.state_dict()), before)
