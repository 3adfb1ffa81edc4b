#!/bin/bash
# A compiler launcher: what this processor cannot run is compiled with little optimisation, which
# takes about half the time. The step `wheel` compiles it as for users.
#
# usage: hasty_cc.sh [LAUNCHER] COMPILER ARGUMENT...
for extension in avx512f:-mavx512f avx512_bf16:-mavx512bf16 amx_tile:-mamx-tile; do
    if [[ " $* " == *" ${extension#*:} "* ]] && ! grep -qw "${extension%:*}" /proc/cpuinfo; then
        set -- "$@" -O1
        break
    fi
done
exec "$@"
