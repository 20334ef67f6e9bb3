"""Split text as published translation models do: Moses' tokens, then BPE of subword-nmt."""

import logging
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from highrank_plugins.common.text_lines import fold
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.ordered_map import batches, ordered_map
from highrank_plugins.data.pieces import BATCH, Encoder, sampled_lines

logger = logging.getLogger(__name__)


@cache
def _tools(language: str) -> tuple[Any, Any]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ModuleNotFoundError:
        raise ValueError(
            "Moses' tokens need sacremoses: pip install sacremoses subword-nmt"
        ) from None
    if language not in NonbreakingPrefixes().available_langs.values():
        logger.warning(
            "Moses has no abbreviations of language %r; using those of English", language
        )
    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)


def normalise_and_tokenise(line: str, language: str) -> str:
    """Apply normalize-punctuation.perl, then tokenizer.perl -a, as fairseq's examples do.

    Tokens are escaped, and `rich-text` becomes `rich @-@ text`. White space is folded first, which
    normalisation would partly drop.
    """
    normaliser, tokeniser = _tools(language)
    words: str = tokeniser.tokenize(
        normaliser.normalize(fold(line)), aggressive_dash_splits=True, return_str=True
    )
    return words


def tokenise(line: str, language: str) -> str:
    """Tokenise as tokenizer.perl does, whose tokens multi-bleu.perl counts."""
    words: str = _tools(language)[1].tokenize(line, return_str=True)
    return words


def learn_codes(
    texts: dict[str, Path],
    codes: Path,
    *,
    operations: int,
    sample: int | None = None,
    processes: int = 1,
) -> Path:
    """Learn merges for all texts (by language), and write them as subword-nmt does.

    There are fewer than `operations` if no pair is left that occurs twice. `learn_pieces` says what
    `sample` is.
    """
    from subword_nmt.learn_bpe import learn_bpe

    tokens = chain.from_iterable(
        chain.from_iterable(
            ordered_map(
                partial(_tokenise, language), batches(sampled_lines(text, sample), BATCH), processes
            )
        )
        for language, text in texts.items()
    )
    with codes.open("w", encoding="utf-8", newline="\n") as file:
        try:
            learn_bpe(tokens, file, operations)
        except UserError:
            raise
        except ValueError:  # of subword-nmt, if no word has two characters
            file.truncate(0)
    if len(codes.read_bytes().splitlines()) < 2:
        raise UserError(
            f"{', '.join(map(str, texts.values()))}: no two characters stand together twice, "
            "so that nothing can be merged; give more text"
        )
    return codes


def encoder(codes: Path, language: str) -> Encoder:
    """Return a function that tokenises and splits lines; it can be pickled."""
    return partial(_encode, str(codes), language)


def _tokenise(language: str, lines: list[str]) -> list[str]:
    return [normalise_and_tokenise(line, language) for line in lines]


def _encode(codes: str, language: str, lines: list[str]) -> list[str]:
    return [_bpe(codes).process_line(line) for line in _tokenise(language, lines)]


@cache
def _bpe(codes: str) -> Any:
    from subword_nmt.apply_bpe import BPE

    with open(codes, encoding="utf-8") as file:
        return BPE(file)
