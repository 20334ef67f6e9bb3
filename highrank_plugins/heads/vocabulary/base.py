"""Define the interface of a vocabulary matrix that is a function of other parameters.

`torch.nn.utils.parametrize` keeps them: `head.weight` is the matrix [M, D] that losses read, and
`head.parametrizations.weight` has the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.utils import parametrize

from highrank_plugins.common.names import class_of, layer_name
from highrank_plugins.heads.registry import Registry
from highrank_plugins.losses.kept_state import PLAIN

VOCABULARY: Registry[type[Vocabulary]] = Registry("vocabulary matrix", base=lambda: Vocabulary)
register_vocabulary = VOCABULARY.register


class Vocabulary(nn.Module):
    """Compute a vocabulary matrix [M, D] from one tensor or several.

    A subclass implements `forward(*tensors)`. It may implement `right_inverse(matrix)`, which
    returns the tensors of a given matrix; by default the tensor is the matrix itself.
    """

    needs: ClassVar[tuple[str, ...]] = ("forward",)
    option_help: ClassVar[dict[str, str]] = {}  # what each option does, for fairseq's commands
    # options that change the function but no parameter; see `Registry.constants`
    constants: tuple[str, ...] | None = None
    may_be_tied: ClassVar[bool] = True  # whether the tensor can be the embedding, too
    needs_sorted_classes: ClassVar[str | None] = None  # why, if class ids must follow their counts
    # the parameter for which a model has a learning rate of its own, --head-<name>-lr
    own_rate: ClassVar[str | None] = None

    def right_inverse(self, matrix: Tensor) -> Any:
        """Return the tensor, or the tuple of tensors, whose matrix is the given one or near it."""
        return matrix

    def extra_repr(self) -> str:
        options = {n: v for n, v in vars(self).items() if n != "training" and isinstance(v, PLAIN)}
        return ", ".join(f"{name}={value}" for name, value in options.items())


@register_vocabulary("plain")
class Plain(Vocabulary):
    """Keep the matrix as a parameter."""

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix


UNCHANGED = Plain()


def make_matrix(head: Any, vocabulary: Vocabulary, tied: bool) -> None:
    """Make the vocabulary matrix of a head a function of parameters, from what it is now.

    Args:
        tied: whether the matrix is also an embedding, which then is the parameter.
    """
    if isinstance(vocabulary, Plain):
        return
    if tied and not vocabulary.may_be_tied:
        raise ValueError(
            f"{layer_name(vocabulary)}: its parameters have no row for each class, so they cannot "
            "be the embedding, too; do not share embedding and vocabulary matrix"
        )
    # the first loss checks the matrix
    parametrize.register_parametrization(head, "weight", vocabulary, unsafe=True)


def vocabulary_of(head: nn.Module) -> Vocabulary:
    """Return the registered function that makes the vocabulary matrix of a head."""
    return next((part for part in _parts(head) if isinstance(part, Vocabulary)), UNCHANGED)


def _parts(head: nn.Module) -> list[nn.Module]:
    parts: Any = getattr(head, "parametrizations", {})
    return list(parts["weight"]) if "weight" in parts else []


def function_of_matrix(head: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield names and constants of the parts that make the vocabulary matrix of parameters."""
    for i, part in enumerate(_parts(head)):
        own = {"name": class_of(part).__name__}
        if isinstance(part, Vocabulary):
            own = VOCABULARY.function(part)
        yield from ((f"vocabulary{i or ''}.{name}", value) for name, value in own.items())
