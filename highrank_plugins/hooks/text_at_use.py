"""Text reaches a model in use in another way than in training.

What breaks: `fairseq-interactive` and the hub interface glue two words with a no-break space, a
tab, or any other white space but a space between them: `--bpe sentencepiece` and `subword_nmt`
make `<unk>` of both. Without pieces, a word `<pad>` becomes padding, `</s>` an end. An empty line
becomes a word. `--tokenizer moses` takes German for English, unless `--source-lang` names it.
Why: pieces are made between spaces, and fairseq then splits the result at any white space. A beam
search generates something for any source. Tokenisers do not know the languages of the data.
What we do: fold white space before pieces are made, as `highrank data pieces` does it. Refuse words
that fairseq reserves. A sentence without tokens gets an empty hypothesis of score 0, also from
fairseq-generate. Tokenisers get the languages of the task.
Delete when: fairseq does.
"""

from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import interactive
from omegaconf import OmegaConf

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.text_lines import TextError, fold, reserved_word
from highrank_plugins.hooks.scored_samples import hypothesis_of_nothing


@replaces(SentencepieceBPE, "encode")
def encode_by_sentencepiece(stock, bpe, x):
    """Return the pieces of a sentence."""
    return stock(bpe, fold(x))


@replaces(SubwordNMTBPE, "encode")
def encode_by_subword_nmt(stock, bpe, x):
    """Return the pieces of a sentence."""
    return stock(bpe, fold(x))


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


@replaces(interactive, "make_batches")
def make_batches(stock, lines, cfg, task, max_positions, encode_fn):
    """Yield batches of lines."""
    return stock(lines, cfg, task, max_positions, lambda line: _unreserved(encode_fn(line)))


@replaces(GeneratorHubInterface, "binarize")
def binarise(stock, hub, sentence):
    """Return the numbers of a sentence."""
    return stock(hub, _unreserved(sentence))


def _unreserved(sentence: str) -> str:
    if found := reserved_word(sentence):
        raise TextError(
            f"the sentence {sentence[:60]!r} has the word {found[0]}, which fairseq reserves; "
            "remove it"
        )
    return sentence


@replaces(FairseqTask, "inference_step")
def inference_step(stock, task, generator, models, sample, *args, **kwargs):
    """Return the hypotheses of a batch."""
    found = stock(task, generator, models, sample, *args, **kwargs)
    if not isinstance(task, TranslationTask) or isinstance(generator, SequenceScorer):
        return found
    source, words = sample["net_input"]["src_tokens"], task.source_dictionary
    is_word = source.ne(words.pad()) & source.ne(words.eos()) & source.ne(words.bos())
    has_words = is_word.any(1).tolist()
    return [
        hypotheses if has_word else [hypothesis_of_nothing(task, 0.0)]
        for hypotheses, has_word in zip(found, has_words, strict=True)
    ]
