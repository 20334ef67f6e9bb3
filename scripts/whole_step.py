"""Model a translator's whole training step on a GPU: trunk, layer, loss, and Adam's update.

The step of `highrank bench train` runs on device `meta`, and each operation takes the time of
`roofline.Seconds`. Parameters, activations and Adam's averages are in bfloat16.

    python -m scripts.whole_step wmt_en_de
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode

from highrank_plugins.benchmarks.case import CaseError, ModelCase, named
from highrank_plugins.benchmarks.models import model_step
from highrank_plugins.cli import as_command
from highrank_plugins.common import formatting
from scripts.roofline import Gpu, Seconds, counted, find_gpu, require_triton

IMPLEMENTATIONS = ("chunked", "fused", "triton")
OUR_SOFTMAX = "transformer_softmax"


class _NoContent(TorchDispatchMode):
    """Return 0 where code reads a tensor of device `meta`: no word is padding."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0
        return function(*args, **(kwargs or {}))


def estimate_step(model: str, case: ModelCase, gpu: Gpu) -> Seconds:
    """Return the model of one training step."""
    with torch.device("meta"):
        step = model_step("train", model, replace(case, dtype="bfloat16", device="meta"))
    with _NoContent():
        step()  # allocates Adam's averages
        seconds = Seconds(gpu, "identity")
        with counted(seconds):
            step()
    return seconds


def run_whole_steps(presets: list[str], models: list[str], implementation: str, gpu: str) -> str:
    """Return a Markdown table of models, one line per arch of each preset."""
    peaks = find_gpu(gpu)
    if implementation not in IMPLEMENTATIONS:
        raise CaseError(
            f"--impl {implementation}: a whole step takes one of {', '.join(IMPLEMENTATIONS)}"
        )
    if given := [model for model in models if "--head-loss " in f"{model} ".replace("=", " ")]:
        raise CaseError(f"--model {given[0]}: give the loss as --impl, not as --head-loss")
    require_triton([implementation])
    cases = {name: case for preset in presets for name, case in named("train", preset).items()}
    rows = []
    for name, case in cases.items():
        assert isinstance(case, ModelCase)
        if case.is_language_model:
            raise CaseError(
                f"{name}: only translators can be modelled, because an LSTM is one kernel without "
                "a model; scripts/roofline.py models the loss alone"
            )
        ours = [spec for spec in (OUR_SOFTMAX, *(models or case.models)) if spec != case.baseline]
        shown = [case.baseline, *ours]
        specs = [case.baseline, *(f"{spec} --head-loss {implementation}" for spec in ours)]
        found = [estimate_step(spec, case, peaks) for spec in specs]
        rows += [_row(name, spec, each, found[1]) for spec, each in zip(shown, found, strict=True)]
    heading = ["case", "model", "products, ms", "others, ms", f"× {OUR_SOFTMAX}"]
    return formatting.table(heading, rows)


def _row(case: str, model: str, step: Seconds, softmax: Seconds) -> list[str]:
    times = [f"{1e3 * step.products:.2f}", f"{1e3 * step.others:.2f}"]
    ratio = (step.products + step.others) / (softmax.products + softmax.others)
    return [case, f"`{model}`", *times, f"{ratio:.2f}"]


def whole_step(
    preset: Annotated[list[str], "Presets of `highrank bench train`."],
    gpu: Annotated[str, "GPU to model: h200, h100, a100 or rtx4090."] = "h200",
    impl: Annotated[str, "Implementation of the loss: chunked, fused or triton."] = "triton",
    model: Annotated[
        list[str] | None, "Arch and options in quotes, instead of the preset's; may be repeated."
    ] = None,
) -> None:
    """Model training steps of translators on a GPU you do not have, in bfloat16."""
    typer.echo(run_whole_steps(preset, model or [], impl, gpu), nl=False)


if __name__ == "__main__":
    as_command(whole_step)()
