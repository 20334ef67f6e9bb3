"""Read the perplexity of a neural cache, which `highrank evaluate cache` writes."""

from highrank_plugins.measures.base import AdaptiveEvaluation, register_measure


@register_measure("cache_eval")
class CacheEvaluation(AdaptiveEvaluation):
    """Score a text by a neural cache (Grave et al. 2017)."""

    kind = "cache"
