"""A new kind of target, and a new kind of vocabulary matrix, are one module each: these toys."""

import pytest
import torch

from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.plan import LossPlan, MixtureBlock, Scores, SoftmaxBlock
from highrank_plugins.losses.runner import run
from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import CLASSES, TOKENS, memory_for

FUSED = [case for case in STRUCTURES if case.build(classes=CLASSES).fused is not None]


class TeacherKernels(Kernels):
    """Compute −Σ_x q_x log P_x of a teacher's probabilities q [N, M]; targets are rows of q."""

    teacher_NM: torch.Tensor

    def softmax_pass(self, block: SoftmaxBlock, bias_M):
        logits_NM, row_N, factor_N, *_ = block
        wanted_NM = self.teacher_NM[row_N]
        if bias_M is not None:
            logits_NM.add_(bias_M)
        values_NM, pullback = self.vjp(logits_NM)
        log_probs_NM = values_NM.log_softmax(-1)
        if factor_N is not None:
            self.write_gradient(log_probs_NM.exp() - wanted_NM, pullback, factor_N, logits_NM)
        return Scores(-(wanted_NM * log_probs_NM).sum(-1))

    def mixture_pass(self, block: MixtureBlock, bias_M, recompute_logits):
        values_NKM, pullback = self.vjp(block.logits_NKM)
        log_probs_NKM = values_NKM.log_softmax(-1)
        joint_NKM = log_probs_NKM + block.log_prior_NK.unsqueeze(-1)
        log_mixture_N1M = joint_NKM.logsumexp(1, keepdim=True)
        wanted_N1M = self.teacher_NM[block.target_N].unsqueeze(1)
        if (scale_N := block.scale_N) is not None:
            share_NKM = wanted_N1M * (joint_NKM - log_mixture_N1M).exp()  # of each component
            share_NK = share_NKM.sum(-1)
            block.grad_prior_NK.copy_(-share_NK * scale_N.unsqueeze(-1))
            block.factor_NK.copy_(scale_N.unsqueeze(-1).expand_as(share_NK))
            gradient_NKM = log_probs_NKM.exp() * share_NK.unsqueeze(-1) - share_NKM
            self.write_gradient(gradient_NKM, pullback, block.factor_NK, block.logits_NKM)
        return Scores(-(wanted_N1M * log_mixture_N1M).sum((1, 2)))


@pytest.mark.parametrize("pointwise", ["identity", "plif", "gss"])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_a_teachers_probabilities_need_two_passes_and_no_other_file(case, pointwise):
    head = case.with_pointwise(pointwise).build(classes=CLASSES)
    x = make_features(TOKENS).requires_grad_()
    torch.manual_seed(3)
    teacher = torch.randn(TOKENS, CLASSES, dtype=x.dtype).softmax(-1)
    parameters = [x, *head.parameters()]
    want = -(teacher * head(x)).sum(-1)
    upstream = torch.linspace(-1, 2, TOKENS, dtype=x.dtype)
    gradients = torch.autograd.grad(want @ upstream, parameters)
    kernels = type("Own", (TeacherKernels,), {"teacher_NM": teacher})
    plan = LossPlan(
        head, x, torch.arange(TOKENS), head.sample_masks(x.shape[:-1], x),
        memory=memory_for(head, 3),
    )  # fmt: skip
    got = run(plan, kernels).loss
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    found = torch.autograd.grad(got @ upstream, parameters)
    torch.testing.assert_close(found, gradients, rtol=1e-9, atol=1e-11)
