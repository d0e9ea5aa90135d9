"""Methods whose server is FedAvg's, played beside the plain reference."""

from typing import Any

from masquerade.core import Method
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from tests.papers import replay
from tests.papers.reference import Plain
from tests.papers.replay import assert_same, line, stage
from tests.support import advance

ROUNDS = 4
SGD: dict[str, Any] = {"lr": 0.2, "local_epochs": 2, "momentum": 0.5, "weight_decay": 0.01}


def played(method: Method) -> tuple[Simulation, Plain]:
    """Return a simulation of a method, and the reference that is to follow it."""
    made, world = stage(method, ROUNDS)
    return made, Plain(world, method.lr, method.local_epochs, method.momentum, method.weight_decay)


def follow(made: Simulation, plain: Plain) -> RunState:
    """Advance a simulation to its end and compare the server with the reference in every round."""
    progress, weights = made.begin(), replay.weights_of(plain.world.network)
    for number in range(ROUNDS):
        advance(made, progress)
        weights = plain.average(weights, number)
        assert_same(progress.server["params"], weights)
    return progress


def one_weight(method: Method, samples: list[list[tuple[float, float]]]) -> float:
    """Play one round of the model y = w · x; return the server's w."""
    return float(line(method, samples)[1].server["params"]["weight"])
