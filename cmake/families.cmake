# The kernel families, by the machines that can compile them. A test compares the lists with those of
# codegen/facts.py. The scalar reference kernels are for any processor.
set(FLASH_FAMILIES_X86_64 avx2 avx512 avx512_bf16 amx)
set(FLASH_FAMILIES_AARCH64 neon neon_bf16)
set(FLASH_FAMILIES_CUDA sm80 sm80_decode sm80_mla sm80_wide sm90 sm90_decode sm90_mla sm90_wide mixed)
