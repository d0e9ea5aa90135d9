"""Texts and sensor windows go through both engines as images do."""

import numpy as np
import pytest
import torch

import masquerade as mq
from masquerade.data import Dataset
from masquerade.methods import DMPFL, FedAvg
from masquerade.models import MLP, CharLSTM


def texts() -> tuple[Dataset, torch.nn.Module]:
    """Return windows of six characters; what follows is the third from the end."""
    x = np.random.default_rng(0).integers(0, 6, (45, 6)).astype(np.int8)
    dataset = mq.from_arrays(x, x[:, -3].astype(np.int64), np.arange(45) % 3)
    return dataset, CharLSTM(6, hidden=8, dense=(8, 8))


def windows() -> tuple[Dataset, torch.nn.Module]:
    """Return windows of nine signals; the class is which of the first three is strongest."""
    x = np.random.default_rng(0).normal(size=(90, 9, 16)).astype(np.float32)
    dataset = mq.from_arrays(x, np.abs(x[:, :3]).sum(2).argmax(1), np.arange(90) % 3)
    return dataset, MLP(9 * 16, (12,), 3)


@pytest.mark.parametrize("make", [texts, windows])
@pytest.mark.parametrize(
    "method", [FedAvg(local_epochs=1, lr=0.2), DMPFL(local_epochs=2, first_dense=False)]
)
def test_engines_agree_on_what_is_trained(make, method) -> None:
    found = {}
    for engine in ("loop", "batched"):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            dataset, model = make()
        federation = mq.partition(dataset, None, "client", seed=1)
        result = mq.run(
            method,
            model,
            federation,
            2,
            batch_size=9,
            compute=mq.Compute(engine=engine, clients_per_chunk=3),
        )
        start = {name: value.clone() for name, value in model.state_dict().items()}
        found[engine] = result.client(0).parts["params"].values
        assert any(not torch.equal(found[engine][name], start[name]) for name in start)
    for name, value in found["loop"].items():
        torch.testing.assert_close(value, found["batched"][name], atol=1e-4, rtol=1e-3)
