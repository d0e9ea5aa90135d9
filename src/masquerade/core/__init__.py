"""The idea: trees, parts, masks, averages, stages, methods; no file and no network is touched."""

from masquerade.core.average import average
from masquerade.core.method import Bounds, Choices, Method
from masquerade.core.metric import OutputRule, Rule, RuleClient, SetMetric
from masquerade.core.part import Axis, Blocks, Entry, Message, Part
from masquerade.core.preprocess import Normalize, Raw, Standardize
from masquerade.core.round import Batch, ClientInfo, Cohort, Round, Stage, client_round
from masquerade.core.sgd import Loss, Losses, MetricStep, gradient, sgd_step
from masquerade.core.table import Tabular
from masquerade.core.task import Layer, Task
from masquerade.core.tree import State, Tree
from masquerade.errors import MasqueradeError

__all__ = [
    "Axis",
    "Batch",
    "Blocks",
    "Bounds",
    "Choices",
    "ClientInfo",
    "Cohort",
    "Entry",
    "Layer",
    "Loss",
    "Losses",
    "MasqueradeError",
    "Message",
    "Method",
    "MetricStep",
    "Normalize",
    "OutputRule",
    "Part",
    "Raw",
    "Round",
    "Rule",
    "RuleClient",
    "SetMetric",
    "Stage",
    "Standardize",
    "State",
    "Tabular",
    "Task",
    "Tree",
    "average",
    "client_round",
    "gradient",
    "sgd_step",
]
