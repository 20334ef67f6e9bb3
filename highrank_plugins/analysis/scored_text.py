"""Refuse translations and references whose BLEU would mean nothing, and choose its tokens."""

import logging
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

from highrank_plugins.common.text_lines import PIECES
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
Tokens = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char"]
# tokens of sacreBLEU → the package they need
_NEEDS = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
# scripts that do not put blanks between words → characters, and sacreBLEU's tokens for them
_SCRIPTS: dict[str, tuple[str, Tokens | None]] = {
    "Japanese": ("\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f", "ja-mecab"),
    "Chinese": ("\u2e80-\u2fdf\u3100-\u312f\u31a0-\u31bf\u3400-\u9fff\uf900-\ufaff"
                "\U00020000-\U0003ffff", "zh"),
    "Korean": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff", "ko-mecab"),
    "Thai, Lao, Tibetan or Burmese": ("\u0e00-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f", None),
    "Khmer, Tai, Javanese, Balinese, Yi or Tangut": (
        "\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua000-\ua4cf\ua980-\ua9df"
        "\U00016fe0-\U00018dff", None),
    "lines of words that are too long": ("", None),
}  # fmt: skip
# what both sides may have: entities, wrong joins, letters, symbols, tags, scores and unknown words
_NO_TEXT = (
    r"&(?:quot|apos|amp|lt|gt|#\d+);", r"\w@@\w", r"(?<!\S)_\w.*\s_\w",
    r"(?<!\w)\w(?: ?\| ?\w(?!\w)){2}|(?<!\S)\w \| \w(?!\S)", r"(?<!\S)</?(?:s|pad|mask)>(?!\S)",
    r"^(?:__\w+__|\[\w+_\w+\]|<(?:2\w+|[a-z][a-z])>)(?!\S)", r"^-?\d+(?:\.\d+)?(?:e-?\d+)?\t",
    r"^(?:(?:(?!<unk>|⁇)\S+\s+)?(?:<unk>|⁇)\s*){2,}(?:\S+\s*)?$",
)  # fmt: skip


def separates_words(text: str) -> bool:
    """Whether blanks separate the words of a text: less than a tenth is of scripts without them."""
    scripts = "".join(characters for characters, _ in _SCRIPTS.values())
    letters = "".join(text.split())
    return 10 * len(re.findall(f"[{scripts}]", letters)) < max(len(letters), 1)


def bleu_tokens(references: Sequence[str], chosen: Tokens | None = None) -> Tokens:
    """Return sacreBLEU's tokens for the references' script, 13a where blanks separate words."""
    words = " ".join(references).split()
    text = "".join(words)
    for language, (characters, tokens) in _SCRIPTS.items():
        found = re.findall(f"[{characters}]", text) if characters else ()
        if 10 * len(found) < max(len(text), 1) and (characters or len(text) <= 20 * len(words)):
            continue
        if (chosen or tokens or "13a") not in (tokens, "char"):
            raise UserError(
                f"the references are {language}: blanks do not separate words, so BLEU of "
                f"{chosen or '13a'} tokens means nothing; choose --bleu-tokens char"
                f"{f' or {tokens}' if tokens else ''}"
            )
        chosen = chosen or tokens
        break
    else:
        if chosen in ("zh", "ja-mecab", "ko-mecab"):
            raise UserError(
                f"tokens {chosen} are made for another language: less than a tenth of the "
                "references is in its script; leave out --bleu-tokens, or choose 13a, intl or char"
            )
    chosen = chosen or "13a"
    if (package := _NEEDS.get(chosen)) and find_spec(package) is None:
        raise UserError(
            f"tokens {chosen} need a package: pip install 'sacrebleu[{chosen[:2]}]', or choose "
            "--bleu-tokens char"
        )
    return chosen


def require_joined(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse text in pieces, tokens or characters, or with marks; say it if text is missing."""
    _require_words(hypotheses, references)
    for pattern in (*PIECES, *_NO_TEXT):
        sides = [list(filter(None, (re.search(pattern, line) for line in side)))
                 for side in (hypotheses, references)]  # fmt: skip
        ours, theirs = map(len, sides)
        both = 2 * theirs > len(references) and (pattern in PIECES or theirs > 2 * ours)
        # a few lines of a short text are no evidence
        least = max(len(hypotheses) / 100, min(3, len(hypotheses) / 2))
        if both or ours > max(2 * theirs, least):
            name, found = ("references", sides[1]) if both else ("translations", sides[0])
            raise UserError(
                f"{len(found):,} of the {name} have {found[0][0][:40]!r}, as text in pieces or "
                "tokens that nobody joined, or with marks that are no text: generate with "
                "--post-process sentencepiece or subword_nmt, and --tokenizer moses for Moses' "
                "tokens; remove other marks; and score against raw references"
            )
        if theirs > max(2 * ours, least):
            logger.warning(
                "%d of %d references have %r, %d of the translations: score against raw references",
                theirs, len(references), sides[1][0][0][:40], ours)  # fmt: skip
    lost = sum(not line.strip() for line in hypotheses)
    letters = [len("".join("".join(side).split())) for side in (hypotheses, references)]
    is_short = len(hypotheses) == len(references) and 5 * letters[0] < 4 * letters[1]
    if is_short or lost > sum(not line.strip() for line in references):
        logger.warning(
            "the translations have %.0f %% of the references' characters; %d of %d are empty",
            100 * letters[0] / max(letters[1], 1), lost, len(hypotheses))  # fmt: skip


def _require_words(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse translations that are empty, or whose units are not the references' words."""
    if hypotheses and not any(line.strip() for line in hypotheses):
        raise UserError("all translations are empty: there is nothing to score")
    lengths = [_word_length(side) for side in (hypotheses, references)]
    said = "the translations have {:.1f} letters between blanks, the references {:.1f}"
    if max(lengths) < 2:
        logger.warning("%s; BLEU of characters is none of words", said.format(*lengths))
    elif min(lengths) < 2 and max(lengths) > 2.5:
        raise UserError(
            f"{said.format(*lengths)}: join the characters into words; if the model wrote letters, "
            "it has hardly learnt: train it longer"
        )
    elif lengths[0] > 20 >= lengths[1]:
        raise UserError(f"{said.format(*lengths)}: put the blanks back between the words")


def _word_length(lines: Sequence[str]) -> float:
    """Return the letters of a word on average, at least 2 for scripts without blanks."""
    words = " ".join(lines).split()
    text = "".join(words)
    is_other = len(words) < 20 or not separates_words(text)
    mean = len(text) / max(len(words), 1)
    return max(mean, 2.0) if is_other else mean
