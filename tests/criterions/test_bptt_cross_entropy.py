"""AR, TAR and the loss by hand; gradients; the same under torch's DDP with streams shared out."""

import math

import pytest
import torch
from fairseq.distributed import ModuleProxyWrapper
from fairseq.logging import metrics
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from highrank_plugins.trunks import activation_penalty, temporal_penalty
from tests.fairseq_cli import in_processes
from tests.free_port import free_address, leave_together
from tests.stream_corpus import CERTAIN
from tests.tasks.built import build


def test_penalties_equal_values_computed_by_hand():
    raw = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]], [[3.0, 1.0]]])  # [3, 1, 2]
    assert activation_penalty(raw).item() == pytest.approx((1 + 4 + 9 + 1 + 9 + 1) / 6)
    assert temporal_penalty(raw).item() == pytest.approx((4 + 9 + 0 + 4) / 4)
    assert temporal_penalty(raw[:1]).item() == 0
    # in float32 at least
    big = torch.full((2, 1, 1), 300.0, dtype=torch.float16)
    assert activation_penalty(big).item() == 90_000
    assert temporal_penalty(big * torch.tensor([[[1.0]], [[-1.0]]]).half()).item() == 360_000
    assert temporal_penalty(big[:1].double()).dtype == torch.float64


def losses(built, batch):
    """Return loss, sample size and log of a batch that begins the streams."""
    batch["net_input"]["state"] = None
    return built.criterion(built.model, batch)


def test_the_training_loss_is_the_nll_plus_weighted_penalties(stream_data):
    built = build(stream_data, *CERTAIN)
    built.model.double()
    batch = built.batches()[0]
    loss, size, log = losses(built, batch)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    features, _, raw = built.model.bptt_features(tokens)
    log_probs = built.model.head(features).transpose(0, 1)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum()
    ar, tar = features.square().mean(), (raw[1:] - raw[:-1]).square().mean()
    assert size == log["ntokens"] == target.numel()
    assert_close(log["nll_loss"], nll.detach(), rtol=1e-9, atol=0)
    assert_close(loss, nll + size * (2 * ar + 1 * tar), rtol=1e-9, atol=0)

    got = torch.autograd.grad(loss, list(built.model.parameters()))
    want = torch.autograd.grad(nll + size * (2 * ar + tar), list(built.model.parameters()))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-12)
    built.model.eval()
    loss, _, log = losses(built, built.batches()[0])
    assert_close(loss.data, log["nll_loss"])


def test_ar_penalises_dropped_outputs_and_tar_raw_ones(stream_data):
    built = build(stream_data, "--dropout", 0.5)
    raw = torch.randn(6, 4, 8)
    dropped = raw * 2 * (torch.rand(raw.shape) < 0.5)
    want = 2 * dropped.square().mean() + (raw[1:] - raw[:-1]).square().mean()
    assert_close(built.criterion.penalty(dropped, raw), want)


def test_perplexity_is_computed_from_the_nll(stream_data):
    built = build(stream_data)
    logs = [
        {"loss": 90.0, "nll_loss": 70.0, "ntokens": 30, "sample_size": 30},
        {"loss": 30.0, "nll_loss": 20.0, "ntokens": 10, "sample_size": 10},
    ]
    with metrics.aggregate(new_root=True) as meters:
        built.criterion.reduce_metrics(logs)
        values = meters.get_smoothed_values()
    assert values["nll_loss"] == pytest.approx(90 / 40 / math.log(2), abs=1e-6)
    assert values["loss"] == pytest.approx(120 / 40 / math.log(2), abs=1e-6)
    assert values["ppl"] == pytest.approx(math.exp(90 / 40), abs=1e-4)


SIX_AT_THE_END = ["--fixed-bptt", "--bptt", 10]  # of 136 positions


def gradients_of_rank(data, rank, address, unused, path):
    """Save one of two ranks' gradients at the end of the streams, where padding differs."""
    init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    built = build(data, *CERTAIN, *SIX_AT_THE_END)
    wrapped = DistributedDataParallel(built.model, find_unused_parameters=unused)
    end = built.batches(max_sentences=2, num_shards=2, shard_id=rank, num_workers=0)[-1]
    end["net_input"]["state"] = None
    loss, tokens, _ = built.criterion(ModuleProxyWrapper(wrapped), end)
    loss.backward()
    gradients = {n: p.grad for n, p in built.model.named_parameters()}
    torch.save({"gradients": gradients, "tokens": tokens}, path)
    leave_together([path.with_name(str(each)) for each in (0, 1)])


@pytest.mark.parametrize("unused", [False, True])
def test_streams_shared_by_two_processes_have_the_gradients_of_all(unused, stream_data, tmp_path):
    address = free_address()
    paths = [tmp_path / str(rank) for rank in (0, 1)]
    calls = [(stream_data, rank, address, unused, path) for rank, path in enumerate(paths)]
    in_processes(gradients_of_rank, calls)
    got = [torch.load(path, weights_only=True) for path in paths]

    built = build(stream_data, *CERTAIN, *SIX_AT_THE_END)
    end = built.batches()[-1]
    end["net_input"]["state"] = None
    loss, tokens, _ = built.criterion(built.model, end)
    loss.backward()
    assert [part["tokens"] for part in got] == [12, 11] and tokens == 23
    for name, parameter in built.model.named_parameters():
        # DDP takes the mean of two
        twice = 2 * got[0]["gradients"][name]
        assert_close(twice, parameter.grad, rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(got[0]["gradients"][name], got[1]["gradients"][name])
