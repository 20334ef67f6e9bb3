"""Work around defects of fairseq on today's stack, one file each.

Importing a module applies its workaround. Its docstring says what breaks and with which message,
why, what we do instead, and when the file can be deleted. Only adapters import from here.
"""
