"""The settings of a method: unknown ones are refused, and methods are records as others."""

import copy
import inspect
import pickle
from dataclasses import dataclass, fields, replace

import pytest

import masquerade as mq
from masquerade.core import Method
from masquerade.errors import MasqueradeError
from tests.messages import Golden
from tests.support import raises


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("FedAvg", "rate", "unknown setting `rate`; `rate` is `lr` here"),
        ("FedAvg", "learning_rate", "`learning_rate` is `lr` here"),
        ("FedProx", "pull", "`pull` is `lam` of ditto, pfedme and `mu` of fedprox here"),
        ("FedAvg", "batch", "`batch` is `mq.run(batch_size=...)` here"),
        ("FedAvg", "tune_epoch", "unknown setting `tune_epoch` (did you mean `tune_epochs`"),
        ("FedAvg", "zzz", "unknown setting `zzz`"),
    ],
)
def test_an_unknown_setting_is_refused_with_what_it_is_called(
    name: str, key: str, told: str
) -> None:
    with pytest.raises(MasqueradeError) as caught:
        getattr(mq.methods, name)(**{key: 1})
    assert str(caught.value).startswith(f"E201 {name}: unknown setting `{key}`")
    assert told in str(caught.value)


def test_all_unknown_settings_are_told_at_once() -> None:
    with raises("E201", "`rate`", "`epochs`"):
        mq.methods.FedAvg(rate=0.1, epochs=3)
    with raises("E201", "FedAvg", "`rate`", "`lr`"):
        replace(mq.methods.FedAvg(), rate=0.1)


def test_settings_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        mq.methods.FedAvg(0.1)


@dataclass(frozen=True, kw_only=True)
class Own(mq.methods.FedAvg):
    """A method of somebody else's."""

    share: float = 0.5


def test_a_method_is_pickled_copied_and_replaced() -> None:
    made = Own(share=0.25, lr=0.5)
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert again == made
    assert replace(made, share=0.5) == Own(lr=0.5)
    assert list(inspect.signature(Own).parameters) == [each.name for each in fields(Own)]
    assert Method() == Method(lr=0.1)


class Undecorated(mq.methods.FedProx):
    """Its author forgot @dataclass."""

    mu = 5.0


@dataclass(frozen=True, kw_only=True)
class Unannotated(mq.methods.FedProx):
    """Its author forgot the annotation."""

    mu = 5.0


class Declared(mq.Method):
    """Its author forgot @dataclass, and the setting is new."""

    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Heavier(mq.methods.FedProx):
    """As it should be."""

    mu: float = 5.0


class Below(Heavier):
    """A class may be without a decorator that changes no setting."""


@pytest.mark.parametrize("cls", [Undecorated, Unannotated])
def test_a_setting_that_no_instance_would_have_is_refused(
    cls: type[mq.Method], golden: Golden
) -> None:
    with raises("E201", "mu", "@dataclass") as refusal:
        cls()
    golden(refusal.value)
    with raises("E201"):
        cls(mu=1.0)


def test_a_setting_of_a_class_that_is_no_dataclass_is_refused_with_what_is_missing(
    golden: Golden,
) -> None:
    with raises("E201", "share", "@dataclass") as refusal:
        Declared(share=0.25)
    golden(refusal.value)
    with raises("E201", "shares", "there"):
        Declared(shares=0.25)


def test_a_setting_that_is_overridden_as_dataclasses_do_is_kept() -> None:
    assert (Heavier().mu, Below().mu, Below(mu=1.0).mu) == (5.0, 5.0, 1.0)
