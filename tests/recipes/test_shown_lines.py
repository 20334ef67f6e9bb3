"""What a person sees of a recipe: its options, its commands, and fairseq's progress."""

import re
import subprocess

from tests.recipes.toy import LIBRARY

# functions of the library that need nothing else
FUNCTIONS = "\n".join(
    re.findall(
        r"^(?:as_typed|without_chatter)\(\) \{\n.*?^\}|^run\(\) .*?$",
        LIBRARY.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def test_options_are_shown_as_they_are_typed(toy):
    said = toy("--value", "it's 7", "--stop-stage=0", "--set", "a=1", "--set", "b=(1, 2)").stderr
    line = next(line for line in said.splitlines() if "options: " in line)
    shown = line.partition("options: ")[2]
    assert shown == "--stop-stage 0 --value 'it'\\''s 7' --set a=1 --set 'b=(1, 2)'"
    assert "options: " not in toy().stderr


def test_commands_are_shown_without_needless_quotes(tmp_path):
    code = f'log() {{ printf "%s\\n" "$*"; }}; {FUNCTIONS}; run echo en,de "a b" \'\' é'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert done.stdout == "+ echo en,de 'a b' '' 'é'\nen,de a b  é\n"


def test_progress_is_shown_in_words_and_the_other_messages_are_left_out():
    lines = [
        "2026-11-24 09:56:12 | INFO | fairseq.logging.progress_bar | :      6 / 23 wps=808.5",
        "INFO:fairseq.logging.progress_bar::     11 / 23 wps=1224",
        "2026-11-24 09:56:12 | INFO | fairseq_cli.generate | loading model(s) from a.pt",
        '2026-11-24 09:56:12 | INFO | train_inner | {"epoch": 1, "update": 0.5, "loss": "3.21", '
        '"nll_loss": "3.1", "ppl": "8.55", "wps": "913.2", "num_updates": "5", "wall": "60"}',
        '2026-11-24 09:56:12 | INFO | valid | {"epoch": 1, "valid_loss": "2.9", "valid_wps": "1", '
        '"valid_num_updates": "6"}',
        "2026-11-24 09:56:12 | INFO | hooks.time_left | epoch 1 is done; about 0:01:00 left",
        "2026-11-24 09:56:12 | WARNING | fairseq | 6 / 23 wps=1 is slow",
    ]
    done = subprocess.run(
        ["bash", "-c", f"{FUNCTIONS}; without_chatter"],
        input="\n".join(lines) + "\n", capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "6 of 23 batches, 808 tokens/s", "11 of 23 batches, 1224 tokens/s",
        "epoch 1, update 5: loss 3.21, 913 words/s", "epoch 1, update 6: validation loss 2.9",
        "epoch 1 is done; about 0:01:00 left", lines[-1],
    ]  # fmt: skip
