"""What can be set in a run: frozen records, and the limits of their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from masquerade.core.aggregation import RULES as RULES_OF_AGGREGATION
from masquerade.core.old_words import refuse_unknown
from masquerade.core.table import IMPUTE
from masquerade.data.dataset import TASKS


class Settings:
    """A section of the settings."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Refuse settings that it does not have; `__init__` takes those that it has."""
        refuse_unknown(cls, cls.__name__.lower(), settings)
        return super().__new__(cls)


@dataclass(frozen=True)
class Data(Settings):
    """The data, and how they are given to clients."""

    name: str = "digits"
    """A named dataset, or the path of a file or folder: CSV, parquet, npz, images and others."""
    clients: int = 0
    """How many clients; 0 takes the dataset's own where it names them, and 20 where it does not."""
    partition: str = "auto"
    """How samples are given to clients; "auto" takes the dataset's own clients, or dirichlet:0.3,
    or iid where targets are no classes."""
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of each client's samples for training, validation and test."""
    seed: int = 1
    """Seed of partition and split. The seed of training does not move a sample, so that no run is
    tested on samples that another one was chosen by."""
    budgets: tuple[float, ...] | str = (1.0,)
    """Shares of the parameters that devices can hold; clients take them in turn. "random:LOW:HIGH"
    draws them by the seed."""
    novel: float = 0.0
    """Share of the clients that are kept out of training, and evaluated apart."""
    fraction: float = 1.0
    """Share of the samples that are used, or of the clients where the dataset names them."""
    merge: bool = True
    """Whether the original training and test parts are put together before they are split; if not,
    clients are tested on samples of the original test part alone."""
    normalize: str = "auto"
    """What is done to samples before the network: "unit" divides bytes by 255, "none" nothing,
    "standard" normalizes by mean and std of the training samples, which clients' sums tell, and
    "table" standardizes numbers, encodes categories and imputes; "imagenet", "cifar10", "cifar100"
    and "mnist" are known constants, and MEAN:STD others. "auto" is table for tables, else unit."""
    partition_per_seed: bool = False
    """Whether every training seed partitions the data anew. The samples that are tested on are then
    drawn before, by `seed` alone, and are the same in all partitions."""
    normalize_per_client: bool = False
    """Whether each client fits "standard" or "table" on its own training samples. Nothing is sent
    then, and test-time shift is not evaluated."""
    label_column: str = ""
    """The column of the labels, where `name` is the file of a table; "" takes `y`."""
    client_column: str = ""
    """The column that names the client of a row; "" takes `client`, if there is one."""
    drop_columns: tuple[str, ...] = ()
    """Columns that are left out."""
    categorical_columns: tuple[str, ...] = ()
    """Columns whose values are categories."""
    impute: str = ""
    """What stands in for missing values: "mean", "median" or "most_frequent"; "" takes what was
    said when a table was added, and allows none otherwise."""
    sep: str = ""
    """What separates the fields of a line of CSV; "" takes what the first line has most of."""
    encoding: str = ""
    """How a CSV file is encoded; "" takes UTF-8."""
    missing: tuple[str, ...] = ()
    """Texts of a table that mean a missing value, besides an empty field, NA, N/A, NaN, null, ?."""
    task: str = ""
    """What labels of a table are: "classification" or "regression"; "" goes by their values."""


@dataclass(frozen=True)
class Train(Settings):
    """Training: the network, rounds, batches, and which clients take part."""

    model: str = "auto"
    """A named network; "auto" takes the one that fits the shape of the samples."""
    rounds: int = 60
    batch_size: int = 10
    participation: float = 1.0
    """Share of the clients that are sampled in a round."""
    lr_decay: float = 1.0
    """Learning rates are multiplied by this once per round."""
    seeds: tuple[int, ...] = (1,)
    clients_per_round: int = 0
    """How many clients are sampled in a round; 0 takes `participation` of them."""
    available: str = "always"
    """When a client can be sampled: "always", "random:SHARE" of the clients in each round, or
    "cycle:GROUPS", one group after another. A round in which nobody can be changes nothing."""
    drop: float = 0.0
    """Share of the sampled clients whose round is lost: they were sent the model, and nothing comes
    back."""
    weights: str = ""
    """A file of pretrained weights, safetensors or a plain state dict; "" draws them by a seed."""
    message_dtype: str = "same"
    """What numbers in messages are rounded to: "float16", "bfloat16" or "int8" with one step per
    tensor; "same" leaves them as the network has them."""
    class_weights: str = "none"
    """What classes weigh in the loss: "none" is 1 for each; "balanced" is n / (classes · n of the
    class), from the training labels of all clients that can take part, which send their counts."""
    aggregation: str = "mean"
    """How the server makes one value of clients': the "mean" by samples, or the "median" or
    "trimmed_mean" of those that send a weight, each counting once."""
    trim: float = 0.2
    """With aggregation = "trimmed_mean": share of a weight's values left out at either end."""
    clip_updates: float = 0.0
    """Scale down an update that is longer than this multiple of the round's median update (root
    mean square over the weights that a client sends), and leave out one that is a thousand times
    longer; 0 does neither."""
    min_contributors: int = 1
    """A weight that fewer clients send in a round keeps its value."""


@dataclass(frozen=True)
class Evaluate(Settings):
    """Evaluation: when, on which samples, by which metrics."""

    every: int = 5
    """Rounds between evaluations on own data; 0 evaluates at the end only."""
    degrees: tuple[int, ...] = (0, 20, 40, 60, 80, 100)
    """Shares of shifted test samples, in percent: by those of one other client, and by those of all
    others, pooled."""
    draws: int = 1
    """How often shifted samples are drawn, from one partner after another, or from the pool."""
    split: str = "test"
    """"test", or "validation" where settings are being chosen."""
    corruptions: tuple[str, ...] = ()
    """Kinds of corruption that clients' own images are evaluated under; "all" are all fifteen."""
    severities: tuple[int, ...] = (1, 3, 5)
    """How severe corruptions are, from 1 to 5."""
    bandwidth: str = "10MB/s"
    """Bandwidth of a client, for the times on the page: one for both ways, or DOWN:UP."""
    metrics: tuple[str, ...] = ()
    """Metrics, each of a client's whole test set: "accuracy", "balanced_accuracy", "macro_f1",
    "auroc", "log_loss", "calibration_error" and "recall" of classes, "mae" and "rmse" of numbers,
    "perplexity" of tokens; "all" are those that fit the data. Reports put the first one first."""
    prior: tuple[str, ...] = ()
    """Rules on outputs that views are evaluated under too, by what is taken for the mix of classes:
    "own", the client's; "evidence", the own or the uniform one, sample by sample; "batch", that of
    all of its test samples, and "online", of those before each, unlabeled. "none" is always there.
    """


@dataclass(frozen=True)
class Compute(Settings):
    """Where and how the work is done; a run keeps what "auto" resolved to when it is resumed."""

    engine: str = "auto"
    """"loop", "batched", or "auto", a fixed rule of device, layers and sizes."""
    device: str = "auto"
    """"cpu", "cuda", or "auto", which takes CUDA where there is one."""
    processes: int = 1
    """Processes that share the clients of a round on a CPU; a run may go on with another number of
    them. `torchrun` starts those of several machines, and those on GPUs."""
    clients_per_chunk: int = 64
    """Clients that the batched engine holds at a time."""
    threads: int = 1
    """Threads that an operation may use; with several `processes` each has one."""
    precision: str = "float32"
    """Precision of matrix products: "float32", "tf32" (on CUDA) or "bfloat16"."""
    store: str = "device"
    """Where clients' states lie between rounds: "device", "host" or "disk", which is files without
    a name in the folder that `TMPDIR` names."""
    commit_every: float = 5.0
    """Seconds between commits; 0 commits every round."""
    memory: float = 0.0
    """GiB of a CUDA device that a run may reserve, beside CUDA's own; 0 is no bound. Where they do
    not suffice, fewer clients and samples are on the device at a time (W503)."""
    replay: str = "auto"
    """Whether steps of the batched engine are recorded (CPU) or captured as CUDA graphs and then
    repeated: "auto", or "off", which takes every step as it is written."""


@dataclass(frozen=True)
class Privacy(Settings):
    """Differential privacy, in the words of Opacus; a run that asks for it cannot be repeated."""

    unit: str = "none"
    """What one of which is hidden: a "sample" of a client (DP-SGD at clients), a whole "client"
    (noise on the mean of updates, at the server), or "none"."""
    epsilon: float = 0.0
    """The most that ε may be after all rounds: the accountant finds the noise for it, or refuses
    a `noise_multiplier` that is too small; 0 is no bound."""
    delta: float = 1e-5
    """The probability with which ε need not hold (δ)."""
    noise_multiplier: float = 0.0
    """Standard deviation of the noise, as a multiple of `max_grad_norm`; 0 without an `epsilon`
    clips, and guarantees nothing."""
    max_grad_norm: float = 1.0
    """Norm that the gradient of a sample, or the update of a client, is clipped to."""


@dataclass(frozen=True)
class Fleet(Settings):
    """Real clients: who they are, and how long a round waits for them. `federation.toml` has it."""

    name: str = "federation"
    clients: tuple[str, ...] = ()
    """Names of the clients; new ones stand behind the others, for their places are their numbers.
    """
    removed: tuple[str, ...] = ()
    """Clients that take no part any more."""
    quorum: int = 2
    """Clients that a round needs: fewer that are connected, and it does not begin; fewer answers,
    and it changes nothing."""
    deadline: float = 600.0
    """Seconds after which a round waits for no further answer."""
    wait: float = 60.0
    """Seconds that a round waits for more clients, once there are enough of them."""
    code: tuple[str, ...] = ()
    """Code of your own, as PATH/FILE.py:NAME on the server's machine."""
    host: str = "127.0.0.1"
    """Where clients reach the server."""
    port: int = 8443


@dataclass(frozen=True)
class Config:
    """Everything a comparison depends on."""

    methods: tuple[str, ...] = ("fedavg",)
    data: Data = field(default_factory=Data)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    compute: Compute = field(default_factory=Compute)
    privacy: Privacy = field(default_factory=Privacy)
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by method name; what stands under no name is for every method."""
    code: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files of methods and networks that are a user's own, by FILE.py:NAME."""


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "train": Train,
    "evaluate": Evaluate,
    "compute": Compute,
    "privacy": Privacy,
}

TABLE_OPTIONS = {
    "label": "label_column",
    "client": "client_column",
    "drop": "drop_columns",
    "categorical": "categorical_columns",
    "impute": "impute",
    "sep": "sep",
    "encoding": "encoding",
    "missing": "missing",
    "task": "task",
}
"""The settings of `data` that say how a table is read, by the options that they are."""

CHOICES: dict[str, tuple[str, ...]] = {
    "data.impute": IMPUTE,
    "data.task": TASKS,
    "train.message_dtype": ("same", "float16", "bfloat16", "int8"),
    "train.class_weights": ("none", "balanced"),
    "train.aggregation": RULES_OF_AGGREGATION,
    "evaluate.split": ("test", "validation"),
    "privacy.unit": ("none", "sample", "client"),
    "compute.engine": ("auto", "loop", "batched"),
    "compute.device": ("auto", "cpu", "cuda"),
    "compute.replay": ("auto", "off"),
    "compute.precision": ("float32", "tf32", "bfloat16"),
    "compute.store": ("device", "host", "disk"),
}

NEXT = 1e-9
"""How far a bound is from a number that it leaves out."""
MOST: dict[type, float] = {int: 10**6, float: 1e9}
"""What numbers may be at most, in size, where nothing else is said: more ends in an overflow."""
ENDLESS = {"method.clip"}
"""Settings that may be infinite, which means that there is no bound."""
LONGEST, MANY = 4096, 100_000
"""Letters of a text, and values of a list, at most."""
SEED = 2**63 - 1
"""The largest whole number of TOML."""
RANGES: dict[str, tuple[float, float]] = {
    "data.clients": (0, math.inf),
    "data.split": (0, 1),
    "data.seed": (0, SEED),
    "data.budgets": (NEXT, 1),
    "data.novel": (0, 1 - NEXT),
    "data.fraction": (NEXT, 1),
    "train.rounds": (1, math.inf),
    "train.seeds": (0, SEED),
    "train.batch_size": (1, math.inf),
    "train.participation": (NEXT, 1),
    "train.clients_per_round": (0, math.inf),
    "train.drop": (0, 1 - NEXT),
    "train.lr_decay": (NEXT, 1),
    "train.trim": (0, 0.5 - NEXT),
    "train.clip_updates": (0, math.inf),
    "train.min_contributors": (1, math.inf),
    "evaluate.every": (0, math.inf),
    "evaluate.draws": (1, 1000),
    "evaluate.severities": (1, 5),
    "compute.processes": (1, 256),
    "compute.clients_per_chunk": (1, math.inf),
    "compute.threads": (1, 1024),
    "compute.commit_every": (0, math.inf),
    "compute.memory": (0, math.inf),
    "privacy.epsilon": (0, math.inf),
    "privacy.delta": (NEXT, 0.5),
    "privacy.noise_multiplier": (0, math.inf),
    "privacy.max_grad_norm": (NEXT, math.inf),
    "fleet.quorum": (1, math.inf),
    "fleet.deadline": (NEXT, math.inf),
    "fleet.wait": (0, math.inf),
    "fleet.port": (1, 65535),
}
LENGTHS = {"data.split": 3}
RULES = {"data.budgets"}
"""Settings that are lists, for which a text may stand."""
