"""Real data: published counts and hashes, the bars on time and memory, and corruptions.

These need MASQUERADE_DATA, a folder of development copies; see `tests/real/convert.py`.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import masquerade
from masquerade.data import ByClient, Dirichlet, cache, load, partition
from masquerade.data.corruption import KINDS
from masquerade.data.fetch import add
from masquerade.data.readers.text import ALPHABET
from masquerade.data.registry import NAMED
from tests.data import originals
from tests.data.test_corruption import distances
from tests.real.convert import convert, copies
from tests.support import raises

ROOT = Path(os.environ.get("MASQUERADE_DATA", "not given"))
pytestmark = pytest.mark.skipif(
    not (ROOT / "load.py").exists(), reason="MASQUERADE_DATA names no folder of real data"
)


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASQUERADE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def originals_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("originals")


@pytest.fixture(scope="module")
def cifar10(root: Path, originals_of: Path) -> Path:
    add("cifar10", convert("cifar10", ROOT, originals_of))
    return root / "cifar10"


def test_the_names_of_classes_are_written_as_the_original(originals_of: Path) -> None:
    # torchvision knows this hash of `batches.meta`: our batches are pickled as the original ones.
    originals.write_cifar10(
        originals_of / "few", np.zeros((6, 3, 32, 32), np.uint8), np.arange(6), 1
    )
    meta = (originals_of / "few" / "batches.meta").read_bytes()
    assert hashlib.md5(meta).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"


def test_mnist_is_the_original_bit_for_bit(originals_of: Path) -> None:
    path = convert("mnist", ROOT, originals_of)
    images = (path / "train-images-idx3-ubyte").read_bytes()
    assert hashlib.md5(images).hexdigest() == "6bbc9ace898e44ae57da46a324031adb"
    manifest = add("mnist", path)
    assert manifest.origin == NAMED["mnist"].origin
    assert (manifest.samples, manifest.trained, manifest.classes) == (70_000, 60_000, 10)
    # The known mean and deviation of MNIST's training images.
    mnist = load("mnist")
    pixels = mnist.x[:60_000].double() / 255
    assert float(pixels.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(pixels.std()) == pytest.approx(0.3081, abs=1e-4)


def test_mnist_by_writer_has_its_writers(originals_of: Path) -> None:
    manifest = add("mnist_writers", convert("mnist_writers", ROOT, originals_of))
    assert (manifest.samples, manifest.clients) == (70_000, 539 + 297)


def test_cifar10_has_the_known_mean_and_classes(cifar10: Path) -> None:
    manifest = cache.describe("cifar10")
    assert manifest.origin == NAMED["cifar10"].origin
    assert (manifest.samples, manifest.trained, manifest.classes) == (60_000, 50_000, 10)
    assert manifest.class_names == originals.CIFAR10
    dataset = load("cifar10")
    assert dataset.y.bincount().tolist() == [6000] * 10
    mean = dataset.x[:50_000].double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.49140, 0.48216, 0.44653], abs=1e-5)


def test_cifar100_is_known_by_its_content(originals_of: Path) -> None:
    # It comes in binary batches here, and its published hash is that of python ones.
    manifest = add("cifar100", convert("cifar100", ROOT, originals_of))
    assert (manifest.origin, manifest.classes) == (NAMED["cifar100"].origin, 100)


def test_har_signals_have_thirty_subjects(originals_of: Path) -> None:
    manifest = add("har_raw", convert("har_signals", ROOT, originals_of))
    assert (manifest.samples, manifest.clients, manifest.classes) == (10_299, 30, 6)
    assert manifest.shape == [9, 128]
    assert manifest.trained == 7352


def test_shakespeare_has_leafs_counts_and_texts(originals_of: Path) -> None:
    manifest = add("shakespeare", convert("shakespeare", ROOT, originals_of))
    assert (manifest.samples, manifest.clients, manifest.classes) == (4_226_158, 1_129, 80)
    dataset = load("shakespeare")
    known = copies(ROOT).shakespeare()
    federation = partition(dataset, None, ByClient(), split=(1.0, 0.0, 0.0))
    ranked = sorted(zip(known["users"], known["text"], strict=True))
    for (_, text), own in zip(ranked[::100], federation.train[::100], strict=True):
        assert len(own) == len(text) - 80
        first = dataset.x[int(own.min())]
        assert "".join(ALPHABET[place] for place in first.tolist()) == text[:80]
        assert ALPHABET[int(dataset.y[int(own.max())])] == text[-1]


PROGRAM = """
import json, sys, time
import torch
import masquerade as mq
import masquerade.experiments.run

def memory(word):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(word))
    return int(line.split()[1]) * 1024

class Held(mq.Callback):
    def __init__(self, held):
        self.held = held

    def on_round(self, run, record):
        self.held.append(memory("RssAnon"))

def run(dataset, engine):
    held = []
    federation = mq.partition(dataset, 20, mq.IID(), seed=1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    mq.run(
        mq.methods.FedAvg(local_epochs=1), model, federation, 2, batch_size=100,
        participation=0.2, compute=mq.Compute(engine=engine),
        evaluate=mq.Evaluate(every=1, degrees=(0,)),
        callbacks=[Held(held)],
    )
    return max(held)
"""
LOADING = """
# Writing 5 here sets the peak back to what is in use now.
open("/proc/self/clear_refs", "w").write("5")
before, begun = memory("VmRSS"), time.perf_counter()
dataset = mq.load("cifar10")
loaded = time.perf_counter()
mq.partition(dataset, 1000, mq.Dirichlet(0.1, least=0), seed=1)
done = time.perf_counter()
size = sum(each.nbytes for each in (dataset.x, dataset.y, dataset.train))
found = {"load": loaded - begun, "partition": done - loaded}
print(json.dumps(found | {"memory": (memory("VmHWM") - before) / size}))
"""
RUNNING = """
small = mq.from_arrays(torch.zeros(4000, 3, 32, 32).byte(), torch.arange(4000) % 10)
found = {}
for engine in ("loop", "batched"):
    # What torch and a run need by themselves is there before it is measured.
    before = run(small, engine)
    dataset = mq.load("cifar10")
    found[engine] = (run(dataset, engine) - before) / dataset.x.nbytes
print(json.dumps(found))
"""


def measured(text: str) -> dict[str, float]:
    """Measure in a process of its own; memory is in multiples of the arrays' bytes."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured by Linux's /proc")
    environment = os.environ | {
        "PYTHONPATH": str(Path(masquerade.__file__).parents[1]),
        # Large blocks go back to the system at once: what is held is measured, not what the
        # allocator keeps for later.
        "MALLOC_MMAP_THRESHOLD_": "1048576",
    }
    # `-W ignore` because a thousand clients at 0.1 leave some without training data.
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM + text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    print(found)
    return found


def test_cifar10_is_loaded_and_partitioned_within_its_bars(cifar10: Path) -> None:
    found = measured(LOADING)
    assert found["load"] < 2
    assert found["partition"] < 3
    assert found["memory"] <= 1.3


def test_a_run_holds_no_second_copy_of_the_samples(cifar10: Path) -> None:
    # Mapped pages are the first copy, and are not counted here.
    found = measured(RUNNING)
    assert found["loop"] < 0.3
    assert found["batched"] < 0.3


def test_an_impossible_minimum_is_refused_in_time(cifar10: Path) -> None:
    dataset, begun = load("cifar10"), time.perf_counter()
    with raises("E303", "`alpha`", "`clients`", "`least`"):
        partition(dataset, 1000, Dirichlet(0.1, least=40))
    assert time.perf_counter() - begun < 10


CORRUPTED = """
import masquerade.data.corrupted_sets
held = []
make = masquerade.data.corrupted_sets.CorruptedSets.x

def watched(self, kind, severity):
    held.append(memory("RssAnon"))
    found = make(self, kind, severity)
    held.append(memory("RssAnon"))
    return found

masquerade.data.corrupted_sets.CorruptedSets.x = watched
dataset = mq.load("cifar10")
federation = mq.partition(dataset, 20, mq.Dirichlet(0.3), seed=1, merge=False)
model = mq.models.build("logistic", (3, 32, 32), 10, seed=1)
(summary, *_) = mq.run(
    mq.methods.Local(local_epochs=2), model, federation, 1, batch_size=100,
    evaluate=mq.Evaluate(0, (0,), corruptions=("contrast", "fog"), severities=(1, 5)),
).summaries
found = {kind: steps["5"].mean for kind, steps in summary.accuracy.corruption.items()}
found["own"] = summary.accuracy.own.mean
found["generated"] = summary.corrupted_images == "generated"
found["memory"] = (max(held) - held[0]) / dataset.x.nbytes
print(json.dumps(found))
"""


def test_clients_are_evaluated_on_corrupted_cifar10_within_memory(cifar10: Path) -> None:
    found = measured(CORRUPTED)
    # The test images are a sixth of all, and one corrupted copy of them is held at a time.
    assert found["memory"] < 1 / 6 + 0.1
    assert found["generated"]
    # Clients with skewed labels learn more than to guess, and low contrast takes some of it.
    assert found["own"] > 30
    assert found["contrast"] < found["own"] - 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "elastic_transform"])
def test_corruptions_of_real_images_grow_with_severity(cifar10: Path, kind: str) -> None:
    images = load("cifar10").x[50_000:50_100]
    found = distances(images, kind)
    slack = 1e-3 if kind == "motion_blur" else 0.0
    assert all(after > before - slack for before, after in pairwise(found)), found
