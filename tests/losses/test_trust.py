"""Compiled kernels are used once they have been seen right; a broken one is named and left out."""

import logging

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.losses import nll as choice
from highrank_plugins.losses import targets, trust
from highrank_plugins.losses.kernels.cpp import passes as cpp
from tests.heads.cases import MIXTAPE, MOS, SOFTMAX, make_features
from tests.losses.implementations import TARGET, TOKENS, assert_same, run

pytestmark = pytest.mark.usefixtures("new_process")
CASES = {"softmax": SOFTMAX, "mixture": MOS, "tree_forward": MIXTAPE, "tree_backward": MIXTAPE}
DAMAGES = {
    "sign": lambda t: t.neg_(),
    "scale": lambda t: t.mul_(1.02),
    "last column missing": lambda t: t[..., -1:].zero_(),
    "first row twice": lambda t: t[1:2].copy_(t[:1]),
    "wrong dtype": lambda t: t.copy_(t.half()),
    "NaN": lambda t: t[..., :1].fill_(torch.nan),
}


def damage(monkeypatch, impl, kernel, change):
    """Let a kernel compute something else than it should."""
    if impl == "cpp":
        call = cpp._call

        def wrong(name, dtype, values, *others, **sums):
            call(name, dtype, values, *others, **sums)
            if name == kernel:  # `mixed` of a tree, else the logits
                change(others[5] if name == "tree_forward" else values)

        monkeypatch.setattr(cpp, "_call", wrong)
        return
    from highrank_plugins.losses.kernels.triton import passes

    start = passes.launch

    def launch(given, grid, values, *others, **tile):
        start(given, grid, values, *others, **tile)
        at = given.arg_names.index("out") if "out" in given.arg_names else 0
        if given.fn.__name__.startswith(("mixture", "gradient") if kernel == "mixture" else kernel):
            change((values, *others)[at])

    monkeypatch.setattr(passes, "launch", launch)
    monkeypatch.setattr(choice, "_auto", lambda head, features: "triton")


def loss(case, impl="auto", target=TARGET, **options):
    head, features = case.build(classes=13, dtype=torch.float32), make_features(TOKENS).float()
    return run(head, features.requires_grad_(), target, impl=impl, reduction="sum", **options)


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("target", [TARGET, targets.labels(TARGET, 0.1)], ids=["class", "weights"])
@pytest.mark.parametrize("kernel", CASES)
@pytest.mark.parametrize(
    "impl", [pytest.param("cpp", marks=pytest.mark.cpp),
             pytest.param("triton", marks=pytest.mark.triton)]
)  # fmt: skip
def test_a_broken_kernel_is_named_and_the_loss_stays_right(
    impl, kernel, target, what, monkeypatch, caplog
):
    damage(monkeypatch, impl, kernel, DAMAGES[what])
    case = CASES[kernel]
    want = loss(case, "reference", target)
    for _ in range(2):
        assert_same(loss(case, target=target), want, rtol=1e-4, atol=1e-5)
    (said,) = warnings(caplog)
    assert said.startswith(f"The loss is computed by 'fused', which is slower: impl: {impl!r} (")
    for part in (kernel.partition("_")[0], "float32", "K=", "is wrong on", torch.__version__,
                 "where torch's is", "please report"):  # fmt: skip
        assert part in said
    with pytest.raises(ValueError, match=r"is wrong on .* choose impl='fused'"):
        loss(case, impl, target)


@pytest.mark.cpp
@pytest.mark.parametrize("case", [MOS, MOS.with_options(components=1), MIXTAPE], ids=str)
def test_kernels_are_tried_once_on_numbers_of_their_own(case, monkeypatch, caplog):
    """The data may be one token, or NaN, and no random number of the caller is drawn."""
    tried, compare = [], trust._Trial.compare
    monkeypatch.setattr(trust._Trial, "compare", lambda s: tried.append(s) or compare(s))
    head = case.build(classes=13, dtype=torch.float32)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    for number in (torch.nan, torch.inf, 1.0):
        features = torch.full((1, head.feature_dim), number, requires_grad=True)
        head.nll(features, torch.tensor([3])).loss.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    forward_only, with_gradient = tried  # of a loss by token
    assert with_gradient.gradient and not forward_only.gradient
    assert [r.text for r in trust.verdicts.values()] == [trust.RIGHT] * 2
    head.nll(features, torch.tensor([3]), label_smoothing=0.1)
    assert len(tried) == 3 and not warnings(caplog)


ALL_SCORES = {"label_smoothing": 0.1, "z_loss": 0.1, "accuracy": True, "entropy": True}
FEW = [SOFTMAX, MOS, MIXTAPE.with_options(frequent=1)]
UNLUCKY = [("sigsoftmax", 15, 64, 0.0), ("sigsoftmax", 20, 65, 0.1), ("gss", 9, 185, 0.1),
           ("multimax", 9, 209, 0.0), ("multimax", 15, 23, 0.0)]  # fmt: skip
RIGHT = [
    *((case.build, {"classes": m, "dtype": torch.float32}, ALL_SCORES)
      for case in FEW for m in (1, 2)),
    # sums over many classes
    (build_head, {"name": "softmax", "num_classes": 33_278, "feature_dim": 4},
     {"label_smoothing": 0.1}),
    # a posterior or a slope is small beside what it is the difference of, and torch had luck
    *((build_head, {"name": "mos", "num_classes": m, "feature_dim": 6, "components": k,
                    "pointwise": f}, {"label_smoothing": smoothing})
      for f, k, m, smoothing in UNLUCKY),
    *((build_head, {"name": "softmax", "num_classes": 9, "feature_dim": 8, "pointwise": f,
                    "vocabulary": "unit"}, {}) for f in ("identity", "monotone_mlp")),
]  # fmt: skip


@pytest.mark.cpp
@pytest.mark.parametrize(("build", "sizes", "options"), RIGHT)
def test_right_kernels_are_not_taken_for_wrong(build, sizes, options):
    head = build(**sizes)
    x, target = torch.randn(3, head.feature_dim, requires_grad=True), torch.zeros(3).long()
    head.nll(x, target, impl="cpp", reduction="sum", **options).loss.backward()
    tried = [found.text for found in trust.verdicts.values()]
    assert tried == [trust.RIGHT] * (head.num_classes > 1)
