"""A training run with --fp16 that is interrupted ends with other weights, and nothing says so.

What breaks: with plain `--fp16` or `--bf16`, a resumed run differs from an unbroken one (by
2.9e-3 after 6 + 6 updates of a tiny model). There is no message.
Why: fairseq trains float32 copies of the weights, saves the half-precision ones only, and rebuilds
the copies from these.
What we do: say so once, at the start of the training run, and name what resumes exactly.
Delete when: checkpoints hold the copies.
"""

import logging

from fairseq import checkpoint_utils
from fairseq.optim.fp16_optimizer import FP16Optimizer

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)


@replaces(checkpoint_utils, "load_checkpoint")
def load_checkpoint(stock, cfg, trainer, **passthrough_args):
    """Load as fairseq does, and warn where that is not exact."""
    loaded = stock(cfg, trainer, **passthrough_args)
    inexact = isinstance(trainer.optimizer, FP16Optimizer) and not cfg.no_save
    if inexact and trainer.is_data_parallel_master:
        flag = "bf16" if trainer.cfg.common.bf16 else "fp16"
        logger.warning(
            "--%s does not resume exactly: checkpoints hold rounded weights, and an "
            "interrupted run ends with slightly different ones. --memory-efficient-%s and "
            "float32 do.",
            flag,
            flag,
        )
    return loaded
