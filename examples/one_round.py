"""Two clients, one round of FedAvg and one of DM-PFL: the functions of a method, called by hand.

    python examples/one_round.py

No engine and no framework: this is what every engine does, client by client.
"""

import torch
from torch import nn

from masquerade.core import (
    Batch,
    ClientInfo,
    Cohort,
    Method,
    Round,
    Stage,
    Task,
    client_round,
    tree,
)
from masquerade.core.random import normal
from masquerade.methods import DMPFL, FedAvg
from masquerade.wire import nbytes

SAMPLES = (8, 24)
"""How many samples each of the two clients has."""


def data(id: int) -> Batch:
    """Return all samples of a client; whether its inputs sum up to more than its id is learned."""
    x = normal(id, (SAMPLES[id], 4))
    return Batch(x, (x.sum(1) > id).long(), None, torch.tensor(id))


def one_round(method: Method, task: Task) -> None:
    """Play the server and both clients in round 0 of 10, and show what crosses the wire."""
    number, rounds, decay = (torch.tensor(value) for value in (0.0, 10.0, 1.0))
    round = Round("train", method.schedule(0, 10), number, rounds, decay)
    print(f"{type(method).__name__}, phase {round.phase}")

    server, rows, uploads = method.server_init(task), [], []
    for id, samples in enumerate(SAMPLES):
        info, batch = ClientInfo(id, samples, key=id), data(id)
        row, client = method.row_init(task, info), method.client_init(task, info)
        download = method.download(task, server, row, round)

        def batches(stage: Stage, batch: Batch = batch) -> list[Batch]:
            return [batch] * stage.epochs

        # The client trains; what it holds afterwards stays with it until its next round.
        upload, client = client_round(method, task, download, client, batches, round)
        for way, message in (("down", download), ("up", upload)):
            kept, size = sum(part.kept() for part in message.values()), int(nbytes(message))
            print(f"  client {id} {way:>4}: {kept} of {task.parameters} weights, {size} bytes")
        rows.append(row)
        uploads.append(upload)

    cohort = Cohort(torch.tensor([0, 1]), torch.tensor(SAMPLES), asked=2, clients=2)
    new, _ = method.aggregate(task, server, tree.stack(rows), tree.stack(uploads), cohort, round)
    moved = tree.squared_distance(new["params"], server["params"]).sqrt()
    print(f"  the server's weights moved by {moved:.3f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    layers = [nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)]
    for method in (FedAvg(), DMPFL(sparsity=0.5)):
        one_round(method, Task(nn.Sequential(*layers)))
