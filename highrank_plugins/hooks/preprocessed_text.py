"""fairseq-preprocess takes text that `highrank data` refuses, and numbers it wrongly.

What breaks: a byte order mark, `<pad>` or `</s>` becomes a word, or the number of padding, with
exit code 0. A carriage return makes two lines of one. Files of different lengths become sentence
pairs that do not belong together. Words that training text lacks become `<unk>`, which a language
model has then never seen: its probability, and the perplexity, mean nothing.
Why: fairseq looks up whatever is between white space, with universal line ends.
What we do: read all text once before anything is written, by the rules of `highrank data binarise`.
Refuse validation and test text of a language model with words that training text lacks, where it
has no `<unk>` either.
Delete when: fairseq checks its text.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairseq.data import Dictionary
from fairseq_cli import preprocess

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import (
    MAX_PIECES,
    UNKNOWN,
    Rules,
    check_texts,
    read_text,
    require_words,
)


@replaces(preprocess, "main")
def main(stock, args):
    """Write numbers of text.

    Raises:
        TextError: see `check_texts` and `require_words`.
    """
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    train, *others = (
        [Path(preprocess._file_name(prefix, language)) for language in languages]
        for prefixes in (args.trainpref or "", args.validpref, args.testpref)
        for prefix in (prefixes.split(",") if prefixes is not None else ())
    )
    rules = Rules(max_words=None if args.only_source else MAX_PIECES)
    if args.trainpref:
        check_texts(train, rules)
    for paths in others:
        check_texts(paths, rules)
    if args.trainpref and args.only_source:
        _require_known_words(args, train[0], [path for (path,) in others])
    return stock(args)


def _require_known_words(args: Namespace, train: Path, others: Sequence[Path]) -> None:
    """Refuse text with words that the dictionary lacks, unless training text has some, too."""
    counts = Counter(word for line in read_text(train) for word in line.split())
    if args.srcdict:
        words = set(Dictionary.load(args.srcdict).indices)
    else:
        frequent = [word for word, count in counts.items() if count >= args.thresholdsrc]
        limit = args.nwordssrc - Dictionary().nspecial if args.nwordssrc > 0 else None
        words = set(frequent[:limit])
    if counts.keys() <= words - {UNKNOWN}:
        for path in others:
            require_words(path, words - {UNKNOWN})
