"""A training whose last checkpoint is missing starts again from nothing and overwrites the rest.

What breaks: with `checkpoint_last.pt` gone (deleted, or lost by a full disk) and other checkpoints
in `--save-dir`, or with a `--restore-file` that does not exist, fairseq logs "No existing
checkpoint found" and trains from random weights.
Why: a missing file is how fairseq recognises the first start.
What we do: refuse both; but a first save writes `checkpoint1.pt` or `checkpoint_1_200.pt`, then its
copies `checkpoint_best.pt` and `checkpoint_last.pt`: where there is no more than the former two, a
training was killed in between, and goes on from there. A directory without checkpoints is a first
start as before, and so is any run with `--no-save` (nothing is overwritten) or with
`--reset-dataloader` or `--reset-optimizer`.
Delete when: fairseq tells a first start from a lost file.
"""

import glob
import logging
import os
from copy import copy

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.early_stopping_state import recall

logger = logging.getLogger(__name__)

_DEFAULT = "checkpoint_last.pt"
_COPIES = ("checkpoint_best", "checkpoint.best_")


@replaces(checkpoint_utils, "load_checkpoint")
def load_checkpoint(stock, cfg, trainer, **passthrough_args):
    """Load as fairseq does, unless the file to restore from should be there and is not.

    Raises:
        FileNotFoundError: naming the missing file and what to do.
    """
    suffix = trainer.checkpoint_suffix
    if cfg.restore_file == _DEFAULT:
        cfg = _check_save_dir(cfg, suffix)
    else:
        _check_restore_file(cfg.restore_file, suffix)
    begins = _begins_from_another(cfg, suffix)  # before there is anything of its own
    extra_state, epoch_itr = stock(cfg, trainer, **passthrough_args)
    recall(extra_state, begins or cfg.reset_optimizer or cfg.reset_meters)
    return extra_state, epoch_itr


def _begins_from_another(cfg, suffix: str) -> bool:
    """Whether this is the first start of a training with --finetune-from-model."""
    first = cfg.restore_file == _DEFAULT and not PathManager.exists(_last(cfg, suffix))
    return first and cfg.finetune_from_model is not None and cfg.continue_once is None


def _last(cfg, suffix: str) -> str:
    return os.path.join(cfg.save_dir, _DEFAULT.replace(".pt", f"{suffix}.pt"))


def _check_save_dir(cfg, suffix: str):
    """Check the options, and choose another file to restore from if need be."""
    last = _last(cfg, suffix)
    fresh_start = cfg.no_save or cfg.reset_dataloader or cfg.reset_optimizer or cfg.continue_once
    if fresh_start or PathManager.exists(last):
        return cfg
    others = glob.glob(os.path.join(glob.escape(cfg.save_dir), f"checkpoint*{suffix}.pt"))
    if not others:
        return cfg
    newest = max(others, key=os.path.getmtime)
    if sum(not os.path.basename(path).startswith(_COPIES) for path in others) > 1:
        raise FileNotFoundError(
            f"{last} is missing, but --save-dir holds {len(others)} other checkpoints: training "
            f"would start from scratch and overwrite them. Copy {newest} to that name or give "
            "it to --restore-file, choose another --save-dir, or restart with --reset-optimizer "
            "--reset-dataloader"
        )
    cfg = copy(cfg)
    cfg.restore_file = newest.removesuffix(f"{suffix}.pt") + ".pt"  # fairseq puts the suffix in
    cfg.finetune_from_model = None
    logger.warning("%s is missing: resuming from %s", last, newest)
    return cfg


def _check_restore_file(path: str, suffix: str) -> None:
    path = path.replace(".pt", f"{suffix}.pt")
    if not PathManager.exists(path):
        raise FileNotFoundError(f"--restore-file {path} does not exist")
