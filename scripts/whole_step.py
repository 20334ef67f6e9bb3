"""Model a translator's whole training step on a GPU: trunk, layer, loss, and Adam's update.

The step of `highrank bench train` runs on device `meta`, and each operation takes the time of
`roofline.Seconds`. Parameters, activations and Adam's averages are in bfloat16.

    python -m scripts.whole_step wmt_en_de
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode

from highrank_plugins.benchmarks.case import CaseError, ModelCase, named
from highrank_plugins.benchmarks.models import model_step
from highrank_plugins.cli import as_command, main
from highrank_plugins.common import formatting
from scripts.roofline import GPUS, Gpu, GpuName, Seconds, counted, require_triton

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


def whole_step(
    preset: Annotated[list[str], "Presets of `highrank bench train`."],
    gpu: GpuName = "h200",
    impl: Annotated[Literal["chunked", "fused", "triton"], "Loss's implementation."] = "triton",
) -> None:
    """Model training steps of translators on a GPU you do not have, in bfloat16."""
    require_triton([impl])
    cases = {name: case for one in preset for name, case in named("train", one).items()}
    rows = []
    for name, case in cases.items():
        assert isinstance(case, ModelCase)
        if case.is_language_model:
            raise CaseError(
                f"{name}: only translators can be modelled, because an LSTM is one kernel without "
                "a model; scripts/roofline.py models the loss alone"
            )
        ours = [spec for spec in (OUR_SOFTMAX, *case.models) if spec != case.baseline]
        specs = [case.baseline, *(f"{spec} --head-loss {impl}" for spec in ours)]
        steps = [estimate_step(spec, case, GPUS[gpu]) for spec in specs]
        softmax = steps[1].products + steps[1].others
        for spec, step in zip((case.baseline, *ours), steps, strict=True):
            times = [f"{1e3 * seconds:.2f}" for seconds in (step.products, step.others)]
            ratio = f"{(step.products + step.others) / softmax:.2f}"
            rows.append([name, f"`{spec}`", *times, ratio])
    heading = ["case", "model", "products, ms", "others, ms", f"× {OUR_SOFTMAX}"]
    typer.echo(formatting.table(heading, rows), nl=False)


if __name__ == "__main__":
    main(as_command(whole_step), "python -m scripts.whole_step")
