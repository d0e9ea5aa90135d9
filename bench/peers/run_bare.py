"""A bare loop, as a careful user writes it: a module, `torch.optim.SGD`, data on the device."""

import copy
import sys

import bare_methods
import torch
from protocol import Data, Ledger, Work, evaluate, given, shuffled
from torch import nn


def fedavg(work: Work, data: Data, model: nn.Module, ledger: Ledger) -> None:
    """Average the models of a few clients after an epoch of each, round after round."""
    shared = copy.deepcopy(model.state_dict())
    for _ in range(work.total):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for id in torch.randperm(data.clients)[: work.cohort].tolist():
            model.load_state_dict(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=work.rate)
            for x, y in shuffled(*data.client(id), work.batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                ledger.steps += 1
            for name, value in model.state_dict().items():
                total[name] += value / work.cohort
        shared = total
        if ledger.due():
            model.load_state_dict(shared)
            evaluate(model, data.test_x, data.test_y)
            ledger.evaluated()
        ledger.mark()
    model.load_state_dict(shared)


def run(work: Work, data: Data, model: nn.Module) -> Ledger:
    """Do the rounds of a method."""
    ledger = Ledger(work)
    if work.method == "fedavg":
        fedavg(work, data, model, ledger)
        ledger.loss, ledger.accuracy = evaluate(model, data.test_x, data.test_y)
    else:
        personal = getattr(bare_methods, work.method)(work, data, model, ledger)
        found = [evaluate(personal(id), *data.tests(id))[1] for id in range(data.clients)]
        ledger.accuracy = sum(found) / len(found)
    ledger.version = f"torch {torch.__version__}"
    return ledger


if __name__ == "__main__":
    run(*given(sys.argv[1])).write(sys.argv[2])
