"""List the implementations of `bench loss` by name. A step is a forward and a backward pass."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.measuring import Step, alternate
from highrank_plugins.heads import (
    Head,
    Mixtape,
    Mixture,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    Softmax,
)
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses import IMPLEMENTATIONS as OURS
from highrank_plugins.losses.nll import FUSED

Loss = Callable[[Head, Tensor, Tensor], Tensor]
# Rows are also tried in pieces with outputs of this size, which stay near the cache.
PIECE = 2**25
# implementations that torch compiles → the eager code
COMPILED = {"compiled": "naive", "gathered_compiled": "gathered"}
COMPILER = "inductor"


def loss_step(implementation: str, case: LossCase) -> Step:
    """Return one step of an implementation."""
    if implementation == "gemm_floor":
        return gemm_floor_step(case)
    torch.manual_seed(0)
    dtype, device = getattr(torch, case.dtype), case.device
    head, loss = (_compiled if implementation in COMPILED else _eager)(implementation, case)
    head.zero_grad()
    # features as large as a layer norm's output, targets as skewed as words
    features = torch.randn(case.tokens, case.dim, device=device, dtype=dtype, requires_grad=True)
    ranks = torch.arange(1, case.classes + 1, dtype=torch.float64)
    target = torch.multinomial(1 / ranks, case.tokens, replacement=True).to(device)

    def step() -> None:
        head.zero_grad()
        features.grad = None
        loss(head, features, target).backward()

    return step


def available(implementation: str, case: LossCase) -> str | None:
    """Return why an implementation cannot do a case; None if it can."""
    if implementation in FUSED and case.layer().fused is None:
        return f"{case.head} has no fused loss"
    if implementation in LIBRARIES:
        if not is_plain_softmax(case.layer()):
            return "plain softmax only"
        if implementation in MODULES and importlib.util.find_spec(MODULES[implementation]) is None:
            return f"{MODULES[implementation]} is not installed"
        if implementation == "liger" and not case.device.startswith("cuda"):
            return "CUDA only"
        if implementation == "cce" and (case.label_smoothing or case.bias):
            return "no label smoothing, no bias"
    return None


def _eager(implementation: str, case: LossCase) -> tuple[Head, Loss]:
    head = case.build_head().to(case.device, getattr(torch, case.dtype))
    return head, loss_function(implementation, case)


# a step with another layer would be compiled again
_compiled = functools.lru_cache(maxsize=1)(_eager)


def loss_function(implementation: str, case: LossCase) -> Loss:
    """Return Σ loss of a layer, features [N, F] and targets [N]."""
    if implementation in COMPILED:
        eager = loss_function(COMPILED[implementation], case)
        return torch.compile(eager, fullgraph=True, dynamic=False, backend=COMPILER)
    if implementation in EAGER:
        return lambda head, x, y: EAGER[implementation](head, x, y, case.label_smoothing)
    if implementation == "plain_softmax":  # has the size of any case, and ignores its head
        return lambda head, x, y: F.cross_entropy(
            F.linear(x, head.weight, head.bias), y, reduction="sum"
        )
    if implementation in LIBRARIES:
        return LIBRARIES[implementation](case)
    return lambda head, x, y: (
        head.nll(
            x, y, label_smoothing=case.label_smoothing, reduction="sum", impl=implementation,
            memory=case.memory * 2**20 or None, entropy=case.entropy, z_loss=case.z_loss,
        ).loss
    )  # fmt: skip


def naive_nll(head: Head, features: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Return Σ loss of features [N, F] by plain autograd, as the papers state it.

    It holds every logit of every component, several times: the baseline. A structure without code
    here, such as a layer of your own, has its own log-probabilities.
    """
    if is_plain_softmax(head) and not label_smoothing:
        return F.cross_entropy(F.linear(features, head.weight, head.bias), target, reduction="sum")
    log_probs_NM = naive_log_probs(head, features)
    nll = -log_probs_NM.gather(-1, target.unsqueeze(-1)).sum()
    if not label_smoothing:
        return nll
    share = label_smoothing / (head.num_classes - 1)
    return (1 - label_smoothing - share) * nll - share * log_probs_NM.sum()


def is_plain_softmax(head: Head) -> bool:
    """Whether log P is log_softmax(W g + b), as libraries compute it."""
    return head.linear_logits and head.pointwise.is_identity


def naive_log_probs(head: Head, features: Tensor) -> Tensor:
    """Return log P [N, M] of features [N, F]."""
    if isinstance(head, MixtureOfSoftmaxes):
        prior_NK1 = head.prior(features).softmax(-1).unsqueeze(-1)
        logits_NKM = F.linear(_contexts(head, features), head.weight, head.bias)
        return (prior_NK1 * head.pointwise(logits_NKM).softmax(-1)).sum(1).add(1e-8).log()
    if isinstance(head, Mixtape):
        logits_NM = _mixed_logits(head, features)
    elif isinstance(head, MixtureOfContexts):
        prior_NK1 = head.prior(features).softmax(-1).unsqueeze(-1)
        context_ND = (prior_NK1 * _contexts(head, features)).sum(1)
        logits_NM = F.linear(context_ND, head.weight, head.bias)
    elif isinstance(head, Softmax):
        logits_NM = F.linear(features, head.weight, head.bias)
    else:
        return head.log_probs(features)
    found: Tensor = head.pointwise(logits_NM).log_softmax(-1)
    return found


def _mixed_logits(head: Mixtape, features: Tensor) -> Tensor:
    contexts_NKD, tensors = _contexts(head, features), head.tensors()
    if head.components == 1:  # one component has no gates
        return F.linear(contexts_NKD[:, 0], head.weight, head.bias)
    shared_NJ = head.gate_shared(features)
    hidden_NJG = torch.tanh(head.gate_hidden(features)).view(len(features), -1, head.gate_dim)
    own_NSJ = torch.einsum("nkg,sg->nsk", hidden_NJG, head.gate_embed) + shared_NJ.unsqueeze(1)
    gates = _tree if head.gates == "tree" else _softmax_gates
    gates_NSK = gates(own_NSJ + head.gate_bias)
    logits_NSK = torch.einsum("nkd,sd->nsk", contexts_NKD, tensors["weight"][: head.frequent])
    frequent_NS = (gates_NSK * logits_NSK).sum(-1)
    mixed_ND = (gates(shared_NJ).unsqueeze(-1) * contexts_NKD).sum(1)
    rare_NR = F.linear(mixed_ND, tensors["weight"][head.frequent :])
    logits_NM = torch.cat((frequent_NS, rare_NR), -1)
    return logits_NM if head.bias is None else logits_NM + head.bias


def _contexts(head: Mixture, features: Tensor) -> Tensor:
    contexts = head.context_scale * torch.tanh(head.latent(features))
    return contexts.view(-1, head.components, head.embed_dim)


def _tree(gate_logits: Tensor) -> Tensor:
    """Return probabilities [..., K] of the sigmoid tree over K − 1 gate logits, level by level."""
    probs = torch.ones_like(gate_logits[..., :1])
    while (nodes := probs.size(-1)) <= gate_logits.size(-1):
        left = torch.sigmoid(gate_logits[..., nodes - 1 : 2 * nodes - 1])
        probs = torch.stack((probs * left, probs * (1 - left)), -1).flatten(-2)
    return probs


def _softmax_gates(gate_logits: Tensor) -> Tensor:
    """Return softmax(l_1, …, l_{K−1}, 0), [..., K]."""
    return torch.cat((gate_logits, torch.zeros_like(gate_logits[..., :1])), -1).softmax(-1)


def gathered_nll(head: Head, features: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Return Σ loss of features [N, F] in the eager code of an expert.

    Each component's log-probability of the target is gathered, and then mixed. No other
    log-probability exists, unless the label smoothing of a MoS needs all of them.
    """
    smooth = label_smoothing > 0
    nll_N, smooth_sum_N = head.chunk_nll(features, target, head.tensors(), RandomState(), smooth)
    if smooth_sum_N is None:
        return nll_N.sum()
    share = label_smoothing / (head.num_classes - 1)
    return (1 - label_smoothing - share) * nll_N.sum() + share * smooth_sum_N.sum()


EAGER: dict[str, Callable[[Head, Tensor, Tensor, float], Tensor]] = {
    "naive": naive_nll,
    "gathered": gathered_nll,
}


def _linear_cross_entropy(case: LossCase) -> Loss:
    options = torch.nn.LinearCrossEntropyOptions()
    return lambda head, x, y: F.linear_cross_entropy(
        x, head.weight, y, linear_bias=head.bias, reduction="sum",
        label_smoothing=case.label_smoothing, options=options,
    )  # fmt: skip


def _liger(case: LossCase) -> Loss:
    liger = importlib.import_module("liger_kernel.transformers.fused_linear_cross_entropy")
    loss = liger.LigerFusedLinearCrossEntropyLoss(
        reduction="sum", label_smoothing=case.label_smoothing
    )
    return lambda head, x, y: loss(head.weight, x, y, head.bias)


def _cut_cross_entropy(case: LossCase) -> Loss:
    cce = importlib.import_module("cut_cross_entropy")
    impl = "cce" if case.device.startswith("cuda") else "torch_compile"
    return lambda head, x, y: cce.linear_cross_entropy(
        x, head.weight, y, reduction="sum", impl=impl
    )


LIBRARIES: dict[str, Callable[[LossCase], Loss]] = {
    "linear_cross_entropy": _linear_cross_entropy,
    "liger": _liger,
    "cce": _cut_cross_entropy,
}
IMPLEMENTATIONS = ["gemm_floor", *EAGER, *COMPILED, "plain_softmax", "auto", *OURS, *LIBRARIES]
MODULES = {"liger": "liger_kernel", "cce": "cut_cross_entropy"}


def gemm_floor_step(case: LossCase) -> Step:
    """Return a step of all products, each computed whole or in pieces, whichever is faster."""
    dtype = getattr(torch, case.dtype)
    shared: dict[str, torch.Tensor] = {}

    def memory(elements: int, name: str) -> torch.Tensor:
        """Return one buffer for each side of all products."""
        kept = shared.get(name)
        if kept is None or kept.numel() < elements:
            kept = torch.randn(elements, dtype=torch.float32, device=case.device).to(dtype)
            shared[name] = kept
        return kept[:elements]

    chosen = []
    for rows, inner, columns in case.products():
        if 0 in (rows, inner, columns):
            continue
        piece = max(1, min(rows, PIECE // (columns * dtype.itemsize)))
        ways = [_product(memory, rows, inner, columns, size) for size in {rows, piece}]
        if len(ways) > 1:
            timings = alternate(ways, case.device, 3)
            medians = [median(one.seconds for one in own) for own in timings]
            ways = [ways[medians.index(min(medians))]]
        chosen.append(ways[0])

    def run() -> None:
        for product in chosen:
            product()

    return run


def _product(
    memory: Callable[[int, str], torch.Tensor], rows: int, inner: int, columns: int, size: int
) -> Step:
    """Compute z = x W^T, dx = z W, dW += z^T x, `size` rows at a time."""

    def run() -> None:
        x = memory(rows * inner, "x").view(rows, inner)
        weight = memory(columns * inner, "weight").view(columns, inner)
        grad_x = memory(rows * inner, "grad_x").view(rows, inner)
        grad_weight = memory(columns * inner, "grad_weight").view(columns, inner)
        for start in range(0, rows, size):
            part = slice(start, min(start + size, rows))
            z = memory((part.stop - start) * columns, "z").view(-1, columns)
            torch.mm(x[part], weight.t(), out=z)
            torch.mm(z, weight, out=grad_x[part])
            torch.addmm(grad_weight, z.t(), x[part], beta=0 if start == 0 else 1, out=grad_weight)

    return run
