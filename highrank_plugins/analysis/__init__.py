"""The papers' measures as functions on tensors; those that need scipy load it when called."""

from __future__ import annotations

from .bands import Band, perplexity_by_band
from .bleu_tests import PairedScore, PairedScores, paired_bleu
from .components import ComponentUse, component_use, prior_use
from .dirichlet import (
    DirichletFit,
    DirichletSettings,
    dirichlet_experiment,
    dirichlet_targets,
    fit_targets,
    measure_fit,
)
from .divergence import Estimate, mean_pairwise_kld, pairwise_kld, sampled_kld
from .gates import GateSharpness, gate_sharpness
from .multiple_tests import Correlation, holm, pearson
from .perplexity import perplexity_of
from .pointwise_shape import SlopeStatistics, pointwise_curve, slope_statistics
from .predictions import mean_entropy, target_ranks, top_k_share
from .rank import effective_rank, press_rank, press_tolerance, spectral_decay, spectral_entropy
from .retention import gradient_retention
from .similarity import Similarity, WordPair, read_word_pairs, word_similarity
from .singular import Spectrum, singular_values, spectrum
from .t_test import Summary, TTest, student_t, summarise, welch_t
from .tsqr import triangle
from .unargmaxable_words import unargmaxable, unargmaxable_classes

__all__ = [
    "Band",
    "ComponentUse",
    "Correlation",
    "DirichletFit",
    "DirichletSettings",
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
    "dirichlet_experiment",
    "dirichlet_targets",
    "effective_rank",
    "fit_targets",
    "gate_sharpness",
    "gradient_retention",
    "holm",
    "mean_entropy",
    "mean_pairwise_kld",
    "measure_fit",
    "paired_bleu",
    "pairwise_kld",
    "pearson",
    "perplexity_by_band",
    "perplexity_of",
    "pointwise_curve",
    "press_rank",
    "press_tolerance",
    "prior_use",
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
