"""Read the perplexity of dynamic evaluation, which `highrank evaluate dynamic` writes."""

from highrank_plugins.measures.base import AdaptiveEvaluation, register_measure


@register_measure("dynamic_eval")
class DynamicEvaluation(AdaptiveEvaluation):
    """Score a text by dynamic evaluation (Krause et al. 2018)."""

    kind = "dynamic"
