"""Two ranks share gradients; tests/training/launch compares whole runs with one process."""

import pytest
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

from tests.fairseq_cli import in_processes
from tests.free_port import free_address, leave_together
from tests.models.small import build
from tests.stream_corpus import CERTAIN
from tests.tasks import built as streams
from tests.trainings import same


def of_sentences(data, arch, rank):
    """Return a model and the batches of a rank, or those of both."""
    built = build(data, arch, "--dropout", "0", "--label-smoothing", "0.1")
    built.model.eval()
    return built, [built.batch(sentences=n) for n in ((3, 5) if rank is None else (3 + 2 * rank,))]


def of_streams(data, arch, rank):
    """Return the last batch: the streams end after 6 of 10 positions, where padding differs."""
    built = streams.build(data, *CERTAIN, "--fixed-bptt", "--bptt", 10, arch=arch)
    own = {"max_sentences": 2, "num_shards": 2, "shard_id": rank, "num_workers": 0}
    end = built.batches(**({} if rank is None else own))[-1]
    end["net_input"]["state"] = None
    return built, [end]


def gradients_of_rank(make, data, arch, rank, address, unused, path):
    """Save the gradients that torch's DistributedDataParallel leaves on one of two ranks."""
    init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    built, (batch,) = make(data, arch, rank)
    wrapped = DistributedDataParallel(built.model, find_unused_parameters=unused)
    loss, size, _ = built.criterion(ModuleProxyWrapper(wrapped), batch)
    loss.backward()
    torch.save(({n: p.grad for n, p in built.model.named_parameters()}, size), path)
    leave_together([path.with_name(str(each)) for each in (0, 1)])


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize(("make", "data", "arch"), [
    (of_sentences, "mt_data", "transformer_mixtape_tiny"),
    (of_sentences, "lm_data", "awd_lstm_lm_mos"),
    (of_streams, "stream_data", "awd_lstm_lm_softmax"),
])  # fmt: skip
def test_gradients_are_averaged_over_ranks(make, data, arch, unused, request, tmp_path):
    address, data = free_address(), request.getfixturevalue(data)
    calls = [(make, data, arch, rank, address, unused, tmp_path / str(rank)) for rank in (0, 1)]
    in_processes(gradients_of_rank, calls)
    saved = [torch.load(tmp_path / str(rank), weights_only=True) for rank in (0, 1)]
    got, sizes = zip(*saved, strict=True)
    built, batches = make(data, arch, None)
    results = [built.criterion(built.model, batch)[:2] for batch in batches]
    sum(loss for loss, _ in results).backward()
    assert same(*got) and sizes[0] != sizes[1] and sum(sizes) == sum(size for _, size in results)
    for name, parameter in built.model.named_parameters():  # DDP takes the mean of two
        torch.testing.assert_close(2 * got[0][name], parameter.grad, rtol=1e-5, atol=1e-6)
