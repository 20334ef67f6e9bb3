"""Measure models as the papers do, by functions on tensors that load scipy only when called."""

from __future__ import annotations

from highrank_plugins.analysis.components import (
    ComponentUse,
    GateSharpness,
    component_use,
    gate_sharpness,
    prior_use,
)
from highrank_plugins.analysis.divergence import (
    Estimate,
    mean_pairwise_kld,
    pairwise_kld,
    sampled_kld,
)
from highrank_plugins.analysis.effect_size import (
    confidence_interval,
    hedges_g,
)
from highrank_plugins.analysis.pointwise_shape import (
    SlopeStatistics,
    pointwise_curve,
    slope_statistics,
)
from highrank_plugins.analysis.predictions import (
    Band,
    mean_entropy,
    perplexity_by_band,
    perplexity_of,
    target_ranks,
    top_k_share,
)
from highrank_plugins.analysis.rank import (
    effective_rank,
    press_rank,
    press_tolerance,
    spectral_decay,
    spectral_entropy,
)
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.analysis.significance import (
    Correlation,
    PairedScore,
    PairedScores,
    Summary,
    TTest,
    holm,
    paired_bleu,
    pearson,
    student_t,
    summarise,
    welch_t,
)
from highrank_plugins.analysis.similarity import (
    Similarity,
    WordPair,
    read_word_pairs,
    word_similarity,
)
from highrank_plugins.analysis.singular import Spectrum, singular_values, spectrum
from highrank_plugins.analysis.tsqr import triangle
from highrank_plugins.analysis.unargmaxable_words import (
    ranks_linearly,
    unargmaxable,
    unargmaxable_classes,
)

__all__ = [
    "Band",
    "ComponentUse",
    "Correlation",
    "Estimate",
    "GateSharpness",
    "PairedScore",
    "PairedScores",
    "Similarity",
    "SlopeStatistics",
    "Spectrum",
    "Summary",
    "TTest",
    "WordPair",
    "component_use",
    "confidence_interval",
    "effective_rank",
    "gate_sharpness",
    "gradient_retention",
    "hedges_g",
    "holm",
    "logit_gradient",
    "mean_entropy",
    "mean_pairwise_kld",
    "paired_bleu",
    "pairwise_kld",
    "pearson",
    "perplexity_by_band",
    "perplexity_of",
    "pointwise_curve",
    "press_rank",
    "press_tolerance",
    "prior_use",
    "ranks_linearly",
    "read_word_pairs",
    "sampled_kld",
    "singular_values",
    "slope_statistics",
    "spectral_decay",
    "spectral_entropy",
    "spectrum",
    "student_t",
    "summarise",
    "target_ranks",
    "top_k_share",
    "triangle",
    "unargmaxable",
    "unargmaxable_classes",
    "welch_t",
    "word_similarity",
]
