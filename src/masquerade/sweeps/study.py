"""Optuna suggests trials, from a seed and from what earlier ones reached.

No study is stored: its trials are run directories. A search that is resumed asks for the same
trials again, which are done and only read, so that it goes on as if it had never been stopped.
"""

import math
from collections.abc import Callable
from typing import Any

from masquerade.errors import require
from masquerade.sweeps.space import Range, Space, Trial


def search(space: Space, trials: int, seed: int, objective: Callable[[Trial], float]) -> None:
    """Try so many trials; the objective is to be as high as possible, and NaN is a failure."""
    optuna = require("optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(trials):
        asked = study.ask()
        reached = objective({key: _suggested(asked, key, each) for key, each in space.items()})
        if math.isfinite(reached):
            study.tell(asked, reached)
        else:
            # Of pruned trials the sampler learns where not to look; failed ones it forgets.
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)


def _suggested(asked: Any, key: str, among: Any) -> Any:
    if isinstance(among, Range):
        whole = isinstance(among.low, int) and isinstance(among.high, int)
        suggest = asked.suggest_int if whole else asked.suggest_float
        return suggest(key, among.low, among.high, log=among.log)
    # Optuna takes numbers and texts alone; values may be lists.
    return among.values[asked.suggest_categorical(key, range(len(among.values)))]
