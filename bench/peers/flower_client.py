"""Flower's client. It is imported, not pickled, so that an actor reads its data once."""

import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import given, shuffled
from torch import nn

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one epoch on a client's samples."""
    work, data, model = given(os.environ["PEERS_WORK"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.rate)
    x, y = data.client(int(context.node_config["partition-id"]))
    steps = 0
    for some, labels in shuffled(x, y, work.batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(some), labels).backward()
        optimizer.step()
        steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
