"""Two training runs in one --save-dir overwrite each other's checkpoints.

What breaks: the same command started twice, by hand or by a scheduler, trains twice into one
directory, with exit code 0; checkpoints of the two get mixed.
Why: fairseq does not check whether another process writes there.
What we do: the first process of a run holds a lock on `training.lock` in --save-dir until it
ends; another run is refused and told who holds it. The system releases the lock of a killed
process. The lock is not inherited: data workers that outlive their trainer do not hold it. Runs
with --no-save take none. Whoever gets the lock removes what a killed save has left.
Delete when: fairseq does so.
"""

from contextlib import nullcontext

from fairseq_cli import train as training

from highrank_plugins.common.folders import locked
from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.rendezvous_check import refuse_lone_ranks


@replaces(training, "main")
def main(stock, cfg, *args, **kwargs):
    """Train, unless another training run writes into --save-dir."""
    refuse_lone_ranks(cfg)  # otherwise all but one would name the lock
    first = cfg.distributed_training.distributed_rank == 0
    alone = first and not cfg.checkpoint.no_save
    with locked(cfg.checkpoint.save_dir) if alone else nullcontext():
        return stock(cfg, *args, **kwargs)
