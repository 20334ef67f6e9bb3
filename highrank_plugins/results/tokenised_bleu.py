"""Compute BLEU of tokens, as papers before sacreBLEU do, only to compare with theirs."""

import re
from importlib.metadata import version

from highrank_plugins.common.score import Score
from highrank_plugins.data.moses import tokenise
from highrank_plugins.results.scoring import ScoreError

# without look-around, as get_ende_bleu.sh has it: what is around one hyphen is not around another,
# and the U of Ex-U-Boot stays with Boot
_HYPHEN = re.compile(r"(\S)-(\S)")


def check_compounds(language: str | None) -> None:
    """Refuse compound splitting, a habit of papers on English–German, for other languages.

    Raises:
        ScoreError: for another target language, or without tokens.
    """
    if language != "de":
        raise ScoreError(
            f"--compound-split with --tokenise {language or 'missing'}: compounds are split for "
            "German only (--tokenise de); the published scores of other pairs do without"
        )


def score(
    hypotheses: list[str], references: list[str], language: str, *, compound_split: bool = False
) -> dict[str, Score]:
    """Return `bleu_tokenised`, and with `compound_split` `bleu_compound_split`.

    Both sides are tokenised as Moses' tokenizer.perl does it (by sacremoses) and scored as
    multi-bleu.perl does: cased, n-grams up to 4, no smoothing. Splitting makes three tokens of
    `Nord-Süd`, as get_ende_bleu.sh of Tensor2Tensor does, which gives higher scores.

    Raises:
        ScoreError: see `check_compounds`.
    """
    if compound_split:
        check_compounds(language)
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
