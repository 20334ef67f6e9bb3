"""Score all of the data, or say what is left out: fairseq-generate, -validate and -eval-lm.

Samples. What breaks: with `--skip-invalid-size-inputs-valid-test` fairseq-generate prints 1,011
hypotheses for 1,013 inputs, and a score; fairseq-validate prints `loss nan`. Why: the commands
check neither the number of samples nor the sum. What we do: raise if the batches lack a sample,
before any is scored, or for a loss that is not finite. A separate part (`--num-shards`) may be
empty. Delete when: fairseq compares both.

Perplexities. What breaks: blocks longer than the training run's are skipped ("Evaluated 0 tokens …
Perplexity: 1.00"). A model of streams is scored as if each block were the start of the text.
`--post-process subword_nmt` changes nothing, and `@@ ` counts a word twice that a block cuts in
two. Why: `eval_lm_dataloader` ignores such blocks, the task comes from the command line, words that
end in the option's value are joined, in each block alone. What we do: raise, take `subword_nmt` for
`@@ `, count each word once, and say how many there are, as of tokens with `--add-bos-token`. Delete
when: fairseq raises.

Masses. What breaks: a layer, a cache or an ensemble whose P(x) do not sum to 1 gets a perplexity
that is too low. Why: fairseq reads P of the scored words alone. What we do: sum P of all words at
64 positions, in the tensors that were scored; refuse another sum than 1, and log the signature.
Of fairseq-validate, which has the loss of a batch alone, compare the mean with log P of all words.
Delete when: fairseq checks its sums.
"""

import logging
import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq_cli import eval_lm, generate, validate

from highrank_plugins.common.certificate import Mass
from highrank_plugins.common.patching import by_name, replaces
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
_OF_LOG_P = CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion  # and ours
SKIPS = "--skip-invalid-size-inputs-valid-test"


@dataclass
class _Split:
    """Hold a dataset that is scored."""

    dataset: Any
    name: str = ""
    task: Any = None
    watch: "MassWatch | None" = None
    words: int = 0  # over which the loss is a mean, if not tokens
    first: int = 0  # of each sample that counts: 1 where fairseq-eval-lm leaves <s> out

    def followed(self, models: list[Any]) -> "MassWatch | None":
        """Return what follows the certified positions; None where the targets are no plain text."""
        is_text = isinstance(self.task, LanguageModelingTask) or self.in_tokens
        if self.watch is None and (is_text or isinstance(self.dataset, LanguagePairDataset)):
            self.watch = MassWatch(self, models)
        return self.watch

    @property
    def in_tokens(self) -> bool:
        """Whether lengths of the dataset, which is cut into streams, count tokens."""
        return getattr(self.dataset, "counts_tokens", False)

    def check(self, batches: Iterable[Any], part: int, parts: int) -> None:
        """Say how many samples there are, of all parts together, and raise if some are lost."""
        total = len(self.dataset)
        if not total:
            raise UserError(f"{self.name}: no sample can be scored, because the data are empty")
        lost = sorted({*range(total)}.difference(*batches))
        logger.info(f"{self.name}: scores {total - len(lost):,} of {total:,} samples")
        if parts > 1:
            which = f"this is part {part + 1} of {parts}"
            logger.info(f"{self.name}: {which}. All parts together must score {total:,}")
        if lost:
            raise UserError(
                f"{self.name}: {len(lost):,} of {total:,} samples are not scored; the first are "
                f"{lost[:10]}, counted from 0. The result would not cover the whole data: shorten "
                f"or remove what {SKIPS} leaves out"
            )


_splits: ContextVar[dict[str, _Split] | None] = ContextVar("splits", default=None)


@contextmanager
def _following(parts: int) -> Iterator[None]:
    """Follow what the block scores, and log a signature of each text."""
    splits: dict[str, _Split] = {}
    token = _splits.set(splits)
    try:
        yield
    except ZeroDivisionError:  # fairseq divides by what was scored
        if parts == 1:
            raise
    finally:
        _splits.reset(token)
    for split in splits.values():
        if split.watch:
            split.watch.report(split.words)


def newest() -> _Split | None:
    """Return the newest split of the evaluation that runs, if one does."""
    return next(reversed((_splits.get() or {}).values()), None)


class Tap:
    """Stand for a model in fairseq's SequenceScorer, and keep its (log) P of some tokens [n, M]."""

    def __init__(self, model: Any, tokens: list[int]) -> None:
        self.model, self.eval, self.tokens = model, model.eval, tokens  # by number in the batch
        self.kept: list[torch.Tensor] = []
        self.first = 0  # of a part of the batch (--softmax-batch)

    def __call__(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def get_normalized_probs(self, out: Any, log_probs: bool, sample: Any = None) -> torch.Tensor:
        """Return what the model returns; a lean one is asked for all words of the tokens."""
        found = self.model.get_normalized_probs(out, log_probs, sample)
        start, self.first = self.first, self.first + found[..., 0].numel()
        if not hasattr(self.model, "distributions"):
            inside = [n - start for n in self.tokens if start <= n < self.first]
            self.kept += found.flatten(0, 1)[inside]
        elif start == 0:
            rows = self.model.distributions(self.tokens)
            self.kept += rows if log_probs else rows.exp()
        return found


class MassWatch:
    """Follow the certified positions of a text through the batches of fairseq-eval-lm."""

    def __init__(self, split: _Split, models: Any) -> None:
        dataset, self.words = split.dataset, split.task.target_dictionary
        if split.in_tokens:  # one text, cut into streams
            streams = split.task.args.eval_streams
            parts, self.context = dataset.tokens.tensor_split(streams), "stream"
        else:
            samples = (dataset[number] for number in range(len(dataset)))
            parts = tuple(sample["target"][split.first :] for sample in samples)
            self.context = "sentence"  # of fairseq-generate --score-reference
            if isinstance(split.task, LanguageModelingTask):
                options = split.task.args
                mode = options.sample_break_mode or "none"
                self.context = f"{'block' if mode == 'none' else mode}-{options.tokens_per_sample}"
        self.models, self.window = len(models), -1  # of --context-window, if there is one
        self.first = split.first
        self.next = [0, *accumulate(map(len, parts))]  # position of the next word of each sample
        halves = [p.dtype for m in models for p in m.parameters() if p.element_size() < 4]
        self.mass = Mass(torch.cat(parts), split.name, (halves or [torch.float32])[0])
        self.chosen: list[tuple[int, ...]] = []  # row, number among its words, and in the batch

    def taps(self, models: list[Any], sample: dict[str, Any]) -> list[Any]:
        """Find the positions in a batch. Return the models, behind taps if there are some."""
        self.chosen, target = [], sample["target"]
        self.window = max(self.window, *sample.get("start_indices", [0]))
        for row, number in enumerate(sample["id"].tolist()):
            columns = target[row].ne(self.words.pad()).nonzero()[self.first :, 0].tolist()
            places = self.mass.within(self.next[number], len(columns))
            self.chosen += [(row, n, row * target.size(1) + columns[n]) for n in places]
            self.next[number] += len(columns)
        tokens = [token for *_, token in self.chosen]
        return [Tap(model, tokens) for model in models] if tokens else models

    @torch.no_grad()
    def add(self, taps: list[Any], target: torch.Tensor, hypotheses: Any) -> None:
        """Add the positions of a batch [B, T], as they were scored."""
        if self.chosen:
            found = [torch.stack(tap.kept) for tap in taps]
            log_probs = found[0] if len(taps) == 1 else (sum(found) / len(taps)).log()
            scores = [
                hypotheses[row][0]["positional_scores"][self.first + n] for row, n, _ in self.chosen
            ]
            words = target.flatten()[[token for *_, token in self.chosen]]
            self.mass.add(torch.stack(scores), words, log_probs)

    @torch.no_grad()
    def add_loss(self, model: Any, sample: dict[str, Any], loss: Any) -> None:
        """Add the positions of a batch of which only the summed loss, in nats, is known."""
        self.taps([], sample)
        if self.chosen:
            out = model(**sample["net_input"])
            log_probs = model.get_normalized_probs(out, log_probs=True, sample=sample).flatten(0, 1)
            target = sample["target"].flatten()
            known = log_probs.gather(1, target[:, None])[:, 0].double()
            shown = known[target.ne(self.words.pad())]
            places = [token for *_, token in self.chosen]
            scored = known - (float(loss) + shown.sum()) / len(shown)
            self.mass.add(scored[places], target[places], log_probs[places])

    def report(self, words: int) -> None:
        """Log the signature of a whole text."""
        if self.mass.seen == len(self.mass.places):
            context = self.context + (f"+{self.window}" if self.window > 0 else "")
            context += f"|models:{self.models}" if self.models > 1 else ""
            signature = f"signature: {self.mass.signature(self.words, context, words)}"
            logger.info(signature)
            if context.startswith("sentence"):  # beside the scores that fairseq-generate prints
                print(signature)


@replaces(FairseqTask, "dataset")
def dataset(stock: Callable, task: FairseqTask, split: str) -> Any:
    """Return the dataset of a split; an evaluation follows it."""
    found = stock(task, split)
    splits = _splits.get()
    if splits is not None and split not in splits:
        splits[split] = _Split(found, split, task)
    return found


@replaces(FairseqTask, "get_batch_iterator")
def get_batch_iterator(stock: Callable, task: FairseqTask, *args: Any, **options: Any) -> Any:
    """Return batches; those of an evaluation have all samples."""
    found, split = stock(task, *args, **options), newest()
    if split:
        part, parts = options.get("shard_id", 0), options.get("num_shards", 1)
        split.check(found.frozen_batches, part, parts)
    return found


@replaces(FairseqTask, "valid_step")
def valid_step(stock: Callable, task: FairseqTask, sample: Any, model: Any, criterion: Any) -> Any:
    result = stock(task, sample, model, criterion)
    split, logged = newest(), result[2]
    if split and not math.isfinite(result[0]):
        raise FloatingPointError(
            f"the loss of the batch with samples {sample['id'].tolist()[:5]} is {result[0]}: the "
            "model is broken, or --fp16 overflows (try without)"
        )
    sums = isinstance(criterion, _OF_LOG_P) and not getattr(criterion, "ignore_prefix_size", 0)
    sums |= getattr(criterion, "carries_state", False)  # the state of streams is in the sample
    if split and sample and sums and (watch := split.followed([model])):
        watch.add_loss(model, sample, logged.get("nll_loss", logged["loss"]))
    return result


@replaces(LanguageModelingTask, "eval_lm_dataloader")
def eval_lm_dataloader(stock: Callable, task: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """Return batches of all of `dataset`, or raise a ValueError that names the option to change."""
    most = by_name(stock, task, dataset, *args, **kwargs).get("max_positions")
    if task.state.state_dict.get("carries_state"):
        raise UserError(
            "the checkpoint was trained on continuous streams, and --task language_modeling (the "
            "default) would forget the recurrent state between blocks: add --task "
            "bptt_language_modeling"
        )
    if too_long := 0 if most is None else np.sum(np.asarray(dataset.sizes) > most):
        raise UserError(
            f"{too_long} of {len(dataset)} blocks are longer than the {most} tokens that "
            "the model accepts, and fairseq would leave them out: set --tokens-per-sample (now "
            f"{task.args.tokens_per_sample}) to at most {most}, and do not use "
            "--sample-break-mode eos for longer sentences"
        )
    return stock(task, dataset, *args, **kwargs)


@replaces(eval_lm, "eval_lm")
def score_text(
    stock: Callable, models: Any, source_dictionary: Any, batch_iterator: Any,
    post_process: str | None = None, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    parts, words, cut, known = set(), 0, 0, source_dictionary
    first = int(kwargs.get("remove_bos_token", False))
    if split := newest():
        split.first = first
    if post_process is not None:
        parts = {number for number, word in enumerate(known.symbols) if word.endswith("@@")}
        if post_process not in ("@@ ", "subword_nmt") or not parts:
            raise UserError(
                f"--post-process {post_process} would join nothing here: fairseq-eval-lm joins "
                f"words that end in @@, of which the dictionary has {len(parts)}; leave the option "
                "out"
            )
        post_process = "@@ "

    def counted() -> Iterator[Any]:
        nonlocal words, cut
        for sample in batch_iterator:
            if sample:  # a part may have an empty one
                sample["ntokens"] -= first * len(sample["id"])  # the number that is logged
            for row in sample.get("target", ()) if parts else ():
                numbers = row[row != known.pad()].tolist()[first:]
                words += sum(number not in parts for number in numbers)
                cut += len(parts.intersection(numbers[-1:]))  # a stream may end before others
            yield sample

    found = stock(models, known, counted(), post_process, *args, **kwargs)
    if parts:
        found["loss"] *= (words + cut) / max(words, 1)  # stock counts cut words twice
        found["perplexity"] = 2 ** found["loss"]
        logger.info(f"loss and perplexity are means over {words:,} words and ends of lines")
        if split:
            split.words = words
    return found


for _command in (eval_lm, validate, generate):

    @replaces(_command, "main")
    def evaluate(stock: Callable, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cfg, Namespace):
            cfg = convert_namespace_to_omegaconf(cfg)
        result = None  # of a part without samples, which fairseq divides by
        shards, ranks = cfg.dataset.num_shards, cfg.distributed_training.distributed_world_size
        if shards > 1 and stock.__module__ != eval_lm.__name__:
            raise UserError(
                f"--num-shards {shards} has no effect here, so each part would be the whole text: "
                "leave it out; fairseq-generate divides by --distributed-world-size and -rank"
            )
        window, block = cfg.eval_lm.context_window, getattr(cfg.task, "tokens_per_sample", 0)
        by_lines = getattr(cfg.task, "sample_break_mode", None) == "eos"
        if 0 < block <= window and not by_lines:
            raise UserError(f"--context-window {window} must be below --tokens-per-sample {block}")
        with _following(max(shards, ranks)):
            result = stock(cfg, *args, **kwargs)
        return result
