"""Provide SGD that becomes averaged SGD, as for the AWD-LSTM, and decide when."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import ASGD

from highrank_plugins.common.heartbeat import TrainingListener
from highrank_plugins.common.user_error import UserError


def non_monotone_trigger(losses: Sequence[float], n: int = 5) -> int | None:
    """Return the epoch at whose end averaging is switched on, or None before that.

    It is the first e with e − 1 > n and loss_e > min(loss_1, …, loss_{e−1−n}): the loss is worse
    than the best of all epochs but the last n, 5 in the paper. It is never before epoch n + 2. The
    validation losses are those of epochs 1, 2, …, of the raw weights.
    """
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    for epoch, loss in enumerate(losses, start=1):
        if math.isnan(loss):
            raise ValueError(f"the validation loss of epoch {epoch} is NaN")
    epochs = range(n + 2, len(losses) + 1)
    return next((e for e in epochs if losses[e - 1] > min(losses[: e - 1 - n])), None)


logger = logging.getLogger(__name__)


class AveragedSGD(TrainingListener, ASGD):
    """Run SGD until averaging is switched on, then `torch.optim.ASGD` with t0 = 0 and lambd = 0.

    NT-ASGD switches when `non_monotone_trigger` says so, ET-ASGD after a fixed epoch. The average
    is p_1 after the first averaged step, then the mean of p_2, …, p_t. A step under ASGD uses the
    learning rate that was set for the step before it: torch does so, and so did the published runs.

    A trainer notifies it of events (see hooks/trainer.py): evaluation and checkpoints use
    the averages, which then lie in the parameters; `zero_grad` puts the raw weights back.

    A group with "by_adam" takes the directions of Adam (β = 0.9, 0.999) in place of gradients.

    `nonmono` is n of the trigger; with `at_epoch` averaging starts at the end of this epoch (0:
    with the first step). With `stop`, `finished` becomes true where the trigger would switch.
    """

    def __init__(
        self, params: Iterable, lr: float, weight_decay: float = 0.0, nonmono: int = 5,
        at_epoch: int | None = None, stop: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, lambd=0.0, t0=0.0, weight_decay=weight_decay)
        self.nonmono, self.at_epoch, self.stop = nonmono, at_epoch, stop
        self.moments: dict[int, tuple[int, Tensor, Tensor]] = {}  # of Adam: steps, m, v
        self.losses: list[float] = []
        self.first_epoch: int | None = None
        self.averaging = False
        self.averages_in_model = False

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        if self.averages_in_model:
            raise RuntimeError("the parameters hold averages: call zero_grad() before a step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_adams_directions()
        if self.averaging:
            super().step()
            return loss
        for group in self.param_groups:  # p ← p − lr (g + weight_decay p)
            params = [p for p in group["params"] if p.grad is not None]
            grads: list[Tensor] = [p.grad for p in params]
            if params and group["weight_decay"]:
                grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
            if params:
                torch._foreach_add_(params, grads, alpha=-group["lr"])
        return loss

    def adam_groups(self) -> list[dict]:
        return [group for group in self.param_groups if group.get("by_adam")]

    def _take_adams_directions(self) -> None:
        """Replace the gradients of `adam_groups` by m̂ / (√v̂ + 1e-8)   (Kingma and Ba 2015)."""
        params = [p for group in self.adam_groups() for p in group["params"]]
        for number, p in enumerate(params):
            if p.grad is None:
                continue
            steps, mean, square = self.moments.get(number) or (0, p.grad * 0, p.grad * 0)
            steps, mean, square = steps + 1, mean.to(p), square.to(p)
            mean.lerp_(p.grad, 0.1)
            square.lerp_(p.grad.square(), 0.001)
            self.moments[number] = steps, mean, square
            root = (square / (1 - 0.999**steps)).sqrt_().add_(1e-8)
            p.grad.copy_(mean / (1 - 0.9**steps) / root)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients as torch does; training continues from the raw weights."""
        self._exchange(averages=False)
        super().zero_grad(set_to_none)

    # -- events of the trainer --

    def before_epoch(self, epoch: int) -> None:
        if self.first_epoch is None:
            self.first_epoch = epoch
        needs_losses = self.at_epoch is None or self.stop
        if needs_losses and len(self.losses) < epoch - self.first_epoch:
            raise UserError(
                f"nt_asgd has seen {len(self.losses)} validation losses before epoch {epoch}, but "
                "needs one per epoch: remove --disable-validation and --validate-after-updates, "
                "set --validate-interval 1; or use --asgd-at-epoch without --nonmono-stop"
            )
        due = self.at_epoch is not None and epoch > self.at_epoch
        if self.at_epoch is None:
            due = non_monotone_trigger(self.losses, self.nonmono) is not None
        if due and not self.averaging:
            self.averaging = True
            logger.info("averaging the weights from epoch %d on", epoch)

    def before_validation(self) -> None:
        """Move the averages, if there are any, into the parameters."""
        self._exchange(averages=True)

    def after_epoch(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the validation loss is {loss}: the training run has diverged; lower --lr or "
                "--clip-norm"
            )
        self.losses.append(float(loss))

    @property
    def finished(self) -> bool:
        """Whether the training run should end: the losses have stopped improving."""
        return self.stop and non_monotone_trigger(self.losses, self.nonmono) is not None

    before_save = before_validation

    # -- state --

    def state_dict(self) -> dict:
        """Return torch's state, the history of the trigger, and `ax` unless the model holds it."""
        names = ["losses", "first_epoch", "averaging", "averages_in_model"]
        names += ["moments"] * bool(self.moments)
        return super().state_dict() | {"nt_asgd": {name: getattr(self, name) for name in names}}

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from a checkpoint whose parameters the model holds already.

        Afterwards the model holds the raw weights.
        """
        super().load_state_dict(state_dict)
        vars(self).update(state_dict["nt_asgd"])
        self.losses = list(self.losses)
        self._exchange(averages=False)

    @torch.no_grad()
    def _exchange(self, averages: bool) -> None:
        """Exchange parameters and `ax`, unless the parameters already hold the requested ones."""
        if self.averages_in_model == averages or not self.averaging:
            return
        for group in self.param_groups:
            for p in group["params"]:
                if (other := self.state[p].get("ax")) is not None:
                    held = p.clone()
                    p.copy_(other)
                    other.copy_(held)
        self.averages_in_model = averages
