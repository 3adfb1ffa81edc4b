#!/bin/sh
# measure.sh FILE: writes the results of this machine's GPU that are worth building into the library
# (codegen/results/*.txt): where the fastest row beats the one that selection estimates by more than
# 2 %. FLASHATTN_LIBRARY is the library, of the ship set; PYTHONPATH has the package.
set -eu
export FLASHATTN_TUNING=none # estimates alone
file=$1
rm -f "$file"

tune() { # d_head, option...
    d=$1
    shift
    python3 -m flashattn tune --launches 9 --top 2 --margin 2 --output "$file" --d-head "$d" "$@" \
        "d_head=$d"
}

for d in 64 128 256; do
    for mask in "" --causal; do
        # Prefill: much work; one short batch. Then a part of a long prompt.
        tune "$d" --tokens 16384 --heads $((2048 / d)) --seqlen 512,1024,2048,4096,16384 $mask
        tune "$d" --batch 1 --heads 16 --seqlen 256,512,1024,2048,4096 $mask
    done
    tune "$d" --batch 1 --heads 32 --heads-kv 8 --seqlen-q 256 --seqlen 4096,16384 --causal
    # Decode, with K and V in memory: all keys, lengths that only the device knows, pages.
    for cache in "" --seqused "--page-size 16,64"; do
        tune "$d" --batch 1 --heads 32 --heads-kv 8 --seqlen-q 1 --seqlen 8192,32768 --cold $cache
        tune "$d" --batch 32 --heads 32 --heads-kv 8 --seqlen-q 1 --seqlen 1024,8192 --cold $cache
    done
    # Chunks of prompts in pages.
    tune "$d" --batch 1 --heads 32 --heads-kv 8 --seqlen-q 512 --seqlen 8192,32768 --causal \
        --page-size 16,64
done
