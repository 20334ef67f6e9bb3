"""Check at its first loss that an own layer keeps the contract of the losses, on a few tokens.

Values must be log-probabilities, each token must stand alone, and generation must have the function
of the loss. The implementation must agree with plain autograd of `log_probs`, in values and in the
gradients of all parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.autograd import generators, inner_graph, set_generators
from highrank_plugins.losses.own_layers import has_own_hooks, is_ours, same_form, title
from highrank_plugins.losses.plan import LossOutput, LossPlan
from highrank_plugins.losses.precision import Autocast

T = TypeVar("T")
Compute = Callable[[str, LossPlan], LossOutput]  # the loss of a plan by an implementation

TOKENS = 5
NO_STATE = (
    "its values change from call to call with one seed; keep no state between calls, and draw "
    "random numbers from torch's default generator"
)
# largest error of values and, relative to their norms, of gradients
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
HALF_TOLERANCE = 0.1
# what the code of a layer may raise while it is tried
OF_LAYER = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError)

logger = logging.getLogger(__name__)
_verdicts: WeakKeyDictionary[Any, dict[Any, str]] = WeakKeyDictionary()


def checked_implementation(plan: LossPlan, chosen: str, compute: Compute) -> str:
    """Return the implementation that computes the loss of an own layer.

    The check runs once for each implementation, mode and set of trained parameters.

    Raises:
        UserError: the layer breaks the contract, or the implementation cannot compute it; the
            message names the class and a remedy.
    """
    head: Any = plan.head
    trained = tuple(p.requires_grad for p in head.parameters())
    mode = (head.training, torch.is_grad_enabled(), plan.features.dtype)
    key = (chosen, mode, tuple(map(type, head.modules())), trained)
    verdicts = _verdicts.setdefault(head, {})
    if key not in verdicts:
        if not plan.features.numel() or not bool(plan.features.detach().isfinite().all()):
            return chosen  # they show nothing of the layer
        verdicts[key] = _verdict(plan, chosen, compute)
    return verdicts[key]


def _verdict(plan: LossPlan, chosen: str, compute: Compute) -> str:
    trial = _Trial(plan, compute)
    try:
        with inner_graph(torch.is_grad_enabled()):
            trial.check_layer()
            for impl in (chosen, "chunked") if plan.falls_back else (chosen,):
                found = trial.difference(impl)
                if found is None:
                    return impl
                if plan.falls_back:
                    logger.warning("%s: %s under --head-loss %s", title(plan.head), found, impl)
    except OF_LAYER as error:
        raise UserError(f"{title(plan.head)}: {_said(error)}") from error
    finally:
        trial.restore(trial.before)
    other = "reference" if impl == "chunked" else "chunked"
    raise UserError(
        f"{title(plan.head)}: {found} with impl={impl!r}; read parameters in each call, as "
        f"self.NAME or tensors['NAME'], or use impl={other!r} (--head-loss {other})"
    )


@dataclass
class _Start:
    """Hold what a computation may change: random numbers and buffers."""

    numbers: list[Tensor]
    buffers: dict[str, Tensor]


class _Trial:
    """Compute losses of a few tokens of a batch, all from the same random numbers and buffers."""

    def __init__(self, plan: LossPlan, compute: Compute) -> None:
        head: Any = plan.head
        self.head, self.title, self.compute = head, title(head), compute
        self.before = self._start(plan.features)
        rows = torch.arange(TOKENS, device=plan.target.device) % len(plan.target)
        x = plan.features.detach()[rows].clone()
        # rows differ even where tokens are alike
        size = x.float().square().mean().sqrt().clamp_min(1e-3)
        x += (0.1 * size * torch.randn(x.shape, device=x.device)).to(x.dtype)
        self.undrawn = self._start(x)
        self.upstream = torch.linspace(-1, 2, TOKENS, dtype=torch.float64, device=x.device)
        self.plan = replace(
            plan, features=x.requires_grad_(torch.is_grad_enabled()), target=plan.target[rows],
            ignored=None, weight=None, reduction="none", memory=None,
            random_state=head.sample_masks(x.shape[:-1], x),
        )  # fmt: skip
        self.start = self._start(x)
        self.autocast = Autocast(x)
        dtypes = {self.autocast.compute_dtype(x), *(p.dtype for p in head.parameters())}
        self.tolerance = max(TOLERANCES.get(dtype, HALF_TOLERANCE) for dtype in dtypes)

    # -- runs ------------------------------------------------------------------------------------

    def _start(self, like: Tensor) -> _Start:
        return _Start(generators(like), {n: b.clone() for n, b in self.head.named_buffers()})

    def restore(self, start: _Start) -> None:
        set_generators(start.numbers)
        with torch.no_grad():
            for name, buffer in self.head.named_buffers():
                buffer.copy_(start.buffers[name])

    def run(self, function: Callable[[], T], start: _Start | None = None) -> T:
        self.restore(start or self.start)
        with self.autocast.context():
            return function()

    def reference(self, **changes: Any) -> LossOutput:
        return self.run(lambda: self.compute("reference", replace(self.plan, **changes)))

    def same(self, a: Tensor, b: Tensor) -> bool:
        a, b = a.detach().double(), b.detach().double()
        return torch.allclose(a, b, self.tolerance, self.tolerance, equal_nan=True)

    def require(self, kept: bool, message: str, module: Any = None) -> None:
        if not kept:
            raise UserError(f"{self.title if module is None else title(module)}: {message}")

    # -- the layer -------------------------------------------------------------------------------

    def check_layer(self) -> None:
        """Find values and gradients by plain autograd.

        Raises:
            UserError: the layer breaks the contract.
        """
        if not is_ours(self.head.pointwise):
            self._check_function(self.head.pointwise)
        output = self.reference()
        self.values = output.map(torch.detach)
        self.gradients = self._gradients(output.loss, self.upstream, whole=True)
        self.largest = max(map(_norm, self.gradients.values()), default=0.0)
        with torch.no_grad():
            self.require(self.same(self.reference().loss, output.loss), NO_STATE)
            for name, buffer in self.head.named_buffers():
                kept = "parametrizations." in name or buffer.equal(self.start.buffers[name])
                self.require(kept, f"each chunk changes the buffer {name}; leave it as it is")
            log_probs = self._log_probs()
            self._check_tokens()
            nll = -log_probs.gather(-1, self.plan.target.unsqueeze(-1)).squeeze(-1)
            self.require(
                self.same(nll, output.nll),
                f"forward gives −log P {nll[0].item():.6g} where the loss has "
                f"{output.nll[0].item():.6g}; the loss does not call forward, log_probs or hooks: "
                "write the function into chunk_log_probs or chunk_logits",
            )

    def _gradients(self, loss: Tensor, upstream: Tensor, whole: bool = False) -> dict[str, Tensor]:
        """Return the gradients of features and parameters; `whole`: each of them must be read."""
        if not loss.requires_grad:
            return {}
        named = {"features": self.plan.features, **dict(self.head.named_parameters())}
        named = {name: t for name, t in named.items() if t.requires_grad}
        leaves = _leaves(loss) if whole else []
        for leaf in leaves:
            self.require(
                any(leaf is t for t in named.values()),
                f"it reads a tensor {tuple(leaf.shape)} that requires a gradient, but is no "
                "parameter of the layer; make it an nn.Parameter, or detach it",
            )
        for name, t in named.items() if whole else ():
            self.require(
                not t.numel() or any(leaf is t for leaf in leaves),
                f"{name} requires a gradient, but the loss never reads it; read it, or call "
                "requires_grad_(False) (the forward of a wrapped part is not called)",
            )
        total = (loss * upstream.to(loss.dtype)).sum()
        grads = torch.autograd.grad(total, list(named.values()), materialize_grads=True)
        return dict(zip(named, grads, strict=True))

    def _log_probs(self) -> Tensor:
        # FSDP's hooks must not run within each other
        forward = self.head if has_own_hooks(self.head) else self.head.forward
        log_probs = self.run(lambda: forward(self.plan.features), self.undrawn)
        shape = (TOKENS, self.head.num_classes)
        self.require(
            log_probs.shape == shape,
            f"expected log-probabilities {shape} of {TOKENS} tokens, got {tuple(log_probs.shape)}",
        )
        mass = log_probs.double().exp().sum(-1)
        self.require(
            bool(((mass - 1).abs() <= max(self.tolerance, 1e-3)).all()),
            f"the probabilities of all classes add up to {mass[0].item():.6g} instead of 1; "
            "return log-probabilities (log_softmax) that are no NaN",
        )
        return log_probs

    @torch.no_grad()
    def _check_function(self, function: Any) -> None:
        """Check that a pointwise function is one, and leaves its logits as they are."""
        dtype = torch.promote_types(self.plan.features.dtype, torch.float32)
        z = torch.randn(2, self.head.num_classes, dtype=dtype, device=self.plan.features.device)
        tensors, given = function.tensors(), z.clone()
        values = self.run(lambda: same_form(function, function.apply_to(z, tensors), z))
        in_place = "apply_to changes z in place; return a new tensor"
        self.require(z.equal(given), in_place, function)
        repeated = self.run(lambda: function.apply_to(z, tensors))
        self.require(self.same(repeated, values), NO_STATE, function)
        z[1, -1] += 1
        moved = self.run(lambda: function.apply_to(z, tensors))
        moved[1, -1] = values[1, -1]
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
        x = plan.features.detach()
        parts = [self.reference(features=torch.cat((x[:-1], -x[-1:]))).loss[:-1]]
        other = self.run(lambda: (torch.rand(1), self.compute("reference", plan))[1]).loss
        self.draws = not self.same(other, loss)  # random numbers of its own
        for a, b in () if self.draws else ((0, 2), (2, TOKENS)):
            masks = _Cut(plan.random_state.rows(a, b))
            part = self.reference(features=x[a:b], target=plan.target[a:b], random_state=masks)
            parts.append(torch.cat((loss[:a], part.loss)))
        self.require(
            all(self.same(part, loss[: len(part)]) for part in parts),
            "the loss of a token depends on the other tokens of its chunk (as with BatchNorm); "
            "compute it from its own features",
        )

    # -- the implementation ----------------------------------------------------------------------

    def difference(self, impl: str) -> str | None:
        """Return how an implementation differs from plain autograd; None if it does not."""
        # random numbers of its own go by the chunk
        token = replace(self.plan, most=None if self.draws else 2)
        total = replace(self.plan, reduction="sum", weight=self.upstream)
        try:
            return self._difference(impl, token, self.upstream) or self._difference(
                impl, total, self.upstream.new_ones(())
            )
        except OF_LAYER as error:
            return _said(error)

    def _difference(self, impl: str, plan: LossPlan, upstream: Tensor) -> str | None:
        output = self.run(partial(self.compute, impl, plan))
        gradients = self._gradients(output.loss, upstream)
        loss, nll = self.values.loss, self.values.nll
        if plan.reduction == "sum":
            loss, nll = (loss * self.upstream.to(loss.dtype)).sum(), nll.sum()
        if not self.same(output.loss, loss) or not self.same(output.nll, nll):
            got, want = output.loss.sum().item(), loss.sum().item()
            return f"the loss is {got:.6g} instead of {want:.6g}"
        for name, right in self.gradients.items():
            found, norm = gradients[name], _norm(right)
            if not _norm(found - right) <= self.tolerance * (norm + 1e-3 * self.largest):
                return f"the norm of the gradient of {name} is {_norm(found):.6g}, not {norm:.6g}"
        return None


class _Cut:
    """Hand out masks that are those of the part already."""

    def __init__(self, masks: Any) -> None:
        self.masks = masks

    def rows(self, start: int, stop: int) -> Any:
        return self.masks


def _leaves(loss: Tensor) -> list[Tensor]:
    """Return the tensors at which the graph of a loss ends."""
    seen, todo, leaves = set(), [loss.grad_fn], []
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaves += [node.variable] if hasattr(node, "variable") else []
            todo += [following for following, _ in node.next_functions]
    return leaves


def _norm(gradient: Tensor) -> float:
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)).norm().item()


def _said(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0] or "it is not implemented"
    if isinstance(error, KeyError):
        return f"tensors has no {first}; it has the names of named_parameters()"
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
