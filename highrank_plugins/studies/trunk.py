"""Write the features of a trained trunk, of fairseq or transformers, with the words that follow."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from highrank_plugins.common.files import checksum, files_digest, read_json, write_json, write_whole
from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import Head
from highrank_plugins.results.comparison import BASELINE
from highrank_plugins.results.perplexity import dictionary
from highrank_plugins.studies.definition import RaceSettings

FrozenTexts = Mapping[str, tuple[Tensor, Tensor]]  # split → features [N, F], targets [N]
SPLITS = ("train", "valid", "test")
ROWS = 2000  # tokens that are scored at a time
FEATURES, TRUNK, SCORE = "features", "trunk.pt", "score.json"
BEGUN = "identity.json"  # of the features, before the first of them are written
MOST_CONTEXT = 512  # tokens of a block that a model of transformers reads at once


class Trunk(NamedTuple):
    """Hold what tells a trunk and its texts from others, and what writes its features.

    `write` takes a split and a folder. `own` returns weight, bias and name of the trunk's own
    layer, and its mean −log P of the test tokens, once all features are there.
    """

    identity: dict[str, str]
    write: Callable[[str, Path], Any]
    own: Callable[[], dict[str, Any]]


def open_trunk(checkpoint: Path, data: str, settings: RaceSettings) -> Trunk:
    return (of_transformers if checkpoint.is_dir() else of_fairseq)(checkpoint, data, settings)


def dump(trunk: Trunk, settings: RaceSettings) -> None:
    """Write features and targets of all splits, and the trunk's own layer with its score."""
    folder = settings.exp_dir / FEATURES
    before = read_trunk(settings) if (folder / TRUNK).exists() else {}
    begun, asked = folder / BEGUN, {"tokens": str(settings.tokens)} | trunk.identity
    known = read_json(begun) if begun.exists() else {}
    refuse_other(settings.exp_dir, folder, known | before.get("identity", {}), asked)
    write_json(begun, asked)
    for split in SPLITS:
        trunk.write(split, folder / split)
    files = [f"{split}/{name}.npy" for split in SPLITS for name in ("features", "targets")]
    own = asked | {f"{FEATURES}/{file}": checksum(folder / file) for file in files}
    refuse_other(settings.exp_dir, folder, before.get("identity", {}), own)
    if not before:
        kept = {"identity": own, **trunk.own()}
        write_whole(folder / TRUNK, lambda file: torch.save(kept, file))


def read_trunk(settings: RaceSettings) -> dict[str, Any]:
    """Return the trunk's own layer, its score and the identity of its features."""
    path = settings.exp_dir / FEATURES / TRUNK
    try:
        return dict(torch.load(path, weights_only=True))
    except (RuntimeError, ValueError, OSError, EOFError, UnpicklingError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path}: damaged ({why}); delete {settings.exp_dir}") from None


def refuse_other(
    stale: Path, path: Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuse what is of another trunk, text or option; `stale` may be deleted."""
    for name, value in now.items():
        if name in before and before[name] != value:
            raise ValueError(
                f"{path} is of another race: {name} was {str(before[name])[:16]}, and is "
                f"{str(value)[:16]} now; name another --exp-dir, or delete {stale}"
            )


def of_fairseq(checkpoint: Path, data: str, settings: RaceSettings) -> Trunk:
    from highrank_plugins.inference.collector import Collector, write_collection
    from highrank_plugins.inference.loading import load_model, pick_device

    loaded = load_model(checkpoint, data, pick_device(None))
    texts = {split: Collector(loaded, split, tokens=settings.tokens) for split in SPLITS}
    head = loaded.head

    def own() -> dict[str, Any]:
        score = loss_of(head.cpu(), *read_texts(settings)["test"])
        layer = {"weight": head.weight.detach(), "bias": head.bias, "layer": layer_name(head)}
        return layer | {"loss": score}

    identity = {
        "checkpoint": checksum(checkpoint),
        "dictionary": dictionary(Path(data.partition(":")[0])) or "",
        **{f"text of {split}": of.text.digest for split, of in texts.items()},
    }
    what = ("features", "targets")
    return Trunk(identity, lambda name, to: write_collection(texts[name], to, what), own)


def of_transformers(folder: Path, data: str, settings: RaceSettings) -> Trunk:
    """Return the trunk of a causal language model, with {train,valid,test}.txt of `data`."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            f"{folder}: a folder is a model of transformers, which is not installed; install it "
            "(this package's extra `hf`), or give a checkpoint of fairseq"
        ) from None
    from highrank_plugins.huggingface import config, model, replace

    texts = {split: Path(data) / f"{split}.txt" for split in SPLITS}
    for path in (folder / "config.json", *texts.values()):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; give a model's folder, and one of its texts")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    layer, text = replace.own_layer(loaded)
    scale = float(config.HighrankConfig(text, "softmax", {}).feature_scale or 1)
    spread = model.spread_ids(len(layer.weight), layer.weight)
    replace.check_logits(loaded, layer, spread, config.logit_cap(text), scale)
    length = min(MOST_CONTEXT, getattr(text, "max_position_embeddings", None) or MOST_CONTEXT)

    def write(split: str, to: Path) -> None:
        if not to.is_dir():
            ids = _token_ids(tokenizer, texts[split], settings.tokens + 1)
            if len(ids) < 2 or max(ids) >= len(layer.weight):
                raise ValueError(f"{texts[split]}: no text of its tokenizer; give more words")
            _write_blocks(loaded, torch.tensor(ids), (length, layer.in_features, scale), to)

    def own() -> dict[str, Any]:
        found = {"weight": layer.weight.detach(), "bias": layer.bias, "layer": BASELINE}
        return found | {"loss": read_json(settings.exp_dir / FEATURES / "test" / SCORE)["nats"]}

    identity = {
        "checkpoint": files_digest(folder, "*.safetensors", "*.bin", "config.json"),
        "dictionary": files_digest(folder, "tokenizer*", "vocab*", "merges*"),
        **{f"text of {split}": checksum(path) for split, path in texts.items()},
    }
    return Trunk(identity, write, own)


def _token_ids(tokenizer: Any, path: Path, most: int) -> list[int]:
    found: list[int] = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            found += tokenizer(line, add_special_tokens=False).input_ids
            if len(found) >= most:
                break
    return found[:most]


def _write_blocks(model: Any, ids: Tensor, how: tuple[int, int, float], to: Path) -> None:
    """Write features, targets and the model's own score of a stream of token ids."""
    length, width, scale = how
    part, count, total = to.with_name(f"{to.name}.part"), 0, 0.0
    part.mkdir(parents=True, exist_ok=True)
    np.save(part / "targets.npy", ids[1:].numpy())
    rows = np.lib.format.open_memmap(
        part / "features.npy", "w+", "float32", shape=(len(ids) - 1, width)
    )
    for features, loss in _blocks(model, ids, length):
        rows[count : count + len(features)] = (features * scale).numpy()
        count, total = count + len(features), total + loss
    rows.flush()
    write_json(part / SCORE, {"nats": total / count})
    os.replace(part, to)


@torch.no_grad()
def _blocks(model: Any, ids: Tensor, length: int) -> Iterator[tuple[Tensor, float]]:
    """Yield features [n, F] of the blocks of a stream, and −log P of the next tokens, summed."""
    for given, target in zip(ids[:-1].split(length), ids[1:].split(length), strict=True):
        logits = model(given[None]).logits[0].float()
        loss = nn.functional.cross_entropy(logits, target, reduction="sum")
        yield model.base_model(given[None]).last_hidden_state[0], float(loss)


def read_texts(settings: RaceSettings) -> FrozenTexts:
    """Return features and targets of all splits, as memory maps."""

    def read(split: str, name: str) -> Tensor:
        path = settings.exp_dir / FEATURES / split / f"{name}.npy"
        return torch.from_numpy(np.load(path, mmap_mode="c"))

    return {split: (read(split, "features"), read(split, "targets")) for split in SPLITS}


@torch.no_grad()
def loss_of(head: Head, features: Tensor, target: Tensor) -> float:
    """Return the mean −log P of the targets, in nats, without dropout."""
    head.eval()
    parts = zip(features.split(ROWS), target.split(ROWS), strict=True)
    total = math.fsum(float(head.nll(x, y, reduction="sum").loss) for x, y in parts)
    head.train()
    return total / len(target)
