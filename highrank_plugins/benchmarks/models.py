"""Time training steps and beam search of models with a head, on random words."""

from __future__ import annotations

import shlex
from typing import Any

import torch
from fairseq import options
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

import highrank_plugins
from highrank_plugins.benchmarks.case import ModelCase, import_user_dir
from highrank_plugins.benchmarks.measuring import Step
from highrank_plugins.training.model_size import task_of

OURS = "highrank_cross_entropy"
STOCK = "label_smoothed_cross_entropy"
TRANSLATION = (
    "--source-lang a --target-lang b --share-all-embeddings --label-smoothing 0.1 --dropout 0.1"
)
STREAMS = "--ar-alpha 2 --tar-beta 1"  # the penalties of Merity et al. 2018, as in the recipes
CLIP_NORM = 0.25


def model_step(kind: str, spec: str, case: ModelCase) -> Step:
    """Return one training step (forward, backward, update) or one batch of beam search.

    A language model is updated by SGD with clipped gradients, a translator by Adam. `kind` is
    "train" or "generate"; `spec` an arch, and options of it after the first space.
    """
    torch.manual_seed(1)
    task = task_of(case.classes)
    model, criterion = _build(spec, case, task)
    dictionary = task.dictionary
    model = model.to(case.device, getattr(torch, case.dtype))
    if kind == "generate":
        return _generate_step(model, dictionary, case)
    if case.is_language_model:
        return _stream_step(model, criterion, case, dictionary)
    return _train_step(model, criterion, case, dictionary)


def parameters(spec: str, case: ModelCase) -> int:
    """Return the number of parameters, without allocating them."""
    with torch.device("meta"):
        model, _ = _build(spec, case, task_of(case.classes))
    return sum(parameter.numel() for parameter in model.parameters())


def _build(spec: str, case: ModelCase, task: Any) -> tuple[Any, Any]:
    """Build model and criterion."""
    highrank_plugins.register()
    if case.user_dir is not None:
        import_user_dir(case.user_dir)
    arch, *more = shlex.split(spec) or [""]  # argparse refuses a blank arch
    common, criterion = TRANSLATION, STOCK if arch == case.baseline else OURS
    if case.is_language_model:
        common, criterion = STREAMS, "bptt_cross_entropy"
    own = [*common.split(), *shlex.split(case.shape), *more]
    words = ["nowhere", "--seed", "1", "--task", case.task, "--arch", arch]
    words += ["--criterion", criterion, *own]
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_training_parser(), words)
    )
    return build_model(cfg.model, task), build_criterion(cfg.criterion, task)


def _words(case: ModelCase, dictionary: Dictionary) -> Tensor:
    """Return sentences [B, T] of random words, all of one length, with their end."""
    words = torch.randint(
        dictionary.nspecial, len(dictionary), (case.sentences, case.length), device=case.device
    )
    words[:, -1] = dictionary.eos()
    return words


def _sample(case: ModelCase, dictionary: Dictionary) -> dict[str, Any]:
    source, target = _words(case, dictionary), _words(case, dictionary)
    lengths = torch.full((case.sentences,), case.length, device=case.device)
    net_input = {
        "src_tokens": source,
        "src_lengths": lengths,
        "prev_output_tokens": target.roll(1, 1),
    }
    return {"net_input": net_input, "target": target, "ntokens": target.numel()}


def _train_step(model: Any, criterion: Any, case: ModelCase, dictionary: Dictionary) -> Step:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    sample = _sample(case, dictionary)
    monitor = getattr(model, "monitor", None)

    def step() -> None:
        optimizer.zero_grad()
        if monitor is not None:
            monitor.before_update(0)
        criterion(model, sample)[0].backward()
        optimizer.step()
        if monitor is not None:
            monitor.after_update(1, None)

    return step


def _stream_step(model: Any, criterion: Any, case: ModelCase, dictionary: Dictionary) -> Step:
    """Train on one chunk repeatedly; each step starts from the state after the previous one."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    text = _words(case, dictionary)
    sample: dict[str, Any] = {
        "net_input": {"src_tokens": text, "state": None},
        "target": text.roll(-1, 1),
        "ntokens": text.numel(),
        "tokens_per_process": text.numel(),
        "nsentences": len(text),
    }

    def step() -> None:
        optimizer.zero_grad()
        criterion(model, sample)[0].div(text.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        state = sample.pop("next_state")
        sample["net_input"]["state"] = [[part.detach() for part in layer] for layer in state]

    return step


def _generate_step(model: Any, dictionary: Dictionary, case: ModelCase) -> Step:
    # equal numbers of steps for all layers, whatever their random weights predict
    generator = SequenceGenerator(
        [model.eval()], dictionary, beam_size=4, max_len_a=0, max_len_b=case.length,
        min_len=case.length,
    )  # fmt: skip
    sample = _sample(case, dictionary)

    def step() -> None:
        with torch.no_grad():
            generator.generate([model], sample)

    return step
