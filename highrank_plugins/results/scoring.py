"""Score the output of fairseq-generate: BLEU and chrF, with signatures to repeat them."""

import logging
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from highrank_plugins.analysis.scored_text import Tokens, bleu_tokens, require_joined
from highrank_plugins.common.names import Score, distinct_names
from highrank_plugins.common.text_lines import TextRules, read_text
from highrank_plugins.data.pieces import tokenise

logger = logging.getLogger(__name__)
_PREFIX = re.compile(r"'prefix_size': [1-9]")  # in the options that fairseq-generate logs
_HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")
_GENERATED = re.compile(r"[STHDP]-\d+\t|\d{4}-\d\d-\d\d .* \| INFO \| ")  # any line of its output
# no look-around, as in get_ende_bleu.sh: a letter between two hyphens counts for the first
# only, and the U of Ex-U-Boot stays with Boot
_HYPHEN = re.compile(r"(\S)-(\S)")


def read_hypotheses(generated: Path, count: int) -> list[str]:
    """Return the hypothesis of each of `count` inputs, of fairseq-generate or a line each."""
    lines = read_lines(generated)
    if not any(map(_GENERATED.match, lines)):
        if len(lines) != count:
            raise ValueError(
                f"{generated}: {len(lines)} lines for {count} inputs, and no line of "
                "fairseq-generate (D-0 …); give its output, or one translation per input"
            )
        return lines
    if any(map(_PREFIX.search, lines)):
        logger.warning(
            "%s: generated with --prefix-size, so that translations begin with words of the "
            "references; their score is too high",
            generated,
        )
    nbest = read_nbest(generated, count)
    for number, hypotheses in enumerate(nbest):
        if len(hypotheses) > 1:
            raise ValueError(f"{generated}: several hypotheses D-{number}; generate with --nbest 1")
    return [best for best, *_ in nbest]


def read_nbest(generated: Path, count: int) -> list[list[str]]:
    """Return all detokenised hypotheses of each of `count` inputs, the best first."""
    found: dict[int, list[str]] = {}
    for match in filter(None, map(_HYPOTHESIS.fullmatch, read_lines(generated))):
        found.setdefault(int(match[1]), []).append(match[2])
    missing = sorted(set(range(count)) - found.keys())
    if missing or len(found) != count:
        first = f"; the first input without one is line {missing[0] + 1}" if missing else ""
        raise ValueError(
            f"{generated}: {len(found)} hypotheses for {count} inputs{first}; generate the whole "
            "set that is scored (--gen-subset)"
        )
    if not generated.read_bytes().endswith(b"\n"):
        raise ValueError(f"{generated}: the last line is cut; generate again, or copy it again")
    return [found[number] for number in range(count)]


def read_lines(path: Path) -> list[str]:
    """Return lines, which end with a line feed, or with a carriage return and a line feed."""
    return list(read_text(path, TextRules(foreign=True)))


def read_together(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return the lines with the same number of each file."""
    texts = [read_lines(path) for path in paths]
    for path, text in zip(paths, texts, strict=True):
        if len(text) != len(texts[0]):
            raise ValueError(
                f"{path}: {len(text):,} lines, but {paths[0]} has {len(texts[0]):,}; give files "
                "of one set, one line per sentence"
            )
    return list(zip(*texts, strict=True))


def score(
    hypotheses: list[str], references: list[str], tokens: Tokens | None = None
) -> dict[str, Score]:
    """Return sacreBLEU (cased) and chrF2, for one hypothesis and reference per sentence."""
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references: "
            "the numbers must match and be at least 1"
        )
    require_joined(hypotheses, references)
    bleu = BLEU(tokenize=bleu_tokens(references, tokens))
    scores = {}
    for name, metric in {"sacrebleu": bleu, "chrf": CHRF()}.items():
        value = metric.corpus_score(hypotheses, [references]).score
        scores[name] = Score(round(value, 2), str(metric.get_signature()))
    return scores


def compare(
    baselines: Sequence[Path],
    system: Path,
    hypotheses: list[str],
    references: list[str],
    tokens: Tokens | None = None,
    test: str = "bootstrap",
    samples: int = 0,
) -> dict[str, Any]:
    """Test systems against the first one's translations by sacreBLEU's paired test."""
    from sacrebleu.metrics import BLEU

    from highrank_plugins.analysis.statistics import paired_bleu

    distinct_names([*baselines, system])
    systems = {}
    for path in baselines:
        systems[str(path)] = read_hypotheses(path, len(references))
    systems[str(system)] = hypotheses
    bleu = BLEU(tokenize=bleu_tokens(references, tokens))
    return paired_bleu(systems, [references], test, samples, bleu)


def check_compounds(language: str | None) -> None:
    if language != "de":
        raise ValueError(
            f"--compound-split with --tokenise {language or 'missing'}: compounds are split for "
            "German only (--tokenise de); leave it out for other languages, as papers do"
        )


def tokenised_scores(
    hypotheses: list[str], references: list[str], language: str, *, compound_split: bool = False
) -> dict[str, Score]:
    """Return `bleu_tokenised`, and with `compound_split` `bleu_compound_split`.

    Both sides are tokenised as Moses' tokenizer.perl does it (by sacremoses) and scored as
    multi-bleu.perl does: cased, n-grams up to 4, no smoothing. Splitting makes three tokens of
    `Nord-Süd`, as get_ende_bleu.sh of Tensor2Tensor does, which gives higher scores.
    """
    bleu_tokens(references, "13a")  # Moses' tokens are between blanks, too
    sides = [[tokenise(line, language) for line in side] for side in (hypotheses, references)]
    made = f"pretok:sacremoses-{version('sacremoses')}-{language}"
    scores = {"bleu_tokenised": _bleu(sides, made)}
    if compound_split:
        split = [[split_compounds(line) for line in side] for side in sides]
        scores["bleu_compound_split"] = _bleu(split, f"{made}|compounds:split")
    return scores


def split_compounds(tokens: str) -> str:
    """Turn `Nord-Süd` into `Nord ##AT##-##AT## Süd`."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens)


def _bleu(sides: list[list[str]], made: str) -> Score:
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    hypotheses, references = sides
    value = metric.corpus_score(hypotheses, [references]).score
    return Score(round(value, 2), f"{metric.get_signature()}|{made}")
