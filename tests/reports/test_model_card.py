"""The card of a model shows what others have written, and runs none of it."""

import re
import shlex
from pathlib import Path

import yaml

from highrank_plugins.reports.model_card import model_card


def test_hostile_names_change_neither_the_page_nor_its_commands():
    model = {"head": "![a](http://b)", "head_`<i>": "<u>`<img>`"}
    task = {"_name": "translation", "source_lang": "en; touch OWNED", "target_lang": "d|e\n<b>"}
    model["arch"] = "x`]\nlicense: mine"
    common = {"user_dir": "a b\n```\n<img src=x>"}
    fairseq = {"common": common, "task": task, "model": model}
    config = {"fairseq": {**fairseq}, "valid_loss": None, "training": {"num_updates": 1}}
    config["versions"] = {"highrank_plugins": "1"}
    page = model_card("$(touch OWNED)", config, 1, [Path("dict.`.txt")], [], None, "MIT\nname: x")
    code = page.partition("```bash\n")[2].partition("\n```")[0]
    words = shlex.split(code)
    name = "$(touch OWNED)"
    assert words[:6] == ["highrank", "model", "import", name, "--output", f"{name}.pt"]
    assert "en; touch OWNED" in words
    assert "d|e <b>" in words
    assert words[words.index("--user-dir") + 1] == "a b <img src=x>"
    head = yaml.safe_load(page.split("---\n")[1])
    assert head == {
        "library_name": "fairseq",
        "license": "MIT\nname: x",
        "tags": ["translation", "x`]\nlicense: mine"],
    }
    shown = re.sub(r"`[^`]*`", "", page.split("---\n", 2)[2].replace(f"```bash\n{code}\n```", ""))
    assert not re.search(r"<(b|i|u|img)|!\[", shown)
