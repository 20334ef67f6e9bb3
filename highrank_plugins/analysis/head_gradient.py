"""The gradient that the loss sends into the logits of a layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..heads import Head, Mixtape, MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from ..heads.draws import ChunkDraws
from ..heads.precision import widen
from ..heads.sigmoid_tree import mix

LAYERS = (Softmax, MixtureOfContexts, MixtureOfSoftmaxes, Mixtape)
Tensors = dict[str, Tensor]


@torch.enable_grad()
def logit_gradient(head: Head, features: Tensor, target: Tensor) -> Tensor:
    """∂ Σ_n −log P(target_n) / ∂z, where z_k = W h_k are the K logit vectors of a token.

    Softmax has one, h = g; MoC has one, of its mixed context; MoS and Mixtape have one for each
    component. Whatever the layer, z reaches h through Wᵀ alone, so that `gradient_retention` of
    these rows says how much of the gradient W lets through. Without dropout and noise; parameters
    keep their gradients.

    Args:
        features: [..., F]. target: int64 [...].
    Returns:
        [n, K, M], at least float32.
    Raises:
        ValueError: features of another size, a head that is none of these.
    """
    if not isinstance(head, LAYERS):
        known = ", ".join(layer.__name__ for layer in LAYERS)
        raise ValueError(f"logit_gradient knows {known}; got {type(head).__name__}")
    flat = head.flatten_features(features).detach()
    tensors = {name: tensor.detach() for name, tensor in head.tensors().items()}
    inputs = head.token_inputs(flat, tensors, ChunkDraws())
    z = widen(linear(inputs["contexts"], tensors["weight"]))
    z = (z.unsqueeze(1) if z.dim() == 2 else z).detach().requires_grad_()
    nll = _nll(head, z, target.reshape(-1), inputs, tensors)
    (gradient,) = torch.autograd.grad(nll.sum(), z)
    return gradient


def _nll(head: Head, z: Tensor, target: Tensor, inputs: Tensors, tensors: Tensors) -> Tensor:
    """−log P(target) [n] of z [n, K, M]."""
    if isinstance(head, Mixtape):
        z = mix(z, _all_gate_logits(head, inputs, tensors)).unsqueeze(1)
    bias = tensors.get("bias")
    values = head.apply_pointwise(z if bias is None else z + widen(bias), tensors)
    index = target.view(-1, 1, 1).expand(-1, values.size(1), 1)
    log_likelihood = values.log_softmax(-1).gather(-1, index).squeeze(-1)
    if isinstance(head, MixtureOfSoftmaxes):
        log_likelihood = log_likelihood + inputs["log_prior"]
    return -log_likelihood.logsumexp(-1)


def _all_gate_logits(head: Mixtape, inputs: Tensors, tensors: Tensors) -> Tensor:
    """l [n, K − 1, M]: of each frequent class its own, of the others the shared one."""
    if head.components == 1:
        return inputs["contexts"].new_empty(0)
    own = head.class_gate_logits(inputs, tensors, ChunkDraws())
    rare = head.num_classes - head.frequent
    return torch.cat((own, inputs["shared"].unsqueeze(-1).expand(-1, -1, rare)), -1)
