"""Write a model as a folder to publish, without pickle and with everything needed to use it.

`model.safetensors` holds each tensor once; its metadata name the tied ones. `config.json` holds
the other parts of the checkpoint that a model needs, and the sha256 of weights, dictionaries and
pieces, which an import compares. `README.md` is the model's card.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import highrank_plugins
from highrank_plugins.common import certificate, files
from highrank_plugins.common.checkpoint_file import (
    ReasonsOf,
    check_sizes_and_paths,
    warn_without_hash,
)
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.provenance import versions
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import piece_options, require_pieces_of
from highrank_plugins.reports.model_card import model_card
from highrank_plugins.training.checkpoints import first_names, load_without_weights, mapped_model

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
MARKS = ("version", "_float_tensor")  # entries of fairseq's state that are not parameters
_HISTORY = ("criterion_name", "optimizer_name", "num_updates")
_CONTENTS = {  # of config.json
    "fairseq": dict, "training": dict, "task_state": dict, "valid_loss": float | int | None,
    "sha256": dict,
}  # fmt: skip


@dataclass(frozen=True)
class ModelParts:
    """Hold what a folder to publish is written from."""

    checkpoint: Path
    config: dict[str, Any]  # of the folder, without checksums
    weights: "dict[str, Tensor]"
    model: Any  # fairseq's, in evaluation mode
    dictionaries: list[Path]

    def write_certificate(self, folder: Path, sha256: Mapping[str, str]) -> None:
        """Write what the model computes in float64, and the checksums of a tokenizer's files."""
        options = self.config["fairseq"]["model"]
        name = str(options.get("arch") or options.get("_name"))
        # an import can build these without their task
        if "head" in options or name.startswith(("transformer", "lstm")):
            found = certificate.certificate_of(certificate.of_fairseq(self.model.double()))
            text = json.dumps(found | {"sha256": dict(sha256)})
            files.write_text(folder / certificate.CERTIFICATE, text)


def read_parts(
    checkpoint: Path, folder: Path, data: Path | None, pieces: Path | None
) -> ModelParts:
    """Read a checkpoint for a new folder, so that errors come before anything is written.

    The dictionaries are in `data`, or where the training run had them.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: give another --output, or remove it")
    state = load_without_weights(checkpoint)
    weights = mapped_model(checkpoint)
    check_weights(checkpoint, weights)
    data = data or Path(str(state["cfg"]["task"]["data"]).split(":")[0])
    dictionaries = _dictionaries(data)
    from highrank_plugins.inference.loading import load_model

    loaded = load_model(checkpoint, str(data))
    config = _config(state, checkpoint)
    task = config["fairseq"]["task"]
    for name in task.keys() & {"source_lang", "target_lang"}:  # fairseq may have inferred them
        task[name] = getattr(loaded.task.cfg, name)
    if pieces is not None:
        piece_options(pieces, pieces.name)
        _require_no_link(pieces)
        words = loaded.task.source_dictionary.symbols[loaded.task.source_dictionary.nspecial :]
        require_pieces_of(pieces, data, (w for w in words if not w.startswith("madeupword")))
    return ModelParts(checkpoint, config, weights, loaded.model, dictionaries)


def export_model(
    checkpoint: Path, folder: Path, data: Path | None, licence: str, pieces: Path | None = None
) -> None:
    """Write a checkpoint's model and a card into a new folder."""
    parts = read_parts(checkpoint, folder, data, pieces)
    config, dictionaries = parts.config, parts.dictionaries
    cut = [] if pieces is None else piece_options(pieces, f"{folder.name}/{pieces.name}")
    config["text"] = dict(cut)
    with new_folder(folder) as part:
        _save_weights(parts.weights, part / WEIGHTS)
        for path in [*dictionaries, *([] if pieces is None else [pieces])]:
            shutil.copyfile(path, part / path.name)
        parts.write_certificate(part, {})
        config["sha256"] = sums(part)
        files.write_json(part / CONFIG, config)
        parameters = sum(parameter.numel() for parameter in parts.model.parameters())
        card = model_card(folder.name, config, parameters, dictionaries, cut, licence)
        files.write_text(part / CARD, card)


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
    highrank_plugins.register()
    from highrank_plugins.inference.loading import DTYPES, load_model

    path = certificate.certificate_path(model)
    if model.is_dir() and "model_type" not in files.read_json(model / CONFIG):
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


def served_by_transformers(folder: Path, exact: bool = False) -> certificate.Served:
    """Return what transformers computes of a folder's translator or language model."""
    import torch

    import_module("highrank_plugins.huggingface")  # its errors say what is missing
    transformers = import_module("transformers")
    is_fsmt = transformers.AutoConfig.from_pretrained(folder).model_type == "fsmt"
    kind = "FSMTForConditionalGeneration" if is_fsmt else "AutoModelForCausalLM"
    dtype = torch.float64 if exact else "auto"
    return certificate.of_transformers(
        getattr(transformers, kind).from_pretrained(folder, dtype=dtype)
    )


def read_folder(folder: Path) -> dict[str, Any]:
    """Return the checkpoint in a folder of `export_model`, compared with sums and certificate."""
    highrank_plugins.register()
    from omegaconf import OmegaConf

    from highrank_plugins.inference.loading import model_without_words

    path = folder / CONFIG
    with ReasonsOf(str(folder)):
        config = files.read_json(path)
        is_ours = isinstance(config, dict) and config.get("format") == FORMAT
        if not is_ours or not all(isinstance(config.get(n), kind) for n, kind in _CONTENTS.items()):
            raise UserError(
                f"{path} was not written by `highrank model export` of this version, or was "
                "changed: copy it again"
            )
        for name in (WEIGHTS, *config["sha256"]):
            files.require_regular(place := folder / Path(name).name)
            files.check_sum(place, config["sha256"].get(name, "in config.json"))
        weights = _load_weights(folder / WEIGHTS)
        check_weights(folder / WEIGHTS, weights)
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


def _save_weights(model: "dict[str, Tensor]", path: Path) -> None:
    tied = {name: other for name, other in first_names(model).items() if name != other}
    # copies tensors that share memory
    tensors = {name: model[name].contiguous().clone() for name in model if name not in tied}
    save_tensors(tensors, path, {"format": "pt", "tied": json.dumps(tied)})


def _load_weights(path: Path) -> "dict[str, Tensor]":
    with safetensors_library().safe_open(path, framework="pt") as file:
        tied = json.loads((file.metadata() or {}).get("tied", "{}"))
        names = file.keys()  # unlike a dict, a file cannot be iterated over
        model = {name: file.get_tensor(name) for name in names}
    return model | {name: model[other] for name, other in tied.items()}


def check_weights(path: Path, model: "dict[str, Tensor]") -> None:
    for name, value in model.items():
        if not value.is_floating_point() and not name.endswith(".codes"):
            raise ValueError(f"{path}: {name} has dtype {value.dtype}; expected floating point")
        if not value.isfinite().all():
            raise ValueError(f"{path}: {name} holds infinite numbers or NaN")


def safetensors_library() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ValueError("safetensors is not installed; run: pip install safetensors") from None
    return safetensors


def sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder's files but hidden ones."""
    return {path.name: files.checksum(path) for path in sorted(folder.glob("[!.]*"))}


def save_tensors(tensors: "dict[str, Tensor]", path: Path, metadata: dict[str, str]) -> None:
    """Write a file of safetensors that all may read who may read its folder."""
    library = safetensors_library()
    try:
        library.torch.save_file(tensors, path, metadata)
    except library.SafetensorError as error:  # a full disk, for example
        raise ValueError(f"{path} cannot be written: {error}") from None
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read


def _dictionaries(folder: Path) -> list[Path]:
    found = sorted(folder.glob("dict.*txt"))
    if not found:
        raise ValueError(
            f"{folder} has no dict.*.txt: pass the binarised data of the training run as --data"
        )
    for path in found:
        _require_no_link(path)
    return found


def _require_no_link(path: Path) -> None:
    """Refuse pipes and devices, and links, by which others can publish a private file."""
    files.require_regular(path)
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; replace it with a copy of the file it names")


def _config(state: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    history = state["optimizer_history"][-1]
    config = {
        "format": FORMAT,
        "versions": versions(),
        "training": {name: history.get(name) for name in _HISTORY},
        "valid_loss": files.plain(
            state["extra_state"].get("val_loss")
        ),  # `plain` turns NaN into None
        "task_state": state.get("task_state", {}),
        "fairseq": _without_places(state["cfg"]),
    }
    try:
        return dict(json.loads(json.dumps(config)))
    except TypeError as error:
        raise ValueError(f"{checkpoint}: its state cannot be written as JSON ({error})") from None


def _without_places(value: Any) -> Any:
    """Cut paths to their names, and leave the address out, which reveal details of the machine."""
    if isinstance(value, dict):
        return {
            key: None if key == "distributed_init_method" else _without_places(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return value
