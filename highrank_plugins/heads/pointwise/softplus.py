"""log(1 + e^x) to the last bit of the dtype."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) of any shape and floating dtype.

    torch's default turns linear above 20, which is 2e-9 off; above 40 the error, e^-40, is below
    the resolution of float64, and e^40 does not overflow float32.
    """
    return F.softplus(x, threshold=40.0)
