"""fairseq's evaluations score part of the data, or NaN, and end with exit code 0.

What breaks: with `--skip-invalid-size-inputs-valid-test` fairseq-generate prints 1,011 hypotheses
for 1,013 inputs, and a score; a warning stands far above them. fairseq-validate leaves as many out.
On a model of NaN it prints `loss nan`. If all samples are left out, both end in a
ZeroDivisionError.
Why: the commands sum over the batches, and check neither their number nor the sum.
What we do: count samples (sentences, or blocks of a language model; tokens of streams) in
fairseq-generate, fairseq-validate and fairseq-eval-lm. Say at the end how many of how many were
scored. Raise if they differ, also with that option, and name the first ones left out. Raise for a
validation loss that is infinite or NaN. Processes of one evaluation compare what they scored
together; a separate part (`--num-shards`) says which part of the text it is, and may be empty.
Tasks with steps of their own are not counted. In fairseq-interactive a line that the option leaves
out gets an empty hypothesis of score -inf and a warning, so that outputs stay line for line. A
training run with `--max-valid-steps` warns at its start that it validates on a part, with the
numbers of batches.
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

import torch
import torch.distributed as dist
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from fairseq_cli import eval_lm, generate, interactive, validate

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
SKIPS = "--skip-invalid-size-inputs-valid-test"


@dataclass
class _Split:
    """Count what is scored of a dataset."""

    dataset: Any
    ids: set[int] = field(default_factory=set)
    tokens: int = 0

    def add(self, sample: dict[str, Any]) -> None:
        if sample:  # several processes pad their batches with empty ones
            self.ids.update(sample["id"].tolist())
            self.tokens += int(sample["ntokens"])

    def report(self, name: str, skips: bool, part: int, parts: int) -> None:
        in_tokens = getattr(self.dataset, "counts_tokens", False)
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._gather()
            parts = 1
        scored, total = self.tokens if in_tokens else len(self.ids), len(self.dataset)
        unit = "tokens" if in_tokens else f"samples ({self.tokens:,} tokens)"
        logger.info(f"{name}: scored {scored:,} of {total:,} {unit}")
        if scored == total:
            if parts > 1:
                logger.warning(
                    f"{name}: everything was scored. Either this part has the only batch, or the "
                    f"command ignores --num-shards {parts}"
                )
            return
        if parts > 1:
            logger.info(
                f"{name}: this is part {part + 1} of {parts}. All parts together must score "
                f"{total:,}"
            )
            return
        first = list(islice((i for i in range(total) if i not in self.ids), 10))
        lost = f"{name}: {total - scored:,} of {total:,} samples were not scored"
        lost += "" if in_tokens else f"; the first are {first}, counted from 0"
        lost += ". The result does not cover the whole data."
        if skips:
            raise UserError(f"{lost} {SKIPS} leaves samples out: shorten or remove them")
        raise ValueError(lost)

    def _gather(self) -> None:
        """Add what the other processes have scored; all of them must call it."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (self.ids, self.tokens))
        self.ids = set().union(*(ids for ids, _ in found))
        self.tokens = sum(tokens for _, tokens in found)


_splits: ContextVar[dict[str, _Split] | None] = ContextVar("splits", default=None)


@contextmanager
def _counting(cfg: Any) -> Iterator[None]:
    """Count while the block runs, and report every split at its end."""
    splits: dict[str, _Split] = {}
    token, empty = _splits.set(splits), None
    try:
        yield
    except ZeroDivisionError:  # fairseq divides by what was scored of the newest split
        empty = next(reversed(splits), None)
        if empty is None or splits[empty].ids:
            raise
    finally:
        _splits.reset(token)
    ranks = cfg.distributed_training
    parts = max(cfg.dataset.num_shards, ranks.distributed_world_size)
    part = max(cfg.dataset.shard_id, ranks.distributed_rank)
    for name, split in splits.items():
        if split.ids or parts > 1 or name == empty:
            split.report(name, cfg.dataset.skip_invalid_size_inputs_valid_test, part, parts)
    if empty is not None and (parts == 1 or not len(splits[empty].dataset)):
        raise UserError(f"{empty}: no sample was scored, because the data are empty")


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
    """Return the loss of a batch."""
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
    lengths = sample["net_input"].get("src_lengths")
    if lengths is not None and lengths.numel() == 0:  # from `make_batches`
        return [[hypothesis_of_nothing(task, -math.inf)]]
    hypotheses = stock(task, generator, models, sample, *args, **kwargs)
    _count(sample)
    return hypotheses


@replaces(Trainer, "get_valid_iterator")
def get_valid_iterator(stock, trainer, subset, *args, **kwargs):
    """Return the batches of a validation set; warn once if --max-valid-steps leaves some out."""
    found = stock(trainer, subset, *args, **kwargs)
    steps = trainer.cfg.dataset.max_valid_steps
    said = vars(trainer).setdefault("partly_validated", set())
    # fairseq takes one batch more than the option says
    if steps is not None and steps + 1 < len(found) and subset not in said:
        said.add(subset)
        logger.warning(
            f"{subset}: --max-valid-steps {steps} validates on the first {steps + 1:,} of "
            f"{len(found):,} batches; losses and the best checkpoint go by this part"
        )
    return found


@replaces(interactive, "make_batches")
def make_batches(stock, lines, cfg, task, max_positions, encode_fn):
    """Yield batches of lines; those that were skipped come last, without a length."""
    done: set[int] = set()
    for batch in stock(lines, cfg, task, max_positions, encode_fn):
        done.update(batch.ids.tolist())
        yield batch
    for index in sorted(set(range(len(lines))) - done):
        (tokens,), (length,) = task.get_interactive_tokens_and_lengths([lines[index]], encode_fn)
        logger.warning(
            f"the line {lines[index][:60]!r} has {length} tokens, more than the model takes "
            f"({max_positions}); {SKIPS} gives it an empty hypothesis of score -inf"
        )
        constraints = torch.zeros(1, 1, dtype=torch.long) if cfg.generation.constraints else None
        no_length = torch.empty(0, dtype=torch.long)
        yield interactive.Batch(torch.tensor([index]), tokens[None], no_length, constraints)


def hypothesis_of_nothing(task: FairseqTask, score: float) -> dict[str, Any]:
    """Return an empty hypothesis."""
    return {
        "tokens": torch.tensor([task.target_dictionary.eos()]),
        "score": torch.tensor(score),
        "positional_scores": torch.tensor([score]),
        "alignment": [],
    }


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
