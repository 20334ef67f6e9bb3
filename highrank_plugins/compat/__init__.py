"""Work around defects of fairseq on today's stack, one file each.

Importing a module applies its workaround; importing it again changes nothing, and fairseq is as
it was where none is imported. A module's docstring says what breaks and with which message, why,
what we do instead, and when the file can be deleted. Only adapters import from here.
"""
