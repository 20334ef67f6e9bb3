"""`--store-ema` cannot average whole numbers.

What breaks: a layer with buffers of class ids, such as `--head-vocabulary codebook`, ends in
"result type Float can't be cast to Long" at the first update.
Why: `EMA` multiplies every tensor of the state by the decay.
What we do: name tensors of whole numbers among those that it copies instead.
Delete when: `EMA` leaves them alone.
"""

from collections.abc import Callable
from typing import Any

from fairseq.models.ema.ema import EMA
from torch import Tensor, nn

from highrank_plugins.common.patching import replaces


def is_whole(value: object) -> bool:
    """Whether a value of a state is a tensor of whole numbers."""
    return isinstance(value, Tensor) and not value.is_floating_point()


@replaces(EMA, "_step_internal")
def step(stock: Callable, ema: Any, new_model: nn.Module, updates: int | None = None) -> None:
    state = new_model.state_dict().items()
    ema.skip_keys = {*ema.skip_keys, *(n for n, t in state if is_whole(t))}
    stock(ema, new_model, updates)
