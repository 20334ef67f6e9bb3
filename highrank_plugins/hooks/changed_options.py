"""Refuse to continue the training run of another command in its --save-dir; add options to fairseq.

Options. What breaks: `fairseq-train` into the directory of an earlier run resumes that run with the
new options: another architecture of the same sizes, other data, another seed or learning rate. Why:
fairseq loads parameters that fit, and compares no option. What we do: compare options and hashes of
the data with those in the checkpoint of --save-dir. Refuse what makes another model or another run,
and list it. Processes, `--max-tokens` and `--update-freq` may change as long as an update has as
many tokens, and so may the precision. Another metric, and other names of validation sets, give a
warning, and so does all with `--allow-changed-options` or a `--reset-…` option. A checkpoint that
is named may have any options. Delete when: fairseq compares them.
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
from omegaconf import OmegaConf

from highrank_plugins.common.files import SUMS, checksum, read_ledger
from highrank_plugins.common.heartbeat import listening
from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.checkpoints import LAST, is_own

logger = logging.getLogger(__name__)
_Options = dict[str, Any]

HASHES = "data_hashes"  # in checkpoints
_NAMED = {"model": "arch", "task": "task", "criterion": "criterion", "optimizer": "optimizer"}
# blocks whose options all count, and single options of other blocks
_WHOLE = ("model", "task", "criterion", "optimizer", "lr_scheduler", "ema")
_SINGLE = [
    ("common", "seed"), ("dataset", "train_subset"), ("dataset", "curriculum"),
    ("optimization", "lr"), ("optimization", "clip_norm"), ("optimization", "sentence_avg"),
    # these put other sentences into batches, or batches into another order
    ("dataset", "required_batch_size_multiple"), ("dataset", "grouped_shuffling"),
    ("dataset", "update_ordered_indices_seed"), ("optimization", "skip_remainder_batch"),
    ("distributed_training", "fix_batches_to_gpus"),
]  # fmt: skip
_SIZES = [("dataset", "max_tokens"), ("dataset", "batch_size"), ("optimization", "update_freq")]
_WARNED = [
    ("dataset", "valid_subset"),
    *(("checkpoint", f"{most}best_checkpoint_metric") for most in ("", "maximize_")),
]
# options that may change: lengths of schedules, paths, and how the same result is computed
_FREE = {
    "data", "max_update", "max_epoch", "total_num_update", "stop_time_hours", "stop_min_lr",
    "patience", "checkpoint_activations", "offload_activations", "min_params_to_wrap", "head_loss",
    "head_loss_memory", "head_monitor", "eval_streams", "streams", "batch_size", "batch_size_valid",
}  # fmt: skip
_FREE_STARTS = ("eval_", "no_seed", "ddp_", "distributed_")


# an option of fairseq's dataclass, for command lines and for hydra
_TEXT = "continue the training run in --save-dir although its options have changed"
_ADDED = make_dataclass("AddedOption", [("allow_changed_options", bool, described(_TEXT, False))])
CheckpointConfig.__annotations__ |= _ADDED.__annotations__
vars(CheckpointConfig)["__dataclass_fields__"].update(_ADDED.__dataclass_fields__)
CheckpointConfig.allow_changed_options = False
hydra_init()  # hydra keeps a copy of all options


def check_options(trainer: Any, path: str, state: dict[str, Any]) -> None:
    """Compare a checkpoint of --save-dir with the trainer's options."""
    cfg = trainer.cfg.checkpoint
    options = state.get("cfg") or state.get("args")  # fairseq 0.9 and 0.10 have no blocks
    if not is_own(cfg, path) or cfg.restore_file != LAST or not options:
        return
    if isinstance(options, Namespace):
        options = convert_namespace_to_omegaconf(options)
    saved, current = _blocks(options), _blocks(trainer.cfg)
    for model in listening(trainer.get_model()):
        current["model"].update(model.function_options())
    refused = dict(_differences(saved, current, _counting(saved, current)))
    if _per_update(saved) != _per_update(current):
        refused |= _differences(saved, current, _SIZES)
    before = state.get("extra_state", {}).get(HASHES, {})
    changed_sets = [
        name
        for name, now in trainer.data_hashes.items()
        if any(a and b and a != b for a, b in zip(before.get(name, ()), now, strict=False))
    ]
    if changed_sets:
        sentences = f"with other sentences in {' and '.join(changed_sets)}"
        old, new = (block["task"].get("data") for block in (saved, current))
        refused["data"] = (f"{old} then", f"{new} {sentences}")
    if refused:
        text = f"that training run had other options: {_listed(refused)}"
        new_phase = cfg.reset_optimizer or cfg.reset_lr_scheduler or cfg.reset_dataloader
        if not (new_phase or getattr(cfg, "allow_changed_options", False)):
            raise UserError(
                f"{text}. Choose another --save-dir, or give the same options. To continue that "
                "run with these options, add --allow-changed-options"
            )
        logger.warning("%s: %s", path, text)
    if changed := dict(_differences(saved, current, _WARNED)):
        logger.warning("%s: options have changed: %s", path, _listed(changed))


def _listed(differences: dict[str, tuple[Any, Any]]) -> str:
    lines = [f"{flag(name)} was {old}, is now {new}" for name, (old, new) in differences.items()]
    return "; ".join(lines[:8] + ([f"and {len(lines) - 8} more"] if lines[8:] else []))


def _blocks(cfg: Any) -> dict[str, _Options]:
    """Return the blocks of a configuration as plain values; those of old models are namespaces."""
    found = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    plain = {key: vars(val) if isinstance(val, Namespace) else val for key, val in found.items()}
    return {key: dict(val) if isinstance(val, dict) else {} for key, val in plain.items()}


def _counting(saved: _Options, current: _Options) -> Iterator[tuple[str, str]]:
    """Yield block and name of the options that make a model or a training run."""
    for block in _WHOLE:
        old, new = (options.get(block, {}) for options in (saved, current))
        names = old.keys() & new.keys()  # other versions may have other options
        if "save_dir" in {**old, **new}:  # a namespace holds the whole command line
            names -= {name for key in current.keys() - {block} for name in current[key]}
        for name in sorted(names):
            is_free = name in _FREE or name.startswith(_FREE_STARTS) or name.endswith("_path")
            if not is_free and (name != "_name" or block in _NAMED):
                yield block, name
    yield from ((block, name) for block, name in _SINGLE if name in saved.get(block, {}))


def _differences(saved: _Options, current: _Options, counting: Any) -> Iterator[tuple[str, tuple]]:
    for block, name in counting:
        old, new = (options.get(block, {}).get(name) for options in (saved, current))
        if old != new:
            yield (_NAMED[block] if name == "_name" else name), (old, new)


def _per_update(options: _Options) -> list[tuple[int, int]]:
    """Return the tokens and the sentences or streams of an update, for each --update-freq."""
    data, world = options["dataset"], options["distributed_training"]["distributed_world_size"]
    streams = options.get("task", {}).get("streams")
    most = (data.get("max_tokens") or 0) * world, streams or (data.get("batch_size") or 0) * world
    return [(most[0] * f, most[1] * f) for f in options["optimization"]["update_freq"]]


def hashes_of_data(cfg: Any) -> dict[str, list[str | None]]:
    """Return two hashes of each set; None for what the data lack, which is not compared."""
    data = cfg.dataset
    folders = str(getattr(cfg.task, "data", None) or "").split(os.pathsep)
    end = "*" if data.combine_valid_subsets else ".*"
    # train1 and others belong to the training set
    found = {"the training set": _hashes(folders, f"{data.train_subset}*")}
    for name in [] if data.disable_validation else data.valid_subset.split(","):
        # fairseq validates on the first folder
        found[f"the validation set '{name}'"] = _hashes(folders[:1], f"{name}{end}")
    return found


def _hashes(folders: list[str], pattern: str) -> list[str | None]:
    """Return a hash of the sizes of all sentences, and one of the checksums of all files."""
    sizes, sums, has_sizes, has_sums = hashlib.sha256(), hashlib.sha256(), False, True
    for folder in map(Path, folders):
        for path in sorted(folder.glob(f"{pattern}idx")):
            has_sizes = True
            sizes.update(bytes.fromhex(checksum(path)))
        ledger = read_ledger(folder / SUMS)
        has_sums = has_sums and (folder / SUMS).exists()
        for name in sorted(ledger):
            if fnmatch(name, pattern):
                sums.update(f"{ledger[name]}  {name}\n".encode())
    return [sizes.hexdigest() if has_sizes else None, sums.hexdigest() if has_sums else None]
