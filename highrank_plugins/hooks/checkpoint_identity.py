"""A checkpoint of another model, or of another dictionary, is taken for ours where all sizes fit.

What breaks: nothing visibly; a training that is resumed, or started by `--finetune-from-model`,
goes on with parameters of another meaning: contexts of a Mixture of Softmaxes in a Mixture of
Contexts, logits for another function, embeddings of other words.
Why: `Trainer.load_checkpoint` compares names and sizes of parameters. It looks neither at the
options of the checkpoint's model nor at the state of its task.
What we do: before parameters are loaded, show both to `check_saved_options` and `check_saved_task`
of model and task, if these are a `TrainingListener`. Generation and evaluation, which build their
model from the checkpoint, are left alone. Of several processes the one that reads
the file raises, and the others end with it.
Delete when: fairseq has such hooks. `load_error.py` calls this.
"""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from highrank_plugins.common.training_listener import listening


@contextmanager
def shown_to(trainer, path: str) -> Iterator[None]:
    """Check each checkpoint that is read meanwhile by the trainer's model and task.

    Raises:
        ValueError: theirs, with the name of the file.
    """
    read = checkpoint_utils.load_checkpoint_to_cpu

    def read_and_show(*args, **kwargs) -> dict[str, Any]:
        state = read(*args, **kwargs)
        try:
            for listener in listening(trainer.get_model(), trainer.task):
                listener.check_saved_options(_model_options(state))
                listener.check_saved_task(state.get("task_state") or {})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return state

    checkpoint_utils.load_checkpoint_to_cpu = read_and_show
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = read


def _model_options(state: dict[str, Any]) -> dict[str, Any]:
    """By name; those of the oldest checkpoints, which have no `cfg`, are not known."""
    model = (state.get("cfg") or {}).get("model")
    if isinstance(model, Namespace):
        return vars(model)
    return OmegaConf.to_container(model) if OmegaConf.is_config(model) else {}
