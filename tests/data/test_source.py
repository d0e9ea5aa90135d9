"""Loading data: what is accepted, what it becomes, and what is refused with which code."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from masquerade.data import Dataset, from_arrays, load
from masquerade.data.registry import EMBEDDED
from masquerade.data.source import about
from masquerade.errors import MasqueradeError
from tests.messages import Golden
from tests.support import raises

X = np.arange(12, dtype=np.float64).reshape(4, 3)
Y = np.array([0, 2, 1, 0])


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_digits_are_scaled_images_of_ten_classes() -> None:
    digits = load("digits")
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.float32
    assert (float(digits.x.min()), float(digits.x.max())) == (0.0, 1.0)
    assert digits.y.dtype == torch.int64
    assert (digits.name, digits.classes, digits.client) == ("digits", 10, None)
    known = load_digits()
    assert torch.equal(digits.x, torch.tensor(known.images[:, None] / 16, dtype=torch.float32))
    assert digits.y.tolist() == known.target.tolist()


def test_what_is_told_of_digits_is_so() -> None:
    digits, named = load("digits"), EMBEDDED["digits"]
    assert (len(digits.y), digits.classes) == (named.samples, named.classes)
    told = about("digits")
    assert told is not None
    assert (told.samples, told.shape, told.type) == (1797, [1, 8, 8], "float32")
    assert about("nothing") is None


def test_npz_gives_what_was_saved(tmp_path: Path) -> None:
    loaded = load(save(tmp_path / "mine.npz", x=X, y=Y, client=np.array([7, 3, 7, 9])))
    assert (loaded.name, loaded.classes) == ("mine", 3)
    assert torch.equal(loaded.x, torch.tensor(X, dtype=torch.float32))
    assert torch.equal(loaded.y, torch.tensor(Y))
    assert loaded.client is not None
    assert loaded.client.tolist() == [1, 0, 1, 2]


def test_npz_may_be_named_by_a_string(tmp_path: Path) -> None:
    assert load(str(save(tmp_path / "mine.npz", x=X, y=Y))).client is None


def test_client_names_are_numbered_in_sorted_order() -> None:
    dataset = from_arrays(X, Y, ["bea", "ada", "cy", "ada"])
    assert dataset.client is not None
    assert dataset.client.tolist() == [1, 0, 2, 0]
    assert dataset.names == ("ada", "bea", "cy")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([1, 3, 3, 20], ("1", "3", "20")),
        ([b"b\xc3\xa9a", b"ada", b"\xff", b"ada"], ("ada", "béa", r"\xff")),
        ([0, 2, 1, 2], ()),
        (["0", "2", "1", "2"], ()),
    ],
)
def test_labels_are_names_unless_they_are_the_numbers(
    labels: list[int | str | bytes], names: tuple[str, ...]
) -> None:
    assert from_arrays(X, Y, labels).names == names


def test_floating_targets_make_a_regression() -> None:
    dataset = from_arrays(X, np.array([0.5, 1.5, -2.0, 0.0]))
    assert dataset.classes is None
    assert dataset.y.dtype == torch.float32


@pytest.mark.parametrize(
    ("given_type", "kept_type", "largest"),
    [
        ("uint8", torch.uint8, 255),
        ("int16", torch.int16, 255),
        ("uint32", torch.int64, 255),
        ("float16", torch.float32, 255.0),
    ],
)
def test_type_of_features_says_whether_they_are_pixels_tokens_or_numbers(
    given_type: str, kept_type: torch.dtype, largest: float
) -> None:
    dataset = from_arrays(np.array([[0, 255]] * 4, dtype=given_type), Y)
    assert dataset.x.dtype == kept_type
    assert dataset.x.max().item() == largest


def test_tensors_of_any_float_type_are_accepted() -> None:
    x = torch.ones(4, 3, dtype=torch.bfloat16, requires_grad=True)
    dataset = from_arrays(x, torch.tensor(Y))
    assert dataset.x.dtype == torch.float32
    assert not dataset.x.requires_grad


def test_dataset_does_not_share_memory_with_what_it_was_made_of() -> None:
    x = X.astype(np.float32)
    x.flags.writeable = False
    y = Y.copy()
    dataset = from_arrays(x[::-1], y)
    y[0] = 2
    dataset.x.zero_()
    assert dataset.y[0] == 0
    assert x.max() == 11


def test_arrays_are_taken_over_where_that_is_asked_for_and_they_fit() -> None:
    pixels = np.zeros((4, 3), dtype=np.uint8)
    assert from_arrays(pixels, Y, copy=False).x.data_ptr() == pixels.ctypes.data
    pixels.flags.writeable = False
    assert from_arrays(pixels, Y, copy=False).x.data_ptr() != pixels.ctypes.data


def test_original_parts_and_classes_that_do_not_occur_are_kept(tmp_path: Path) -> None:
    dataset = from_arrays(X, Y, train=[True, False, True, True], classes=7)
    assert dataset.classes == 7
    path = save(tmp_path / "mine.npz", x=X, y=Y, train=np.array([True, False, True, True]))
    for one in (dataset, load(path)):
        assert one.train is not None
        assert one.train.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("arrays", "value"),
    [
        ({"x": np.array([[0.0], [np.nan], [np.inf], [1.0]])}, "sample 1"),
        ({"x": np.array([[0.0], [1e300], [0.0], [0.0]])}, "float32"),
        ({"x": np.array([["a"]] * 4)}, "`x`"),
        ({"x": np.zeros((3, 2))}, "(3, 2)"),
        ({"x": np.float32(1), "y": np.int64(1)}, "`x`"),
        ({"x": np.zeros((0, 2)), "y": Y[:0]}, "`x`"),
        ({"y": np.array([0, 1, -2, 0])}, "label -2"),
        ({"classes": 2}, "label 2"),
        ({"train": np.array([1, 0, 1, 1])}, "`train`"),
        ({"train": np.array([True])}, "(1,)"),
        ({"y": np.array(["a", "b", None, "d"])}, "`y`"),
        ({"y": np.array([0.0, np.nan, 0.0, 0.0])}, "`y`"),
        ({"client": np.array([0, 1, 2])}, "(3,)"),
        ({"client": np.array([0.5, 1, 2, 3])}, "float64"),
    ],
)
def test_faulty_arrays_are_refused(arrays: dict[str, Any], value: str, golden: Golden) -> None:
    with raises("E302", value) as refusal:
        from_arrays(**({"x": X, "y": Y} | arrays))
    golden(refusal.value)


def test_unknown_name_is_refused_with_the_nearest_and_all_known_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path))
    with raises("E301", "`digit`", "`digits`", "mnist"):
        load("digit")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with raises("E301", "absent.npz"):
        load(tmp_path / "absent.npz")


def test_missing_array_is_named(tmp_path: Path) -> None:
    with raises("E301", "y"):
        load(save(tmp_path / "half.npz", x=X))


def test_file_that_is_not_an_npz_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", X)
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    for path in (tmp_path / "array.npy", tmp_path / "text.npz", tmp_path):
        with raises("E301", path.name):
            load(path)


class Trap:
    """Fails the test when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("the loader ran pickled code",))


def test_pickled_content_is_refused_without_running_it(tmp_path: Path) -> None:
    trap = np.array([Trap()] * 4, dtype=object)
    with raises("E301", "trap.npz"):
        load(save(tmp_path / "trap.npz", x=X, y=trap))
    trap.dump(tmp_path / "trap.pkl")
    with raises("E301", "trap.pkl"):
        load(tmp_path / "trap.pkl")


@settings(deadline=None, max_examples=50)
@given(where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), shorter=st.booleans())
def test_damaged_file_loads_or_is_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, where: float, byte: int, shorter: bool
) -> None:
    path = save(tmp_path_factory.mktemp("damaged") / "mine.npz", x=X, y=Y)
    content = bytearray(path.read_bytes())
    place = int(where * len(content))
    content[place:] = b"" if shorter else bytes([byte]) + content[place + 1 :]
    path.write_bytes(content)
    with contextlib.suppress(MasqueradeError):
        assert isinstance(load(path), Dataset)
