"""A training run whose last checkpoint is missing or damaged starts from scratch, or not at all.

What breaks: `checkpoint_last.pt` was deleted, or lost by a full disk, while `--save-dir` holds
other checkpoints; or `--restore-file` does not exist. In both cases fairseq logs "No existing
checkpoint found" and trains from random weights. A `checkpoint_last.pt` that is damaged ends every
start, however many undamaged checkpoints the directory holds. For fairseq, a link to a missing
file is a missing file.
Why: a missing file is how fairseq recognises the first start, and it looks at no other file.
What we do: resume from the checkpoint in `--save-dir` with the most updates whose checksums are
right, and name it. Times of files do not count, since copying changes them, and neither do averaged
models, which have no state of the optimizer. Where none is left, where `--restore-file` is missing,
and where a folder is given, refuse. Of several processes the first one chooses for all. A directory
without checkpoints is a first start as before. So is any run with `--no-save` (nothing is
overwritten), and, where the file is missing, with `--reset-dataloader` or `--reset-optimizer`.
Delete when: fairseq tells a first start from a lost file.
"""

import glob
import logging
import os
from copy import copy

from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager

from highrank_plugins.common.checkpoint_file import UNREADABLE, first_whole, load_mapped
from highrank_plugins.common.names import flag
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.early_stopping_state import recall

logger = logging.getLogger(__name__)

_DEFAULT = "checkpoint_last.pt"


@replaces(checkpoint_utils, "load_checkpoint")
def load_checkpoint(stock, cfg, trainer, **passthrough_args):
    """Load as fairseq does, from the newest undamaged checkpoint."""
    suffix = trainer.checkpoint_suffix
    for option in ("restore_file", "finetune_from_model"):
        _refuse_folder(flag(option), getattr(cfg, option))
    if cfg.restore_file == _DEFAULT:
        cfg = _with_newest(cfg, trainer)
    else:
        _check_restore_file(cfg.restore_file, suffix)
    begins = _begins_from_another(cfg, suffix)  # checked before the training run writes files
    extra_state, epoch_itr = stock(cfg, trainer, **passthrough_args)
    recall(extra_state, begins or cfg.reset_optimizer or cfg.reset_meters)
    return extra_state, epoch_itr


def _begins_from_another(cfg, suffix: str) -> bool:
    """Whether this is the first start of a training run with --finetune-from-model."""
    first = cfg.restore_file == _DEFAULT and not PathManager.exists(_last(cfg, suffix))
    return first and cfg.finetune_from_model is not None and cfg.continue_once is None


def _last(cfg, suffix: str) -> str:
    return os.path.join(cfg.save_dir, _DEFAULT.replace(".pt", f"{suffix}.pt"))


def _with_newest(cfg, trainer):
    """Return the options, with another file to restore from if checkpoint_last.pt is not whole."""
    last = _last(cfg, trainer.checkpoint_suffix)
    if cfg.no_save or PathManager.path_requires_pathmanager(last):
        return cfg
    chosen = _agree(trainer, lambda: _choose(cfg, trainer.checkpoint_suffix))
    if chosen == last:
        return cfg
    cfg = copy(cfg)
    # fairseq adds the suffix
    cfg.restore_file = chosen.removesuffix(f"{trainer.checkpoint_suffix}.pt") + ".pt"
    cfg.finetune_from_model = None
    return cfg


def _agree(trainer, choose) -> str:
    """Return the choice of the first process; all processes raise its error."""
    sharded = trainer.is_fsdp and trainer.cfg.distributed_training.use_sharded_state
    if trainer.data_parallel_world_size == 1 or sharded:
        return choose()
    answer = {}
    if trainer.data_parallel_rank == 0:
        try:
            answer = {"path": choose()}
        except ValueError as error:
            answer = {"error": str(error)}
    answer = distributed_utils.broadcast_object(
        answer, src_rank=0, group=trainer.data_parallel_process_group, dist_device=trainer.device
    )
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["path"]


def _choose(cfg, suffix: str) -> str:
    """Return the file to restore from: the last checkpoint, or the newest one that is whole."""
    last = _last(cfg, suffix)
    found = glob.glob(os.path.join(glob.escape(cfg.save_dir), f"checkpoint*{suffix}.pt"))
    others = sorted((path for path in found if path != last), key=_progress, reverse=True)
    is_missing = not os.path.lexists(last)
    fresh_start = cfg.reset_dataloader or cfg.reset_optimizer or cfg.continue_once
    if is_missing and (fresh_start or not others):
        return last
    path, damage = first_whole(others if is_missing else [last, *others])
    if path not in (None, last) and not cfg.no_save_optimizer_state and not _progress(path)[0]:
        damage.append(f"{path} has no state of the optimizer, like an averaged model")
        path = None
    if path is not None:
        if path != last:
            reasons = "; ".join([f"{last} is missing"] * is_missing + damage)
            logger.warning("Resuming from %s, the newest undamaged checkpoint: %s", path, reasons)
        return path
    raise UserError(
        f"--save-dir {cfg.save_dir} holds no undamaged checkpoint: {'; '.join(damage)}. Copy one "
        "there from elsewhere, or move these away to train from scratch"
    )


def _progress(path: str) -> tuple[bool, int, float]:
    """Return whether a checkpoint has an optimizer's state, its updates, and when it was written.

    Those of a damaged one are False, -1 and 0.
    """
    try:
        state = load_mapped(path)
        updates = int(state["optimizer_history"][-1]["num_updates"])
        return state.get("last_optimizer_state") is not None, updates, os.path.getmtime(path)
    except UNREADABLE:
        return False, -1, 0.0


def _refuse_folder(option: str, path: str | None) -> None:
    """Refuse a folder, for which fairseq trains from random weights."""
    if path and os.path.isdir(path):
        raise UserError(f"{option} {path} is a folder; name a checkpoint in it")


def _check_restore_file(path: str, suffix: str) -> None:
    path = path.replace(".pt", f"{suffix}.pt")
    if not PathManager.exists(path):
        raise FileNotFoundError(f"--restore-file {path} does not exist")
