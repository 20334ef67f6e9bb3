"""Structures of one's own, that keep the contract of the losses or break it."""

import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.heads import (
    Head,
    Mixtape,
    MixtureOfSoftmaxes,
    Softmax,
)
from highrank_plugins.heads import Head as LogitHead
from tests.losses.own_functions import parameter


class ReadsOwnMatrix(LogitHead):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.proj = nn.Linear(self.feature_dim, self.embed_dim)
        self.t = parameter()

    def chunk_logits(self, features, tensors, random_state):
        return linear(self.proj(features) * self.t, self.weight, self.bias)


class DroppedFeatures(LogitHead):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.drop = nn.Dropout(0.5)

    def chunk_logits(self, features, tensors, random_state):
        return linear(self.drop(features), tensors["weight"], tensors["bias"])


class TwoLists(Head):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.maps = nn.ModuleList(nn.Linear(self.feature_dim, self.embed_dim) for _ in range(2))

    def chunk_log_probs(self, features, tensors, random_state):
        found = [linear(m(features).tanh(), self.weight, self.bias) for m in self.maps]
        return (found[0].log_softmax(-1).exp() + found[1].log_softmax(-1).exp()).div(2).log()


class OwnGates(Mixtape):
    def class_gate_logits(self, inputs, tensors, random_state):
        return 2 * super().class_gate_logits(inputs, tensors, random_state)


class OwnMean(Mixtape):
    def _mean(self, leaves, gates):
        return 1.5 * super()._mean(leaves, gates)


class OwnPrior(MixtureOfSoftmaxes):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.sharp = parameter()

    def log_prior(self, features, tensors):
        return (self.sharp * super().log_prior(features, tensors)).log_softmax(-1)


class OwnContexts(MixtureOfSoftmaxes):
    def contexts(self, features, tensors, random_state):
        return super().contexts(features, tensors, random_state).sin()


class ContextsFromMatrix(MixtureOfSoftmaxes):
    """Contexts read the vocabulary matrix, whose gradient a fused loss takes from its products."""

    def contexts(self, features, tensors, random_state):
        found = super().contexts(features, tensors, random_state)
        return found + tensors["weight"].mean(0) * self.weight.std()


class ColdMixin:
    def chunk_logits(self, features, tensors, random_state):
        return super().chunk_logits(features, tensors, random_state) / 3


class ColdSoftmax(ColdMixin, Softmax):
    pass


class OwnForward(Softmax):
    def forward(self, features):
        return super().forward(2 * features)


class OwnLogProbs(Softmax):
    def log_probs(self, features):
        return super().log_probs(features) * 1.0 + 0.1


class SameForward(Softmax):
    """A `forward` that changes nothing may stay."""

    def forward(self, features):
        return super().forward(features)


class Probabilities(Head):
    def chunk_log_probs(self, features, tensors, random_state):
        return linear(features, tensors["weight"], tensors["bias"]).softmax(-1)


class LooksAtOthers(LogitHead):
    def chunk_logits(self, features, tensors, random_state):
        return linear(features - features.mean(0), tensors["weight"], tensors["bias"])


class CountsTokens(LogitHead):
    def chunk_logits(self, features, tensors, random_state):
        return linear(features * len(features), tensors["weight"], tensors["bias"])


class WrongLoss(Softmax):
    """A cheaper loss that is another function than the log-probabilities."""

    def chunk_nll(self, features, target, tensors, random_state, smooth):
        nll, smooth_sum = super().chunk_nll(features, target, tensors, random_state, smooth)
        return nll + 1, smooth_sum


class Recurrent(LogitHead):
    """An LSTM reads its parameters from a list of its own."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.lstm = nn.LSTM(self.feature_dim, self.feature_dim, batch_first=True)

    def chunk_logits(self, features, tensors, random_state):
        return linear(self.lstm(features.unsqueeze(1))[0].squeeze(1), self.weight, self.bias)


class BufferChanges(Softmax):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.register_buffer("seen", torch.zeros(()))

    def chunk_logits(self, features, tensors, random_state):
        self.seen += 1
        return super().chunk_logits(features, tensors, random_state)


class LoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x
