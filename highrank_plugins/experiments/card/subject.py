"""The checkpoint that a card is about: model, output layer, words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from highrank_plugins.experiments.card.contents import Absent, Maybe
from highrank_plugins.heads import Head

# parameters whose first dimension is the number of words, in the order of trust
_TARGET = (
    "decoder.output_projection.weight",
    "decoder.fc_out.weight",
    "decoder.embed_tokens.weight",
)
_SOURCE = ("encoder.embed_tokens.weight", *_TARGET)


@dataclass(frozen=True)
class Subject:
    """A checkpoint that was read, in evaluation mode on the CPU.

    config: all blocks of options. extra: what the file holds besides parameters and options.
    task, dictionary: None without data.
    """

    path: Path
    arch: str
    model: Any
    head: Maybe[Head]
    config: Any
    extra: Mapping[str, Any]
    task: Any
    dictionary: Any

    def word(self, index: int) -> str:
        """Of a class; its number where words are unknown."""
        return f"#{index}" if self.dictionary is None else str(self.dictionary[index])


def read_subject(path: Path, data: str | None) -> Subject:
    """Load a checkpoint of any model that fairseq or this package has.

    Args:
        path: the checkpoint.
        data: directory of fairseq-preprocess; without it words are unknown.
    Raises:
        ValueError: the file is damaged, or does not fit the dictionaries of `data`.
        OSError: a file is missing.
    """
    from highrank_plugins.collect.loading import build, open_checkpoint, pick_device

    try:
        checkpoint = open_checkpoint(path, data or "")
        state, parameters = checkpoint.state, checkpoint.state["model"]
    except KeyError as error:
        raise ValueError(f"{path}: no checkpoint of a training: it has no {error}") from None
    task = None
    if data is None:
        model = _without_words(path, _config(state), parameters)
    else:
        model, task = build(checkpoint, pick_device("cpu"))
    extra = {name: value for name, value in state.items() if name not in ("model", "cfg", "args")}
    dictionary = None if task is None else task.target_dictionary
    head, config = _head(model, path), _config(state)
    return Subject(path, checkpoint.arch, model, head, config, extra, task, dictionary)


def _config(state: Mapping[str, Any]) -> Any:
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return state.get("cfg") or convert_namespace_to_omegaconf(state["args"])


def _head(model: Any, path: Path) -> Maybe[Head]:
    from highrank_plugins.collect.output_layer import head_of

    try:
        return head_of(model, path.name)
    except ValueError as error:
        return Absent(str(error))


def _without_words(path: Path, config: Any, parameters: dict[str, Tensor]) -> Any:
    """The model, built on dictionaries of as many words as the parameters have rows."""
    from fairseq.models import build_model

    try:
        model = build_model(config.model, _NoTask(path, parameters), from_checkpoint=True)
        model.load_state_dict(parameters, strict=True, model_cfg=config.model)
    except RuntimeError as error:  # torch's, of parameters that do not fit
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit its own configuration ({reason[:400]})") from None
    model.prepare_for_inference_(config)  # refuses heads that are not in the checkpoint
    return model


class _NoTask:
    """Stands for the task where there is no data; its words are numbers.

    Their counts fall, as those of the dictionary in a training with Mixtape do.
    """

    def __init__(self, path: Path, parameters: Mapping[str, Tensor]) -> None:
        self.target_dictionary = _numbers(_rows(path, parameters, _TARGET))
        self.source_dictionary = _numbers(_rows(path, parameters, _SOURCE))
        self.dictionary = self.target_dictionary


def _rows(path: Path, parameters: Mapping[str, Tensor], names: tuple[str, ...]) -> int:
    for name in names:
        if name in parameters:
            return len(parameters[name])
    raise ValueError(
        f"{path}: its parameters do not tell the size of the vocabulary; give the directory of "
        "fairseq-preprocess by --data"
    )


def _numbers(size: int) -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for index in range(len(dictionary), size):
        dictionary.add_symbol(f"#{index}", n=size - index + 1)
    return dictionary
