"""Apply steps of the Moses scripts by sacremoses, as published tokenised scores and BPE do."""

from functools import cache
from typing import Any


@cache
def _tools(language: str) -> tuple[Any, Any]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ModuleNotFoundError:
        raise ValueError(
            "Moses' tokens need sacremoses: pip install sacremoses subword-nmt"
        ) from None
    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)


def normalise_and_tokenise(line: str, language: str) -> str:
    """normalize-punctuation.perl, then tokenizer.perl -a: escaped, `rich-text` as `rich @-@ text`.

    What fairseq's translation examples do before BPE.
    """
    normaliser, tokeniser = _tools(language)
    words: str = tokeniser.tokenize(
        normaliser.normalize(line), aggressive_dash_splits=True, return_str=True
    )
    return words


def tokenise(line: str, language: str) -> str:
    """Tokenise as tokenizer.perl does, whose tokens multi-bleu.perl counts."""
    words: str = _tools(language)[1].tokenize(line, return_str=True)
    return words
