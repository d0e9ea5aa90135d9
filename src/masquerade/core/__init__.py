"""The idea: trees, parts, masks, averages, stages, methods; no file and no network is touched."""

from masquerade.core.average import average
from masquerade.core.method import Bounds, Choices, Method
from masquerade.core.part import Axis, Blocks, Entry, Message, Part
from masquerade.core.round import Batch, Cohort, Round, Stage, Who, client_round
from masquerade.core.sgd import Look, descend, gradient
from masquerade.core.task import Layer, Task
from masquerade.core.tree import State, Tree
from masquerade.errors import MasqueradeError

__all__ = [
    "Axis",
    "Batch",
    "Blocks",
    "Bounds",
    "Choices",
    "Cohort",
    "Entry",
    "Layer",
    "Look",
    "MasqueradeError",
    "Message",
    "Method",
    "Part",
    "Round",
    "Stage",
    "State",
    "Task",
    "Tree",
    "Who",
    "average",
    "client_round",
    "descend",
    "gradient",
]
