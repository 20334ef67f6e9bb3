"""Two processes on a CPU train what one trains with --update-freq 2, and stay in step."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.distributed import ModuleProxyWrapper
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

from tests.fairseq_cli import FORKS, run
from tests.free_port import free_address, leave_together
from tests.models.small import build
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, last, parameters, same, train

ARCH = "transformer_mixtape_tiny"
WORDS = ["--dropout", "0", "--label-smoothing", "0.1"]


def train_rank(data, save_dir, rank, address):
    """Train one rank as a launcher starts it; on a CPU every one of these flags is needed."""
    group = [
        *("--distributed-world-size", 2, "--distributed-rank", rank, "--device-id", 0),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]
    where = ["--save-dir", save_dir, "--arch", ARCH, "--max-update", 6]
    return run("train", data, *where, *TRANSLATION, *NARROW, *OUR_LOSS, *WORDS, *group)


def test_two_processes_equal_one_with_two_batches(mt_data, tmp_path):
    address = free_address()
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(train_rank, mt_data, tmp_path / "two", rank, address) for rank in (0, 1)
        ]
    assert "training on 2 devices" in ranks[0].result().output
    train(mt_data, tmp_path / "one", ARCH, 6, *WORDS, "--update-freq", 2)
    assert same(parameters(last(tmp_path / "two")), parameters(last(tmp_path / "one")))


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
    ranks = [
        FORKS.Process(
            target=gradients_of_rank, args=(data, arch, rank, address, unused, tmp_path / str(rank))
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]

    built = build(data, arch, *WORDS)
    built.model.eval()
    for sentences in (3, 5):
        loss, _, _ = built.criterion(built.model, built.batch(sentences=sentences))
        (loss / 2).backward()
    got = [torch.load(tmp_path / str(rank), weights_only=True) for rank in (0, 1)]
    assert same(*got)
    for name, parameter in built.model.named_parameters():
        torch.testing.assert_close(got[0][name], parameter.grad, rtol=1e-4, atol=1e-5)
