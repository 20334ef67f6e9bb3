"""Generate and score without NaN, and name the batch that does not fit into memory.

Memory. What breaks: on a GPU fairseq skips a batch that runs out of memory, and ends with exit code
0: its longest sentences are never trained on. Elsewhere the error does not name the batch. Why:
`Trainer.train_step` returns early at the words "out of memory". What we do: end with the batch's
sizes, and the options to lower. Delete when: fairseq names the batch, and trains on all of them.

Scores. What breaks: a model that yields NaN still translates, or ends in `AssertionError: 200 <
200`; infinite scores are left out of a perplexity; `--lm-path` adds the scores of other words; a
sentence without words is translated to some word. Why: `SequenceGenerator` turns NaN into minus
infinity, fairseq-eval-lm filters scores, and neither compares dictionaries. What we do: raise; give
an empty hypothesis of score 0. Delete when: fairseq does so.

Costs. What breaks: a beam search normalises log-probabilities twice (4 % of Mixtape's steps on a
CPU), and scoring holds those of all classes to read one per token. Why: fairseq divides by
`--temperature`, even by 1. What we do: tell models that nothing divides their output, and take the
scores of the targets alone from models with a head. Delete when: fairseq does not divide by 1.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask

from highrank_plugins.common.patching import by_name, replaces
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.checkpoints import how_to_resume
from highrank_plugins.hooks.evaluation import newest

# messages of torch for a CPU, for a GPU, and of the GPU's matrix libraries
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
# values of --post-process that join at a blank → the mark that their words have
_MARKS = {"sentencepiece": "▁", "wordpiece": "_", "letter": "|", "_EOW": "_EOW"}
_SIZES = ("sentences", "tokens")


@contextmanager
def named_in_memory_errors(place: str, batch: Callable[[], Any], lower: str) -> Iterator[None]:
    """Name a batch, as it is when memory runs out, and the options to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_short = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not is_short and not any(words in str(error) for words in _WORDS):
            raise
        raise UserError(f"Out of memory {place}: {_describe(batch())}. {lower}") from error


def _describe(sample: Any) -> str:
    """Describe a batch by its shapes, which needs no memory."""
    if not sample:
        return "not in a batch"
    sizes = [f"{int(sample[f'n{name}']):,} {name}" for name in _SIZES if f"n{name}" in sample]
    source = (sample.get("net_input") or {}).get("src_tokens")
    longest = "" if source is None else f"; the longest sentence has {source.size(1):,} tokens"
    return f"a batch of {', '.join(sizes)}{longest}"


def training_remedy(cfg: Any) -> str:
    """Return the options to lower, with the values of the training run."""
    first = f"Lower --batch-size (now {cfg.dataset.batch_size})"
    if cfg.dataset.max_tokens is not None:
        first = (
            f"Halve --max-tokens (now {cfg.dataset.max_tokens}) and double --update-freq (now "
            f"{','.join(map(str, cfg.optimization.update_freq))}): each update then has as many "
            "tokens as before"
        )
    return (
        f"{first}. --checkpoint-activations stores fewer activations. Then "
        f"{how_to_resume(cfg.checkpoint)} from the last checkpoint"
    )


@replaces(utils, "post_process_prediction")
def join(stock: Callable, *args: Any, **options: Any) -> Any:
    given = by_name(stock, *args, **options)
    tgt_dict, remove_bpe = given["tgt_dict"], given.get("remove_bpe")
    mark = _MARKS.get(remove_bpe or "")
    if mark and not any(mark in word for word in tgt_dict.symbols[tgt_dict.nspecial :]):
        raise UserError(
            f"--post-process {remove_bpe}: no word of the dictionary has {mark!r}, so it would "
            "glue words together; leave it out, or name what split the text"
        )
    return stock(*args, **options)


@replaces(FairseqTask, "inference_step")
def inference_step(
    stock: Callable, task: Any, generator: Any, models: Any, sample: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return the hypotheses of a batch; lines that were skipped or are empty get empty ones."""
    lengths = sample["net_input"].get("src_lengths")
    if lengths is not None and lengths.numel() == 0:  # from `make_batches`
        return [[_hypothesis_of_nothing(task, -math.inf)]]
    lower = "Lower --max-tokens, --batch-size or --beam"
    with named_in_memory_errors("in generation", lambda: sample, lower):
        found = stock(task, generator, models, sample, *args, **kwargs)
    if not isinstance(task, TranslationTask) or isinstance(generator, SequenceScorer):
        return found
    source, words = sample["net_input"]["src_tokens"], task.source_dictionary
    has_words = source.ne(words.pad()) & source.ne(words.eos()) & source.ne(words.bos())
    return [
        hypotheses if any_word else [_hypothesis_of_nothing(task, 0.0)]
        for hypotheses, any_word in zip(found, has_words.any(1).tolist(), strict=True)
    ]


def _hypothesis_of_nothing(task: FairseqTask, score: float) -> dict[str, Any]:
    tokens, scores = torch.tensor([task.target_dictionary.eos()]), torch.tensor([score])
    return {"tokens": tokens, "score": scores[0], "positional_scores": scores, "alignment": []}


def refuse_nan(scores: torch.Tensor, source: str) -> None:
    """Raise FloatingPointError if `scores` (log-probabilities or logits) contain NaN."""
    # a sum of finite values and -inf is never NaN, and needs no second large tensor
    if scores.sum(dtype=torch.float32).isnan():
        raise FloatingPointError(
            f"{source} returned NaN: the checkpoint is broken, or --fp16 overflows (try without)"
        )


@replaces(EnsembleModel, "forward_decoder")
def forward_decoder(
    stock: Callable, ensemble: Any, tokens: Any, encoder_outs: Any, states: Any,
    temperature: float = 1.0,
) -> Any:  # fmt: skip
    """Take one decoding step: return log-probabilities [sentences * beam, M], and attention."""
    with ExitStack() as stack:
        for model in (model for model in ensemble.models if hasattr(model, "as_returned")):
            stack.callback(setattr, model, "as_returned", False)
            model.as_returned = temperature == 1  # nothing divides its output
        found = stock(ensemble, tokens, encoder_outs, states, temperature)
    refuse_nan(found[0], "the model (--path)")
    return found


@replaces(SequenceGenerator, "__init__")
def init(stock: Callable, generator: Any, *args: Any, **kwargs: Any) -> None:
    """Construct; check the language model, whose scores do not pass through `forward_decoder`."""
    stock(generator, *args, **kwargs)
    model = generator.lm_model
    if model is None:
        return
    name = "the language model (--lm-path)"
    model.register_forward_hook(lambda _model, _inputs, output: refuse_nan(output[0], name))
    if isinstance(model, FairseqEncoderDecoderModel):
        raise UserError("--lm-path: this checkpoint has an encoder, so it is not a language model")
    words = getattr(getattr(model, "decoder", None), "dictionary", None)
    if words is not None and words != generator.tgt_dict:
        raise UserError(
            "--lm-path: the dictionary of the language model is not the target dictionary of the "
            "translation model: train it on data binarised with --srcdict dict.TARGET.txt"
        )


@replaces(SequenceScorer, "generate")
def score(stock: Callable, scorer: Any, models: Any, sample: Any, **kwargs: Any) -> Any:
    """Score the targets; raise FloatingPointError, with a sentence, if a score is not finite."""
    lower = "Lower --max-tokens, --batch-size or --softmax-batch"
    with named_in_memory_errors("in scoring", lambda: sample, lower):
        lean = [
            model.target_scores(sample["target"]) if hasattr(model, "target_scores") else model
            for model in models
        ]
        split = newest()
        watch = split.followed(models) if split else None
        taps = watch.taps(lean, sample) if watch else lean
        hypotheses = stock(scorer, taps, sample, **kwargs)
    scores = torch.cat([best["positional_scores"].float() for best, *_ in hypotheses])
    if not scores.isfinite().all():
        wrong = int((~scores.isfinite()).sum())
        raise FloatingPointError(
            f"{wrong} of {scores.numel()} log-probabilities in the batch of sentences "
            f"{sample['id'].tolist()[:5]} are infinite or NaN, so no perplexity can be given: "
            "the model is broken, or --fp16 overflows (try without)"
        )
    if watch:
        watch.add(taps, sample["target"], hypotheses)
    return hypotheses
