"""Write a model as a folder to publish, without pickle and with everything needed to use it.

`model.safetensors` holds each tensor once; its metadata name the tied ones. `config.json` holds
the other parts of the checkpoint that a model needs, and the sha256 of weights, dictionaries and
pieces, which an import compares. `README.md` is the model's card.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common import certificate, files
from highrank_plugins.common.checkpoint_file import (
    ReasonsOf,
    check_sizes_and_paths,
    warn_without_hash,
)
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import piece_options
from highrank_plugins.reports import model_parts
from highrank_plugins.reports.model_card import model_card
from highrank_plugins.results.record import load_record
from highrank_plugins.training.checkpoints import first_names

if TYPE_CHECKING:
    from torch import Tensor

_CONTENTS = {  # of config.json
    "fairseq": dict, "training": dict, "task_state": dict, "valid_loss": float | int | None,
    "sha256": dict,
}  # fmt: skip


def export_model(
    checkpoint: Path,
    folder: Path,
    data: Path | None,
    licence: str,
    pieces: Path | None = None,
    results: Path | None = None,
) -> None:
    """Write a checkpoint's model, and a card with the scores of `results`, into a new folder."""
    parts = model_parts.read_parts(checkpoint, folder, data, pieces)
    config, dictionaries = parts.config, parts.dictionaries
    cut = [] if pieces is None else piece_options(pieces, f"{folder.name}/{pieces.name}")
    config["text"] = dict(cut)
    record = None if results is None else load_record(results)
    with new_folder(folder) as part:
        parameters = _save_weights(parts.weights, part / model_parts.WEIGHTS)
        for path in [*dictionaries, *([] if pieces is None else [pieces])]:
            shutil.copyfile(path, part / path.name)
        parts.write_certificate(part, {})
        config["sha256"] = model_parts.sums(part)
        files.write_json(part / model_parts.CONFIG, config)
        card = model_card(folder.name, config, parameters, dictionaries, cut, record, licence)
        files.write_text(part / model_parts.CARD, card)


def import_model(folder: Path, output: Path) -> None:
    """Write the checkpoint that a folder of `export_model` holds, for inference and warm starts."""
    if output.exists():
        raise FileExistsError(f"{output} exists: give another --output, or remove it")
    state = read_folder(folder)
    from fairseq.checkpoint_utils import torch_persistent_save

    output.parent.mkdir(parents=True, exist_ok=True)
    torch_persistent_save(state, str(output))
    if (certified := folder / certificate.CERTIFICATE).exists():
        files.write_text(certificate.certificate_path(output), certified.read_text())


def certify(model: Path) -> str:
    """Compare a checkpoint or folder with its certificate, or write one; return what was done."""
    import highrank_plugins

    highrank_plugins.register()
    from highrank_plugins.inference.loading import DTYPES, load_model
    from highrank_plugins.reports.fsmt_folder import served_by_transformers

    path = certificate.certificate_path(model)
    if model.is_dir() and "model_type" not in files.read_json(model / model_parts.CONFIG):
        read_folder(model)
        if not path.is_file():
            raise UserError(f"{model} has no {path.name}; export the model again")
        return f"{model}: computes what was certified"
    is_new = not path.exists()
    if model.is_dir():
        served = served_by_transformers(model, is_new)
    else:
        dtype = DTYPES["float64" if is_new else "float32"]
        served = certificate.of_fairseq(load_model(model, None, dtype=dtype).model)
    if not is_new:
        return f"{model}: computes what was certified, to {certificate.compare(path, served):.1e}"
    files.write_text(path, json.dumps(certificate.certificate_of(served)))
    return f"{path}: written; each command that loads the model compares it from now on"


def read_folder(folder: Path) -> dict[str, Any]:
    """Return the checkpoint in a folder of `export_model`, compared with sums and certificate."""
    import highrank_plugins

    highrank_plugins.register()
    from omegaconf import OmegaConf

    from highrank_plugins.inference.loading import model_without_words

    path = folder / model_parts.CONFIG
    with ReasonsOf(str(folder)):
        config = files.read_json(path)
        found = config.get("format") if isinstance(config, dict) else None
        if isinstance(found, int) and found != model_parts.FORMAT:
            known = f"this version reads {model_parts.FORMAT}"
            raise UserError(f"{path} has format {found}, but {known}: update highrank_plugins")
        if not found or not all(isinstance(config.get(n), kind) for n, kind in _CONTENTS.items()):
            raise UserError(
                f"{path} was not written by `highrank model export`, or was changed: copy it again"
            )
        for name in (model_parts.WEIGHTS, *config["sha256"]):
            files.require_regular(place := folder / Path(name).name)
            files.check_sum(place, config["sha256"].get(name, "in config.json"))
        weights = _load_weights(folder / model_parts.WEIGHTS)
        model_parts.check_weights(folder / model_parts.WEIGHTS, weights)
        state = {
            "args": None,
            "cfg": config["fairseq"],
            "model": weights,
            "criterion": None,
            "optimizer_history": [{**config["training"], "lr_scheduler_state": {}}],
            "task_state": config["task_state"],
            "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": config["valid_loss"]},
        }
        check_sizes_and_paths(str(folder), state)
        warn_without_hash(str(folder), state)
        if certificate.CERTIFICATE in config["sha256"]:
            model_without_words(folder, OmegaConf.create(config["fairseq"]), dict(weights))
    return state


def _save_weights(model: "dict[str, Tensor]", path: Path) -> int:
    """Save the weights; return the number of parameters."""
    first = first_names(model)
    tied = {name: other for name, other in first.items() if name != other}
    # copies tensors that share memory
    tensors = {name: model[name].contiguous().clone() for name in model if name not in tied}
    model_parts.save_tensors(tensors, path, {"format": "pt", "tied": json.dumps(tied)})
    return sum(
        value.numel()
        for name, value in tensors.items()
        if value.is_floating_point() and name.rpartition(".")[2] not in model_parts.MARKS
    )


def _load_weights(path: Path) -> "dict[str, Tensor]":
    with model_parts.safetensors_library().safe_open(path, framework="pt") as file:
        tied = json.loads((file.metadata() or {}).get("tied", "{}"))
        names = file.keys()  # unlike a dict, a file cannot be iterated over
        model = {name: file.get_tensor(name) for name in names}
    return model | {name: model[other] for name, other in tied.items()}
