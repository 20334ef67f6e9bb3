"""High-rank output layers for torch and fairseq.

Light when imported alone (no torch, no fairseq), so that `highrank_plugins.heads` can be used in
any model. fairseq imports this package as its `--user-dir`; it is loaded by then, and everything
registers itself. Whoever imports this package first and runs fairseq later in the same process
calls `register()`.
"""

import sys

from highrank_plugins._registration import register

__all__ = ["__version__", "register"]
__version__ = "0.1.0"

if "fairseq" in sys.modules:
    register()
