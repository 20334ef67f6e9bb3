"""Write a model as a folder to publish, without pickle and with everything needed to use it.

`model.safetensors` holds each tensor once; its metadata name the tied ones. `config.json` holds
the other parts of the checkpoint that a model needs, and the sha256 of weights, dictionaries and
pieces, which an import compares. `README.md` is the model's card.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.checkpoint_file import check_sizes_and_paths, warn_without_hash
from highrank_plugins.common.checksums import check_sum, checksum, digest_of_words
from highrank_plugins.common.files import plain, require_regular, write_json, write_text
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.provenance import versions
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import piece_options, require_pieces_of
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.reports.model_card import model_card
from highrank_plugins.results.record import load_record
from highrank_plugins.training.checkpoints import first_names, load_without_weights, mapped_model

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
_MARKS = ("version", "_float_tensor")  # entries of fairseq's state that are not parameters
_HISTORY = ("criterion_name", "optimizer_name", "num_updates")


def export_model(
    checkpoint: Path,
    folder: Path,
    data: Path | None,
    licence: str,
    pieces: Path | None = None,
    results: Path | None = None,
) -> None:
    """Write a checkpoint's model into a new folder, all or nothing.

    Absolute paths in the configuration are cut to their last name, and the rendezvous address is
    left out, because both reveal details of the machine. The dictionaries are in `data`, or where
    the training run had them. The card has the scores of `results`.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: give another --output, or remove it")
    state = load_without_weights(checkpoint)
    model = mapped_model(checkpoint)
    _check_weights(checkpoint, model)
    data = data or Path(str(state["cfg"]["task"]["data"]).split(":")[0])
    dictionaries = _dictionaries(data)
    config = _config(state, checkpoint)
    _add_languages(config["fairseq"]["task"], data)
    _check_dictionaries(config, data)
    _require_same_layer(checkpoint, config["fairseq"], model)
    # read first, so that errors come before anything is written
    cut = [] if pieces is None else piece_options(pieces, f"{folder.name}/{pieces.name}")
    config["text"] = dict(cut)
    if pieces is not None:
        _require_no_link(pieces)
        _require_pieces(config["fairseq"]["task"], data, pieces)
    record = None if results is None else load_record(results)
    with new_folder(folder) as part:
        parameters = _save_weights(model, part / WEIGHTS)
        files = [*dictionaries, *([] if pieces is None else [pieces])]
        for path in files:
            shutil.copyfile(path, part / path.name)
        config["sha256"] = {
            path.name: checksum(part / path.name) for path in [part / WEIGHTS, *files]
        }
        write_json(part / CONFIG, config)
        card = model_card(folder.name, config, parameters, dictionaries, cut, record, licence)
        write_text(part / CARD, card)


def import_model(folder: Path, output: Path) -> None:
    """Write the checkpoint that a folder of `export_model` holds, for inference and warm starts."""
    if output.exists():
        raise FileExistsError(f"{output} exists: give another --output, or remove it")
    import highrank_plugins

    highrank_plugins.register()
    from fairseq.checkpoint_utils import torch_persistent_save

    for name in (CONFIG, WEIGHTS):
        require_regular(folder / name)
    config = _read_config(folder / CONFIG)
    _require_known_layer(folder / CONFIG, config["fairseq"]["model"])
    for name, expected in config["sha256"].items():
        check_sum(folder / name, expected)
    model = _load_weights(folder / WEIGHTS)
    _check_weights(folder / WEIGHTS, model)
    check_sizes_and_paths(str(folder), {"cfg": config["fairseq"], "model": model})
    _require_same_layer(folder, config["fairseq"], model)
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


def _require_same_layer(path: Path, config: dict[str, Any], model: "dict[str, Tensor]") -> None:
    """Build one of our models and load its weights, as generation does."""
    _require_known_layer(path, config["model"])
    if "head" not in config["model"]:
        return
    from omegaconf import OmegaConf

    from highrank_plugins.inference.loading import model_without_words

    model_without_words(path, OmegaConf.create(config), dict(model))


def _require_known_layer(path: Path, options: Mapping[str, Any]) -> None:
    try:
        HEADS.find(options.get("head") or "softmax")
        POINTWISE.find(options.get("head_pointwise") or "identity")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; pass the --user-dir of its training run") from None


def _check_weights(path: Path, model: "dict[str, Tensor]") -> None:
    for name, value in model.items():
        if not value.is_floating_point():
            raise ValueError(f"{path}: {name} has dtype {value.dtype}; expected floating point")
        if not value.isfinite().all():
            raise ValueError(f"{path}: {name} holds infinite numbers or NaN")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise ValueError("safetensors is not installed; run: pip install safetensors") from None
    return safetensors


def _save_weights(model: "dict[str, Tensor]", path: Path) -> int:
    """Save the weights; return the number of parameters."""
    first = first_names(model)
    tied = {name: other for name, other in first.items() if name != other}
    # copies tensors that share memory
    tensors = {name: model[name].contiguous().clone() for name in model if name not in tied}
    metadata = {"format": "pt", "tied": json.dumps(tied)}
    library = _safetensors()
    try:
        library.torch.save_file(tensors, path, metadata)
    except library.SafetensorError as error:  # a full disk, for example
        raise ValueError(f"{path} cannot be written: {error}") from None
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets only the owner read
    return sum(
        value.numel()
        for name, value in tensors.items()
        if value.is_floating_point() and name.rpartition(".")[2] not in _MARKS
    )


def _load_weights(path: Path) -> "dict[str, Tensor]":
    library = _safetensors()
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
    remedy = "Give the binarised data of that training run as --data"
    for side in [side for side in ("source", "target") if side in saved]:
        language = task.get(f"{side}_lang")
        path = folder / (f"dict.{language}.txt" if language else "dict.txt")
        # fairseq may have inferred the languages, and not saved them
        is_unknown = language is None and f"{side}_lang" in task
        paths = sorted(folder.glob("dict.*txt")) if is_unknown else [path]
        if not is_unknown and not path.is_file():
            raise ValueError(
                f"{path} is missing, the {side} dictionary that the checkpoint was trained with. "
                f"{remedy}"
            )
        is_part = side == "target" and (task.get("output_dictionary_size") or -1) > 0
        loaded = [Dictionary.load(str(path)) for path in ([] if is_part else paths)]
        digests = [digest_of_words(d[index] for index in range(len(d))) for d in loaded]
        if not is_part and saved[side] not in digests:
            named = folder / "dict.*.txt" if is_unknown else path
            raise ValueError(
                f"{named} is not the {side} dictionary that the checkpoint was trained with: its "
                f"words or their order differ. {remedy}"
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
