"""What is used of torch below its public names is there in every version that we allow."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(ALLOWED,) = (
    each.specifier for each in map(Requirement, PROJECT["dependencies"]) if each.name == "torch"
)


def test_torch_has_an_upper_bound_and_this_version_is_the_last_that_was_tried() -> None:
    here = Version(Version(torch.__version__).public)
    following = Version(f"{here.major}.{here.minor + 1}")
    assert here in ALLOWED
    assert following not in ALLOWED


def test_the_lock_has_the_torch_that_is_installed() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"torch=={Version(metadata.version('torch')).public}" in lock


PRIVATE = {
    "torch._C._functorch": [
        "_add_batch_dim",
        "_remove_batch_dim",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
        "_grad_increment_nesting",
        "_grad_decrement_nesting",
        "_wrap_for_grad",
        "_unwrap_for_grad",
        "is_batchedtensor",
        "maybe_current_level",
        "get_inplace_requires_grad_allowed",
        "set_inplace_requires_grad_allowed",
    ],
    "torch": ["_foreach_add", "_foreach_add_"],
    "torch.utils._python_dispatch": ["TorchDispatchMode"],
    "torch.utils.flop_counter": ["flop_registry"],
    "torch.ops.aten.mm.default": ["decompose", "_overloadpacket", "_op", "_schema"],
    "torch.utils.weak": ["WeakTensorKeyDictionary"],
    "torch.overrides": ["TorchFunctionMode"],
    "torch._ops": ["OpOverload"],
    "torch._C._distributed_c10d": ["FileStore", "PrefixStore", "Store"],
    "torch.distributed.distributed_c10d": ["_get_default_store", "_set_pg_timeout"],
}
"""Names that torch may change without notice; a new version is allowed once these tests pass."""


@pytest.mark.parametrize("module", PRIVATE)
def test_private_names_of_torch_are_there(module: str) -> None:
    found = torch
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    assert [name for name in PRIVATE[module] if not hasattr(found, name)] == []
