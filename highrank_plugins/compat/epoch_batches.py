"""A resumed training run sees other batches than an unbroken one from epoch 2 on.

What breaks: after a resume in epoch 2 or later, some sentences of that epoch come twice and some
never, and the result differs from the unbroken run's. There is no message.
Why: the batches are built once, with the seed of the first epoch that the process sees, and reused
in all later ones: an unbroken run uses seed + 1 throughout, one resumed in epoch e seed + e.
What we do: build the training batches of every epoch with that epoch's seed, as
`--update-epoch-batch-itr True` does. It costs seconds per epoch on large corpora.
Delete when: fairseq does so by default.
"""

from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces


@replaces(Trainer, "get_train_iterator")
def get_train_iterator(stock, trainer, *args, **kwargs):
    """Return the iterator over one epoch's batches, never an earlier epoch's."""
    kwargs["disable_iterator_cache"] = True
    return stock(trainer, *args, **kwargs)
