"""Results merged from several processes equal the result of one process on all rows."""

import pytest
import torch

from highrank_plugins.analysis.divergence import (
    PredictionSums,
    mean_kld_of_sums,
    mean_pairwise_kld,
    pairwise_kld,
)
from highrank_plugins.analysis.spectrum import SpectrumRows, spectrum, whole_spectrum

CUTS = [[83], [40, 43], [1, 50, 32]]


def log_probs(rows=83, classes=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, classes, generator=generator, dtype=torch.float64).log_softmax(-1)


def spectrum_part(part, dtype=torch.float64, method="auto"):
    rows = SpectrumRows(dtype, method)
    rows.add(part)
    return rows.part()


@pytest.mark.parametrize("sizes", CUTS)
@pytest.mark.parametrize("method", ["tsqr", "gram"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spectrum_of_parts_is_that_of_the_whole(sizes, method, dtype):
    x = log_probs().to(dtype)
    want = spectrum([x], dtype, method)
    found = whole_spectrum([spectrum_part(part, dtype, method) for part in x.split(sizes)])
    assert (found.shape, found.method, found.matrix_dtype) == (want.shape, method, dtype)
    torch.testing.assert_close(found.values, want.values, rtol=1e-5, atol=0)
    assert found.smallest_reliable == pytest.approx(want.smallest_reliable)


@pytest.mark.parametrize("sizes", CUTS)
def test_the_mean_divergence_of_parts_is_that_of_the_whole(sizes):
    p, q = log_probs(), log_probs(31, seed=2)
    parts = [PredictionSums.of([part]) for part in p.split(sizes)]
    whole = sum(parts[1:], parts[0])
    assert whole.rows == 83
    assert mean_kld_of_sums(whole, whole) == pytest.approx(mean_pairwise_kld([p]))
    other = PredictionSums.of([q])
    assert mean_kld_of_sums(whole, other) == pytest.approx(pairwise_kld(p, q).mean().item())
