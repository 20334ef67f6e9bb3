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


@replaces(EMA, "_step_internal")
def step(stock: Callable, ema: Any, new_model: nn.Module, updates: int | None = None) -> None:
    state = new_model.state_dict().items()
    whole = {n for n, t in state if isinstance(t, Tensor) and not t.is_floating_point()}
    ema.skip_keys = whole.union(ema.skip_keys)
    stock(ema, new_model, updates)
