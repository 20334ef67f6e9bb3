"""`highrank evaluate …`: from a checkpoint to translations and scores."""

from highrank_plugins.cli.evaluate.adaptive import cache_eval, dynamic_eval
from highrank_plugins.cli.evaluate.generate import generate
from highrank_plugins.cli.evaluate.score import dialogue_score, score
from highrank_plugins.cli.group import make_group

evaluate = make_group(
    {
        "generate": generate,
        "score": score,
        "dialogue-score": dialogue_score,
        "dynamic": dynamic_eval,
        "cache": cache_eval,
    }
)
