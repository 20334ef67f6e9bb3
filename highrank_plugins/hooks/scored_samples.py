"""fairseq's evaluations score part of the data, or NaN, and end with exit code 0.

What breaks: with `--skip-invalid-size-inputs-valid-test` fairseq-generate prints 1,011 hypotheses
for 1,013 inputs, and a score; a warning stands far above them. fairseq-validate leaves as many out.
On a model of NaN it prints `loss nan`.
Why: the commands sum over what the batches hold, and compare neither number nor value.
What we do: count samples (sentences, or blocks of a language model; tokens of streams) in
fairseq-generate, fairseq-validate and fairseq-eval-lm. Say at the end how many of how many were
scored. Raise if they differ; with the option, warn and name the first ones left out. Raise for a
validation loss that is infinite or NaN. One part of several (`--num-shards`, processes) is counted,
but not compared. Tasks with steps of their own are not counted.
Delete when: fairseq compares both.
"""

import logging
import math
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq_cli import eval_lm, generate, validate

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)
SKIPS = "--skip-invalid-size-inputs-valid-test"


@dataclass
class _Split:
    """Count what is scored of a dataset."""

    dataset: Any
    ids: set[int] = field(default_factory=set)
    tokens: int = 0

    def add(self, sample: dict[str, Any]) -> None:
        if sample:  # empty ones fill up the batches of several processes
            self.ids.update(sample["id"].tolist())
            self.tokens += int(sample["ntokens"])

    def report(self, name: str, skips: bool, is_part: bool) -> None:
        in_tokens = getattr(self.dataset, "counts_tokens", False)
        scored, total = self.tokens if in_tokens else len(self.ids), len(self.dataset)
        unit = "tokens" if in_tokens else f"samples ({self.tokens:,} tokens)"
        logger.info(f"{name}: scored {scored:,} of {total:,} {unit}")
        if scored == total or is_part:
            return
        first = list(islice((i for i in range(total) if i not in self.ids), 10))
        lost = f"{name}: {total - scored:,} of {total:,} samples were not scored"
        lost += "" if in_tokens else f"; the first are {first}, counted from 0"
        if not skips:
            raise ValueError(f"{lost}. The result does not cover the whole data.")
        logger.warning(f"{lost}. {SKIPS} leaves them out; the result covers the others only.")


_splits: ContextVar[dict[str, _Split] | None] = ContextVar("splits", default=None)


@contextmanager
def _counting(cfg: Any) -> Iterator[None]:
    """Count meanwhile, and report every split at the end.

    Raises:
        ValueError: A split was not scored completely, though nobody asked to skip anything.
    """
    splits: dict[str, _Split] = {}
    token = _splits.set(splits)
    try:
        yield
    finally:
        _splits.reset(token)
    is_part = max(cfg.dataset.num_shards, cfg.distributed_training.distributed_world_size) > 1
    for name, split in splits.items():
        if split.ids:
            split.report(name, cfg.dataset.skip_invalid_size_inputs_valid_test, is_part)


def _count(sample: dict[str, Any]) -> bool:
    """Count a sample of the newest split, and return whether anybody counts."""
    splits = _splits.get()
    if splits:
        list(splits.values())[-1].add(sample)
    return bool(splits)


@replaces(FairseqTask, "dataset")
def dataset(stock, task, split):
    """Return the dataset of a split; an evaluation begins to count with it."""
    found = stock(task, split)
    splits = _splits.get()
    if splits is not None and split not in splits:
        splits[split] = _Split(found)
    return found


@replaces(FairseqTask, "valid_step")
def valid_step(stock, task, sample, model, criterion):
    """Return the loss of a batch.

    Raises:
        FloatingPointError: An evaluation meets a loss that is infinite or NaN.
    """
    result = stock(task, sample, model, criterion)
    if _count(sample) and not math.isfinite(result[0]):
        raise FloatingPointError(
            f"the loss of the batch with samples {sample['id'].tolist()[:5]} is {result[0]}: the "
            "model is broken, or --fp16 overflows (try without)"
        )
    return result


@replaces(FairseqTask, "inference_step")
def inference_step(stock, task, generator, models, sample, *args, **kwargs):
    """Return the hypotheses of a batch."""
    hypotheses = stock(task, generator, models, sample, *args, **kwargs)
    _count(sample)
    return hypotheses


@replaces(eval_lm, "eval_lm")
def score_text(stock, *args, batch_iterator, **kwargs):
    """Return loss and perplexity of a text."""

    def counted():
        for sample in batch_iterator:
            _count(sample)
            yield sample

    return stock(*args, batch_iterator=counted(), **kwargs)


@replaces(eval_lm, "main")
def evaluate(stock, cfg, **unused):
    """Run fairseq-eval-lm."""
    with _counting(cfg):
        return stock(cfg, **unused)


@replaces(validate, "main")
def run_validation(stock, cfg, override_args=None):
    """Run fairseq-validate."""
    with _counting(cfg):
        return stock(cfg, override_args)


@replaces(generate, "main")
def run_generation(stock, cfg):
    """Run fairseq-generate."""
    if isinstance(cfg, Namespace):
        cfg = convert_namespace_to_omegaconf(cfg)
    with _counting(cfg):
        return stock(cfg)
