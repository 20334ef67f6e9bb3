"""Take text as `highrank data` does, in fairseq's commands and its hub interface.

Words. What breaks: fairseq-preprocess takes a byte order mark, `<pad>` and `</s>` for words or its
own symbols, and files of different lengths. Language models are scored on words that training text
lacks. fairseq-interactive and the hub glue words with a tab between them, and tokenise German as
English. Why: fairseq looks up what is between white space; pieces are made between spaces. What we
do: read text as `highrank data binarise` does, before anything is written. Fold white space, refuse
reserved words, and give tokenisers the languages of the task. Delete when: fairseq does.

Lines. What breaks: in the C locale fairseq-interactive translates invalid bytes as `<unk>`; a
carriage return makes two lines; nothing is printed for a line that is skipped; `--lm-path` is
ignored. Why: input has the locale's encoding and universal line ends; no batch is made of the line,
and no language model loaded. What we do: end lines at line feeds only, decode UTF-8 strictly, give
a line left out an empty hypothesis of score -inf and a warning, and refuse the option. Delete when:
fairseq does.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks import FairseqTask
from fairseq_cli import interactive, preprocess
from omegaconf import OmegaConf

from highrank_plugins.common import text_lines
from highrank_plugins.common.names import flag
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import MAX_PIECES, TextRules, check_texts, decoded, is_piece
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.evaluation import SKIPS

logger = logging.getLogger(__name__)


@replaces(preprocess, "main")
def main(stock: Callable, args: Any) -> None:
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    train, valid, test = (
        [[Path(preprocess._file_name(p, name)) for name in languages] for p in prefixes.split(",")]
        if prefixes
        else []
        for prefixes in (args.trainpref, args.validpref, args.testpref)
    )
    rules = TextRules(max_words=None if args.only_source else MAX_PIECES)
    for paths in train + valid + test:
        check_texts(paths, rules)
    known = _words(args, train[0]) if train else None
    for paths in valid + test if known else ():
        if args.only_source:
            text_lines.require_words(paths[0], known)
        else:
            check_texts(paths, TextRules(unknown=False))
    stock(args)


def _words(args: Any, train: list[Path]) -> set[str] | None:
    """Return the words of training text; None if a word of it is, or becomes, <unk>."""
    lines = (line.split() for path in train for line in text_lines.read_text(path))
    counts = Counter(word for words in lines for word in words)
    sides = ("src",) if args.only_source else ("src", "tgt")
    most = max(getattr(args, f"nwords{side}") for side in sides)
    lost = min(counts.values()) < max(getattr(args, f"threshold{side}") for side in sides)
    lost |= 0 < most < len(counts) + Dictionary().nspecial
    words = set(counts)
    if dictionary := args.srcdict or args.tgtdict:
        words = set(Dictionary.load(dictionary).indices)
        lost = bool(counts.keys() - words)
    return None if lost or text_lines.UNKNOWN in counts else words - {text_lines.UNKNOWN}


for encoder in (SentencepieceBPE, SubwordNMTBPE):

    @replaces(encoder, "encode")
    def encode(stock: Callable, bpe: Any, x: str) -> str:
        return stock(bpe, text_lines.fold(x))


@replaces(FairseqTask, "build_tokenizer")
def build_tokenizer(stock: Callable, task: FairseqTask, args: Any) -> Any:
    options = {"source_lang", "target_lang"} & set(args or ())
    languages = {name: getattr(getattr(task, "cfg", None), name, None) for name in options}
    known = {name: language for name, language in languages.items() if language}
    return stock(task, OmegaConf.merge(args, known) if known else args)


@replaces(GeneratorHubInterface, "__init__")
def make_hub(stock: Callable, hub: Any, cfg: Any, task: FairseqTask, models: Any) -> None:
    stock(hub, cfg, task, models)
    hub.tokenizer = task.build_tokenizer(cfg.tokenizer)


@replaces(GeneratorHubInterface, "encode")
def encode_sentence(stock: Callable, hub: Any, sentence: str) -> torch.Tensor:
    decoded("the sentence:1", sentence.encode("utf-8", "surrogatepass"))
    return stock(hub, sentence)


@replaces(GeneratorHubInterface, "binarize")
def binarise(stock: Callable, hub: Any, sentence: str) -> torch.Tensor:
    sentence = text_lines.require_unreserved(sentence)
    _check_known([sentence], hub.src_dict, hub.bpe is None)
    return stock(hub, sentence)


def _check_known(lines: Sequence[str], dictionary: Dictionary, are_whole: bool) -> None:
    """Refuse whole words where a model knows pieces, and say if most words are unknown to it."""
    words = [word for line in lines for word in line.split() if word != "▁"]
    unknown = [word for word in words if dictionary.index(word) == dictionary.unk()]
    known = dictionary.symbols[dictionary.nspecial :][:1000]
    has_pieces = 10 * sum(map(is_piece, known)) > len(known)
    if unknown and are_whole and has_pieces and not any(map(is_piece, words)):
        raise UserError(
            f"the model knows pieces of words, not {unknown[0]!r}: split text as the training text "
            "was (--bpe sentencepiece --sentencepiece-model FILE, or --bpe subword_nmt --bpe-codes "
            "FILE; in Python bpe=…)"
        )
    if 2 * len(unknown) > len(words):
        logger.warning(
            f"{len(unknown):,} of {len(words):,} words or pieces are unknown to the model, such as "
            f"{unknown[0]!r}: was the training text split and tokenised in the same way?"
        )


@replaces(interactive, "main")
def translate_typed(stock: Callable, cfg: Any) -> None:
    options = getattr(cfg, "generation", cfg)
    for name in ("lm_path", "score_reference"):
        if getattr(options, name):
            raise UserError(
                f"{flag(name)} has no effect in fairseq-interactive: leave it out, or use "
                "fairseq-generate"
            )
    stock(cfg)


@replaces(interactive, "buffered_read")
def buffered_read(_stock: Callable, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lines of a file, or of standard input (`-`), in groups of `buffer_size`."""
    name = "standard input" if input == "-" else input
    typed = getattr(sys.stdin, "buffer", ())  # none where standard input is closed
    with nullcontext(typed) if input == "-" else Path(input).open("rb") as file:
        # a tab at the start of a line is of --constraints
        lines = (decoded(f"{name}:{number}", line).rstrip() for number, line in enumerate(file, 1))
        while group := list(islice(lines, buffer_size)):
            yield group


@replaces(interactive, "make_batches")
def make_batches(
    stock: Callable, lines: list[str], cfg: Any, task: Any, max_positions: Any, encode_fn: Callable
) -> Iterator[Any]:
    """Yield batches of lines; those that were skipped come last, without a length."""
    read: list[str] = []

    def encoded(line: str) -> str:
        read.append(text_lines.require_unreserved(encode_fn(line)))
        return read[-1]

    lines = lines if cfg.generation.constraints else [line.strip() for line in lines]
    left = set(range(len(lines)))
    for batch in stock(lines, cfg, task, max_positions, encoded):
        _check_known(read, task.source_dictionary, getattr(cfg.bpe, "_name", None) is None)
        read.clear()
        left.difference_update(batch.ids.tolist())
        yield batch
    for index in sorted(left):
        (tokens,), (length,) = task.get_interactive_tokens_and_lengths([lines[index]], encoded)
        logger.warning(
            f"the line {lines[index][:60]!r} has {length} tokens, more than the model takes "
            f"({max_positions}); {SKIPS} gives it an empty hypothesis of score -inf"
        )
        constraints = torch.zeros(1, 1, dtype=torch.long) if cfg.generation.constraints else None
        no_length = torch.empty(0, dtype=torch.long)
        yield interactive.Batch(torch.tensor([index]), tokens[None], no_length, constraints)
