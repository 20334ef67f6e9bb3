"""Singular values of blocks are those of the whole matrix; ranks, entropy and decay by theory."""

import math
import subprocess
import sys

import pytest
import torch

from highrank_plugins.analysis import spectrum as spectra
from highrank_plugins.heads import build_head
from tests.largest_tensor import Largest

ROWS, WIDTH = 83, 20


def test_importing_the_room_loads_neither_scipy_nor_fairseq():
    rooms = "components, divergence, predictions, retention, spectrum, statistics"
    code = f"from highrank_plugins.analysis import {rooms}, unargmaxable_words; import sys; "
    command = [sys.executable, "-c", code + "print(*{name.split('.')[0] for name in sys.modules})"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "torch" in loaded
    assert not {"scipy", "fairseq", "sacrebleu", "omegaconf"} & set(loaded)


def matrix(rows=ROWS, width=WIDTH, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64) - 9


def log_probs(rows, width, rank):
    """Return what a softmax layer gives: a spectrum over many orders of magnitude."""
    logits = matrix(rows, rank, seed=2) @ matrix(rank, width, seed=3)
    return (logits / rank).log_softmax(-1)


SIZES = [[2], [19], [20], [21], [40], [41], [83], [20, 20, 43], [1] * 83, [0, 40, 0, 43, 0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("method", ["tsqr", "gram"])
def test_blocks_of_any_size_and_dtype_give_the_dense_values(sizes, method, dtype):
    x = matrix(sum(sizes)).to(dtype)
    found = spectra.spectrum(iter(x.split(sizes)), torch.float64, method)
    assert found.values.dtype == torch.float64 and found.shape == (len(x), WIDTH)
    near = {"rtol": 1e-11, "atol": 0} if len(x) == ROWS else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found.values, torch.linalg.svdvals(x.double()), **near)


@pytest.mark.parametrize("merge_rows", [1, 3, 20, 1000])
def test_the_number_of_rows_merged_at_once_changes_nothing(merge_rows):
    x = matrix()
    values = spectra.spectrum(x.split(9), merge_rows=merge_rows).values
    torch.testing.assert_close(values, torch.linalg.svdvals(x), rtol=1e-12, atol=0)


def test_triangles_of_parts_can_stand_in_for_the_parts():
    x = matrix()
    parts = [spectra.triangle(part.split(7)) for part in x.split([30, 3, 50])]
    assert [len(part) for part in parts] == [WIDTH, 3, WIDTH]
    whole = spectra.triangle(x.split(7))
    assert torch.equal(whole, whole.triu())
    torch.testing.assert_close(whole.t() @ whole, x.t() @ x)
    torch.testing.assert_close(spectra.spectrum(parts).values, torch.linalg.svdvals(x))


def test_float64_sees_what_the_gram_matrix_cannot():
    small = torch.tensor([1.0, 1e-3, 1e-6, 1e-9, 1e-12], dtype=torch.float64)
    left, right = torch.linalg.qr(matrix(50, 5)).Q, torch.linalg.qr(matrix(5, 5, seed=5)).Q
    x = left @ small.diag() @ right
    exact = spectra.spectrum([x])
    torch.testing.assert_close(exact.values, small, rtol=0, atol=1e-15)
    blind = spectra.spectrum([x], method="gram")
    torch.testing.assert_close(blind.values[:3], small[:3], rtol=1e-2, atol=0)
    assert (blind.values[3:] / small[3:] - 1).abs().max() > 0.1
    assert blind.smallest_reliable == pytest.approx(1e-7)
    assert exact.smallest_reliable < 1e-14


def test_auto_takes_the_gram_matrix_only_where_float32_is_enough():
    assert spectra.spectrum([matrix()]).method == "tsqr"
    narrow = spectra.spectrum([matrix()], dtype=torch.float32)
    assert narrow.method == "gram"
    assert narrow.smallest_reliable <= torch.finfo(torch.float32).eps * narrow.values[0]


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_errors_of_the_matrix_do_not_count_as_rank(narrow):
    x = log_probs(400, 60, rank=7)
    found = spectra.spectrum([x[:100], x[100:].to(narrow)])
    assert found.matrix_dtype == narrow
    assert spectra.press_rank(found.values, found.shape, torch.float64) == 60
    with pytest.raises(ValueError, match=f"noise of a {narrow} matrix"):
        found.press_rank()
    assert found.press_rank(narrow) <= 7 + 1
    if narrow == torch.float32:
        assert found.press_rank(narrow) == 7 + 1
    else:
        with pytest.raises(ValueError, match=f"noise of a {narrow} matrix"):
            found.press_rank(torch.float32)


def test_a_rank_finer_than_the_method_is_refused():
    found = spectra.spectrum([matrix()], dtype=torch.float32, method="gram")
    assert found.press_rank() == spectra.press_rank(found.values, found.shape, torch.float32)
    with pytest.raises(ValueError, match=r"method='tsqr', dtype=torch.float64"):
        found.press_rank(torch.float64)


@pytest.mark.parametrize("method", ["tsqr", "gram"])
def test_a_planted_rank_is_found_at_the_edge_of_float32(method):
    rank, rows, width = 17, 300, 80
    planted = matrix(rows, rank, seed=2) @ matrix(rank, width, seed=3)
    noise = matrix(rows, width, seed=4) + 9
    largest = torch.linalg.matrix_norm(planted, 2)
    x = planted + 7e-8 * largest / torch.linalg.matrix_norm(noise, 2) * noise
    narrow = spectra.spectrum(x.float().split(64), torch.float32, method)
    assert narrow.press_rank() == rank
    assert spectra.spectrum(x.split(64)).press_rank() == width


@pytest.mark.parametrize(("method", "numbers"), [("tsqr", 2 * WIDTH**2), ("gram", WIDTH**2)])
def test_the_whole_matrix_is_never_in_memory(method, numbers):
    blocks = (matrix(20, seed=seed) for seed in range(100))
    with Largest() as seen:
        found = spectra.spectrum(blocks, method=method)
    assert found.shape == (2000, WIDTH)
    assert seen.numel == 2 * numbers  # of float32; these are float64


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_press_rank_counts_what_lies_above_the_tolerance():
    shape = (50, 49)  # √(50 + 49 + 1) / 2 = 5
    eps = torch.finfo(torch.float32).eps
    assert spectra.press_tolerance(2.0, shape, torch.float32) == pytest.approx(10 * eps, rel=1e-15)
    s = values(2.0, 1.0, 10.1 * eps, 10 * eps, 9.9 * eps)
    assert spectra.press_rank(s, shape, torch.float32) == 3
    assert spectra.press_rank(s.flip(0), shape, torch.float32) == 3
    assert spectra.press_rank(s, shape, torch.float64) == 5
    assert spectra.press_rank(values(0.0, 0.0), shape, torch.float64) == 0


@pytest.mark.parametrize(
    ("eps", "rank"), [(0.9, 1), (0.41, 1), (0.39, 2), (0.11, 2), (0.09, 3), (1e-6, 4), (1e-30, 5)]
)
def test_effective_rank_equals_values_computed_by_hand(eps, rank):
    s = values(0.6, 0.3, 0.0999, 0.0001, 1e-20).sqrt()  # squares sum to 1
    assert spectra.effective_rank(s, eps) == rank
    assert spectra.effective_rank(s.flip(0), eps) == rank
    assert spectra.effective_rank(torch.zeros(3), eps) == 0


def test_spectral_entropy_equals_values_computed_by_hand():
    assert spectra.spectral_entropy(torch.ones(7)) == pytest.approx(math.log(7), rel=1e-12)
    assert spectra.spectral_entropy(values(3.0, 0.0)) == 0
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert spectra.spectral_entropy(values(3.0, 1.0)) == pytest.approx(expected, rel=1e-12)


def test_decay_is_the_exponent_of_the_squares():
    index = torch.arange(1, 101, dtype=torch.float64)
    assert spectra.spectral_decay(5 * index**-0.7) == pytest.approx(1.4, rel=1e-12)
    bent = torch.cat([index[:50] ** -0.5, torch.zeros(50)])
    assert spectra.spectral_decay(bent, last=50) == pytest.approx(1.0, rel=1e-12)
    assert spectra.spectral_decay(torch.ones(4)) == pytest.approx(0, abs=1e-15)


CONTEXTS, CLASSES, FEATURES, DIM = 150, 60, 8, 5


def rank(name, bias=True, **options):
    torch.manual_seed(1)
    size = DIM if name == "softmax" else FEATURES
    head = build_head(name, num_classes=CLASSES, feature_dim=size, embed_dim=DIM, bias=bias,
                      **options).double().eval()  # fmt: skip
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        log_probs = head(2 * torch.randn(CONTEXTS, size, dtype=torch.float64))
    return spectra.spectrum(log_probs.split(64)).press_rank()


def test_one_softmax_of_linear_logits_has_rank_d_plus_2():
    assert rank("softmax") == rank("moc", components=3) == DIM + 2
    assert rank("softmax", bias=False) == rank("moc", bias=False, components=3) == DIM + 1


def test_a_mixture_of_softmaxes_has_full_rank():
    assert rank("mos", components=3) == CLASSES
    assert rank("mos", components=1) == DIM + 2


@pytest.mark.parametrize("pointwise", ["sigsoftmax", "gss", "plif"])
def test_pointwise_functions_raise_the_rank(pointwise):
    assert rank("softmax", pointwise=pointwise) == CLASSES


def test_mixtape_has_a_bounded_rank_in_its_rare_columns_only():
    assert rank("mixtape", frequent=0) == DIM + 2
    assert rank("mixtape", frequent=20) == 20 + DIM + 2
    assert rank("mixtape", frequent=CLASSES) == CLASSES
