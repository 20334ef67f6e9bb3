"""`highrank launch` without starting anything."""

from tests.cli import highrank

TRAIN = ["--", *"fairseq-train data --arch transformer --save-dir save --max-tokens 100".split()]


def test_a_dry_run_prints_every_process_and_starts_none(tmp_path):
    words = ["--processes", "2", "--effective-tokens", "800", "--dry-run"]
    result = highrank("launch", *words, *TRAIN, cwd=tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "2 processes × --max-tokens 100 × 4 = 800 tokens per update" in result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("fairseq-train")]
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert f"--distributed-world-size 2 --distributed-rank {rank} " in line
        assert "--update-freq 4 --distributed-init-method" in line
    assert "GLOO_SOCKET_IFNAME=lo\n" in result.stdout
    assert "rdzv" not in result.stdout  # its store would listen on all interfaces
    assert "save/logs/rank<N>.log" in result.stdout
    words = ["--nodes", "2", "--processes", "1", "--rendezvous", "node1:29500", "--dry-run"]
    result = highrank("launch", *words, *TRAIN, cwd=tmp_path)
    assert "PET_RDZV_ID=highrank-" in result.stdout
    assert "launch.torchrun --nnodes 2 --nproc-per-node 1 " in result.stdout
    assert "--rdzv-id" not in result.stdout  # a secret is no part of a command line
    assert list(tmp_path.iterdir()) == []


def test_a_batch_script_is_written(tmp_path):
    (tmp_path / "modules.sh").write_text("\tmodule load cuda\n")
    words = ["--nodes", "2", "--gpus-per-node", "8", "--slurm", "job.sh", "--sbatch=--time=9"]
    words += ["--account", "us", "--qos", "long", "--mem", "64G", "--prologue", "modules.sh"]
    result = highrank("launch", *words, *TRAIN, cwd=tmp_path)
    assert result.stdout == "sbatch job.sh\n"
    script = (tmp_path / "job.sh").read_text()
    directives, rest = script.split("container=()\n\tmodule load cuda\nset -uo pipefail\n")
    named = ["--account=us", "--qos=long", "--mem=64G", "--time=9"]
    assert directives.endswith("".join(f"#SBATCH {option}\n" for option in named))
    assert '"${container[@]}" \\\n' in rest
    assert (tmp_path / "save" / "logs").is_dir()
