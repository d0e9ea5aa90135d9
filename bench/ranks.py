"""Do several processes compute what one does, on this machine and with this torch?

    torchrun --nproc-per-node 2 bench/ranks.py                  # CPU, gloo or shared memory
    torchrun --nproc-per-node 2 bench/ranks.py --device cuda    # one card: gloo; two: NCCL
    torchrun --nproc-per-node 1 bench/ranks.py --device cuda    # NCCL with one rank

Every rank does a whole run alone first, and then its share of it. Prints a line per method and
engine; exit status 1 where they differ by more than rounding, or on a CPU's loop by a bit.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

# Runs from a checkout on a machine where nothing can be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Train
from masquerade.core import Method, Task
from masquerade.data import Federation
from masquerade.engine.precision import numbers
from masquerade.engine.ranks import group
from masquerade.evaluation.evaluate import Evaluator
from masquerade.methods import DMPFL, Ditto, FedAvg, FedMask
from masquerade.models import MLP
from masquerade.simulation.build import Simulation, build, simulating
from masquerade.simulation.state import RunState

FEATURES, CLASSES, CLIENTS, COHORT, SAMPLES = 32, 10, 24, 16, 30
ROUNDS = 4
TOLERANCE = 1e-9
"""How far apart runs in double precision may be."""
METHODS: dict[str, Method] = {
    "FedAvg": FedAvg(local_epochs=2, lr=0.05),
    "Ditto": Ditto(local_epochs=1, personal_epochs=1, lr=0.05),
    "DM-PFL": DMPFL(local_epochs=2, lr=0.05),
    "FedMask": FedMask(local_epochs=1, lr=0.05),
}


def federation() -> Federation:
    """Clients of different sizes, on random data."""
    generator = torch.Generator().manual_seed(0)
    sizes = [SAMPLES + 7 * (id % 5) for id in range(CLIENTS)]
    x = torch.randn(sum(sizes), FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (sum(sizes),), generator=generator)
    own = torch.arange(sum(sizes)).split(sizes)
    train, test = zip(*((each[:-10], each[-10:]) for each in own), strict=True)
    nobody = tuple(torch.arange(0) for _ in range(CLIENTS))
    return Federation("random", x, y, CLASSES, tuple(train), nobody, tuple(test))


def spec(method: Method, engine: str, device: str) -> TrainingSpec:
    torch.manual_seed(0)
    return TrainingSpec(
        method=method,
        task=Task(MLP(FEATURES, (64,), CLASSES).double()),
        federation=federation(),
        train=Train("", ROUNDS, 10, clients_per_round=COHORT, drop=0.2),
        evaluate=Evaluate(every=0, degrees=(0, 50)),
        compute=Compute(engine=engine, device=device),
        seed=1,
        views=method.views[:1],
        names=((type(method).__name__, type(method).__name__),),
    )


def trained(made: Simulation) -> tuple[RunState, float, float]:
    """Do all rounds and the final evaluation: the state, a figure, seconds per round."""
    state = made.begin()
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        made.advance(state)
    if made.server.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begun) / ROUNDS
    summaries, _ = Evaluator.of(made).final(state)
    return state, summaries[0].accuracy.own.mean, seconds


def apart(one: RunState, two: RunState) -> float:
    """Return how far two states are apart; digests of versions aside, which compare bits."""
    left, right = one.tensors(), two.tensors()
    pairs = [
        (left[name].double(), right[name].double())
        for name in left
        if not name.startswith("session/version/")
    ]
    return max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)


def check(name: str, engine: str, device: str, say: Callable[[str], None]) -> bool:
    """Compare a run that is divided with one that is not; tell whether they agree."""
    given = spec(METHODS[name], engine, device)
    ranks = group()
    with numbers(given.compute.precision):
        alone, figure, whole = trained(build(given))
    with simulating(given) as made:
        state, other, shared = trained(made)
        way = "NCCL" if made.ranks.cards else "gloo" if device == "cuda" else "CPU"
        used = made.engine.name
    far = apart(alone, state)
    good = far <= (0.0 if (engine, device) == ("loop", "cpu") else TOLERANCE) and figure == other
    good = all(each["good"] for each in ranks.tell({"good": good}))
    seconds = f"{1000 * whole:.1f} ms a round alone, {1000 * shared:.1f} divided"
    say(
        f"{'ok' if good else 'DIFFERENT'}: {name}, {used}, {ranks.count} ranks by {way}: "
        f"at most {far:.1e} apart, {figure:.2f} and {other:.2f} %; {seconds}"
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ranks = group()

    def say(text: str) -> None:
        if ranks.first:
            print(text, flush=True)

    cards = torch.cuda.device_count() if given.device == "cuda" else 0
    card = f", {cards} × {torch.cuda.get_device_name()}" if cards else ""
    say(f"torch {torch.__version__}, {ranks.count} ranks on {given.device}{card}")
    engines = ("batched",) if given.device == "cuda" else ("loop", "batched")
    found = [check(name, engine, given.device, say) for engine in engines for name in METHODS]
    say(f"{sum(found)} of {len(found)} agree")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
