"""The generator of the kernel table: which kernels exist, and the C that names them.

    facts -> config -> kernel_rules -> legality -> sets, covers -> selection
    facts -> config -> short_form, wrappers, emit -> output

Each module does one step; `python3 -m codegen --help` is the way in. Standard library only.
"""
