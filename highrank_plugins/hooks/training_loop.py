"""Surround fairseq's training loop: lock, signals, the newest whole checkpoint, and the end.

The lock. What breaks: the same command started twice trains twice into one `--save-dir`. Why:
fairseq does not look. What we do: the first process holds `training.lock` until it ends, and
removes what a killed save has left. `--no-save` takes none. Delete when: fairseq does so.

Requests to stop. What breaks: SIGTERM, SIGUSR1 and SIGHUP, by which clusters and terminals announce
their end, end a run at once. Why: fairseq handles no signals. What we do: handle them before data
are loaded. After an update, and the validation and numbers of an epoch where due, all processes end
with a checkpoint and exit code 75 if one was told to stop. Delete when: fairseq does so.

The end. What breaks: a finished run that is started again takes one more update. Why: fairseq
looks after an update only. What we do: ask before the first update of an epoch, listeners, too; log
the time left. Delete when: fairseq does so.

Lost checkpoints. What breaks: where `checkpoint_last.pt` is missing, fairseq trains from random
weights; a damaged one ends every start. Why: a missing file is how it recognises the first start.
What we do: resume from the undamaged checkpoint in `--save-dir` with the most updates and a state
of the optimizer, and name it. Where none is left, refuse, unless the file is missing and a
`--reset-…` option asks for a first start. Say that `--fp16` does not resume exactly. Delete when:
fairseq tells a first start from a lost file, and stores float32 copies.

The metric. What breaks: a misspelt `--best-checkpoint-metric` ends in a KeyError after the first
epoch. Why: nothing knows what a validation computes before one has ended. What we do: validate on
one batch first, unless the metric is sure to exist. Delete when: fairseq looks.

Options. What breaks: a run that ends within its warm-up or long after its decay, Adam with
fairseq's default `--lr 0.25`, a forgotten `--no-save` or a small disk lose hours. Why: fairseq
checks each option alone. What we do: warn, or require the disk space, before the first update.
Delete when: fairseq does so.
"""

import glob
import logging
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq_cli import train as training
from torch import distributed

from highrank_plugins.common import stop_request
from highrank_plugins.common.checkpoint_file import DamagedArchiveError, check_archive
from highrank_plugins.common.files import require_space
from highrank_plugins.common.folders import locked
from highrank_plugins.common.heartbeat import beat, guard
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.common.patching import keep_freed_memory, replaces
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.checkpoints import LAST, how_to_resume, progress_of
from highrank_plugins.hooks.commands import is_command
from highrank_plugins.hooks.distributed import refuse_lone_ranks
from highrank_plugins.hooks.metrics import recording
from highrank_plugins.hooks.optimizers import stopping_numbers
from highrank_plugins.hooks.trainer import HighrankTrainer

logger = logging.getLogger(__name__)


@replaces(training, "main")
def main(stock: Callable, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    """Train, unless another training run writes into --save-dir; handle requests to stop."""
    keep_freed_memory()
    refuse_lone_ranks(cfg)  # otherwise all but one would name the lock
    alone = cfg.distributed_training.distributed_rank == 0 and not cfg.checkpoint.no_save
    with locked(cfg.checkpoint.save_dir) if alone else nullcontext():
        if is_command() and distributed.is_initialized() and distributed.get_world_size() > 1:
            guard(distributed.get_rank())
        with stop_request.handlers_restored():
            stop_request.listen_unprepared()
            result = stock(cfg, *args, **kwargs)
        beat("ending")  # what remains is to free memory and to leave the process group
        return result


@replaces(training, "train")
def train(stock: Callable, cfg: Any, trainer: HighrankTrainer, task: Any, epoch_itr: Any) -> Any:
    """Train and record an epoch, if any is left; return validation losses and whether to stop."""
    done, batches = trainer.get_num_updates(), len(epoch_itr)
    to_do = batches - epoch_itr.iterations_in_epoch % batches  # less if resumed within an epoch
    is_first, trainer.has_begun = not trainer.has_begun, True
    with recording(cfg, trainer, epoch_itr, is_first):
        if ends := _ends(cfg, trainer):
            logger.info(f"nothing left to train: {done} updates are done, and {ends} ends the run")
            return [None], True
        if is_first:
            _find_metric(cfg, trainer)
            if trainer.is_data_parallel_master:
                _warn(cfg, len(epoch_itr))
                _require_space(cfg.checkpoint, trainer)
        result = stock(cfg, trainer, task, epoch_itr)
    per_epoch = round((trainer.get_num_updates() - done) * batches / to_do)
    if not result[1]:  # else the run has ended
        log_time_left(cfg, trainer, epoch_itr, per_epoch)
        leave_if_asked(cfg, trainer, epoch_itr)
    return result


def _ends(cfg: Any, trainer: HighrankTrainer) -> str:
    """Return the option by which a run has ended before this start or epoch; else ""."""
    bounds, hours = cfg.optimization, float(trainer._previous_training_time) / 3600
    if 0 < (bounds.max_update or 0) <= trainer.get_num_updates():
        return f"--max-update {bounds.max_update}"
    if 0 < cfg.checkpoint.patience <= stopping_numbers()["num_runs"]:
        return f"--patience {cfg.checkpoint.patience}"
    if 0 < bounds.stop_time_hours < hours:
        return f"--stop-time-hours {bounds.stop_time_hours}"
    return "the optimizer" if trainer.is_finished else ""


def _warn(cfg: Any, batches: int) -> None:
    """Warn of options with which a run learns little or is lost; an epoch has these batches."""
    bounds, adam = cfg.optimization, cfg.optimizer._name == "adam"
    each = -(-batches // bounds.update_freq[-1])
    updates = min(bounds.max_update or math.inf, (bounds.max_epoch or math.inf) * each)
    warmup = getattr(cfg.lr_scheduler, "warmup_updates", 0) or 0
    if updates <= warmup:
        logger.warning(
            f"the run ends within its warm-up: {updates} updates, --warmup-updates {warmup}; give "
            f"about {max(updates // 10, 1)}, or train longer"
        )
    decays = float(getattr(cfg.lr_scheduler, "total_num_update", 0) or math.inf)
    if cfg.lr_scheduler._name == "polynomial_decay" and decays < updates < math.inf:
        logger.warning(
            f"the learning rate ends at update {decays:.0f} of {updates}: nothing is learnt after "
            f"it; give --total-num-update {updates}"
        )
    if adam and list(bounds.lr) == [0.25]:
        logger.warning("--lr 0.25, fairseq's default, is far too high for Adam; try --lr 5e-4")
    if cfg.checkpoint.no_save:
        logger.warning("--no-save: the run writes no checkpoint, and cannot be resumed")
    elif "without" in (again := how_to_resume(cfg.checkpoint)):
        logger.warning(f"each start of this command starts over; after an interruption, {again}")


def _require_space(cfg: Any, trainer: HighrankTrainer) -> None:
    """Refuse a run if the disk cannot hold the checkpoints that will exist at once.

    Each has float32 weights and Adam's two moments. Where all are kept, one is counted; others are
    the best, the last, and a new one.
    """
    if cfg.no_save:
        return
    of_epochs = 0 if cfg.no_epoch_checkpoints else max(1, cfg.keep_last_epochs)
    within = max(1, cfg.keep_interval_updates) if cfg.save_interval_updates > 0 else 0
    each = 12 * sum(parameter.numel() for parameter in trainer.get_model().parameters())
    files = (path.stat() for path in Path(cfg.save_dir).glob("checkpoint*.pt"))
    kept = sum({file.st_ino: file.st_size for file in files}.values())  # some have several names
    require_space(Path(cfg.save_dir), max(each * (of_epochs + within + 3) - kept, each))


def _find_metric(cfg: Any, trainer: HighrankTrainer) -> None:
    metric = cfg.checkpoint.best_checkpoint_metric
    is_sure = metric == "loss" or getattr(cfg.task, f"eval_{metric}", False)
    if is_sure or cfg.dataset.disable_validation:
        return
    batch = trainer.get_valid_iterator(cfg.dataset.valid_subset.split(",")[0]).first_batch
    if isinstance(batch, dict):  # a word, if the data cannot be read without workers
        seeded = utils.set_torch_seed(cfg.common.seed)
        with seeded, metrics.aggregate(new_root=True) as found:
            trainer.valid_step(batch)
        training.get_valid_stats(cfg, trainer, found.get_smoothed_values(), False)


@replaces(training, "get_valid_stats")
def get_valid_stats(stock: Callable, cfg: Any, trainer: Any, stats: Any, *rest: Any) -> Any:
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        remedy = f"; add --eval-{metric}" if hasattr(cfg.task, f"eval_{metric}") else ""
        raise UserError(
            f"--best-checkpoint-metric {metric}: a validation computes {', '.join(stats)} only"
            f"{did_you_mean(metric, stats)}{remedy}"
        )
    return stock(cfg, trainer, stats, *rest)


@replaces(training, "get_training_stats")
def get_training_stats(stock: Callable, stats: dict[str, Any]) -> dict[str, Any]:
    found = stock(stats)
    return {"wall": found["wall"], **found}  # `train_wall` is of one update, and rounds to 0


def log_time_left(cfg: Any, trainer: HighrankTrainer, epoch_itr: Any, per_epoch: int) -> None:
    """Log the time left after an epoch; early stopping may end the run sooner."""
    updates, bounds = trainer.get_num_updates(), cfg.optimization
    left = min(
        bounds.max_update - updates if bounds.max_update else math.inf,
        (bounds.max_epoch - epoch_itr.epoch) * per_epoch if bounds.max_epoch else math.inf,
    )
    if updates and 0 < left < math.inf:
        seconds = float(trainer.cumulative_training_time()) / updates * left
        clock = timedelta(seconds=round(seconds))
        logger.info(f"epoch {epoch_itr.epoch} is done; about {clock} left")


@replaces(training, "validate")
def validate(
    stock: Callable, cfg: Any, trainer: HighrankTrainer, task: Any, epoch_itr: Any, subsets: Any
) -> Any:
    beat("validating")
    losses = stock(cfg, trainer, task, epoch_itr, subsets)
    if epoch_itr.end_of_epoch():
        trainer.end_epoch(epoch_itr.epoch, losses[0])
    beat("training")
    return losses


@replaces(training, "validate_and_save")
def validate_and_save(
    stock: Callable, cfg: Any, trainer: HighrankTrainer, task: Any, epoch_itr: Any, *rest: Any
) -> tuple[Any, bool]:
    losses, stop = stock(cfg, trainer, task, epoch_itr, *rest)
    is_last = epoch_itr.end_of_epoch() and epoch_itr.epoch == cfg.optimization.max_epoch
    if not stop and (trainer.is_finished or is_last):
        if trainer.is_finished:
            logger.info("Validation loss has stopped improving; stopping training.")
        if trainer.saved_after != trainer.get_num_updates():  # --save-interval has passed it by
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])
        stop = True
    if trainer.saved_after == trainer.get_num_updates():
        beat("training")
    if not stop and not epoch_itr.end_of_epoch():  # fairseq has yet to print an epoch's numbers
        leave_if_asked(cfg, trainer, epoch_itr)
    return losses, stop


def leave_if_asked(cfg: Any, trainer: HighrankTrainer, epoch_itr: Any) -> None:
    """End with a checkpoint of this update if any process is asked to; all must call this."""
    if not stop_request.listening():
        return
    asked = stop_request.asked()
    several = trainer.data_parallel_world_size > 1
    if several:
        votes = torch.tensor([float(asked)], device=trainer.device)
        distributed_utils.all_reduce(votes, group=trainer.data_parallel_process_group)
        asked = votes.item() > 0
    if not asked:
        return
    options = copy(cfg.checkpoint)
    if options.no_last_checkpoints:  # keep this update under the name of its own, or of its epoch
        options.save_interval = options.save_interval_updates = 1
        options.no_epoch_checkpoints = False
    if options.no_last_checkpoints or trainer.saved_after != trainer.get_num_updates():
        checkpoint_utils.save_checkpoint(options, trainer, epoch_itr, None)
    if several:  # if one ended before the checkpoint is written, the launcher would end the others
        distributed.barrier()
    then = "nothing is saved (--no-save)" if options.no_save else how_to_resume(options)
    logger.info(f"stopping after update {trainer.get_num_updates()}; {then}")
    stop_request.leave()


@replaces(checkpoint_utils, "load_checkpoint")
def load_checkpoint(stock: Callable, cfg: Any, trainer: HighrankTrainer, **iterator: Any) -> Any:
    """Load as fairseq does, from the newest undamaged checkpoint; say if that is not exact."""
    for option in ("restore_file", "finetune_from_model"):
        path = getattr(cfg, option)
        if path and os.path.isdir(path):  # fairseq would train from random weights
            raise UserError(f"{flag(option)} {path} is a folder; name a checkpoint in it")
    path = cfg.restore_file.replace(".pt", f"{trainer.checkpoint_suffix}.pt")
    if cfg.restore_file == LAST:
        cfg = _with_newest(cfg, trainer)
    elif not os.path.exists(path):
        raise FileNotFoundError(f"--restore-file {path} does not exist")
    loaded, is_master = stock(cfg, trainer, **iterator), trainer.is_data_parallel_master
    if isinstance(trainer.optimizer, FP16Optimizer) and is_master and not cfg.no_save:
        precision = "bf16" if trainer.cfg.common.bf16 else "fp16"
        logger.warning(
            f"--{precision} does not resume exactly: checkpoints hold rounded weights, and an "
            "interrupted run ends with slightly different ones. --memory-efficient-"
            f"{precision} and float32 do."
        )
    return loaded


def _with_newest(cfg: Any, trainer: HighrankTrainer) -> Any:
    """Return the options with the file to restore from, as the first process has chosen it."""
    last = os.path.join(cfg.save_dir, LAST)
    # files with a suffix, as of shards, are left to fairseq
    if cfg.no_save or trainer.checkpoint_suffix:
        return cfg
    chosen, problem = "", ""
    if trainer.data_parallel_rank == 0:
        try:
            chosen = choose(cfg)
        except UserError as error:
            problem = str(error)
    if trainer.data_parallel_world_size > 1:
        group, device = trainer.data_parallel_process_group, trainer.device
        chosen, problem = distributed_utils.broadcast_object(
            (chosen, problem), src_rank=0, group=group, dist_device=device
        )
    if problem:
        raise UserError(problem)
    if chosen != last:
        cfg = copy(cfg)
        cfg.restore_file, cfg.finetune_from_model = chosen, None
    return cfg


def choose(cfg: Any) -> str:
    """Return the file to restore from: the last checkpoint, or the newest one that is whole."""
    last = os.path.join(cfg.save_dir, LAST)
    found = glob.glob(os.path.join(glob.escape(cfg.save_dir), "checkpoint*.pt"))
    others = sorted((path for path in found if path != last), key=progress_of, reverse=True)
    is_missing = not os.path.lexists(last)
    fresh_start = cfg.reset_dataloader or cfg.reset_optimizer or cfg.continue_once
    if is_missing and (fresh_start or not others):
        return last
    reasons = [f"{last} is missing"] * is_missing
    for path in others if is_missing else [last, *others]:
        try:
            check_archive(path)
        except DamagedArchiveError as error:
            reasons.append(str(error))
            continue
        if path == last:
            return path
        found = f"Resuming from {path}, the newest undamaged checkpoint: {'; '.join(reasons)}"
        if cfg.no_save_optimizer_state or progress_of(path)[0]:
            logger.warning(found)
            return path
        reasons.append(f"{path} has no state of the optimizer, like an averaged model")
        break
    raise UserError(
        f"--save-dir {cfg.save_dir} holds no undamaged checkpoint: {'; '.join(reasons)}. Copy one "
        "there from elsewhere, or move these away to train from scratch"
    )
