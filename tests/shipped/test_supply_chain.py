"""What is installed and released: pinned by hash, without known holes, the same each time."""

import hashlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from bench.audit import verdict
from bench.release import ROOT, bill, build, locked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILT_BY_INDEX = {"torch"}
"""Of which every index has builds of its own under one version, so that no hash fits all."""
MENDED = {
    # The first version without a known hole through what a person reads or installs.
    "torch": "2.10",
    "numpy": "1.22",
    "pillow": "10.3",
    "pyarrow": "14.0.1",
    "scikit-learn": "1.5",
    "requests": "2.32.4",
    "onnx": "1.17",
    "protobuf": "5.29.5",
    "h11": "0.16",
    "cryptography": "44.0.1",
}


def hashed() -> dict[str, list[str]]:
    """The hashes of all files of a version, by NAME==VERSION."""
    text = (ROOT / "requirements.hashes").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {pin: rest for pin, *rest in lines}


def test_every_version_of_the_lock_has_its_hashes() -> None:
    pins = {f"{name}=={v}" for name, v in locked().items() if name not in BUILT_BY_INDEX}
    assert hashed().keys() == pins
    for hashes in hashed().values():
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


@pytest.mark.parametrize("name", MENDED)
def test_no_version_with_a_known_hole_may_be_installed(name: str) -> None:
    texts = [*PROJECT["dependencies"]]
    for each in PROJECT["optional-dependencies"].values():
        texts += each
    floors = [
        Version(one.version)
        for requirement in map(Requirement, texts)
        if requirement.name == name
        for one in requirement.specifier
        if one.operator == ">="
    ]
    assert floors
    assert min(floors) >= Version(MENDED[name])
    assert Version(locked()[name]) >= max(floors)


def test_a_wheel_is_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    digests = set()
    for name, mode in (("one", 0o755), ("another", 0o700)):
        copy = tmp_path / name
        for part in ("src", "docs/methods"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            # Without the times of the original.
            (copy / file).write_bytes((ROOT / file).read_bytes())
        (copy / "src").chmod(mode)
        digests.add(
            hashlib.sha256(build(tmp_path / f"{name}-dist", copy, 0).read_bytes()).hexdigest()
        )
    assert len(digests) == 1


def test_a_wheel_has_a_list_of_what_it_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "masquerade.whl"
    wheel.write_bytes(b"a wheel")
    found = bill(wheel)
    (digest,) = found["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256(b"a wheel").hexdigest()
    scopes = {each["name"]: (each["version"], each["scope"]) for each in found["components"]}
    assert scopes["torch"] == (locked()["torch"], "required")
    assert scopes["sympy"][1] == "required"
    assert scopes["flwr"][1] == "optional"
    assert "pytest" not in scopes
    assert json.dumps(found) == json.dumps(bill(wheel))


def test_an_audit_that_compared_nothing_is_no_clean_one() -> None:
    fine = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "b", "skip_reason": "not found"}
    bad = {"name": "c", "version": "1", "vulns": [{"id": "CVE-1"}]}
    assert [verdict({"dependencies": given})[1] for given in ([fine], [fine, skipped], [])] == [
        *(0, 2, 2)
    ]
    text, status = verdict({"dependencies": [fine, skipped, bad]})
    assert status == 1
    assert "CVE-1" in text
