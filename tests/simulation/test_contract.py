"""What a method's functions return is looked at before the first round, and so is padding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import masquerade as mq
from masquerade.core import Batch, Losses, Message, Method, Part, Round, Stage, State, Task, tree
from masquerade.core.dropout import Dropout
from masquerade.core.padding import padded, padding_error
from masquerade.core.round import ClientInfo
from masquerade.core.sgd import SGDStep
from masquerade.errors import MasqueradeError, MasqueradeWarning
from masquerade.methods import METHODS
from masquerade.methods.fedavg import FedAvg
from masquerade.simulation import contract
from tests import support
from tests.messages import Golden
from tests.support import federation, network, raises, warns


def built(method: Method, engine: str = "loop", model: nn.Module | None = None) -> Any:
    task = Task(network() if model is None else model)
    return support.simulation(method, task=task, rounds=2, engine=engine)


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "no server": ("server_init", lambda *given: None),
    "no row": ("row_init", lambda *given: None),
    "no client": ("client_init", lambda *given: None),
    "a client of numbers": ("client_init", lambda *given: {"count": 0}),
    "no work": ("start", lambda *given: None),
    "a download of a tree": ("download", lambda _, task, server, *rest: server),
    "a download of a tensor": ("download", lambda *given: {"params": torch.zeros(2)}),
    "a part of a tensor": ("download", lambda *given: {"params": Part(torch.zeros(2))}),
    "no download": ("download", lambda *given: None),
    "a single stage": ("plan", lambda self, task, round: Stage("train", self.sgd_step(task))),
    "no stages": ("plan", lambda *given: None),
    "an upload alone": ("finish", lambda _, task, work, *rest: {"params": Part(work["params"])}),
    "an upload of a tree": ("finish", lambda _, task, work, *rest: (work, {})),
    "a client that is new": (
        "finish",
        lambda _, task, work, *rest: ({"params": Part(work["params"])}, {"seen": torch.ones(2)}),
    ),
    "nothing kept": (
        "finish",
        lambda _, task, work, *rest: ({"params": Part(work["params"])}, None),
    ),
    "a server alone": ("aggregate", lambda _, task, server, *rest: server),
    "another server": ("aggregate", lambda _, task, server, rows, *rest: ({"w": rows}, rows)),
    "rows that are new": (
        "aggregate",
        lambda _, task, server, *rest: (server, {"seen": torch.ones(1)}),
    ),
    "a tree to use": ("personalize", lambda _, task, message, *rest: message["params"].values),
    "nothing to use": ("personalize", lambda *given: None),
    "no outputs": ("predict", lambda *given: None),
    "an output for all": ("predict", lambda *given: torch.zeros(())),
}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("what", WRONG)
def test_a_function_that_returns_the_wrong_thing_is_refused(what: str, engine: str) -> None:
    name, function = WRONG[what]
    method = type("Mine", (Method,), {name: function})(local_epochs=1)
    with raises("E205", name):
        built(method, engine)


@dataclass(frozen=True, kw_only=True)
class Keeping(Method):
    """It keeps on itself what a client should."""

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        self.seen = message  # type: ignore[misc]
        return {"params": message["params"].values}


def test_what_is_kept_on_the_method_is_told_where_it_goes(golden: Golden) -> None:
    with raises("E205", "start", "seen", "client") as refusal:
        built(Keeping(local_epochs=1))
    golden(refusal.value)


def forgetful(self: Method, task: Task, info: ClientInfo) -> State:
    return {"own": torch.zeros(3), "seen": torch.zeros(())}


def test_a_forgotten_or_reshaped_state_of_a_client_is_named(golden: Golden) -> None:
    for kept, word in (
        ({"own": torch.zeros(3)}, "seen"),
        ({"own": torch.zeros(4), "seen": torch.ones(())}, "own"),
    ):

        def finish(_: Any, task: Any, work: State, *rest: Any, kept: State = kept) -> Any:
            return {"params": Part(work["params"])}, kept

        method = type("Mine", (Method,), {"client_init": forgetful, "finish": finish})()
        with raises("E205", f"`{word}`") as refusal:
            built(method)
        golden(refusal.value)


READING: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a client": ("start", lambda _, task, message, client, round: client["own"], "client_init"),
    "a message": ("start", lambda _, task, message, *rest: message["mask"], "download"),
    "a row": ("download", lambda _, task, server, row, round: row["own"], "row_init"),
    "work": (
        "plan",
        lambda self, task, round: (Stage("mine", self.sgd_step(task, proximal=1.0)),),
        "start",
    ),
    "a personal model": ("predict", lambda _, task, personal, x: personal["head"], "personalize"),
}


@pytest.mark.parametrize("what", READING)
def test_what_is_read_and_was_never_made_is_named(what: str) -> None:
    name, function, maker = READING[what]
    method = type("Mine", (Method,), {name: function})(local_epochs=1)
    with raises("E205", f"`{maker}`"):
        built(method)


def test_a_key_of_ones_own_that_is_missing_keeps_its_kind() -> None:
    def start(_: Any, task: Any, message: Message, *rest: Any) -> State:
        own: dict[str, State] = {}
        # It is in what was given, and was looked for elsewhere.
        return own["params"]

    with pytest.raises(KeyError) as caught:
        built(type("Mine", (Method,), {"start": start})())
    assert any("`start`" in note for note in caught.value.__notes__)


class Bypasses(Method):
    """It averages without its cohort, so that no rule sees what clients send."""

    def aggregate(self, task: Any, server: State, rows: State, uploads: Any, cohort: Any, _: Any):
        return {"params": mq.average(uploads["params"], cohort.samples, server["params"])}, rows


class KnowsAnother(Method):
    """What it knows of one client depends on another's values."""

    def row_init(self, task: Task, info: ClientInfo) -> State:
        return {"size": torch.zeros((), dtype=torch.float64)}

    def aggregate(self, *given: Any) -> tuple[State, State]:
        server, rows = super().aggregate(*given)
        size = given[3]["params"].values["0.bias"].sum()
        return server, {"size": size.expand(len(rows["size"]))}


class KnowsItself(Method):
    """What it knows of one client depends on that client's values."""

    def row_init(self, task: Task, info: ClientInfo) -> State:
        return {"size": torch.zeros((), dtype=torch.float64)}

    def aggregate(self, *given: Any) -> tuple[State, State]:
        server, _ = super().aggregate(*given)
        return server, {"size": given[3]["params"].values["0.bias"].sum(1)}


DEFENCES = ({"aggregation": "median"}, {"clip_updates": 2.0}, {"min_contributors": 2})


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_method_that_averages_by_itself_is_refused_under_a_defence(
    defence: dict[str, Any], golden: Golden
) -> None:
    def begun(method: Method, **train: Any) -> None:
        support.built(method, Task(network()), federation(), rounds=2, batch_size=4, **train)

    for cls, path in ((Bypasses, "server/params/0.weight"), (KnowsAnother, "rows/size")):
        begun(cls())
        with raises("E202", f"`{path}`", cls.__name__) as refusal:
            begun(cls(), **defence)
        if defence is DEFENCES[0] and cls is Bypasses:
            golden(refusal.value)
    begun(KnowsItself(), **defence)


@pytest.mark.parametrize("name", support.METHOD_TABLE)
def test_every_method_can_be_defended(name: str) -> None:
    task = Task(support.network_of(support.METHOD_TABLE[name]))
    support.built(
        support.METHOD_TABLE[name],
        task,
        federation(),
        rounds=2,
        batch_size=4,
        budgets=support.BUDGETS,
        aggregation="median",
    )


def test_more_contributors_than_clients_are_refused(golden: Golden) -> None:
    with raises("E202", 7, 6) as refusal:
        support.built(Method(), Task(network()), federation(), rounds=2, min_contributors=7)
    golden(refusal.value)


class Misspelt(Method):
    """It has a function that nobody calls, and some of its own."""

    def agregate(self) -> None:
        """Be spelled nearly as `aggregate`."""

    def clientInit(self) -> None:
        """Be `client_init` in another style."""

    def _start(self) -> None:
        """Be nobody else's affair."""

    def width(self) -> None:
        """Be like nothing."""


def test_a_function_that_is_nearly_one_of_a_methods_is_warned_of(golden: Golden) -> None:
    with pytest.warns(MasqueradeWarning) as seen:
        built(Misspelt(local_epochs=1))
    assert [str(each.message)[:15] for each in seen] == ["W205 `agregate`", "W205 `clientIni"]
    golden(seen[0].message)
    assert not any(contract.misspelt(entry.method) for entry in METHODS.values())


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_network_that_returns_a_tuple_is_refused(engine: str) -> None:
    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), None

    with raises("E202", "tuple"):
        built(Method(), engine, Pair(6, 3))
    with raises("E202"):
        mq.check(Method(), Pair(6, 3))


@dataclass(frozen=True, kw_only=True)
class Stepping(Method):
    """A method with a step of choice."""

    local_epochs: int = 1
    how: str = "right"

    def plan(self, task: Task, round: Round) -> Any:
        descend = self.sgd_step(task)
        steps: dict[str, Callable[[State, Batch, Round], Any]] = {
            "right": descend,
            "nothing": lambda work, batch, round: None,
            "less": lambda work, batch, round: {},
            "more": lambda work, batch, round: {**work, "more": torch.ones(1)},
            "alone": lambda work, batch, round: descend(work, batch, round)["params"],
        }
        return [Stage("mine", steps[self.how])]


@pytest.mark.parametrize("how", ["nothing", "less", "more", "alone"])
def test_a_step_that_returns_other_work_is_refused(how: str) -> None:
    with raises("E205", "step", "`mine`"):
        built(Stepping(how=how))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_loss_that_was_averaged_already_is_refused_before_any_round(engine: str) -> None:
    def plan(self: Method, task: Task, round: Round) -> tuple[Stage, ...]:
        def loss(work: State, batch: Batch, round: Round) -> Any:
            output, buffers = task(work["params"], batch.x, True, batch.key)
            return nn.functional.cross_entropy(output, batch.y), buffers

        return (Stage("mine", self.sgd_step(task, loss)),)

    with raises("E205"):
        built(type("Mine", (Method,), {"plan": plan})(), engine)


def test_a_list_of_stages_serves() -> None:
    made = built(Stepping())
    made.advance(made.begin())


@pytest.mark.parametrize("place", ["begin", "then"])
def test_what_runs_beside_a_step_returns_the_work(place: str) -> None:
    def plan(self: Method, task: Task, round: Round) -> Any:
        return (replace(Stage("mine", self.sgd_step(task)), **{place: lambda work, round: None}),)

    with raises("E205", "`mine`", place):
        built(type("Mine", (Method,), {"plan": plan})())


def test_an_error_of_ones_own_keeps_its_kind_and_says_where_it_was() -> None:
    def start(*given: Any) -> State:
        return {"params": given[99]}

    with pytest.raises(IndexError) as caught:
        built(type("Mine", (Method,), {"start": start})())
    assert any("`start`" in note for note in caught.value.__notes__)


# Padding.


@dataclass(frozen=True, kw_only=True)
class Own(Method):
    """SGD on a mean of choice, in a step of its own."""

    local_epochs: int = 1
    how: str = "right"

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        def mean(batch: Batch, losses: torch.Tensor) -> torch.Tensor:
            return batch.mean(losses) if self.how == "right" else losses.mean()

        def step(work: State, batch: Batch, round: Round) -> State:
            grads, _, _ = mq.gradient(
                lambda trees: (mean(batch, task.losses(trees["params"], batch)[0]), {}),
                {"params": work["params"]},
            )
            moved = tree.each(lambda w, g: w - 0.1 * g, work["params"], grads["params"])
            seen = batch.count() if self.how != "counting" else len(batch.y)
            return {**work, "params": moved, "seen": work["seen"] + seen}

        return (Stage("mine", step),)

    def start(self, task: Task, message: Message, client: State, round: Round) -> State:
        return {"params": message["params"].values, "seen": torch.tensor(0)}


@pytest.mark.parametrize("engine", ["auto", "batched"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("how", "entry"), [("mean", "params"), ("counting", "seen")])
def test_a_step_that_padding_changes_is_refused(
    how: str, entry: str, dtype: torch.dtype, engine: str
) -> None:
    with raises("E206", "`mine`", f"`{entry}`"):
        built(Own(how=how), engine, network(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_that_leaves_padding_out_passes(dtype: torch.dtype) -> None:
    built(Own(), "batched", network(dtype))


def test_the_loop_never_pads_and_takes_the_step_as_it_is() -> None:
    built(Own(how="mean"), "loop")


def test_a_step_that_cannot_be_mapped_is_never_padded() -> None:
    def plan(self: Method, task: Task, round: Round) -> tuple[Stage, ...]:
        descend = self.sgd_step(task)

        def step(work: State, batch: Batch, round: Round) -> State:
            some = batch.y >= 0
            chosen = Batch(batch.x[some], batch.y[some], None, batch.key)
            return descend(work, chosen, round) if len(chosen.y) else work

        return (Stage("mine", step),)

    with warns("W501"):
        built(type("Mine", (Method,), {"plan": plan})(), "batched")


def careless(method: Method, task: Task) -> SGDStep:
    """A step whose loss is averaged over padding too, where nobody sees its shape."""

    def loss(work: State, batch: Batch, round: Round) -> Losses:
        return None, {}, task.losses(work["params"], batch)[0].mean()

    return method.sgd_step(task, loss)


class Careless(Method):
    """FedAvg with that step."""

    def plan(self, task: Task, round: Round) -> tuple[Stage, ...]:
        return (Stage("mine", careless(self, task)),)


def test_a_network_that_couples_samples_is_not_tried_with_padding(golden: Golden) -> None:
    normed = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    with raises("E206") as refusal:
        built(Careless(), "batched")
    golden(refusal.value)
    with warns("W501", "BatchNorm") as warned:
        built(Careless(), "batched", normed)
    golden(warned[-1].message)


def test_padding_is_tried_on_every_draw_of_a_step() -> None:
    def plan(self: Method, task: Task, round: Round) -> tuple[Stage, ...]:
        wrong, right = careless(self, task), self.sgd_step(task)

        def step(work: State, batches: tuple[Batch, ...], round: Round) -> State:
            return wrong(right(work, batches[0], round), batches[1], round)

        return (Stage("mine", step, draws=2),)

    with raises("E206", "`mine`"):
        built(type("Mine", (Method,), {"plan": plan})(), "batched")


@pytest.mark.parametrize("name", support.METHOD_TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_changes_no_method_of_the_table(name: str, dtype: torch.dtype) -> None:
    method = support.METHOD_TABLE[name]
    made = support.simulation(method, task=Task(support.network_of(method).to(dtype)), rounds=4)
    info = made.server.clients[4]
    contract.check(made.context, info, "batched")


def test_padding_is_marked_and_how_far_it_moves_a_step_is_a_share_of_the_step() -> None:
    data, task = federation(), Task(network())
    batch = Batch(data.x[:4], data.y[:4], None, torch.tensor(0))
    assert padded(batch, 2).valid.tolist() == [True] * 4 + [False] * 2
    one = torch.ones((), dtype=torch.float64)
    round = Round("train", "train", one, one, one)

    def step(work: State, batch: Batch, round: Round) -> State:
        return {"seen": work["seen"] + len(batch.y), "still": work["still"]}

    work = {"seen": torch.tensor(10.0), "still": task.initial}
    # 4 real samples and 3 of padding: 3 of 4 too far.
    entry, apart = padding_error(Stage("count", step), work, batch, round)
    assert (entry, apart) == ("seen", pytest.approx(0.75, rel=1e-4))


def test_the_trial_changes_no_bit_and_draws_no_number() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    droppy = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    task = Task(droppy)
    initial = tree.transform(torch.clone, task.initial)
    torch.random.set_rng_state(before)
    made = support.simulation(FedAvg(local_epochs=1), task=task, rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(made.server.task.initial[n], value) for n, value in initial.items())


def test_a_network_with_fewer_outputs_than_classes_is_refused() -> None:
    with raises("E202", "2", "3"):
        built(FedAvg(), model=nn.Linear(6, 2).double())


def test_a_client_state_that_changes_its_type_is_refused() -> None:
    def client_init(self: Method, task: Task, info: Any) -> State:
        return {"n": torch.tensor(0)}

    def finish(
        self: Method, task: Task, work: State, message: Any, client: State, round: Round
    ) -> Any:
        return Method.finish(self, task, work, message, {"n": client["n"] + 0.5}, round)

    counting = type("Counting", (Method,), {"client_init": client_init, "finish": finish})
    with raises("E205", "float32", "torch.int64"):
        built(counting())


def test_a_loss_that_runs_the_network_as_in_use_is_refused_where_that_is_another() -> None:
    def plan(self: Method, task: Task, round: Round) -> tuple[Stage, ...]:
        def loss(work: State, batch: Batch, round: Round) -> Any:
            output, buffers = task(work["params"], batch.x)
            return nn.functional.cross_entropy(output, batch.y, reduction="none"), buffers

        return (Stage("mine", self.sgd_step(task, loss)),)

    def right(self: Method, task: Task, round: Round) -> tuple[Stage, ...]:
        def loss(work: State, batch: Batch, round: Round) -> Any:
            output, buffers = task.outputs(work["params"], batch)
            return nn.functional.cross_entropy(output, batch.y, reduction="none"), buffers

        return (Stage("mine", self.sgd_step(task, loss)),)

    dropping = Task(nn.Sequential(Dropout(0.5), network()))
    with raises("E205", "task.outputs"):
        support.simulation(type("InUse", (Method,), {"plan": plan})(), task=dropping)
    support.simulation(type("Right", (Method,), {"plan": right})(), task=dropping)
    # Where training and use are one, either will do.
    support.simulation(type("InUse", (Method,), {"plan": plan})())


def test_a_refused_run_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(MasqueradeError):
            mq.run(Method(), nn.Linear(6, 2), federation(), 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
