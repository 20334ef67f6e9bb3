"""After a training run every process has the same parameters, those of one process."""

import os

import torch
from fairseq.trainer import Trainer

from highrank_plugins.training.launch.plan import Place, distributed_flags
from tests.fairseq_cli import FORKS, REPOSITORY, _run
from tests.free_port import free_address
from tests.training.launch.trainings import command, one_process
from tests.trainings import last, parameters, same


def train_and_keep(argv: list[str], log: str, path: str) -> None:
    """Train as one of the processes, and save its final parameters."""
    trainers, stock = [], Trainer.__init__

    def init(trainer, *args, **kwargs):
        stock(trainer, *args, **kwargs)
        trainers.append(trainer)

    Trainer.__init__ = init
    _run("train", argv, log, os.devnull)
    torch.save(trainers[0].get_model().state_dict(), path)


def test_every_process_ends_with_the_parameters_of_one(mt_data, tmp_path):
    address = free_address()
    words = [*command(mt_data, tmp_path / "two"), "--user-dir", f"{REPOSITORY}/highrank_plugins"]
    children = []
    for rank in (0, 1):
        flags = distributed_flags(Place(rank, 2, rank, address), None, words)
        argv = [str(word) for word in (*words, *flags)]
        paths = str(tmp_path / f"{rank}.log"), str(tmp_path / f"{rank}.pt")
        children.append(FORKS.Process(target=train_and_keep, args=(argv, *paths)))
    for child in children:
        child.start()
    want = parameters(last(one_process(mt_data, tmp_path)))
    for rank, child in enumerate(children):
        child.join(200)
        assert child.exitcode == 0, (tmp_path / f"{rank}.log").read_text()[-3000:]
        assert same(torch.load(tmp_path / f"{rank}.pt", weights_only=True), want)
