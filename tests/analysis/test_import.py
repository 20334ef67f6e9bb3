"""The package is light to import, and exports the documented names."""

import inspect
import subprocess
import sys

import highrank_plugins.analysis as analysis

PRINT_LOADED = "import sys; print(*{name.split('.')[0] for name in sys.modules})"


def test_importing_the_package_loads_neither_scipy_nor_fairseq():
    command = [sys.executable, "-c", f"import highrank_plugins.analysis; {PRINT_LOADED}"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "torch" in loaded
    assert not {"scipy", "fairseq", "sacrebleu", "omegaconf"} & set(loaded)


def test_public_names_are_documented():
    public = {name: getattr(analysis, name) for name in analysis.__all__}
    assert [name for name, thing in public.items() if not inspect.getdoc(thing)] == []
