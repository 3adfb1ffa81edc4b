#!/bin/bash
# A compiler launcher for kernels that are compiled and do not run: nvcc optimises them less, which
# takes about half the time. Code for sm_90a, whose instructions tests look at, is as for users.
#
# usage: hasty_nvcc.sh NVCC ARGUMENT...
[[ "$*" == *sm_90a* ]] || set -- "$@" -Xcicc -O1 -Xptxas -O1
exec "$@"
