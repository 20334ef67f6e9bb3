"""A batch that does not fit into memory is skipped, or ends a training run without being named.

What breaks: on a GPU fairseq skips a batch that runs out of memory, warns, and ends with exit code
0: its longest sentences are never trained on. On a CPU, in generation and in evaluation the error
says neither which batch it was nor what to lower.
Why: `Trainer.train_step` returns early at an error with the words "out of memory"; no other place
handles it.
What we do: end with an error that has the batch's sentences, tokens and longest sentence, and the
options to lower, with their values. `--max-tokens` and `--update-freq` may change when a run
resumes, so nothing is lost. A validation in a training run is tried again first, as fairseq does.
Delete when: fairseq names the batch, and trains on all of them.
"""

from typing import Any

import torch
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

# messages of torch for a CPU, for a GPU, and of the GPU's matrix libraries
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
_SIZES = {"sentences": "nsentences", "tokens": "ntokens"}


class BatchMemoryError(UserError):
    """Report a batch that does not fit into memory, and what to lower."""


@replaces(Trainer, "_prepare_sample")
def _prepare_sample(stock, trainer, sample, is_dummy=False):
    """Prepare a batch, and remember it as the one to name in errors."""
    vars(trainer)["running_batch"] = sample
    return stock(trainer, sample, is_dummy)


@replaces(Trainer, "train_step")
def train_step(stock, trainer, samples, raise_oom=False):
    """Do one update."""
    try:
        return stock(trainer, samples, True)
    except (MemoryError, RuntimeError) as error:
        place = f"in update {trainer.get_num_updates() + 1}"
        _raise_named(error, place, vars(trainer).get("running_batch"), _remedy(trainer.cfg))
        raise
    finally:
        vars(trainer).pop("running_batch", None)


@replaces(Trainer, "valid_step")
def valid_step(stock, trainer, sample, raise_oom=False):
    """Validate on one batch."""
    try:
        return stock(trainer, sample, raise_oom)
    except (MemoryError, RuntimeError) as error:
        remedy = "Lower --max-tokens-valid or --batch-size-valid. Then run the same command again"
        _raise_named(error, "in a validation", sample, remedy)
        raise


@replaces(FairseqTask, "inference_step")
def inference_step(stock, task, generator, models, sample, *args, **kwargs):
    """Generate from one batch."""
    try:
        return stock(task, generator, models, sample, *args, **kwargs)
    except (MemoryError, RuntimeError) as error:
        remedy = "Lower --max-tokens, --batch-size or --beam"
        _raise_named(error, "in generation", sample, remedy)
        raise


@replaces(SequenceScorer, "generate")
def score(stock, scorer, models, sample, **kwargs):
    """Compute the probabilities of one batch's words."""
    try:
        return stock(scorer, models, sample, **kwargs)
    except (MemoryError, RuntimeError) as error:
        remedy = "Lower --max-tokens, --batch-size or --softmax-batch"
        _raise_named(error, "in scoring", sample, remedy)
        raise


def _raise_named(error: Exception, place: str, sample: Any, remedy: str) -> None:
    """Raise an error that names the batch if memory ran out."""
    is_short = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    is_short = is_short or any(words in str(error) for words in _WORDS)
    if is_short:
        text = f"Out of memory {place}: {_describe(sample)}. {remedy}"
        raise BatchMemoryError(text) from error


def _describe(sample: Any) -> str:
    """Return the size of a batch from its shapes, which needs no memory."""
    if not sample:
        return "not in a batch"
    sizes = [f"{int(sample[key]):,} {name}" for name, key in _SIZES.items() if key in sample]
    tokens = {
        "source": (sample.get("net_input") or {}).get("src_tokens"),
        "target": sample.get("target"),
    }
    longest = [
        f"{value.size(1):,} in the {name}"
        for name, value in tokens.items()
        if isinstance(value, torch.Tensor) and value.dim() > 1
    ]
    return f"a batch of {', '.join(sizes)}; the longest sentence has {', '.join(longest)}"


def _remedy(cfg: Any) -> str:
    """Return the options to lower, with the values of the training run."""
    freq = cfg.optimization.update_freq
    if cfg.dataset.max_tokens is not None:
        first = (
            f"Halve --max-tokens (now {cfg.dataset.max_tokens}) and double --update-freq (now "
            f"{','.join(map(str, freq))}): each update then has as many tokens as before"
        )
    else:
        first = f"Lower --batch-size (now {cfg.dataset.batch_size})"
    memory = getattr(cfg.model, "head_loss_memory", "none")
    chunk = ""
    if memory != "none":
        chunk = f" --head-loss-memory MIB (now {memory or 'chosen'}) bounds a chunk of the loss."
    return (
        f"{first}.{chunk} --checkpoint-activations stores fewer activations. Then run the "
        "same command again: it resumes from the last checkpoint"
    )
