"""What importing this package costs and does, and that its version is the same everywhere."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import highrank_plugins

ROOT = Path(__file__).parents[1]
PRINT_LOADED = "import sys; print(*{name.split('.')[0] for name in sys.modules})"


def run_python(code: str) -> list[str]:
    """Return the words that the code prints in a fresh interpreter."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_what_is_imported_loads_little():
    loaded = run_python(f"import highrank_plugins; {PRINT_LOADED}")
    assert "highrank_plugins" in loaded
    assert not {"torch", "numpy", "fairseq", "pydantic"} & set(loaded)
    loaded = run_python(f"import highrank_plugins.heads; {PRINT_LOADED}")
    assert "torch" in loaded
    assert not {"fairseq", "omegaconf", "hydra", "triton"} & set(loaded)
    rooms = "components, divergence, retention, statistics, unargmaxable_words"
    loaded = run_python(f"from highrank_plugins.analysis import {rooms}; {PRINT_LOADED}")
    assert not {"scipy", "fairseq", "sacrebleu", "omegaconf"} & set(loaded)
    code = (
        "import time, torch; started = time.process_time()\n"
        "import highrank_plugins.heads; print(time.process_time() - started)"
    )
    # not wall time, which a busy machine multiplies; it can still only make this slower,
    # so that one run below the limit is the proof
    assert any(float(run_python(code)[0]) < 0.3 for _ in range(5))


REGISTERED = (
    "from fairseq.models import ARCH_MODEL_REGISTRY as a\n"
    "from fairseq.criterions import CRITERION_REGISTRY as c\n"
    "print('transformer_mixtape' in a, 'transformer_lm_mos' in a, 'highrank_cross_entropy' in c)"
)


# later it is asked to, and may be asked again
@pytest.mark.parametrize("code", [
    "import fairseq, highrank_plugins",
    "import highrank_plugins.heads\nimport highrank_plugins as h\nh.register(); h.register()",
])  # fmt: skip
def test_the_package_registers_itself_where_fairseq_is_loaded(code):
    assert run_python(f"{code}\n{REGISTERED}")[-3:] == ["True"] * 3


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert highrank_plugins.__version__ == metadata.version("highrank_plugins") == cited.group(1)


def test_the_pinned_set_satisfies_the_ranges_of_setup_py():
    from packaging.requirements import Requirement

    pins = {}
    for name in ("pinned.txt", "triton.txt", "docs.txt", "huggingface.txt"):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8").lower()
        pins |= dict(re.findall(r"(?m)^([^#\s]+)==(\S+)", text))
    for requirement in map(Requirement, metadata.requires("highrank_plugins")):
        pinned = pins[requirement.name.lower()]
        assert requirement.specifier.contains(pinned), requirement
