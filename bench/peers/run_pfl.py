"""pfl-research, in one process."""

import sys
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import EVALUATED, Data, Ledger, Work, evaluate, given
from torch import nn


class Evaluated(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, network: nn.Module, ledger: Ledger) -> None:
        super().__init__()
        self.network, self.ledger = network, ledger

    def forward(self, x):
        return self.network(x)

    def loss(self, x, y):
        self.ledger.steps += 1
        self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        self.eval()
        output = self(x)
        loss = nn.functional.cross_entropy(output, y, reduction="sum").item()
        right = (output.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


class Clock(TrainingProcessCallback):
    """Ends rounds; it stands after the evaluation, whose time is the round's."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if any("Central val" in str(name) for name, _ in aggregate_metrics):
            self.ledger.evaluated()
        self.ledger.mark()
        return False, Metrics()


def run(work: Work, data: Data, network: nn.Module) -> Ledger:
    """Do the rounds of federated averaging."""
    ledger = Ledger(work)
    evaluated = Evaluated(network, ledger)
    model = PyTorchModel(evaluated, torch.optim.SGD, torch.optim.SGD(evaluated.parameters(), 1.0))
    samples = {id: Dataset(data.client(id), user_id=id) for id in range(data.clients)}

    def sampler() -> int:
        return int(torch.randint(data.clients, ()))

    users = FederatedDataset(samples.__getitem__, sampler)
    central = CentralEvaluationCallback(
        Dataset((data.test_x, data.test_y)),
        NNEvalHyperParams(EVALUATED[work.device]),
        frequency=work.every,
    )
    FederatedAveraging().run(
        # Its own evaluations on clients are left out: a second one never comes.
        NNAlgorithmParams(work.total, 10**9, work.cohort, 0),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(work.batch, 1, work.rate),
        NNEvalHyperParams(EVALUATED[work.device]),
        [central, Clock(ledger)],
        send_metrics_to_platform=False,
    )
    ledger.loss, ledger.accuracy = evaluate(evaluated, data.test_x, data.test_y)
    ledger.version = f"pfl {version('pfl')}"
    return ledger


if __name__ == "__main__":
    run(*given(sys.argv[1])).write(sys.argv[2])
