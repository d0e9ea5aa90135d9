"""Whether a run with another number of rounds would have done the same so far."""

import warnings
from collections.abc import Hashable

import torch

from masquerade.core.round import Round
from masquerade.engine.base import EngineContext
from masquerade.errors import MasqueradeError
from masquerade.simulation.build import Simulation
from masquerade.simulation.contract import Trial


class Endless(EngineContext):
    """The facts of a run in which nobody may ask how many rounds there are."""

    def round(self, kind: str, phase: Hashable, number: int) -> Round:
        """Make the round that methods see."""
        return super().round(kind, phase, number).endless


def check_rounds(made: Simulation, done: int, before: int) -> None:
    """Refuse the rounds of a simulation where the first ones would have been others.

    So many are `done` of a run that was to have other rounds `before`.
    """
    rounds, schedule = made.server.rounds, made.server.method.schedule
    text = f"`train.rounds` was {before} and is {rounds}, but"
    if rounds < done:
        raise MasqueradeError("E402", f"{text} {done} are done; give as many, or more")
    for number in range(done):
        then, now = schedule(number, before), schedule(number, rounds)
        if then != now:
            text = f"{text} round {number + 1} would have been {now!r}, and was {then!r}"
            raise MasqueradeError("E402", f"{text}; start a new run")
    if done and reads_rounds(made):
        text = f"{text} {type(made.server.method).__name__} computes with the number of rounds"
        raise MasqueradeError("E402", f"{text} (`round.progress`); start a new run")


def reads_rounds(made: Simulation) -> bool:
    """Tell whether a function of a method reads how many rounds there are, tried as by contract."""
    context = Endless(**vars(made.context))
    info = next(each for each in made.server.clients if each.samples)
    devices = [made.server.device] if made.server.device.type == "cuda" else []
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            Trial(context, info, pads=False).run()
        except MasqueradeError as error:
            if error.code != "E204":
                raise
            return True
    return False
