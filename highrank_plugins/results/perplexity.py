"""Read perplexities of a language model, as its evaluations printed or wrote them."""

import re
from pathlib import Path

from highrank_plugins.common.score import Score
from highrank_plugins.results.scoring import ScoreError

_COUNT = re.compile(r"Evaluated ([\d,]+) tokens")
_LOSS = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity")


def read_eval_lm(log: Path, split: str) -> dict[str, Score]:
    """Return `<split>_perplexity` and `<split>_bits` per token from fairseq-eval-lm's log.

    Every token of the text is predicted; the end of a line is one.

    Raises:
        ScoreError: the log has no result.
    """
    text = log.read_text(encoding="utf-8")
    counts, losses = _COUNT.findall(text), _LOSS.findall(text)
    if not counts or not losses:
        raise ScoreError(f"{log}: fairseq-eval-lm has printed no result")
    bits = float(losses[-1])
    signature = f"tokens:{counts[-1].replace(',', '')}|eval:static"
    return {
        f"{split}_perplexity": Score(round(2**bits, 2), signature),
        f"{split}_bits": Score(bits, signature),
    }
