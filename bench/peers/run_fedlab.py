"""FedLab's serial trainer, in one process."""

import sys
from importlib.metadata import version

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from protocol import Data, Ledger, Work, evaluate, given, shuffled
from torch import nn


class Batches:
    """One client's batches, shuffled anew for every epoch, without the price of a `DataLoader`."""

    def __init__(self, x, y, size: int, ledger: Ledger) -> None:
        self.x, self.y, self.size, self.ledger = x, y, size, ledger

    def __iter__(self):
        for batch in shuffled(self.x, self.y, self.size):
            self.ledger.steps += 1
            yield batch


class Samples:
    """What the trainer asks for a client's batches."""

    def __init__(self, data: Data, ledger: Ledger) -> None:
        self.data, self.ledger = data, ledger

    def get_dataloader(self, id: int, size: int) -> Batches:
        return Batches(*self.data.client(id), size, self.ledger)


class Timed(StandalonePipeline):
    """The pipeline, with central evaluations and a clock."""

    def __init__(self, handler, trainer, data: Data, ledger: Ledger) -> None:
        super().__init__(handler, trainer)
        self.data, self.ledger = data, ledger

    def evaluate(self) -> None:
        if self.ledger.due():
            evaluate(self.handler.model, self.data.test_x, self.data.test_y)
            self.ledger.evaluated()
        self.ledger.mark()


def run(work: Work, data: Data, network: nn.Module) -> Ledger:
    """Do the rounds of federated averaging."""
    ledger = Ledger(work)
    where = {"cuda": work.device == "cuda", "device": "cuda:0" if work.device == "cuda" else None}
    trainer = SGDSerialClientTrainer(network, data.clients, **where)
    trainer.setup_dataset(Samples(data, ledger))
    trainer.setup_optim(1, work.batch, work.rate)
    handler = SyncServerHandler(network, work.total, work.cohort / data.clients, **where)
    Timed(handler, trainer, data, ledger).main()
    ledger.loss, ledger.accuracy = evaluate(handler.model, data.test_x, data.test_y)
    ledger.version = f"fedlab {version('fedlab')}"
    return ledger


if __name__ == "__main__":
    run(*given(sys.argv[1])).write(sys.argv[2])
