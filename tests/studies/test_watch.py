"""The line of a running study, from the files of toy runs."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

from highrank_plugins.studies import watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trained(member, updates: int) -> None:
    line = {"tag": "train_inner", "epoch": 1, "num_updates": updates}
    (member.run_dir / "train" / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def test_the_line_has_stage_share_and_time_left(tmp_path, monkeypatch):
    (tmp_path / "train").mkdir()
    (tmp_path / "config.yaml").write_text("train: {max_update: 400}\n")
    member, now = SimpleNamespace(name="softmax-2", run_dir=tmp_path), [0.0]
    assert watch.share_trained(member.run_dir) is None
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    log: Path = member.run_dir / "log"
    stream, said = Terminal(), []
    shown = watch.Watch(4, said.append, stream)

    def show(seconds: float) -> str:
        now[0] += seconds
        stream.truncate(stream.seek(0))
        shown.show([(member, log)], 1)
        return stream.getvalue().replace("\r\x1b[K", "")

    assert show(3) == "2 of 4 done, softmax-2: starts"
    assert show(1) == ""  # not yet
    log.write_text("t stage 1 pieces: already done\nt stage 3 train: train (logs)\n")
    assert show(3) == "2 of 4 done, softmax-2: stage 3 train"
    trained(member, 100)
    assert show(3) == "2 of 4 done, softmax-2: stage 3 train, 25%"
    trained(member, 200)
    assert show(60) == "2 of 4 done, softmax-2: stage 3 train, 50%, 0:02:00 left in training"
    shown.tell("softmax-2: done")
    assert said == ["softmax-2: done"] and stream.getvalue().endswith("\r\x1b[K")
    for config, share in (("max_epoch: 4", 0.25), ("max_update: 50", 1.0), ("arch: x", None)):
        (member.run_dir / "config.yaml").write_text(f"train: {{{config}}}")
        assert watch.share_trained(member.run_dir) == share, "it follows what ends the run"
