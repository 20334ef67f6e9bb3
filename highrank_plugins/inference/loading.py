"""Load checkpoints of fairseq as models that compute."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import build_model
from fairseq.utils import set_torch_seed
from torch import Tensor, nn

from highrank_plugins.common.certificate import compare_where_certified
from highrank_plugins.common.checkpoint_file import ReasonsOf
from highrank_plugins.heads import Head, build_head
from highrank_plugins.measures.base import Words
from highrank_plugins.training.checkpoints import configuration_of
from highrank_plugins.training.model_size import task_of

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# parameters whose first dimension is the number of words, the most reliable first
_TARGET = (
    "decoder.output_projection.weight",
    "decoder.fc_out.weight",
    "decoder.embed_tokens.weight",
    "decoder.trunk.embed.weight",
)
_SOURCE = ("encoder.embed_tokens.weight", *_TARGET)
_NOT_EXTRA = ("model", "cfg", "args", "last_optimizer_state")  # large, or kept elsewhere


@dataclass(frozen=True)
class LoadedModel:
    """Hold a loaded checkpoint, in evaluation mode and so without dropout."""

    path: Path
    arch: str
    config: Any  # all blocks of its options
    extra: Mapping[str, Any]  # other contents of the file, without the optimizer's state
    model: Any
    task: Any  # None without data

    @property
    def dictionary(self) -> Any:
        """Return the words that are predicted; None without data."""
        return None if self.task is None else self.task.target_dictionary

    @cached_property
    def head(self) -> Head:
        return head_of(self.model, str(self.path))

    @property
    def words(self) -> Words:
        began = self.config.checkpoint  # a run that began from another one drew nothing of its own
        drawn = not began.finetune_from_model and began.restore_file == "checkpoint_last.pt"
        return Words(self.head, self.dictionary, first=self.first_head if drawn else None)

    def first_head(self) -> Head:
        """Return the output layer as fairseq-train drew it, by the seed of the run."""
        task = self.task or _task_of(self.path, self.model.state_dict())
        with torch.random.fork_rng():
            set_torch_seed(self.config.common.seed)
            return head_of(build_model(self.config.model, task), str(self.path))

    @property
    def updates(self) -> int | None:
        """Return the number of updates of the training run; None if the file does not say."""
        history = self.extra.get("optimizer_history") or [{}]
        found = history[-1].get("num_updates")
        return None if found is None else int(found)


def load_model(
    path: Path,
    data: str | None,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Read a checkpoint of any model of fairseq or ours; without `data`, words are unknown."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path), {"data": data or ""})
    parameters = state["model"]
    config = configuration_of(state)
    try:
        if data is None:
            model, task = model_without_words(path, config, parameters), None
        else:
            load = checkpoint_utils.load_model_ensemble_and_task
            (model,), _, task = load([str(path)], state=state)
    except FileNotFoundError as error:
        name = str(error.filename or "")
        if not Path(name).name.startswith("dict."):
            raise
        raise FileNotFoundError(
            f"{name}: no such file. A checkpoint holds no words: give the directory of "
            "fairseq-preprocess that it was trained on, or one with the same dictionaries"
        ) from None
    model.prepare_for_inference_(config)  # refuses heads that the checkpoint lacks
    model.eval()
    # some fairseq models store a Namespace
    arch = getattr(config.model, "_name", None) or config.model.arch
    if not hasattr(model, "decoder"):
        raise ValueError(f"{path}: --arch {arch} has no decoder, whose words could be predicted")
    extra = {name: value for name, value in state.items() if name not in _NOT_EXTRA}
    model = model.to(device or torch.device("cpu"), dtype)
    return LoadedModel(path, arch, config, extra, model, task)


def model_without_words(path: Path, config: Any, parameters: dict[str, Tensor]) -> Any:
    """Return a checkpoint's model, built on dictionaries with a word for each row of parameters."""
    with ReasonsOf(str(path)):
        model = build_model(config.model, _task_of(path, parameters), from_checkpoint=True)
        model.load_state_dict(parameters, strict=True, model_cfg=config.model)
    compare_where_certified(path, model)
    return model


def _task_of(path: Path, parameters: Mapping[str, Tensor]) -> Any:
    """Return a task of as many words as the parameters have."""
    sizes = []
    for names in (_TARGET, _SOURCE):
        sizes += [len(parameters[name]) for name in names if name in parameters][:1]
    if len(sizes) < 2:
        raise ValueError(
            f"{path}: its parameters do not show the size of the vocabulary; give the "
            "directory of fairseq-preprocess by --data"
        )
    return task_of(*sizes)


def head_of(model: Any, path: str) -> Head:
    """Return the head of our models; for stock models a softmax that shares their parameters."""
    decoder = model.decoder
    # of fairseq's Transformers, and of its LSTM
    layer = getattr(decoder, "adaptive_softmax", None)
    layer = layer or getattr(decoder, "output_projection", getattr(decoder, "fc_out", None))
    if layer is None and getattr(decoder, "share_input_output_embed", False):
        layer = decoder.embed_tokens
    if isinstance(layer, Head):
        return layer
    if not isinstance(layer, (nn.Linear, nn.Embedding)):
        raise ValueError(
            f"{path}: the output layer of {type(decoder).__name__} is not one matrix and cannot "
            "be analysed; our heads can, and the softmaxes of fairseq's Transformers and LSTMs "
            "(--criterion cross_entropy instead of adaptive_loss)"
        )
    classes, width = layer.weight.shape
    weight = nn.Parameter(layer.weight, requires_grad=False)  # shares memory
    sizes = {"num_classes": classes, "feature_dim": width}
    head = build_head("softmax", **sizes, weight=weight, bias=False)
    head.bias = getattr(layer, "bias", None)
    return head.to(layer.weight.device).eval()


def pick_device(name: str | None) -> torch.device:
    """Return the device of that name; None: a GPU if there is one, to each process its own."""
    if name is None:
        count = torch.cuda.device_count()
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % count}" if count else "cpu"
    if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise ValueError(f"--device {name}: torch sees no such device here; try --device cpu")
    return torch.device(name)
