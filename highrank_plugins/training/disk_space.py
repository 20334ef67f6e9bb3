"""Check that the disk has space for the checkpoints of a training run."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import highrank_plugins
from highrank_plugins.common.files import require_space
from highrank_plugins.training.command_line import words_of

# bytes per parameter: its weight and Adam's two moments, in float32
BYTES = 12


def check_space(options: Mapping[str, object], data: str, folder: Path) -> None:
    """Check that future checkpoints fit on the disk: all of them, or at least the next one.

    The model is built in a separate process, whose memory is free again when training starts.

    Args:
        options: of fairseq-train.
        data: the binarised data.
        folder: the --save-dir.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        needed = still_needed(pool.submit(training_space, options, data).result(), folder)
    require_space(folder, needed)


def still_needed(space: int, folder: Path) -> int:
    """Return how much of `space` is still to be written, given the checkpoints in a folder."""
    last = folder / "checkpoint_last.pt"
    if not last.exists():
        return space
    files = (path.stat() for path in folder.rglob("*") if path.is_file())
    sizes = {file.st_ino: file.st_size for file in files}  # a checkpoint has several names
    return max(space - sum(sizes.values()), last.stat().st_size)


def training_space(options: Mapping[str, object], data: Path | str) -> int:
    """Return the bytes of all checkpoints that exist at once; fewer if Adam is not the optimizer.

    The model is built without memory for its parameters. Where all checkpoints are kept, only one
    is counted, since their number is unknown.

    Args:
        options: of fairseq-train.
        data: the binarised data, whose dictionaries say how large the model is.
    """
    import torch
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    highrank_plugins.register()
    from fairseq.options import get_training_parser, parse_args_and_arch  # patched by hooks

    words = [str(data), *words_of(options)]
    cfg = convert_namespace_to_omegaconf(parse_args_and_arch(get_training_parser(), words))
    task = tasks.setup_task(cfg.task)
    with torch.device("meta"):
        model = task.build_model(cfg.model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return BYTES * parameters * _checkpoints(cfg.checkpoint)


def _checkpoints(cfg: Any) -> int:
    """Return how many checkpoints exist at once: kept ones, the best, the last, and a new one."""
    of_epochs = 0 if cfg.no_epoch_checkpoints else max(1, cfg.keep_last_epochs)
    within = max(1, cfg.keep_interval_updates) if cfg.save_interval_updates > 0 else 0
    return of_epochs + within + 3
