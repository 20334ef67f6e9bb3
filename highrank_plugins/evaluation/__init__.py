"""Score a text with a model that adapts to it. It needs torch only."""

from highrank_plugins.evaluation.dynamic_evaluation import (
    NORMALISATIONS,
    STATISTICS,
    Adaptation,
    GradientStatistics,
    Scored,
    decay_rates,
    dynamic_evaluation,
    gather_statistics,
    update_,
)
from highrank_plugins.evaluation.neural_cache import NeuralCache

__all__ = [
    "NORMALISATIONS",
    "STATISTICS",
    "Adaptation",
    "GradientStatistics",
    "NeuralCache",
    "Scored",
    "decay_rates",
    "dynamic_evaluation",
    "gather_statistics",
    "update_",
]
