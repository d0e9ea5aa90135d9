"""A sealed manifest comes back as it was, or not at all."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from masquerade.storage.manifest import fingerprint, seal, unseal

MANIFEST = {"version": 2, "name": "é", "deep": {"10": [1, None], "9": 0.1}, "files": {}}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), values, max_size=3))
def test_a_manifest_comes_back_as_it_was(manifest: dict[str, Any]) -> None:
    assert unseal(seal(manifest)) == manifest


def test_every_changed_bit_is_noticed() -> None:
    sealed = seal(MANIFEST)
    for at in range(len(sealed)):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[at] ^= 1 << bit
            assert unseal(bytes(changed)) is None


def test_everything_cut_off_or_put_on_is_noticed() -> None:
    sealed = seal(MANIFEST)
    for at in range(len(sealed)):
        assert unseal(sealed[:at]) is None
        assert unseal(sealed[at + 1 :]) is None
    for more in (b" ", b"\n", b"}", b"\0"):
        assert unseal(sealed + more) is None
        assert unseal(more + sealed) is None
    assert unseal(sealed + sealed) is None


def test_a_sealed_manifest_is_json_with_the_hash_of_its_body() -> None:
    body = b'{"version": 2}'
    digest = hashlib.sha256(body).hexdigest()
    sealed = seal({"version": 2})
    assert sealed == f'{{"sha256": "{digest}", "manifest": {{"version": 2}}}}\n'.encode()
    assert json.loads(sealed) == {"sha256": digest, "manifest": {"version": 2}}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"{'a': 1}"])
def test_what_is_sealed_but_no_json_is_no_manifest(body: bytes) -> None:
    digest = hashlib.sha256(body).hexdigest().encode()
    assert unseal(b'{"sha256": "%s", "manifest": %s}\n' % (digest, body)) is None


def test_a_fingerprint_is_size_and_hash() -> None:
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert fingerprint(b"abc") == {"size": 3, "sha256": known}
