"""A training whose last checkpoint is missing starts again from nothing and overwrites the rest.

What breaks: with `checkpoint_last.pt` gone (deleted, or lost by a full disk) and other checkpoints
in `--save-dir`, or with a `--restore-file` that does not exist, fairseq logs "No existing
checkpoint found" and trains from random weights.
Why: a missing file is how fairseq recognises the first start.
What we do: refuse both. A directory without checkpoints is a first start as before, and so is any
run with `--no-save` (nothing is overwritten) or with `--reset-dataloader` or `--reset-optimizer`.
Delete when: fairseq tells a first start from a lost file.
"""

import glob
import os

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.compat._patch import replaces

_DEFAULT = "checkpoint_last.pt"


@replaces(checkpoint_utils, "load_checkpoint")
def load_checkpoint(stock, cfg, trainer, **passthrough_args):
    """Load as fairseq does, unless the file to restore from should be there and is not.

    Raises:
        FileNotFoundError: naming the missing file and what to do.
    """
    if cfg.restore_file == _DEFAULT:
        _check_save_dir(cfg, trainer.checkpoint_suffix)
    else:
        _check_restore_file(cfg.restore_file, trainer.checkpoint_suffix)
    return stock(cfg, trainer, **passthrough_args)


def _check_save_dir(cfg, suffix: str) -> None:
    last = os.path.join(cfg.save_dir, _DEFAULT.replace(".pt", f"{suffix}.pt"))
    fresh_start = cfg.no_save or cfg.reset_dataloader or cfg.reset_optimizer or cfg.continue_once
    if fresh_start or PathManager.exists(last):
        return
    others = glob.glob(os.path.join(glob.escape(cfg.save_dir), f"checkpoint*{suffix}.pt"))
    if others:
        raise FileNotFoundError(
            f"{last} is missing, but --save-dir holds {len(others)} other checkpoints: training "
            "would start from scratch and overwrite them. Continue with --restore-file "
            f"{max(others, key=os.path.getmtime)}, choose another --save-dir, or start anew with "
            "--reset-optimizer --reset-dataloader"
        )


def _check_restore_file(path: str, suffix: str) -> None:
    path = path.replace(".pt", f"{suffix}.pt")
    if not PathManager.exists(path):
        raise FileNotFoundError(f"--restore-file {path} does not exist")
