"""`--bf16` works on TPUs only.

What breaks: `--bf16` or `--memory-efficient-bf16` on a command line, on CPU and GPU:
`AttributeError: 'NoneType' object has no attribute 'xla_device'`.
Why: `options.parse_args_and_arch` takes `--bf16` to mean `--tpu`.
What we do: set `tpu` back where torch_xla is not installed, unless `--tpu` was given.
Delete when: fairseq separates the two options.
"""

import sys

from fairseq import options, utils

from highrank_plugins.common.patching import replaces


@replaces(options, "parse_args_and_arch")
def parse_args_and_arch(stock, parser, input_args=None, parse_known=False, **kwargs):
    """Parse as fairseq does; `--bf16` alone does not turn `tpu` on."""
    parsed = stock(parser, input_args, parse_known, **kwargs)
    args = parsed[0] if parse_known else parsed
    given = sys.argv[1:] if input_args is None else input_args
    if getattr(args, "bf16", False) and utils.xm is None and "--tpu" not in given:
        args.tpu = False
    return parsed
