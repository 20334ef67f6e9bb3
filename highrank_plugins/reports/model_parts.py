"""Read from a checkpoint, and check, what a folder to publish is written from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.files import (
    checksum,
    digest_of_words,
    plain,
    require_regular,
    write_text,
)
from highrank_plugins.common.provenance import versions
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import piece_options, require_pieces_of
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.heads.vocabulary import VOCABULARY
from highrank_plugins.training.checkpoints import load_without_weights, mapped_model

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
MARKS = ("version", "_float_tensor")  # entries of fairseq's state that are not parameters
_HISTORY = ("criterion_name", "optimizer_name", "num_updates")


@dataclass(frozen=True)
class ModelParts:
    """Hold what a folder to publish is written from."""

    checkpoint: Path
    config: dict[str, Any]  # of the folder, without checksums
    weights: "dict[str, Tensor]"
    model: Any  # fairseq's, in evaluation mode; None if only fairseq's task can build it
    dictionaries: list[Path]

    def write_certificate(self, folder: Path, sha256: Mapping[str, str]) -> None:
        """Write what the model computes in float64, and the checksums of a tokenizer's files."""
        from highrank_plugins.common.certificate import CERTIFICATE, certificate_of, of_fairseq

        if self.model is not None:
            found = certificate_of(of_fairseq(self.model.double()))
            write_text(folder / CERTIFICATE, json.dumps(found | {"sha256": dict(sha256)}))


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
    config = _config(state, checkpoint)
    _add_languages(config["fairseq"]["task"], data)
    _check_dictionaries(config, data)
    model = built(checkpoint, config["fairseq"], weights)
    if pieces is not None:
        piece_options(pieces, pieces.name)
        _require_no_link(pieces)
        _require_pieces(config["fairseq"]["task"], data, pieces)
    return ModelParts(checkpoint, config, weights, model, dictionaries)


def built(path: Path, config: dict[str, Any], weights: "dict[str, Tensor]") -> Any:
    """Build a Transformer, an LSTM or a model of ours, and load its weights as generation does."""
    require_known_layer(path, config["model"])
    name = str(config["model"].get("arch") or config["model"].get("_name"))
    if "head" not in config["model"] and not name.startswith(("transformer", "lstm")):
        return None
    from omegaconf import OmegaConf

    from highrank_plugins.inference.loading import model_without_words

    options = OmegaConf.create(config)
    model = model_without_words(path, options, dict(weights))
    model.prepare_for_inference_(options)
    model.eval()
    return model


def require_known_layer(path: Path, options: Mapping[str, Any]) -> None:
    try:
        HEADS.find(options.get("head") or "softmax")
        POINTWISE.find(options.get("head_pointwise") or "identity")
        VOCABULARY.find(options.get("head_vocabulary") or "plain")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; pass the --user-dir of its training run") from None


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
    return {path.name: checksum(path) for path in sorted(folder.glob("[!.]*"))}


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
    require_regular(path)
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link; replace it with a copy of the file it names")


def _require_pieces(task: Mapping[str, Any], folder: Path, pieces: Path) -> None:
    """Refuse pieces that did not split the text which a model takes."""
    from fairseq.data import Dictionary

    path = folder / f"dict.{task.get('source_lang')}.txt"
    for file in [path] if path.exists() else _dictionaries(folder):
        words = Dictionary.load(str(file)).symbols[Dictionary().nspecial :]
        require_pieces_of(pieces, file, (w for w in words if not w.startswith("madeupword")))


def _check_dictionaries(config: dict[str, Any], folder: Path) -> None:
    """Require the dictionaries in a folder that a checkpoint has hashes of."""
    from fairseq.data import Dictionary

    saved, task = config["task_state"].get("dictionaries", {}), config["fairseq"]["task"]
    for side in [side for side in ("source", "target") if side in saved]:
        # fairseq may have inferred the languages, and not saved them
        language, is_unknown = task.get(f"{side}_lang"), f"{side}_lang" in task
        name = f"dict.{language}.txt" if language else "dict.*txt" if is_unknown else "dict.txt"
        is_part = side == "target" and (task.get("output_dictionary_size") or -1) > 0
        loaded = [Dictionary.load(str(path)) for path in folder.glob(name)]
        digests = [digest_of_words(d[index] for index in range(len(d))) for d in loaded]
        if not loaded or (not is_part and saved[side] not in digests):
            raise ValueError(
                f"{folder / name} is not the {side} dictionary that the checkpoint was trained "
                f"with: {'its words or their order differ' if loaded else 'it is missing'}. Give "
                "the binarised data of that training run as --data"
            )


def _add_languages(task: dict[str, Any], data: Path) -> None:
    """Add the languages that fairseq inferred from the names of the data, and did not save."""
    names = [path.name.split(".") for path in sorted(data.glob("*-*.idx"))]
    pairs = {parts[1] for parts in names if len(parts) == 4 and parts[1].count("-") == 1}
    if {"source_lang", "target_lang"} <= task.keys() and len(pairs) == 1:
        for side, language in zip(("source", "target"), pairs.pop().split("-"), strict=True):
            task[f"{side}_lang"] = task[f"{side}_lang"] or language


def _config(state: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    history = state["optimizer_history"][-1]
    config = {
        "format": FORMAT,
        "versions": versions(),
        "training": {name: history.get(name) for name in _HISTORY},
        "valid_loss": plain(state["extra_state"].get("val_loss")),  # `plain` turns NaN into None
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
