"""A training run with other options continues in the --save-dir of another one.

What breaks: `fairseq-train` into the directory of an earlier run resumes that run with
the new options: another architecture of the same sizes, other data, another seed or learning rate.
If it was finished, it ends at once with exit code 0. The checkpoints then belong to neither run.
Why: fairseq loads parameters that fit, and compares no option.
What we do: compare the options of the checkpoint in --save-dir with those of the command, and
hashes of the training and validation data, which each checkpoint holds. The validation data choose
the best checkpoint, and may set the learning rate. Refuse what makes another model
or another run, and list it. `--max-update`, `--max-epoch`, paths, logging, evaluation and how
often checkpoints are written may change. The number of processes, `--max-tokens` and
`--update-freq` may change as long as an update has as many tokens. Another number of processes
alone, another precision, and other names of validation sets give a warning.
`--allow-changed-options` and the options
`--reset-optimizer`, `--reset-lr-scheduler` and `--reset-dataloader` turn refusals into warnings.
A checkpoint of `--restore-file` or `--finetune-from-model` may have any options.
Delete when: fairseq compares them. `checkpoint_identity.py` calls this.
"""

import hashlib
import logging
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import make_dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import CheckpointConfig
from fairseq.dataclass.initialize import hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from highrank_plugins.common.checksums import SUMS, read_ledger
from highrank_plugins.common.names import flag
from highrank_plugins.common.option_field import described
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.training_listener import listening
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)
_Options = dict[str, Any]

# names of hashes in checkpoints; None, and hashes that older checkpoints lack, are not compared
_KEY = "training_data"
_SUMS_KEY = "training_data_sums"
_VALID_KEY = "validation_data"
_NAMED = {"model": "arch", "task": "task", "criterion": "criterion", "optimizer": "optimizer"}
# blocks whose options all count, and single options of other blocks
_WHOLE = ("model", "task", "criterion", "optimizer", "lr_scheduler", "ema")
_SINGLE = {
    "common": ("seed",),
    "dataset": ("train_subset", "curriculum"),
    "optimization": ("lr", "clip_norm", "sentence_avg"),
}
_WARNED = {
    "common": ("fp16", "memory_efficient_fp16", "bf16", "amp"),
    "dataset": ("valid_subset",),
    "checkpoint": ("best_checkpoint_metric", "maximize_best_checkpoint_metric"),
}
# options that may change: lengths of schedules, paths, and how the same result is computed
_FREE = {
    "data", "max_update", "max_epoch", "total_num_update", "stop_time_hours", "stop_min_lr",
    "patience", "checkpoint_activations", "offload_activations", "min_params_to_wrap", "head_loss",
    "head_loss_memory", "head_monitor", "eval_streams", "streams", "batch_size", "batch_size_valid",
}  # fmt: skip
_FREE_STARTS = ("eval_", "no_seed", "ddp_", "distributed_")


def _add_option() -> None:
    """Give fairseq-train the option --allow-changed-options."""
    text = "continue the training run in --save-dir although its options have changed"
    option = ("allow_changed_options", bool, described(text, False))
    added = make_dataclass("CheckpointOptions", [option])
    CheckpointConfig.__annotations__ |= added.__annotations__
    CheckpointConfig.__dataclass_fields__ |= added.__dataclass_fields__
    CheckpointConfig.allow_changed_options = False
    hydra_init()  # hydra keeps a copy of all options


_add_option()


def check_options(trainer, path: str, state: dict[str, Any]) -> None:
    """Compare a checkpoint of --save-dir with the trainer's options."""
    cfg = trainer.cfg.checkpoint
    is_own = os.path.dirname(os.path.abspath(path)) == os.path.abspath(cfg.save_dir)
    options = state.get("cfg") or state.get("args")  # fairseq 0.9 and 0.10 have no blocks
    if not is_own or cfg.restore_file != "checkpoint_last.pt" or not options:
        return
    if isinstance(options, Namespace):
        options = convert_namespace_to_omegaconf(options)
    saved, current = _plain(options), _plain(trainer.cfg)
    for model in listening(trainer.get_model()):
        _mapping(current["model"]).update(model.function_options())
    refused = dict(_differences(saved, current, _counting(saved, current)))
    refused |= _batch_difference(saved, current)
    changed_sets = _changed_sets(state.get("extra_state", {}), _data_hashes(trainer))
    if changed_sets:
        names = [block["task"].get("data") for block in (saved, current)]
        sentences = f"{names[1]} with other sentences in {' and '.join(changed_sets)}"
        refused["data"] = (f"{names[0]} then", sentences)
    if refused:
        _refuse(trainer, path, refused)
    singles = [(block, name) for block, names in _WARNED.items() for name in names]
    changed = dict(_differences(saved, current, singles))
    if not refused and _world(saved) != _world(current):
        changed["distributed_world_size"] = (_world(saved), _world(current))
    if changed:
        logger.warning("%s: options have changed: %s", path, _listed(changed))


def _refuse(trainer, path: str, refused: _Options) -> None:
    cfg = trainer.cfg.checkpoint
    text = f"that training run had other options: {_listed(refused)}"
    new_phase = cfg.reset_optimizer or cfg.reset_lr_scheduler or cfg.reset_dataloader
    if new_phase or getattr(cfg, "allow_changed_options", False):
        logger.warning("%s: %s", path, text)
        return
    raise UserError(
        f"{text}. Choose another --save-dir, or give the same options. To continue that run "
        "with these options, add --allow-changed-options"
    )


def _listed(differences: dict[str, tuple[Any, Any]]) -> str:
    most = 8
    lines = [f"{flag(name)} was {old}, is now {new}" for name, (old, new) in differences.items()]
    return "; ".join(lines[:most]) + (f"; and {len(lines) - most} more" if lines[most:] else "")


def _plain(cfg: Any) -> _Options:
    """Return a configuration as plain containers; blocks of old models are namespaces."""
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


def _mapping(block: Any) -> _Options:
    """Return the options of a block, which may be a namespace, for reading and writing."""
    return vars(block) if isinstance(block, Namespace) else block or {}


def _counting(saved: _Options, current: _Options) -> Iterator[tuple[str, str]]:
    """Yield block and name of the options that make a model or a training run."""
    for block in _WHOLE:
        both = _mapping(saved.get(block)), _mapping(current.get(block))
        names = both[0].keys() & both[1].keys()  # other versions may have other options
        if isinstance(current.get(block), Namespace) or isinstance(saved.get(block), Namespace):
            # a namespace holds the whole command line
            names -= {name for key in current.keys() - {block} for name in _names(current[key])}
        for name in sorted(names):
            if not (
                name in _FREE
                or name.startswith(_FREE_STARTS)
                or name.endswith("_path")
                or (name == "_name" and block not in _NAMED)
            ):
                yield block, name
    for block, singles in _SINGLE.items():
        yield from ((block, name) for name in singles)


def _names(block: Any) -> set[str]:
    return {*block} if isinstance(block, dict) else set()


def _differences(saved: _Options, current: _Options, counting) -> Iterator[tuple[str, tuple]]:
    for block, name in counting:
        old, new = (_mapping(options.get(block)).get(name) for options in (saved, current))
        if old != new:
            yield (_NAMED[block] if name == "_name" else name), (old, new)


def _world(options: _Options) -> int:
    return options["distributed_training"]["distributed_world_size"]


def _batch_difference(saved: _Options, current: _Options) -> _Options:
    """Return how updates differ in size; the number of processes alone does not count."""
    own = [
        {
            "max_tokens": options["dataset"].get("max_tokens"),
            "batch_size": options["dataset"].get("batch_size"),
            "update_freq": options["optimization"]["update_freq"],
        }
        for options in (saved, current)
    ]
    if _per_update(saved) == _per_update(current) or own[0] == own[1]:
        return {}
    names = [name for name in own[0] if own[0][name] != own[1][name]]
    return {name: (own[0][name], own[1][name]) for name in names}


def _per_update(options: _Options) -> list[tuple[int, int]]:
    """Return the tokens and the sentences or streams of an update, for each --update-freq."""
    data, world = options["dataset"], _world(options)
    streams = _mapping(options.get("task")).get("streams")
    most = (data.get("max_tokens") or 0) * world, streams or (data.get("batch_size") or 0) * world
    return [(most[0] * f, most[1] * f) for f in options["optimization"]["update_freq"]]


def _changed_sets(before: _Options, now: _Options) -> list[str]:
    """Return the names of the sets whose hashes in two checkpoints differ."""
    training = [(before.get(key), now[key]) for key in (_KEY, _SUMS_KEY)]
    pairs = {"the training set": training}
    for subset, hashes in now[_VALID_KEY].items():
        others = before.get(_VALID_KEY, {}).get(subset, ())
        pairs[f"the validation set '{subset}'"] = list(zip(others, hashes, strict=False))
    return [
        name
        for name, hashes in pairs.items()
        if any(None not in both and both[0] != both[1] for both in hashes)
    ]


def _data_hashes(trainer) -> _Options:
    """Return the hashes of all data that a checkpoint holds, computed once."""
    if not hasattr(trainer, "data_hashes"):
        cfg, folders = trainer.cfg.dataset, _folders(trainer)
        sizes, sums = _hashes(folders, f"{cfg.train_subset}*")  # train1 and others belong to it
        valid_sets = [] if cfg.disable_validation else cfg.valid_subset.split(",")
        end = "*" if cfg.combine_valid_subsets else ".*"
        trainer.data_hashes = {
            _KEY: sizes,
            _SUMS_KEY: sums,
            # fairseq validates on the first folder
            _VALID_KEY: {name: _hashes(folders[:1], f"{name}{end}") for name in valid_sets},
        }
    return trainer.data_hashes


def _hashes(folders: list[Path], pattern: str) -> list[str | None]:
    """Return the hashes of sizes and of checksums of the files of a set."""
    return [_hash_of_sizes(folders, f"{pattern}idx"), _hash_of_sums(folders, pattern)]


def _hash_of_sizes(folders: list[Path], pattern: str) -> str | None:
    """Return a hash of the sizes of all sentences; None for data without indices."""
    files = [path for folder in folders for path in sorted(folder.glob(pattern))]
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest() if files else None


def _hash_of_sums(folders: list[Path], pattern: str) -> str | None:
    """Return a hash of the checksums of all files; None where a folder has none."""
    lines = []
    for folder in folders:
        if not (folder / SUMS).exists():
            return None
        sums = read_ledger(folder / SUMS)
        lines += [f"{sums[name]}  {name}\n" for name in sorted(sums) if fnmatch(name, pattern)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _folders(trainer) -> list[Path]:
    data = getattr(trainer.cfg.task, "data", None)
    return [Path(folder) for folder in str(data or "").split(os.pathsep)]


@replaces(Trainer, "state_dict")
def state_dict(stock, trainer) -> dict[str, Any]:
    """Return what a checkpoint holds, with the hashes of its data."""
    state = stock(trainer)
    state["extra_state"].update(_data_hashes(trainer))
    return state
