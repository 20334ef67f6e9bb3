"""Write a model as a folder to publish, without pickle and with everything needed to use it.

`model.safetensors` holds each tensor once; its metadata name the tied ones. `config.json` holds
the other parts of the checkpoint that a model needs, and the sha256 of weights, dictionaries and
pieces, which an import compares. `README.md` is the model's card.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.certificate import (
    CERTIFICATE,
    certificate_of,
    certificate_path,
    compare,
    of_fairseq,
)
from highrank_plugins.common.checkpoint_file import check_sizes_and_paths, warn_without_hash
from highrank_plugins.common.files import (
    check_sum,
    read_json,
    require_regular,
    write_json,
    write_text,
)
from highrank_plugins.common.folders import new_folder
from highrank_plugins.data.pieces import piece_options
from highrank_plugins.reports.model_card import model_card
from highrank_plugins.reports.model_parts import (
    CARD,
    CONFIG,
    FORMAT,
    MARKS,
    WEIGHTS,
    built,
    check_weights,
    read_parts,
    require_known_layer,
    safetensors_library,
    save_tensors,
    sums,
)
from highrank_plugins.results.record import load_record
from highrank_plugins.training.checkpoints import first_names

if TYPE_CHECKING:
    from torch import Tensor


def export_model(
    checkpoint: Path,
    folder: Path,
    data: Path | None,
    licence: str,
    pieces: Path | None = None,
    results: Path | None = None,
) -> None:
    """Write a checkpoint's model into a new folder, all or nothing; see `read_parts`.

    The card has the scores of `results`.
    """
    parts = read_parts(checkpoint, folder, data, pieces)
    config, dictionaries = parts.config, parts.dictionaries
    cut = [] if pieces is None else piece_options(pieces, f"{folder.name}/{pieces.name}")
    config["text"] = dict(cut)
    record = None if results is None else load_record(results)
    with new_folder(folder) as part:
        parameters = _save_weights(parts.weights, part / WEIGHTS)
        files = [*dictionaries, *([] if pieces is None else [pieces])]
        for path in files:
            shutil.copyfile(path, part / path.name)
        parts.write_certificate(part, {})
        config["sha256"] = sums(part)
        write_json(part / CONFIG, config)
        card = model_card(folder.name, config, parameters, dictionaries, cut, record, licence)
        write_text(part / CARD, card)


def import_model(folder: Path, output: Path) -> None:
    """Write the checkpoint that a folder of `export_model` holds, for inference and warm starts."""
    if output.exists():
        raise FileExistsError(f"{output} exists: give another --output, or remove it")
    config, model = read_folder(folder)
    from fairseq.checkpoint_utils import torch_persistent_save

    output.parent.mkdir(parents=True, exist_ok=True)
    warn_without_hash(str(folder), config)
    state = {
        "args": None,
        "cfg": config["fairseq"],
        "model": model,
        "criterion": None,
        "optimizer_history": [{**config["training"], "lr_scheduler_state": {}}],
        "task_state": config["task_state"],
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": config["valid_loss"]},
    }
    torch_persistent_save(state, str(output))
    if CERTIFICATE in config["sha256"]:
        write_text(certificate_path(output), (folder / CERTIFICATE).read_text())


def certify(model: Path) -> str:
    """Compare a checkpoint or folder with its certificate, or write one; return what was done."""
    import highrank_plugins

    highrank_plugins.register()
    from highrank_plugins.inference.loading import DTYPES, load_model
    from highrank_plugins.reports.fsmt_folder import served_by_transformers

    path = certificate_path(model)
    if model.is_dir() and "model_type" not in read_json(model / CONFIG):
        read_folder(model)
        require_regular(path)
        return f"{model}: computes what was certified"
    is_new = not path.exists()
    if model.is_dir():
        served = served_by_transformers(model, is_new)
    else:
        dtype = DTYPES["float64" if is_new else "float32"]
        served = of_fairseq(load_model(model, None, dtype=dtype).model)
    if not is_new:
        return f"{model}: computes what was certified, to {compare(path, served):.1e}"
    write_text(path, json.dumps(certificate_of(served)))
    return f"{path}: written; each command that loads the model compares it from now on"


def read_folder(folder: Path) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """Return configuration and weights of `export_model`, compared with their certificate."""
    import highrank_plugins

    highrank_plugins.register()
    for name in (CONFIG, WEIGHTS):
        require_regular(folder / name)
    config = _read_config(folder / CONFIG)
    require_known_layer(folder / CONFIG, config["fairseq"]["model"])
    for name, expected in config["sha256"].items():
        check_sum(folder / name, expected)
    weights = _load_weights(folder / WEIGHTS)
    check_weights(folder / WEIGHTS, weights)
    check_sizes_and_paths(str(folder), {"cfg": config["fairseq"], "model": weights})
    built(folder, config["fairseq"], weights)
    return config, weights


def _save_weights(model: "dict[str, Tensor]", path: Path) -> int:
    """Save the weights; return the number of parameters."""
    first = first_names(model)
    tied = {name: other for name, other in first.items() if name != other}
    # copies tensors that share memory
    tensors = {name: model[name].contiguous().clone() for name in model if name not in tied}
    save_tensors(tensors, path, {"format": "pt", "tied": json.dumps(tied)})
    return sum(
        value.numel()
        for name, value in tensors.items()
        if value.is_floating_point() and name.rpartition(".")[2] not in MARKS
    )


def _load_weights(path: Path) -> "dict[str, Tensor]":
    library = safetensors_library()
    try:
        with library.safe_open(path, framework="pt") as file:
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
            _require_mapping(path, "tied", tied)
            names = file.keys()  # unlike a dict, a file cannot be iterated over
            model = {name: file.get_tensor(name) for name in names}
        return model | {name: model[other] for name, other in tied.items()}
    except (
        library.SafetensorError, json.JSONDecodeError, KeyError, RecursionError, TypeError,
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None


def _require_mapping(path: Path, key: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {key} must be a mapping, not {type(value).__name__}")


_KEYS = {"fairseq", "training", "task_state", "valid_loss", "sha256"}


def _finite(constant: str) -> float:
    """Return an infinity, and refuse NaN, which no option can have."""
    if constant == "NaN":
        raise ValueError("it holds NaN, which no option can have")
    return float(constant)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        config: dict[str, Any] = json.loads(text, parse_constant=_finite)
        found, missing = config["format"], _KEYS - config.keys()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} was not written by `highrank model export` ({error})") from None
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found}, but this version reads {FORMAT}: update highrank_plugins"
        )
    if missing:
        raise ValueError(
            f"{path} was not written by `highrank model export`: it lacks "
            f"{', '.join(sorted(missing))}"
        )
    parts = {key: config[key] for key in ("training", "task_state", "fairseq", "sha256")}
    for key, value in parts.items():
        _require_mapping(path, key, value)
    sections = {name: config["fairseq"].get(name) for name in ("model", "task", "common")}
    sections |= {name: of for name, of in config["fairseq"].items() if of is not None}
    for name, value in sections.items():
        if name != "_name":
            _require_mapping(path, f"fairseq.{name}", value)
    for name, value in config["sha256"].items():
        if Path(name).name != name or not isinstance(value, str):
            raise ValueError(f"{path}: sha256 must map files here to checksums, not {name!r}")
    if WEIGHTS not in config["sha256"]:
        raise ValueError(f"{path}: sha256 lacks {WEIGHTS}; export the model again")
    if not isinstance(config["valid_loss"], int | float | None):
        raise ValueError(f"{path}: valid_loss must be a number or null")
    return config
