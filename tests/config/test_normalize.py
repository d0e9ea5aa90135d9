"""`data.normalize`: what its words mean, what is refused, and where it ends up."""

from pathlib import Path

import numpy as np
import pytest
import torch

from masquerade.config.normalize import CONSTANTS, parse, preprocess_for, spelled
from masquerade.config.resolve import LoadedConfig, rehearse, resolve, settle, trainings
from masquerade.config.settings import Config, Data
from masquerade.config.toml import complete
from masquerade.config.toml import parse as parse_tables
from masquerade.core import MasqueradeError, Task
from masquerade.core.preprocess import Normalize, Raw, Scale, Standardize
from masquerade.data import Federation
from tests.support import network, raises


def configured(normalize: object, *methods: str, **data: object) -> Config:
    names = list(methods) or ["fedavg"]
    return parse_tables({"methods": names, "data": {"normalize": normalize, "clients": 8, **data}})


def samples(*shape: int) -> Federation:
    """Two clients with a sample each of a shape."""
    one, other = torch.tensor([0]), torch.tensor([1])
    return Federation("x", torch.zeros(2, *shape), torch.arange(2), 2, (one, other), (), ())


def test_words_name_preprocessing() -> None:
    found = {text: type(parse(text)) for text in ("unit", "none", "standard", "0.5:0.5", "mnist")}
    assert list(found.values()) == [Scale, Raw, Standardize, Normalize, Normalize]
    assert parse_tables({}).data.normalize == "auto"


def test_mean_and_std_are_one_number_or_a_list() -> None:
    for text, mean, std in (("0.5:0.25", [0.5], [0.25]), ("0,1e-1:2,3", [0, 0.1], [2, 3])):
        made = parse(text)
        assert isinstance(made, Normalize)
        assert (made.mean.tolist(), made.std.tolist()) == (mean, std)


@pytest.mark.parametrize(
    "text", ["standart", "", "0.5", "0.5:0", "0.5:-1", "a:b", "0.5:nan", "inf:1", "1,2:3", "1:2:3"]
)
def test_other_texts_are_refused_with_what_to_write(text: str) -> None:
    with raises("E201", "`data.normalize`", "MEAN:STD"):
        parse(text)


def test_all_faults_are_told_at_once() -> None:
    tables = {"data": {"normalize": "standart", "novel": 2.0}, "train": {"rounds": 0}}
    with pytest.raises(MasqueradeError) as fault:
        parse_tables(tables)
    for part in ("did you mean `standard`?", "`data.novel`", "`train.rounds`"):
        assert part in str(fault.value)
    with raises("E201", "`data.normalize`", "str"):
        parse_tables({"data": {"normalize": 0.5}})


@pytest.mark.parametrize(("text", "channels"), [("cifar10", 1), ("imagenet", 1), ("mnist", 3)])
def test_constants_are_for_images_of_their_channels(text: str, channels: int) -> None:
    right = len(CONSTANTS[text][0])
    data = Data(normalize=text)
    assert isinstance(preprocess_for(data, samples(right, 8, 8)), Normalize)
    for shape in ((channels, 8, 8), (right,), (right, 8)):
        with raises("E202", "`data.normalize`", text, right):
            preprocess_for(data, samples(*shape))


@pytest.mark.parametrize("text", ["unit", "none", "standard", "cifar10", "0.1:0.3"])
def test_what_is_spelled_is_read_to_the_same_bits(text: str) -> None:
    made = Task(network(torch.float32), preprocess=parse(text)).preprocess
    again = Task(network(torch.float32), preprocess=parse(spelled(made))).preprocess
    assert type(made) is type(again)
    assert isinstance(made, torch.nn.Module)
    assert isinstance(again, torch.nn.Module)
    there = again.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in made.state_dict().items())


def test_code_of_ones_own_is_not_spelled() -> None:
    with raises("E202", "`relu`"):
        spelled(torch.relu)


def test_a_training_has_it_and_its_configuration_says_so() -> None:
    config = configured("0.5:0.25")
    (training,) = trainings(config)
    spec = resolve(config, training)
    assert isinstance(spec.task.preprocess, Normalize)
    assert spec.data is not None
    assert (spec.data.normalize, complete(config)["data"]["normalize"]) == ("0.5:0.25",) * 2


def test_samples_that_do_not_fit_are_refused_before_any_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", x=np.ones((40, 5), np.int64), y=np.arange(40) % 2)
    tokens = configured("standard", name=str(tmp_path / "tokens.npz"), clients=2)
    faults = {
        ("`data.normalize`", "cifar10"): configured("cifar10"),
        ("2 channels",): configured("0,0:1,1"),
        ("torch.int64", "tokens"): tokens,
    }
    for named, config in faults.items():
        with raises("E202", *named):
            rehearse(LoadedConfig.of(config))


def test_what_is_not_fitted_yet_can_be_rehearsed_and_forecast() -> None:
    names = ("pfedgate", "fedmask", "local_flops")
    fitted, plain = (
        settle(LoadedConfig.of(configured(how, *names))) for how in ("standard", "unit")
    )
    rehearse(fitted)
    assert fitted.config.method == plain.config.method
