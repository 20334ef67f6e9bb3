"""Two ranks share gradients; tests/training/launch compares whole runs with one process."""

import pytest
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

from tests.fairseq_cli import in_processes
from tests.free_port import free_address, leave_together
from tests.models.small import build
from tests.trainings import same

ARCH = "transformer_mixtape_tiny"
WORDS = ["--dropout", "0", "--label-smoothing", "0.1"]


def gradients_of_rank(data, arch, rank, address, unused, path):
    """Save the gradients that torch's DistributedDataParallel leaves on one of two ranks."""
    init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    built = build(data, arch, *WORDS)
    built.model.eval()
    wrapped = DistributedDataParallel(built.model, find_unused_parameters=unused)
    batch = built.batch(sentences=3 + 2 * rank)
    built.criterion(ModuleProxyWrapper(wrapped), batch)[0].backward()
    torch.save({n: p.grad for n, p in built.model.named_parameters()}, path)
    leave_together([path.with_name(str(each)) for each in (0, 1)])


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize(("arch", "data"), [(ARCH, "mt_data"), ("awd_lstm_lm_mos", "lm_data")])
def test_gradients_are_averaged_over_ranks(arch, data, unused, request, tmp_path):
    address, data = free_address(), request.getfixturevalue(data)
    calls = [(data, arch, rank, address, unused, tmp_path / str(rank)) for rank in (0, 1)]
    in_processes(gradients_of_rank, calls)
    built = build(data, arch, *WORDS)
    built.model.eval()
    for sentences in (3, 5):
        loss, _, _ = built.criterion(built.model, built.batch(sentences=sentences))
        (loss / 2).backward()
    got = [torch.load(tmp_path / str(rank), weights_only=True) for rank in (0, 1)]
    assert same(*got)
    for name, parameter in built.model.named_parameters():
        torch.testing.assert_close(got[0][name], parameter.grad, rtol=1e-4, atol=1e-5)
