"""A resumed training run builds its model from the command, and fills gaps with today's defaults.

What breaks: where a newer version sizes a model in another way, checkpoints of an older one fit no
model: neither generation nor a resumed or finetuned training run can load them.
Why: fairseq gives options that a checkpoint lacks their present defaults, and builds the model of a
training run before it looks at the checkpoint.
What we do: a model's class names the options in which it follows its checkpoint (`kept_options`),
and their values in older ones. A model that is built from a checkpoint gets them. A run looks
first at the checkpoint that it will start from, and takes them over; it logs what differs.
Delete when: no checkpoint of an older version is in use. `checkpoint_identity.py` calls this.
"""

import glob
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from fairseq import models
from fairseq.file_io import PathManager
from fairseq_cli import train as training
from omegaconf import OmegaConf, open_dict

from highrank_plugins.common.names import flag
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.saved_options import saved_options
from highrank_plugins.common.torch_archive import UNREADABLE, load_mapped
from highrank_plugins.common.training_listener import TrainingListener

logger = logging.getLogger(__name__)

_DEFAULT = "checkpoint_last.pt"


def by_name(options: Any) -> dict[str, Any]:
    """Return the options of a model as plain values."""
    if isinstance(options, Namespace):
        return vars(options)
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options)
    return options if isinstance(options, dict) else {}


def follow(cfg: Any, saved: dict[str, Any]) -> None:
    """Set the options `cfg` of a model to the values that its checkpoint, `saved`, prescribes."""
    for name, value in _kept(saved).items():
        _set(cfg, name, value)


@replaces(training, "main")
def main(stock, cfg, *args, **kwargs):
    """Train with the options in which the model follows the checkpoint it starts from."""
    current, saved = by_name(cfg.model), _saved_options(cfg.checkpoint)
    for name, value in _kept(saved).items():
        # a model with another layer does not have the option
        if current.get(name) not in (None, value):
            logger.info("keeping %s %s, as in the checkpoint", flag(name), value)
            _set(cfg.model, name, value)
    return stock(cfg, *args, **kwargs)


def _kept(saved: dict[str, Any]) -> Mapping[str, Any]:
    arch = saved.get("_name") or saved.get("arch")
    model = models.ARCH_MODEL_REGISTRY.get(arch) or models.MODEL_REGISTRY.get(arch)
    is_ours = model is not None and issubclass(model, TrainingListener)
    return model.kept_options(saved) if is_ours else {}


def _set(cfg: Any, name: str, value: Any) -> None:
    if isinstance(cfg, Namespace):
        setattr(cfg, name, value)
        return
    with open_dict(cfg):
        cfg[name] = value


def _saved_options(cfg: Any) -> dict[str, Any]:
    """Return the model's options in the checkpoint that a training run starts from; {} without one.

    Problems with the file are reported when it is loaded.
    """
    for path in filter(os.path.isfile, _candidates(cfg)):
        try:
            return by_name(saved_options(load_mapped(path), "model"))
        except UNREADABLE as error:
            logger.debug("%s: %s", path, error)
    return {}


def _candidates(cfg: Any) -> Iterator[str]:
    if cfg.restore_file != _DEFAULT:
        yield cfg.restore_file
    elif not PathManager.path_requires_pathmanager(cfg.save_dir):
        yield os.path.join(cfg.save_dir, _DEFAULT)
        found = glob.glob(os.path.join(glob.escape(cfg.save_dir), "checkpoint*.pt"))
        # a link to a missing file has no modification time
        yield from sorted(filter(os.path.isfile, found), key=os.path.getmtime, reverse=True)
    if cfg.finetune_from_model:
        yield cfg.finetune_from_model
