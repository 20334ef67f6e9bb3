"""Refuse text whose BLEU would mean nothing: other units than words, or pieces of them."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

from highrank_plugins.common.user_error import UserError

Tokens = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char"]
# tokens of sacreBLEU → the package they need
_NEEDS = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
# scripts that do not put blanks between words → characters, and sacreBLEU's tokens for them
_SCRIPTS: dict[str, tuple[str, Tokens | None]] = {
    "Japanese": ("\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f", "ja-mecab"),
    "Chinese": ("\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff", "zh"),
    "Korean": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff", "ko-mecab"),
    "Thai, Lao, Tibetan or Burmese": ("\u0e00-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f", None),
    "Khmer or Tai": ("\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf", None),
}
# what SentencePiece, subword-nmt, WordPiece, others and Moses leave in text that nobody joined
_LEFT = (
    "▁", r"@@(?!\S)", r"(?<!\S)##\w", "Ġ|</w>|￭", r"(?<!\S)@[-,.:/]@(?!\S)",
    r"&(?:quot|apos|amp|lt|gt|#\d+);",
)  # fmt: skip


def bleu_tokens(references: Sequence[str], chosen: Tokens | None = None) -> Tokens:
    """Return sacreBLEU's tokens for the references' script, 13a where blanks separate words."""
    text = "".join("".join(line.split()) for line in references)
    for language, (characters, tokens) in _SCRIPTS.items():
        if 10 * len(re.findall(f"[{characters}]", text)) < max(len(text), 1):
            continue
        if chosen in ("13a", "intl") or (chosen or tokens) is None:
            raise UserError(
                f"the references are {language}: blanks do not separate words, so BLEU of "
                f"{chosen or '13a'} tokens means nothing; choose --bleu-tokens char"
            )
        chosen = chosen or tokens
        break
    chosen = chosen or "13a"
    if (package := _NEEDS.get(chosen)) and find_spec(package) is None:
        raise UserError(
            f"tokens {chosen} need a package: pip install 'sacrebleu[{chosen[:2]}]', or choose "
            "--bleu-tokens char"
        )
    return chosen


def require_joined(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse text in pieces, or in tokens, which is not what the references are."""
    for pattern in _LEFT:
        sides = [list(filter(None, (re.search(pattern, line) for line in side)))
                 for side in (hypotheses, references)]  # fmt: skip
        ours, theirs = map(len, sides)
        both = 2 * theirs > len(references)
        if both or ours > max(2 * theirs, len(hypotheses) / 100):
            name, found = ("references", sides[1]) if both else ("translations", sides[0])
            raise UserError(
                f"{len(found):,} of the {name} have {found[0][0]!r}, as text in pieces or tokens "
                "that nobody joined: generate with --post-process sentencepiece or subword_nmt, "
                "and --tokenizer moses for Moses' tokens, and score against raw references"
            )
