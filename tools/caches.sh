# shellcheck shell=bash
# Tells every tool that keeps a cache to keep it in build/, which is all that ./dev writes.

export MPLCONFIGDIR=$PWD/build/cache/matplotlib
export HYPOTHESIS_STORAGE_DIRECTORY=$PWD/build/cache/hypothesis
export PIP_CACHE_DIR=$PWD/build/cache/pip
export PYTHONPYCACHEPREFIX=$PWD/build/cache/python
export RUFF_CACHE_DIR=$PWD/build/cache/ruff
export ZIG_GLOBAL_CACHE_DIR=$PWD/build/zig # where zig keeps what it makes of glibc's sources
