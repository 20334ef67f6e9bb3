"""Options of each process of a launch, and the sizes of its batches."""

import re

import pytest

from highrank_plugins.training.launch import plan
from highrank_plugins.training.launch.plan import fit_batch, option, with_effective_batch
from highrank_plugins.training.launch.rank import Place, distributed_flags, find_place

TRAIN = ["fairseq-train", "data", "--max-tokens", "4096"]


def flags(place, visible, command=TRAIN):
    words = " ".join(distributed_flags(place, visible, command))
    return dict(re.findall(r"(--\S+) ?((?!--)\S*)", words))


def test_flags_follow_from_the_devices_and_the_command():
    assert flags(Place(5, 8, 1), 4) == {
        "--distributed-init-method": "env://",
        "--distributed-world-size": "8",
        "--distributed-rank": "5",
        "--distributed-no-spawn": "",
        "--device-id": "1",
        "--distributed-backend": "nccl",
        "--ddp-backend": "pytorch_ddp",
    }
    assert flags(Place(5, 8, 3), 1)["--device-id"] == "0"  # the only GPU that it sees
    on_cpu = {"--distributed-backend": "gloo", "--ddp-backend": "legacy_ddp", "--device-id": "0"}
    assert flags(Place(1, 2, 1), None).items() >= on_cpu.items()
    assert "--ddp-backend" not in flags(Place(0, 2, 0), 2, [*TRAIN, "--ddp-backend=no_c10d"])


@pytest.mark.parametrize(
    ("words", "tokens", "world", "message"),
    [
        *(([*TRAIN, word], 0, 1, f"{word.partition('=')[0]}: the launcher sets it for each process")
          for word in ("--distributed-world-size", "--device-id=1", "--local_rank")),
        (["fairseq-trian"], 0, 1, "did you mean 'fairseq-train'"),
        ([], 0, 1, "got 'nothing'"),
        (["fairseq-train", "data"], 4096, 1, "needs --max-tokens"),
        ([*TRAIN, "--update-freq", "2"], 4096, 1, "remove one of the two"),
        (TRAIN, 4, 8, "use fewer processes"),
    ],
)  # fmt: skip
def test_a_command_or_batch_that_cannot_be_launched_is_refused(words, tokens, world, message):
    with pytest.raises(ValueError, match=message):
        plan.check_program(words)
        with_effective_batch(words, tokens, world)


def test_an_effective_batch_is_split_and_the_command_gets_it():
    for effective, max_tokens, world, want in (
        (25_000, 4096, 1, (4096, 6)), (25_000, 3072, 8, (3072, 1)), (400_000, 3584, 8, (3584, 14)),
        (32_768, 4096, 32, (1024, 1)),  # 4 × 8 GPUs, what 8 have in one batch each
        (25_000, 4096, 8, (3125, 1)), (50_000, 4096, 8, (3125, 2)),
    ):  # fmt: skip
        found, freq = fit_batch(effective, max_tokens, world)
        assert (found, freq) == want
        assert abs(found * freq * world - effective) <= 0.1 * effective
    for given in (["--max-tokens", "4096"], ["--max-tokens=4096"]):
        words, line = with_effective_batch(["fairseq-train", *given, "--lr", "1"], 32_768, 32)
        assert option(words, "--max-tokens") == "1024"
        assert "4096" not in " ".join(words)
        assert "32 processes × --max-tokens 1024 (lowered from 4096) × 1 = 32768 tokens" in line
    assert option(["--max-tokens", "5", "--max-tokens=7"], "--max-tokens") == "7"  # the last one


def test_a_process_finds_its_place_among_the_planned_number():
    slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
    assert find_place(slurm, 16, "tcp://a:1") == Place(9, 16, 1, "tcp://a:1")
    ours = {"HIGHRANK_LAUNCHED": "1", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    assert find_place(slurm | ours, 4, "env://") == Place(2, 4, 0, "env://")
    with pytest.raises(ValueError, match="use `highrank launch`"):
        find_place({}, 1, "env://")
    with pytest.raises(ValueError, match="rank 9: 16 processes were started, but 8 were planned"):
        find_place(slurm, 8, "env://")
