"""What runs end with, as frozen records: accuracy, costs, summaries, rounds; and their JSON."""

from masquerade.results.accuracy import AVERAGED, Accuracy, Statistics
from masquerade.results.costs import Bytes, Costs, Flops, PaperCosts, Spent, Storage
from masquerade.results.environment import Environment
from masquerade.results.privacy import Guarantee, Leaving, PrivacySheet, Sent
from masquerade.results.rounds import Attendance, EvaluationRecord, Preparation, RoundRecord
from masquerade.results.summary import (
    Baseline,
    ClassWeights,
    ClientFigures,
    ClientMetric,
    ModelSize,
    Novel,
    Overlap,
    Participations,
    Point,
    Preprocessing,
    RuleFigures,
    Summary,
)

__all__ = [
    "AVERAGED",
    "Accuracy",
    "Attendance",
    "Baseline",
    "Bytes",
    "ClassWeights",
    "ClientFigures",
    "ClientMetric",
    "Costs",
    "Environment",
    "EvaluationRecord",
    "Flops",
    "Guarantee",
    "Leaving",
    "ModelSize",
    "Novel",
    "Overlap",
    "PaperCosts",
    "Participations",
    "Point",
    "Preparation",
    "Preprocessing",
    "PrivacySheet",
    "RoundRecord",
    "RuleFigures",
    "Sent",
    "Spent",
    "Statistics",
    "Storage",
    "Summary",
]
