"""A checkpoint of another model is taken for ours where all sizes fit.

What breaks: nothing visibly; a training run that is resumed, or started by `--finetune-from-model`,
continues with parameters of another meaning: contexts of a Mixture of Softmaxes in a Mixture of
Contexts, or logits for another function. Nor does a checkpoint say which values unset options had:
another default in the code makes another function of its parameters.
Why: `Trainer.load_checkpoint` compares names and sizes of parameters. It does not look at the
options of the checkpoint's model.
What we do: add `function_options` of the model to the options in each checkpoint. Before parameters
are loaded, show the options to `check_saved_options` of model and task, if these are a
`TrainingListener`, and compare the dictionaries (`checkpoint_dictionary.py`). A model that
generation or evaluation builds from the checkpoint sees the options, too. Of several processes the
one that reads the file raises, and the others end with it.
Delete when: fairseq has such hooks. `load_error.py` calls this.
"""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq import checkpoint_utils, models
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from highrank_plugins.common.checkpoint_file import saved_options
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.training_listener import listening
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.changed_options import check_options
from highrank_plugins.hooks.checkpoint_dictionary import check_dictionaries
from highrank_plugins.hooks.early_stopping_state import drop_other_scores


@contextmanager
def shown_to(trainer, path: str) -> Iterator[None]:
    """Check each checkpoint read in this block by the trainer's model and task."""
    read = checkpoint_utils.load_checkpoint_to_cpu

    def read_and_show(*args, **kwargs) -> dict[str, Any]:
        state = read(*args, **kwargs)
        try:
            for listener in listening(trainer.get_model(), trainer.task):
                listener.check_saved_options(_by_name(saved_options(state, "model")))
            check_dictionaries(trainer.task, state.get("task_state") or {})
            check_options(trainer, path, state)
            drop_other_scores(trainer.cfg.checkpoint, state)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        return state

    checkpoint_utils.load_checkpoint_to_cpu = read_and_show
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = read


@replaces(Trainer, "state_dict")
def state_dict(stock, trainer) -> dict[str, Any]:
    """Return what a checkpoint holds, with all options that the model's function depends on."""
    state = stock(trainer)
    options = state["cfg"]["model"]  # fairseq's older models keep them as attributes
    for model in listening(trainer.get_model()):
        (vars(options) if isinstance(options, Namespace) else options).update(
            model.function_options()
        )
    return state


@replaces(models, "build_model")
def build_model(stock, cfg, task, from_checkpoint=False):
    """Build a model; compare one that is built from a checkpoint with the checkpoint's options."""
    options = _by_name(cfg)  # fairseq drops what the model does not know
    arch = options.get("_name") or options.get("arch")
    known = {*models.ARCH_MODEL_REGISTRY, *models.MODEL_REGISTRY}
    if from_checkpoint and arch and arch not in known:
        raise UserError(
            f"the checkpoint's architecture {arch} is unknown here; pass the --user-dir of "
            "its training run, which registers it"
        )
    model = stock(cfg, task, from_checkpoint)
    for listener in listening(model) if from_checkpoint else ():
        listener.check_saved_options(options)
    return model


def _by_name(options: Any) -> dict[str, Any]:
    """Return the options of a model as plain values."""
    if isinstance(options, Namespace):
        return vars(options)
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options)
    return options if isinstance(options, dict) else {}
