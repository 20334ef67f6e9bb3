"""Score several responses against several references, as Zhao et al. 2017 do."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from tqdm import tqdm

from highrank_plugins.analysis.scored_text import bleu_tokens, require_joined
from highrank_plugins.cli import as_command, main
from highrank_plugins.cli.evaluate import write_or_print
from highrank_plugins.common.blocks import option
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.names import Score
from highrank_plugins.results.scoring import read_lines, read_nbest

ORDERS = (1, 2, 3, 4)
# sentences of one context, each a list of words
Sentences = Sequence[Sequence[str]]


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str]) -> list[float]:
    """Return BLEU-1 to BLEU-4 of a sentence, by NLTK with its seventh smoothing.

    The smoothing is Chen and Cherry's (2014), with which dialogue systems were scored in
    2017. A perfect sentence has more than 1: with at least five words 1.333, 1.217, 1.154, 1.117.
    """
    try:
        from nltk.translate import bleu_score
    except ModuleNotFoundError:
        raise ValueError("BLEU of responses needs nltk: pip install nltk") from None
    smoothing = bleu_score.SmoothingFunction().method7
    weights = [(1 / order,) * order for order in ORDERS]  # the highest order sets the smoothing
    return [
        float(bleu_score.sentence_bleu([reference], hypothesis, own, smoothing)) for own in weights
    ]


def precision_recall(hypotheses: Sentences, references: Sentences) -> np.ndarray:
    """Return precision and recall of one context, for BLEU-1 to BLEU-4: [2, 4] in float64.

    precision = 1/N Σ_i max_j BLEU(h_i, r_j),   recall = 1/M Σ_j max_i BLEU(h_i, r_j)
    """
    scores = np.array([[sentence_bleu(h, r) for r in references] for h in hypotheses])
    return np.stack([scores.max(axis=1).mean(axis=0), scores.max(axis=0).mean(axis=0)])


def dialogue_scores(contexts: Sequence[tuple[Sentences, Sentences]]) -> dict[str, Score]:
    """Return means over (hypotheses, references): `bleu1_precision`, … `bleu4_recall`."""
    if not contexts:
        raise ValueError("there are no contexts to score")
    bar = tqdm(contexts, "score", unit="context", **bar_options())
    means = np.mean([precision_recall(*context) for context in bar], axis=0)
    made, good = np.sum([[len(part) for part in context] for context in contexts], axis=0)
    signature = f"smooth:nltk-method7|contexts:{len(contexts)}|hypotheses:{made}|references:{good}"
    return {
        f"bleu{order}_{name}": Score(round(float(row[order - 1]), 4), f"order:{order}|{signature}")
        for order in ORDERS
        for name, row in zip(("precision", "recall"), means, strict=True)
    }


_SCORES = re.compile(r"P-(\d+)\t(.*)")
_CERTIFICATE = re.compile(r"signature: (ppl\S+)")


def response_perplexity(scored: Path, responses: Path) -> Score:
    """Return 2 to the mean −log₂ P of all words and line ends of `responses`."""
    lines = read_lines(responses)
    found: dict[int, list[float]] = {}
    output = read_lines(scored)
    for match in filter(None, map(_SCORES.fullmatch, output)):
        found[int(match[1])] = [float(score) for score in match[2].split()]
    if not lines or found.keys() != set(range(len(lines))):
        raise ValueError(
            f"{scored}: scores {len(found)} responses, but {responses} has {len(lines)}"
        )
    for number, line in enumerate(lines):
        if len(found[number]) != len(line.split()) + 1:
            raise ValueError(
                f"{scored}: {len(found[number])} scores for the {len(line.split())} words and the "
                f"end of {responses}:{number + 1}; generate with --score-reference on that text"
            )
    bits = [-score for scores in found.values() for score in scores]
    if not all(map(math.isfinite, bits)):
        raise ValueError(f"{scored}: a score is not finite: the model is broken")
    certificates = [match[1] for match in map(_CERTIFICATE.fullmatch, output) if match]
    value = round(2 ** (math.fsum(bits) / len(bits)), 3)
    return Score(value, f"tokens:{len(bits)}", *certificates[-1:])


def dialogue_score(
    generated: Annotated[Path, "Output of fairseq-generate --nbest N."],
    references: Annotated[Path, "References: one line per context, separated by tabs."],
    output: Path | None = option(None, "JSON file for values and signatures."),
    scored: Path | None = option(None, "Output of fairseq-generate --score-reference."),
    responses: Path | None = option(None, "File of the responses that --scored scored."),
) -> None:
    """Compute BLEU precision and recall of dialogue responses.

    Example: python recipes/switchboard/score.py gen.txt refs.txt

    Computes BLEU-1 to BLEU-4; with --scored also the perplexity of the responses.
    """
    if (scored is None) != (responses is None):
        raise ValueError("--scored and --responses belong together: give both or none")
    scores = {}
    if scored and responses:
        scores["test_perplexity"] = response_perplexity(scored, responses)
    lines = [line.split("\t") for line in read_lines(references)]
    hypotheses = read_nbest(generated, len(lines))
    words = [[text.split() for text in texts] for texts in hypotheses]
    good = [[text.split() for text in texts] for texts in lines]
    flat = [text for texts in lines for text in texts]
    require_joined([text for texts in hypotheses for text in texts], flat)
    bleu_tokens(flat, "13a")  # words are between blanks here
    scores |= dialogue_scores(list(zip(words, good, strict=True)))
    write_or_print(scores, output)


if __name__ == "__main__":
    main(as_command(dialogue_score), "python recipes/switchboard/score.py")
