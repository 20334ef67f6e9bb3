"""A function that `torch.compile` is kept out of runs as it is."""

import torch

from highrank_plugins.common.not_compiled import not_compiled


def test_the_function_is_not_traced():
    seen = []

    @not_compiled
    def doubled(x):
        """Return 2 x."""
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    whole = torch.compile(lambda x: doubled(x) + 1, backend="eager")
    assert whole(torch.ones(2)).tolist() == [3, 3] and seen == [False]
    assert doubled.__doc__ == "Return 2 x."
