"""Compute the perplexity of a mean negative log-likelihood."""

import math


def perplexity_of(nats: float) -> float:
    """Return exp of a mean negative log-likelihood; infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf
