"""Read from a checkpoint, and check, what a folder to publish is written from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.files import checksum, plain, require_regular, write_text
from highrank_plugins.common.provenance import versions
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import piece_options, require_pieces_of
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
    model: Any  # fairseq's, in evaluation mode
    dictionaries: list[Path]

    def write_certificate(self, folder: Path, sha256: Mapping[str, str]) -> None:
        """Write what the model computes in float64, and the checksums of a tokenizer's files."""
        from highrank_plugins.common.certificate import CERTIFICATE, certificate_of, of_fairseq

        options = self.config["fairseq"]["model"]
        name = str(options.get("arch") or options.get("_name"))
        # an import can build these without their task
        if "head" in options or name.startswith(("transformer", "lstm")):
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
