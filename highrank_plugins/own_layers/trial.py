"""Try an own layer on a few tokens, against plain autograd; `contract` says when and why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from highrank_plugins.common.torch_state import calls, generators, leaves, set_generators
from highrank_plugins.common.user_error import UserError
from highrank_plugins.own_layers.kept_state import PARAMETRISED, KeptState, moved_numbers
from highrank_plugins.own_layers.ours import (
    has_own_hooks,
    is_distributed,
    is_ours,
    is_unchanged,
    same_form,
    title,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
# the LossOutput of a LossPlan by an implementation; the room of both stands above this one
Compute = Callable[[str, Any], Any]
# tokens of a trial, by their numbers in a chunk: a neighbour further away goes unseen
FEWEST, MOST, NUMBERS = 4, 48, 2**20
# largest error of values and, relative to their norms, of gradients
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
REMEDY = "keep no state between calls, and draw random numbers from torch's default generator"
NO_STATE = f"its values change from call to call with one seed; {REMEDY}"
# of a gradient, which must be proportional to the loss's: a clipped one is not
SCALE = 2.0**-10
DRAWS = {"rand", "randn", "rand_like", "randn_like", "normal", "normal_", "uniform_", "bernoulli",
         "bernoulli_", "exponential_"}  # fmt: skip
# what the code of a layer may raise while it is tried
OF_LAYER = (
    ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


class NoLogProbs(UserError):
    """Report log-probabilities that are NaN."""


class Trial:
    """Compute losses of a few tokens, all from the same random numbers."""

    def __init__(self, plan: Any, compute: Compute) -> None:
        head: Any = plan.head
        self.head, self.title, self.compute = head, title(head), compute
        self.tokens = max(FEWEST, min(MOST, NUMBERS // max(1, head.floats_per_token())))
        rows = torch.arange(self.tokens, device=plan.target.device) % len(plan.features)
        x = plan.features.detach()[rows]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        x = moved_numbers(x) if bool(x.isfinite().all()) else torch.randn_like(x)
        self.tolerance = TOLERANCES.get(x.dtype, 1e-3)
        self.undrawn = generators(x)
        masks = head.sample_masks(x.shape[:-1], x)
        self.start = generators(x)
        self.upstream = torch.linspace(-1, 2, self.tokens, dtype=torch.float64, device=x.device)
        self.state = KeptState(head)
        self.plan = replace(
            plan, features=x.requires_grad_(torch.is_grad_enabled()), target=plan.target[rows],
            ignored=None, weight=None, reduction="none", memory=None, random_state=masks,
        )  # fmt: skip

    def run(self, function: Callable[[], T], start: list[Tensor] | None = None) -> T:
        """Return a function's result, as if it were the first call."""
        self.state.restore()
        set_generators(start or self.start)
        return copy_context().run(function)

    def reference(self, **changes: Any) -> Any:
        return self.run(lambda: self.compute("reference", replace(self.plan, **changes)))

    def same(self, a: Tensor, b: Tensor) -> bool:
        a, b = a.detach().double(), b.detach().double()
        return torch.allclose(a, b, self.tolerance, self.tolerance, equal_nan=True)

    def require(self, kept: bool, message: str, module: Any = None) -> None:
        if not kept:
            raise UserError(f"{self.title if module is None else title(module)}: {message}")

    def check_layer(self) -> None:
        """Find values and gradients by plain autograd."""
        with torch.no_grad():
            if not is_ours(self.head.pointwise):
                self._check_function(self.head.pointwise)
        forward = self._log_probs()
        # any class that the layer does not rule out, also rare ones
        possible = (forward.detach() > -torch.inf).double()
        self.plan.target = torch.multinomial(possible, 1).squeeze(-1)
        with calls(self.head) as called:
            output = self.reference()
        for name, part in self.head.named_modules():
            # our structures read the weights of their parts
            ours = f"{name}.weight" not in self.head.tensors() or is_unchanged(part)
            self.require(ours or part in called, f"the loss never calls {name}, or its hooks: it "
                         "would leave out what was put around it; write a subclass")  # fmt: skip
        self.require(
            bool(output.loss.isfinite().all()),
            f"the loss of possible classes is {output.loss.sum().item():g}; label smoothing needs "
            "every class to be possible, so give none of them a logit of −∞",
        )
        self._keep(output)
        nll = -forward.gather(-1, self.plan.target.unsqueeze(-1)).squeeze(-1)
        same = self.same(nll, output.nll)
        if same and any(map(has_own_hooks, self.head.modules())) and not self.weighs:
            same = not self._wrong_gradient(self._gradients(nll, self.upstream))
        self.require(
            same,
            f"forward gives −log P {nll[0].item():.6g} where the loss has "
            f"{output.nll[0].item():.6g}, or other gradients; the loss does not call forward, "
            "log_probs or hooks: write the function into chunk_log_probs or chunk_logits",
        )
        self._check_calls(output, forward)
        with torch.no_grad():
            self._check_tokens()

    def _keep(self, output: Any) -> None:
        """Keep what implementations are compared with."""
        self.values = output.map(torch.detach)
        self.gradients = self._gradients(output.loss, self.upstream, whole=True)
        self.largest = max(map(_norm, self.gradients.values()), default=0.0)

    def _check_calls(self, output: Any, log_probs: Tensor) -> None:
        """Check `nll` and `top_k`, which somebody may have replaced."""
        x, target = self.plan.features, self.plan.target
        nll = partial(self.head.nll, x, target, impl="reference")
        best = self.run(lambda: self.head.top_k(x)[0].squeeze(-1), self.undrawn)
        self.require(
            self.same(self.run(nll, self.undrawn).nll, output.nll),
            "nll gives another loss than −log P; write the function into chunk_log_probs or "
            "chunk_logits",
        )
        self.require(
            self.same(best, log_probs.max(-1).values), "top_k gives other log P than forward"
        )

    @property
    def weighs(self) -> bool:
        """Whether the loss is more than −log P of the targets."""
        return self.plan.smooth or self.plan.z_loss > 0

    def _gradients(self, loss: Tensor, upstream: Tensor, whole: bool = False) -> dict[str, Tensor]:
        """Return gradients times SCALE; if `whole`, refuse to read anything else that has one."""
        if not loss.requires_grad:
            return {}
        named = {"features": self.plan.features, **dict(self.head.named_parameters())}
        named = {name: t for name, t in named.items() if t.requires_grad}
        reached = leaves(loss) if whole else []
        for name, t in named.items() if whole else ():
            if not any(leaf is t for leaf in reached):
                logger.warning(
                    "%s: the loss has no gradient for %s, which does not learn: read it as it is, "
                    "without .data, float() or no_grad", self.title, name)  # fmt: skip
        for leaf in reached:
            self.require(
                any(leaf is t for t in named.values()),
                f"it reads a tensor {tuple(leaf.shape)} that requires a gradient, but is no "
                "parameter of the layer, or a stale one; read an nn.Parameter in each call",
            )
        total = (loss * (SCALE * upstream).to(loss.dtype)).sum()
        grads = torch.autograd.grad(total, list(named.values()), materialize_grads=True)
        return dict(zip(named, grads, strict=True))

    def _log_probs(self) -> Tensor:
        # FSDP's hooks must not run within each other
        forward = self.head.forward if is_distributed(self.head) else self.head
        log_probs = self.run(lambda: forward(self.plan.features), self.undrawn)
        shape = (self.tokens, self.head.num_classes)
        self.require(
            log_probs.shape == shape,
            f"expected log-probabilities {shape} of {self.tokens} tokens, "
            f"got {tuple(log_probs.shape)}",
        )
        mass = log_probs.detach().double().exp().sum(-1)
        if not bool(((mass - 1).abs() <= 1e-3).all()):
            raise (NoLogProbs if bool(mass.isnan().any()) else UserError)(
                f"{self.title}: the probabilities of all classes add up to {mass[0].item():.6g} "
                "instead of 1, also where parameters change by a tenth; return log-probabilities "
                "(log_softmax) that are no NaN"
            )
        return log_probs

    def _check_function(self, function: Any) -> None:
        """Check that a pointwise function is one, and leaves its logits as they are."""
        z = torch.randn_like(self.plan.features[:2, :1].expand(2, self.head.num_classes))
        tensors, given = function.tensors(), z.clone()

        def apply() -> Tensor:
            return same_form(function, function.apply_to(z, tensors), z).clone()

        values = self.run(apply)
        in_place = "apply_to changes z in place; return a new tensor"
        self.require(z.equal(given), in_place, function)
        self.require(self.same(self.run(apply), values), NO_STATE, function)
        # the largest and the least logit, on which alone a function of all may depend
        ends = [0, -1]
        z[1, ends] = torch.stack((z[1].min() - 1, z[1].max() + 1))
        moved = self.run(apply)
        moved[1, ends] = values[1, ends]
        self.require(
            self.same(moved, values),
            "apply_to is not elementwise: a logit changes the values of others; write a "
            "structure, with chunk_logits",
            function,
        )
        self.require(
            self.same(self.run(lambda: function(given)), values),
            "forward or a hook computes another function than apply_to, which the loss calls; "
            "write it into apply_to",
            function,
        )

    def _check_tokens(self) -> None:
        """Check that a token's loss depends on no other token, by new neighbours and by parts."""
        plan, loss = self.plan, self.values.loss
        again, changed = self.run(self._again)
        self.require(changed is None, f"each loss changes its {changed}; {REMEDY}")
        self.require(self.same(again.loss, loss), NO_STATE)
        x, eighth, end = plan.features.detach(), self.tokens // 8, self.tokens
        self.draws = not self._same_for_other_numbers(loss)
        alone = True
        with _Still():
            fixed = self.reference().loss
            cuts = sorted({0, end // 2 + eighth, end - max(2, eighth), end})
            is_still = self._same_for_other_numbers(fixed)
            for a, b in pairwise(cuts) if is_still else ():
                own = plan.random_state.rows(a, b)
                masks = SimpleNamespace(rows=lambda a, b, own=own: own)  # cut already
                part = self.reference(features=x[a:b], target=plan.target[a:b], random_state=masks)
                alone &= self.same(part.loss, fixed[a:b])
        if not is_still:
            others = self.reference(features=torch.cat((x[:1] / 2, x[1:2], x[2:] / 2)))
            alone = self.same(others.loss[1:2], loss[1:2])
        self.require(
            alone,
            "the loss of a token depends on the other tokens of its chunk (as with BatchNorm); "
            "compute it from its own features",
        )

    def _again(self) -> tuple[Any, str | None]:
        """Return the loss of a second call, which finds what the first has left, and changes."""
        self.compute("reference", self.plan)
        self.state.restore(within=PARAMETRISED)
        between = KeptState(self.head)
        set_generators(self.start)
        return self.compute("reference", self.plan), between.changed()

    def _same_for_other_numbers(self, loss: Tensor) -> bool:
        """Whether the loss depends on no random numbers but the masks that were drawn."""

        def after_others() -> Any:
            torch.rand(1)
            return self.compute("reference", self.plan)

        return self.same(self.run(after_others).loss, loss)

    def difference(self, impl: str, reduction: str) -> str | None:
        """Return how an implementation differs from plain autograd; None if it does not."""
        found = self._difference(impl, reduction)
        if found and self.draws:  # torch draws normal numbers by 16, so they go by the chunk
            with _Still():
                self._keep(self.reference())
                found = self._difference(impl, reduction)
        return found

    def _difference(self, impl: str, reduction: str) -> str | None:
        # random numbers of its own go by the chunk
        most = None if self.draws else max(2, 2 * self.tokens // 3)
        plan, upstream = replace(self.plan, reduction=reduction, most=most), self.upstream
        loss, nll = self.values.loss, self.values.nll
        if reduction == "sum":
            plan.weight, upstream = upstream, upstream.new_ones(())
            loss, nll = (loss * self.upstream.to(loss.dtype)).sum(), nll.sum()
        try:
            output = self.run(partial(self.compute, impl, plan))
            gradients = self._gradients(output.loss, upstream)
        except OF_LAYER as error:
            return said(error)
        if not self.same(output.loss, loss) or not self.same(output.nll, nll):
            got, want = output.loss.sum().item(), loss.sum().item()
            return f"the loss is {got:.6g} instead of {want:.6g}"
        return self._wrong_gradient(gradients)

    def _wrong_gradient(self, gradients: dict[str, Tensor]) -> str | None:
        for name, right in self.gradients.items():
            norm, error = _norm(right), gradients[name].sub_(right)
            if not _norm(error) <= self.tolerance * (norm + 1e-3 * self.largest):
                was, is_now = norm / SCALE, _norm(error + right) / SCALE
                return f"the norm of the gradient of {name} is {is_now:.6g}, not {was:.6g}"
        return None


class _Still(TorchFunctionMode):
    """Leave out dropout, and draw the same number everywhere, to compute a layer in parts."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0]
        found = func(*args, **(kwargs or {}))
        return found.fill_(0.5) if name in DRAWS else found


def _norm(gradient: Tensor) -> float:
    return gradient.norm().item()


def said(error: BaseException) -> str:
    """Return an error of a layer's code in one line."""
    first = str(error).strip().partition("\n")[0] or "it is not implemented"
    if isinstance(error, KeyError):
        return f"tensors has no {first}; it has the names of named_parameters()"
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
