"""Apply DropConnect to the recurrent matrix of a `torch.nn.LSTM`."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from highrank_plugins.common.dropout_masks import dropout_mask

# A dropped matrix is a new tensor, so cuDNN copies the weights into one piece at every call, as it
# must; `flatten_parameters`, which the warning recommends, would not help.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


class WeightDropLSTM(nn.LSTM):
    """Run one layer of LSTM; training drops out `weight_hh_l0`, with one mask per forward pass.

    The parameters are those of `torch.nn.LSTM`, by name and shape. They are looked up at every
    call: nothing else holds a weight that `deepcopy`, `load_state_dict` or `.to()` could leave
    behind. In evaluation the layer is `torch.nn.LSTM` exactly.

    Args:
        input_size, hidden_size: as in `torch.nn.LSTM`.
    """

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: nn.Parameter

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)

    def forward(  # type: ignore[override]  # torch's takes packed sequences, too
        self, x: Tensor, state: tuple[Tensor, Tensor], p: float = 0.0
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return outputs [T, B, H] and the new state of inputs [T, B, I].

        Args:
            state: h and c, each [1, B, H].
            p: probability that an entry of the recurrent matrix is 0; the others grow by 1/(1 − p).
                It has no effect in evaluation.
        Raises:
            RuntimeError: sizes that do not fit.
        """
        self.check_forward_args(x, state, None)
        recurrent: Tensor = self.weight_hh_l0
        if self.training and p:
            recurrent = recurrent * dropout_mask(recurrent.shape, p, recurrent)
        weights = [self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0]
        # cuDNN keeps what gradients need only in its training mode, which for one layer without
        # torch's own dropout changes nothing else: so evaluation may ask for gradients, too
        keeps_gradients = self.training or torch.is_grad_enabled()
        out, h, c = torch.lstm(x, state, weights, True, 1, 0.0, keeps_gradients, False, False)
        return out, (h, c)
