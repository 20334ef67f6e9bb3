"""The image of the Dockerfile is README's install, which no test can build without docker."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_commands_of_the_image_are_those_of_readme():
    (install,) = re.findall(
        r"## Install\n+```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    words = [w.strip() for w in re.sub(r"#.*", "", install).replace("\n", " && ").split("&&")]
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    made = {word: line.removeprefix(word) for line in lines if (word := line.split(" ")[0] + " ")}
    folder = f"/{made['WORKDIR '].strip('/')}"
    assert [w for w in words if w] == [
        f"git clone REPOSITORY_URL {folder[1:]}", f"cd {folder[1:]}",  # COPY and WORKDIR
        made["RUN "], "source .venv/bin/activate",
    ]  # fmt: skip
    assert made["COPY "] == ". ." and made["ENV "] == f"PATH={folder}/.venv/bin:$PATH"
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "exp"} <= set(ignored)
