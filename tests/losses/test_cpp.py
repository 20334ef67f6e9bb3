"""`cpp` beyond what every implementation must do: arithmetic, threads, and what `auto` takes."""

import math
from functools import partial

import pytest
import torch

from highrank_plugins.heads import build_head, build_pointwise
from highrank_plugins.losses.kernels.compiled import IDENTITY
from highrank_plugins.losses.kernels.cpp.passes import CppKernels
from highrank_plugins.losses.plan import ClassWeights, Scores, SoftmaxBlock
from tests.heads.cases import MOS, SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import FULL, TARGET, compare, inputs, run

pytestmark = pytest.mark.cpp


@pytest.mark.parametrize("spread", [1, 10, 100])
@pytest.mark.parametrize("pointwise", ["identity", "gss", "softcap", "multimax", "plif"])
def test_float32_is_as_exact_as_torch(case, pointwise, spread):
    """Errors against float64 are at most twice those of the fused loss, and some of the scale."""
    head = case.with_pointwise(pointwise).build(classes=1000)
    features = make_features(64)
    with torch.no_grad():
        head.weight.mul_(spread)
    target = torch.arange(64) * 7
    options = {"label_smoothing": 0.1, "reduction": "sum"}
    truth = run(head, features.requires_grad_(), target, impl="fused", **options)
    narrow = features.detach().float().requires_grad_()
    head = head.float()
    outcomes = [run(head, narrow, target, impl=impl, **options) for impl in ("fused", "cpp")]
    for part in ("values", "gradients"):
        for name, want in getattr(truth, part).items():
            torchs, ours = ((getattr(o, part)[name] - want).abs().max() for o in outcomes)
            assert ours <= 2 * torchs + 2e-6 * want.abs().max(), name


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("case", [
    *STRUCTURES,
    SOFTMAX.with_pointwise("plif", bound=2.0, knots=8),
    MOS.with_pointwise("multimax"),
], ids=str)  # fmt: skip
def test_any_number_of_threads_gives_the_same_numbers(case, count, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(count)
    compare(*inputs(case), TARGET, "cpp", reduction="sum", **FULL)


def of_two_logits(pointwise, x, target):
    """Return the loss of logits (x, 0) for each x, and its gradient."""
    head = build_head("softmax", num_classes=2, feature_dim=1, bias=False, pointwise=pointwise)
    head.weight.data.copy_(torch.tensor([[1.0], [0.0]]))
    x = x.unsqueeze(-1).requires_grad_()
    loss = head.nll(x, torch.full((len(x),), target), impl="cpp").loss
    loss.sum().backward()
    return loss.detach(), x.grad.squeeze(-1)


def test_exponential_and_logarithm_are_exact_in_float32():
    x = torch.linspace(-86, 0, 100_001)
    want = x.double().sigmoid()
    assert ((of_two_logits("identity", x, 1)[1] - want) / want).abs().max() < 2.5e-7
    x = torch.linspace(-30, 30, 100_001)
    gss = build_pointwise("gss", c=0.0, k=3.0)
    f = of_two_logits(gss, x, 1)[0] - of_two_logits(gss, x, 0)[0]  # f(x) − f(0)
    want = x.double() + 2 * (torch.nn.functional.logsigmoid(x.double()) + math.log(2))
    assert ((f - want) / want.abs().clamp(min=1)).abs().max() < 4e-7


def test_a_tensor_that_a_kernel_would_misread_is_refused():
    kernels, target = object.__new__(CppKernels), torch.zeros(3, dtype=torch.long)
    kernels.function, kernels.pairs, kernels.table_sums = IDENTITY, None, None
    for values in (torch.zeros(3, 4).double(), torch.zeros(4, 3).t()):
        block = SoftmaxBlock(values, target, None, ClassWeights())
        with pytest.raises(TypeError, match="a kernel needs contiguous rows of torch"):
            kernels.run_softmax(block, None, Scores(torch.empty(3)))


def test_a_prior_counts_next_to_large_logits():
    """Both components are sure of the class, so that the likelihood is the sum of their priors."""
    head, features = MOS.build(classes=2), make_features(3)
    with torch.no_grad():
        head.bias.copy_(torch.tensor([1e30, 0.0]))
    out = head.nll(features, torch.zeros(3, dtype=torch.long), impl="cpp")
    assert out.loss.abs().max() < 1e-12
