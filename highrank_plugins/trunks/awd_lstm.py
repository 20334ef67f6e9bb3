"""Define the AWD-LSTM of Merity et al. 2018 up to its output layer: rates, weight drop, trunk."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from highrank_plugins.heads.checks import NOT_NEGATIVE, RATE, integer, number
from highrank_plugins.heads.random_state import dropout_mask

# A dropped matrix is a new tensor, so cuDNN copies the weights into one piece at every call, as it
# must; `flatten_parameters`, which the warning recommends, would not help.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


class WeightDropLSTM(nn.LSTM):
    """Run one layer of LSTM; training drops out `weight_hh_l0`, with one mask per forward pass.

    Names and shapes of the parameters are `torch.nn.LSTM`'s. They are looked up at every
    call: nothing else holds a weight that `deepcopy`, `load_state_dict` or `.to()` could leave
    behind. In evaluation the layer is `torch.nn.LSTM` exactly.
    """

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: nn.Parameter

    def forward(  # type: ignore[override]  # torch's takes packed sequences, too
        self, x: Tensor, state: tuple[Tensor, Tensor], p: float = 0.0
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return outputs [T, B, H] and the new state, h and c [1, B, H], of inputs [T, B, I].

        An entry of the recurrent matrix is 0 with probability p in training, others grow by
        1/(1 − p).
        """
        self.check_forward_args(x, state, None)
        recurrent: Tensor = self.weight_hh_l0
        if self.training and p:
            recurrent = recurrent * dropout_mask(recurrent.shape, p, recurrent)
        weights = [self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0]
        # cuDNN supports gradients only in its training mode. For one layer without torch's own
        # dropout this mode changes nothing else, and evaluation may need gradients, too.
        keeps_gradients = self.training or torch.is_grad_enabled()
        out, h, c = torch.lstm(x, state, weights, True, 1, 0.0, keeps_gradients, False, False)
        return out, (h, c)


@dataclass(frozen=True)
class Rates:
    """Hold dropout rates as named in Merity et al. 2018, and the noise of Parthiban 2021.

    Args:
        dropout: on the output of the last layer, locked over time.
        dropouti: on the embedded words, locked over time.
        dropouth: between layers, locked over time.
        dropoute: on words, that is on whole rows of the embedding matrix.
        wdrop: on single entries of the recurrent matrices.
        embed_noise: standard deviation of Gaussian noise on the embedded words.
    Raises:
        ValueError: a rate outside [0, 1), a negative standard deviation.
    """

    dropout: float = 0.0
    dropouti: float = 0.0
    dropouth: float = 0.0
    dropoute: float = 0.0
    wdrop: float = 0.0
    embed_noise: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number(name, value, NOT_NEGATIVE if name == "embed_noise" else RATE)


State = list[tuple[Tensor, Tensor]]


class TrunkOutput(NamedTuple):
    """Hold the outputs of a trunk for a batch of words.

    `features` [T, B, F] go to the output layer; they are `raw` [T, B, F], the outputs of the last
    LSTM, after dropout. `state` holds h and c, each [1, B, H], of every layer after the last word.
    Activation regularisation (AR) reads `features`, its temporal form (TAR) reads `raw`.
    """

    features: Tensor
    state: State
    raw: Tensor


class AWDLSTM(nn.Module):
    """Pass embedded words through a stack of LSTMs, with dropout around and inside each.

    words → rows dropped (`dropoute`) → noise (`embed_noise`) → locked dropout (`dropouti`) → LSTM,
    recurrent matrix dropped (`wdrop`) → locked dropout (`dropouth`) → … → LSTM → locked dropout
    (`dropout`) → features. Rates: see `Rates`; all are 0 unless given, and without effect in
    evaluation. Setting `rates` changes them later.

    Parameters: `embed.weight` [M, D], U(±0.1), and those of `layers.0`, `layers.1`, …, each one a
    `torch.nn.LSTM`: with F and H below, (D → H), (H → H), …, (H → F).

    Args:
        num_words: M.
        embed_dim: D.
        hidden_size: H, of all layers but the last.
        layers: number of LSTMs; a single one has F units.
        last_hidden_size: F, default D (an output layer that shares `embed.weight` needs F = D).
        rates: by name, e.g. `dropouth=0.25, wdrop=0.5`.
    Raises:
        ValueError: a size below 1, a rate out of range.
        TypeError: an unknown rate.
    """

    def __init__(
        self,
        num_words: int,
        embed_dim: int = 400,
        hidden_size: int = 1150,
        layers: int = 3,
        last_hidden_size: int | None = None,
        **rates: float,
    ) -> None:
        super().__init__()
        last = embed_dim if last_hidden_size is None else last_hidden_size
        sizes = {"num_words": num_words, "embed_dim": embed_dim, "hidden_size": hidden_size}
        for name, size in (sizes | {"layers": layers, "last_hidden_size": last}).items():
            integer(name, size)
        self.rates = Rates(**rates)
        self.embed = nn.Embedding(num_words, embed_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        widths = [embed_dim, *[hidden_size] * (layers - 1), last]
        self.layers = nn.ModuleList(WeightDropLSTM(*pair) for pair in pairwise(widths))
        self.layer_sizes = widths[1:]
        self.feature_dim = last

    def initial_state(self, batch: int) -> State:
        """Return zeros for `batch` streams, with the dtype and device of the parameters."""
        zeros, shapes = self.embed.weight.new_zeros, [(1, batch, n) for n in self.layer_sizes]
        return [(zeros(shape), zeros(shape)) for shape in shapes]

    def forward(
        self, tokens: Tensor, state: Sequence[tuple[Tensor, Tensor]] | None = None
    ) -> TrunkOutput:
        """Return the features of a batch of words, continuing from `state`.

        Args:
            tokens: int64 [T, B], T ≥ 1.
            state: of an earlier call, or None: zeros. It is not detached here.
        """
        before = self.initial_state(tokens.size(1)) if state is None else state
        rates = self.rates if self.training else Rates()
        x = embed_words(self.embed.weight, tokens, rates.dropoute)
        if rates.embed_noise:
            x = x + rates.embed_noise * torch.randn_like(x)
        raw = locked_dropout(x, rates.dropouti)
        after: State = []
        for depth, (lstm, layer_state) in enumerate(zip(self.layers, before, strict=True)):
            if depth:
                raw = locked_dropout(raw, rates.dropouth)
            raw, new = lstm(raw, layer_state, rates.wdrop)
            after.append(new)
        return TrunkOutput(locked_dropout(raw, rates.dropout), after, raw)


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """Multiply x [T, B, D] by one mask [1, B, D] of zeros and 1/(1 − p); keep x for p = 0."""
    return x * dropout_mask((1, *x.shape[1:]), p, x) if p else x


def embed_words(weight: Tensor, tokens: Tensor, p: float) -> Tensor:
    """Return rows [T, B, D] of weight [M, D]; each word is dropped everywhere or nowhere.

    The mask [M, 1] is gathered like the rows, since a masked copy of the matrix would cost more
    than the batch does where the vocabulary is large.
    """
    rows = embedding(tokens, weight)
    if not p:
        return rows
    return rows * embedding(tokens, dropout_mask((weight.size(0), 1), p, weight))


def activation_penalty(dropped: Tensor) -> Tensor:
    """Return AR: the mean square of activations after dropout, of any shape; at least float32."""
    return _widened(dropped).square().mean()


def temporal_penalty(raw: Tensor) -> Tensor:
    """Return TAR: the mean square of raw[t+1] − raw[t] of outputs before dropout [T, B, d].

    It is at least float32. A single time step has no difference: 0.
    """
    raw = _widened(raw)
    if raw.size(0) < 2:
        return raw.new_zeros(())
    return (raw[1:] - raw[:-1]).square().mean()


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
