"""Provide ``--task bptt_language_modeling``: truncated backpropagation through streams."""

import logging
import os
from dataclasses import dataclass, fields
from enum import Enum
from typing import Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from highrank_plugins.common.heartbeat import TrainingListener
from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.tasks.streams import (
    STREAMS,
    CarriedState,
    ScoredStreams,
    SplitTokens,
    Streams,
    chunk_plan,
    gather_streams,
    map_tensors,
)

logger = logging.getLogger(__name__)

# options of language_modeling and of batches that are refused
FOREIGN = (
    "sample_break_mode", "tokens_per_sample", "output_dictionary_size", "self_target",
    "past_target", "add_bos_token", "max_target_positions", "shorten_method",
    "shorten_data_split_list", "pad_to_fixed_length", "pad_to_fixed_bsz",
)  # fmt: skip
FOREIGN_BATCHES = ("max_tokens", "skip_remainder_batch", "grouped_shuffling")
WHY = (
    "does not fit --task bptt_language_modeling, which predicts every token of a text in streams: "
    "leave it (and --context-window) out; give --batch-size streams, in chunks of --bptt tokens. "
    "fairseq-generate always gives --max-tokens: use fairseq-eval-lm, or fairseq-interactive"
)


@dataclass
class BPTTLanguageModelingConfig(LanguageModelingConfig):
    """Define the options of the task, which refuses those of ``language_modeling`` that cut."""

    bptt: int = described("length L of a chunk, in tokens", 70)
    bptt_max_delta: Optional[int] = described(
        "chunks have at most L + this many tokens (default: no bound)"
    )
    fixed_bptt: bool = described(
        "train on chunks of L tokens instead of drawing their length around L (and "
        "around L/2, once in 20), with the learning rate in proportion",
        False,
    )
    streams: Optional[int] = described(
        "streams of all processes together; some may have one less than --batch-size (default: "
        "--batch-size in each process)"
    )
    eval_streams: int = described(
        "streams in validation and eval-lm; 1 is exact, more are faster", 1
    )
    train_subset: str = II("dataset.train_subset")


def _check_task_options(args) -> None:
    defaults = {f.name: f.default for f in fields(LanguageModelingConfig)}
    for name in FOREIGN:
        value = getattr(args, name, defaults[name])
        value = value.value if isinstance(value, Enum) else value
        if value != defaults[name]:
            raise UserError(f"{flag(name)} {value} {WHY}")


def check_shares(streams: int, batch_size: int, processes: int) -> None:
    """Refuse --streams that leave a process without one, or of which --batch-size is no share."""
    share = -(-streams // processes)
    if streams < processes or batch_size != share:
        raise UserError(
            f"--streams {streams} of {processes} processes: give each one at least, and "
            f"--batch-size {share}, the largest share (it is {batch_size})"
        )


@register_task("bptt_language_modeling", dataclass=BPTTLanguageModelingConfig)
class BPTTLanguageModelingTask(TrainingListener, LanguageModelingTask):
    """Model the language of one long text, as in Merity et al. 2018.

    The training text is cut into streams, ``--batch-size`` of them in each process. Training goes
    through all of them in parallel, in chunks of random length (drawn again each epoch from
    ``--seed``). Each chunk starts from the recurrent state at the end of the one before, without
    gradient. The learning rate of a chunk is in proportion to its length. Nothing is shuffled, and
    every token is predicted once per epoch. So it is in evaluation, with ``--eval-streams``.
    """

    def __init__(self, args, dictionary, output_dictionary=None, targets=None):
        _check_task_options(args)
        super().__init__(args, dictionary, output_dictionary, targets)
        self.state.merge_state_dict({"carries_state": True})
        self.training_state, self.evaluation_state = CarriedState(), CarriedState()
        self.training_streams: Optional[Streams] = None
        self._said: dict[str, str] = {}
        self.lr_scales = []
        self.saved = {}

    # -- data --

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        paths = utils.split_paths(self.args.data)
        path = os.path.join(paths[(epoch - 1) % len(paths)], split)
        lines = []
        if not os.path.exists(f"{path}.bin") or os.path.getsize(f"{path}.bin"):
            lines = data_utils.load_indexed_dataset(
                path, self.dictionary, self.args.dataset_impl, combine=combine
            )
        if lines is None:
            raise UserError(f"split {split!r} is missing: expected {path}.bin and {path}.idx")
        tokens = torch.cat([torch.empty(0).long(), *(lines[i] for i in range(len(lines)))])
        if len(tokens) == 0:
            raise UserError(f"{path}.bin is empty: its text has no tokens")
        if int(tokens.max()) >= len(self.dictionary):  # formats that data_checks does not read
            raise UserError(
                f"{path}.bin has word number {int(tokens.max())}, but dict.txt has "
                f"{len(self.dictionary)} words: they belong to different corpora; run "
                "fairseq-preprocess again"
            )
        self.datasets[split] = SplitTokens(tokens, split)
        self._refuse_unknown_words()

    def _refuse_unknown_words(self):
        """Refuse to evaluate on unknown words if the training text has none."""
        train, unk = self.args.train_subset, self.dictionary.unk_index
        if train not in self.datasets or self.datasets[train].tokens.eq(unk).any():
            return
        for split, text in self.datasets.items():
            if unknown := int(text.tokens.eq(unk).sum()):
                raise UserError(
                    f"{split}: {unknown} of {len(text)} tokens are not in dict.txt, and "
                    f"{train} has no <unk>, so their probability would be meaningless: "
                    "replace rare words of the training text by <unk>, or binarise with a "
                    "dictionary that has all words"
                )

    def get_batch_iterator(self, dataset, **options):
        """Return the chunks of a split, in order; ``num_shards`` processes divide its streams.

        Options such as ``--required-batch-size-multiple`` have no effect: a batch has one row per
        stream. The hub interface gives sentences instead of a split.
        """
        if not isinstance(dataset, SplitTokens):
            return super().get_batch_iterator(dataset, **options)
        # only the trainer sets it, when it asks for batches to train on
        trains = options.get("update_epoch_batch_itr") is not None
        of_validation = "_valid" if self.training_streams and not trains else ""
        for name in FOREIGN_BATCHES:
            if options.get(name):
                raise UserError(f"{flag(name + of_validation)} {options[name]} {WHY}")
        rows, processes = options.get("max_sentences"), options.get("num_shards", 1)
        if trains and rows is None:
            raise UserError("--batch-size is missing: it is the number of streams per process")
        count = self.args.eval_streams
        if trains:
            self.batch_size, count = rows, self.args.streams or rows * processes
            check_shares(count, rows, processes)
        elif of_validation and rows not in (None, self.batch_size, count):
            raise UserError(f"--batch-size-valid {rows}: give --eval-streams {rows} instead")
        shard = options.get("shard_id", 0)
        streams = Streams(dataset, self.dictionary, count, shard, processes, self.args.bptt)
        if trains:
            self.training_streams = streams
        text = (
            f"{dataset.split}: {len(dataset):,} tokens in {count} stream{'s' * (count != 1)} of "
            f"{len(streams):,} ({'--batch-size' if trains else '--eval-streams'})"
        )
        if self._said.get(dataset.split) != text:
            logger.info(text)
            self._said[dataset.split] = text
        return self._iterate(streams, options, draws=trains and not self.args.fixed_bptt)

    def _iterate(self, streams: Streams, options, draws=False):
        """Return an iterator over chunks, whose lengths are drawn in each epoch or all L."""
        delta = self.args.bptt_max_delta
        longest = None if delta is None else self.args.bptt + delta

        def chunks(streams: Streams, epoch: int) -> list:
            rng = np.random.RandomState([self.args.seed, epoch]) if draws else None
            return [[chunk] for chunk in chunk_plan(len(streams), self.args.bptt, rng, longest)]

        return EpochBatchIterator(
            streams, streams.collater, chunks, disable_shuffling=True,
            num_workers=options.get("num_workers", 0), epoch=options.get("epoch", 1),
            buffer_size=options.get("data_buffer_size", 0),
        )  # fmt: skip

    def eval_lm_dataloader(self, dataset, batch_size=None, num_shards=1, **options):
        """Return the chunks of a split for ``fairseq-eval-lm``, with the state carried along."""
        if num_shards > 1:
            raise UserError("--num-shards: streams cannot be divided; run a single fairseq-eval-lm")
        if batch_size not in (None, self.args.eval_streams):
            raise UserError(f"--batch-size {batch_size}: give --eval-streams {batch_size} instead")
        options["max_tokens"] = None  # fairseq-eval-lm always gives it
        return ScoredStreams(self.get_batch_iterator(dataset, **options).next_epoch_itr(False))

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Score or continue sentences, each from the start."""
        if "position" in sample:
            raise UserError(
                "fairseq-generate would lose the recurrent state between the chunks of a text: "
                "score it with fairseq-eval-lm --task bptt_language_modeling, or continue "
                "sentences with fairseq-interactive"
            )
        return super().inference_step(generator, models, sample, prefix_tokens, constraints)

    # -- training --

    def build_model(self, args, from_checkpoint=False):
        model = super().build_model(args, from_checkpoint)
        if not hasattr(model, "bptt_features"):
            raise UserError(
                f"--task bptt_language_modeling carries a recurrent state, and "
                f"{type(model).__name__} has none: take --arch awd_lstm_lm_<head>, or --task "
                "language_modeling"
            )
        return model

    def build_criterion(self, args):
        criterion = super().build_criterion(args)
        if not getattr(criterion, "carries_state", False):
            raise UserError(
                f"--task bptt_language_modeling: {type(criterion).__name__} would lose the "
                "recurrent state; take --criterion bptt_cross_entropy"
            )
        return criterion

    def before_update(self, updates):
        """Discard the chunks of the last update, or of a failed attempt at this one."""
        self.lr_scales = []

    def train_step(self, sample, model, criterion, optimizer, update_num, ignore_grad=False):
        self.training_state.give(sample)
        self.lr_scales.append(sample["lr_scale"])
        result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self.training_state.take(sample)
        return result

    def valid_step(self, sample, model, criterion):
        self.evaluation_state.give(sample)
        result = super().valid_step(sample, model, criterion)
        self.evaluation_state.take(sample)
        self.evaluation_state.settled = True
        return result

    def optimizer_step(self, optimizer, model, update_num):
        """Take a step with the learning rate times (mean) drawn length over ``--bptt``."""
        lr = optimizer.get_lr()
        optimizer.set_lr(lr * sum(self.lr_scales) / len(self.lr_scales))
        optimizer.step()
        optimizer.set_lr(lr)
        self.lr_scales = []
        self.training_state.settled = True

    # -- checkpoints --

    def before_save(self):
        """Collect the state of all processes; each process must call it."""
        carried, streams = self.training_state, self.training_streams
        self.saved = {"streams": streams.count}
        if 0 < carried.position < len(streams):
            self.saved["position"] = carried.position
            self.saved["state"] = gather_streams(carried.states[carried.position], streams.count)

    def get_checkpoint_dict(self):
        return {type(self).__name__: self.saved}

    def set_checkpoint_dict(self, saved):
        """Resume from the ``get_checkpoint_dict`` of a training run."""
        streams = self.training_streams
        if saved["streams"] != streams.count:
            raise UserError(
                f"the checkpoint was trained on {saved['streams']} streams, but --streams, or "
                f"--batch-size times the number of processes, is {streams.count}: make it "
                f"{saved['streams']}, or start again from epoch 1 with --reset-dataloader"
            )
        if "state" in saved:
            start, size = streams.rows.start, len(streams.rows)
            own = map_tensors(lambda t: t.narrow(STREAMS, start, size).clone(), saved["state"])
            self.training_state.states = {saved["position"]: own}
