"""Laws 5 and 10: what a method's entry says of its settings, and how they are written down."""

from dataclasses import fields, replace

from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.core.method import Method
from masquerade.laws.compare import close
from masquerade.laws.engines import round_of
from masquerade.laws.law import DoesNotApply, LawBroken, at, law
from masquerade.laws.problem import Problem
from masquerade.methods import FedAvg, MethodEntry

COMMON = tuple(each.name for each in fields(Method))
"""Settings that every method has."""


@law(
    5,
    "With neutral settings a method is FedAvg.",
    "state settings in the entry's `neutral` that switch off all that differs, or why there are "
    "none in `never_neutral`",
)
def neutral_settings_give_fedavg(problem: Problem) -> None:
    """Train with neutral settings beside FedAvg, and compare the server's models."""
    entry = _entry(problem)
    if entry.neutral is None:
        raise DoesNotApply(f"its entry has no neutral settings: {entry.never_neutral}")
    if entry.variant == "bn" and problem.task.norms:
        raise DoesNotApply("the network has the norms in which it differs from FedAvg")
    method = replace(problem.method, **entry.neutral)
    # A model that is as small as a device asks for is FedAvg's where devices have room.
    budgets = (1.0,) * len(problem.budgets) if method.budgeted else problem.budgets
    neutral = replace(problem, method=method, budgets=budgets)
    fedavg = replace(neutral, method=FedAvg(**{key: getattr(method, key) for key in COMMON}))
    rounds = min(problem.rounds, 6)
    with fedavg.simulating(rounds) as expected, neutral.simulating(rounds) as made:
        reference, state = expected.begin(), made.begin()
        for number in range(rounds):
            expected.advance(reference)
            made.advance(state)
            with at(**round_of(made, number)):
                models = reference.server["params"], state.server["params"]
                close(*models, entry.neutral_within, "the server's model is not that of FedAvg")


@law(
    10,
    "A method survives the configuration.",
    "let settings be numbers, bools, texts, or tuples of one of these, with a default each",
)
def settings_survive_the_configuration(problem: Problem) -> None:
    """Write settings as TOML and read them again."""
    entry, name = _entry(problem), problem.name
    method = entry.method(**{"lr": 0.0123, "local_epochs": 7, **dict(entry.settings)})
    text = toml.dump(Config(methods=(name,), method={name: toml.plain(method)}))
    config = toml.parse(toml.read(text))
    again = toml.method_of(name, config)
    if again != method or repr(again) != repr(method):
        raise LawBroken(f"{method} is read as {again}")
    if toml.dump(config) != text:
        raise LawBroken("what was read is written otherwise than before")


def _entry(problem: Problem) -> MethodEntry:
    if problem.entry is None:
        raise DoesNotApply("it has no entry (CONTRIBUTING.md says how to make one)")
    return problem.entry
