"""fairseq takes text that `highrank data` refuses, and makes other pieces of it in use.

What breaks: fairseq-preprocess takes a byte order mark, `<pad>` and `</s>` for words or its own
symbols, two lines for one with a carriage return, and files of different lengths. A language model
is scored on words that training text lacks, without any `<unk>`. fairseq-interactive and the hub
interface glue words with a tab or no-break space between them. They tokenise German as English
unless `--source-lang` names it. An empty line becomes a word, also in fairseq-generate.
Why: fairseq looks up what is between white space; pieces are made between spaces.
What we do: read text as `highrank data binarise` does, before anything is written. Fold white space
before pieces are made, and refuse reserved words. Tokenisers get the languages of the task. A
sentence without words gets an empty hypothesis of score 0.
Delete when: fairseq does.
"""

from collections import Counter
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import interactive, preprocess
from omegaconf import OmegaConf

from highrank_plugins.common import text_lines
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import MAX_PIECES, UNKNOWN, TextRules, check_texts
from highrank_plugins.hooks.scored_samples import hypothesis_of_nothing


@replaces(preprocess, "main")
def main(stock, args):
    """Write numbers of text that `check_texts` and `require_words` accept."""
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    train, valid, test = (
        [[Path(preprocess._file_name(prefix, name)) for name in languages] for prefix in prefixes]
        for prefixes in (
            own.split(",") if own else [] for own in (args.trainpref, args.validpref, args.testpref)
        )
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
    return stock(args)


def _words(args, train: list[Path]) -> set[str] | None:
    """Return the words of training text; None if a word of it is, or becomes, <unk>."""
    lines = (line.split() for path in train for line in text_lines.read_text(path))
    counts = Counter(word for words in lines for word in words)
    most = max(args.nwordssrc, args.nwordstgt)
    lost = min(counts.values()) < max(args.thresholdsrc, args.thresholdtgt)
    lost |= 0 < most < len(counts) + Dictionary().nspecial
    if dictionary := args.srcdict or args.tgtdict:
        words = set(Dictionary.load(dictionary).indices)
        return None if counts.keys() - words or UNKNOWN in counts else words - {UNKNOWN}
    return None if lost or UNKNOWN in counts else set(counts)


for encoder in (SentencepieceBPE, SubwordNMTBPE):

    @replaces(encoder, "encode")
    def encode(stock, bpe, x):
        """Return the pieces of a sentence."""
        return stock(bpe, text_lines.fold(x))


@replaces(FairseqTask, "build_tokenizer")
def build_tokenizer(stock, task, args):
    """Return the tokeniser, for the languages of the task."""
    options = {"source_lang", "target_lang"} & set(args or ())
    languages = {name: getattr(getattr(task, "cfg", None), name, None) for name in options}
    known = {name: language for name, language in languages.items() if language}
    return stock(task, OmegaConf.merge(args, known) if known else args)


@replaces(GeneratorHubInterface, "__init__")
def make_hub(stock, hub, cfg, task, models):
    """Make a translator or a language model to call from Python."""
    stock(hub, cfg, task, models)
    hub.tokenizer = task.build_tokenizer(cfg.tokenizer)


@replaces(GeneratorHubInterface, "encode")
def encode_sentence(stock, hub, sentence):
    """Return the numbers of a sentence as people write it."""
    text_lines.decode_line("the sentence", 1, sentence.encode("utf-8", "surrogatepass"))
    return stock(hub, sentence)


@replaces(GeneratorHubInterface, "binarize")
def binarise(stock, hub, sentence):
    """Return the numbers of a sentence."""
    return stock(hub, text_lines.require_unreserved(sentence))


@replaces(interactive, "make_batches")
def make_batches(stock, lines, cfg, task, max_positions, encode_fn):
    """Yield batches of lines."""

    def encoded(line):
        return text_lines.require_unreserved(encode_fn(line))

    lines = lines if cfg.generation.constraints else [line.strip() for line in lines]
    return stock(lines, cfg, task, max_positions, encoded)


@replaces(FairseqTask, "inference_step")
def inference_step(stock, task, generator, models, sample, *args, **kwargs):
    """Return the hypotheses of a batch."""
    found = stock(task, generator, models, sample, *args, **kwargs)
    if not isinstance(task, TranslationTask) or isinstance(generator, SequenceScorer):
        return found
    source, words = sample["net_input"]["src_tokens"], task.source_dictionary
    has_words = source.ne(words.pad()) & source.ne(words.eos()) & source.ne(words.bos())
    return [
        hypotheses if any_word else [hypothesis_of_nothing(task, 0.0)]
        for hypotheses, any_word in zip(found, has_words.any(1).tolist(), strict=True)
    ]
