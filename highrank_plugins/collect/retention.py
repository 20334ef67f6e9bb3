"""How much of the loss's gradient gets through the vocabulary matrix, along a text."""

import math
from dataclasses import dataclass

from highrank_plugins.monitoring.column_space import column_space
from highrank_plugins.monitoring.kept_gradient import kept_and_whole

from .collector import Collector

NUMBERS = 2**24  # of logits that exist at a time


@dataclass(frozen=True)
class Retention:
    """‖G P‖ / ‖G‖ of the gradient G of the logits, see `gradient_retention`.

    whole: of all tokens together. batches: of each batch. first: the first token of each.
    """

    tokens: int
    whole: float
    batches: list[float]
    first: list[int]


def retention(collector: Collector) -> Retention | None:
    """One pass over the text of a collector; costs as much as training the layer on it.

    Returns:
        None in processes other than the first.
    Raises:
        ValueError: a layer of another kind than `logit_gradient` knows, a gradient of zero.
    """
    head = collector.head
    to_basis = column_space(head.weight).to_basis
    found = []
    for block in collector.blocks("gradients"):
        kept, whole = kept_and_whole(head, to_basis, block.features, block.target, NUMBERS)
        if not whole > 0:
            raise ValueError(f"batch at token {block.first}: the gradient of the logits is {whole}")
        found.append((block.first, len(block.target), kept, whole))
    parts = collector.processes.gather(found)
    if parts is None:
        return None
    batches = [batch for part in parts for batch in part]
    return Retention(
        tokens=sum(count for _, count, _, _ in batches),
        whole=math.sqrt(sum(b[2] for b in batches) / sum(b[3] for b in batches)),
        batches=[math.sqrt(kept / whole) for _, _, kept, whole in batches],
        first=[first for first, _, _, _ in batches],
    )
