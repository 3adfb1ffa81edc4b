/*
 * Measures how fast this GPU reads cold memory. Kernels read it once and do nothing with it, in
 * several shapes of grid and loads; the fastest is the floor for decoding.
 *
 * `python -m flashattn bench-decode` loads this library if it lies beside libflashattn.so, as CMake
 * puts it, and times it in turns with everything else. By hand:
 *
 *     nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -shared -Xcompiler -fPIC \
 *         benchmarks/gpu/read_floor.cu -o build/cuda/libflashattn_read_floor.so
 */
#include <cstdint>
#include <cuda_runtime.h>

namespace {

enum class reader_t { LOADS, BULK_COPIES };

/* A shape of the grid, and how its blocks read. */
struct shape_t {
    reader_t reader;
    int blocks;  /* a multiprocessor */
    int threads; /* a block */
    int chunk;   /* bytes of a bulk copy */
    int stages;  /* chunks under way */
};

constexpr shape_t SHAPES[] = {
    {reader_t::LOADS, 2, 512, 0, 0},
    {reader_t::LOADS, 4, 256, 0, 0},
    {reader_t::LOADS, 8, 256, 0, 0},
    {reader_t::BULK_COPIES, 1, 128, 8192, 16},
    {reader_t::BULK_COPIES, 1, 128, 16384, 12},
    {reader_t::BULK_COPIES, 1, 128, 32768, 6},
    {reader_t::BULK_COPIES, 2, 128, 8192, 12},
    {reader_t::BULK_COPIES, 2, 128, 16384, 6},
    {reader_t::BULK_COPIES, 3, 128, 8192, 8},
    {reader_t::BULK_COPIES, 4, 128, 4096, 12},
    {reader_t::BULK_COPIES, 4, 128, 8192, 6},
};
constexpr int N_SHAPES = sizeof SHAPES / sizeof SHAPES[0];
enum { MOST_STAGES = 16, LOADS_A_THREAD = 8 };
constexpr int64_t LOAD_BYTES = sizeof(uint4);
constexpr uint32_t SOUGHT = 0x12345679;

/* Keeps the compiler from leaving out the reads. */
__device__ void consume(uint32_t value, uint32_t *sink) {
    if (value == SOUGHT)
        *sink = value;
}

__device__ uint4 load(const uint4 *address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

/* Every thread has LOADS_A_THREAD loads of 16 bytes under way. */
__global__ void read_by_loads(const uint4 *memory, int64_t count, uint32_t *sink) {
    const int64_t tile = static_cast<int64_t>(blockDim.x) * LOADS_A_THREAD;
    uint32_t sum = 0;
    for (int64_t begin = blockIdx.x * tile; begin < count; begin += gridDim.x * tile) {
        uint4 values[LOADS_A_THREAD];
#pragma unroll
        for (int i = 0; i < LOADS_A_THREAD; i++) {
            const int64_t at = begin + static_cast<int64_t>(i) * blockDim.x + threadIdx.x;
            values[i] = at < count ? load(memory + at) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < LOADS_A_THREAD; i++)
            sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
    consume(sum, sink);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void wait(const uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "TRY:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra TRY;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ void copy(char *slot, const char *from, uint32_t bytes, const uint64_t *barrier) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(slot)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* Returns the word with which the thread's load of 16 bytes begins; thread 0 has the last load. */
__device__ uint32_t load_near_end(const char *slot, uint32_t size) {
    const uint32_t from_end = (threadIdx.x + 1) * LOAD_BYTES;
    return from_end > size ? 0 : *reinterpret_cast<const uint32_t *>(slot + size - from_end);
}

__device__ void make_barriers(uint64_t *barriers, int count) {
    for (int i = 0; i < count; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barriers + i)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
#endif

/* A block has a run of chunks, which bulk copies load into a ring of slots. */
__global__ void read_by_bulk_copies(const char *memory, int64_t bytes, int chunk, int stages,
                                    uint32_t *sink) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char ring[];
    __shared__ uint64_t full[MOST_STAGES];
    const int64_t count = (bytes + chunk - 1) / chunk;
    const int64_t first = count * blockIdx.x / gridDim.x;
    const int n = static_cast<int>(count * (blockIdx.x + 1) / gridDim.x - first);
    const auto size_of = [&](int i) {
        const int64_t rest = bytes - (first + i) * chunk;
        return static_cast<uint32_t>(rest < chunk ? rest : chunk);
    };
    const auto fetch = [&](int i) {
        copy(ring + i % stages * chunk, memory + (first + i) * chunk, size_of(i),
             full + i % stages);
    };

    if (threadIdx.x == 0) {
        make_barriers(full, stages);
        for (int i = 0; i < stages && i < n; i++)
            fetch(i);
    }
    __syncthreads();
    uint32_t sum = 0;
    for (int i = 0; i < n; i++) {
        wait(full + i % stages, i / stages & 1);
        sum ^= load_near_end(ring + i % stages * chunk, size_of(i));
        __syncthreads();
        if (threadIdx.x == 0 && i + stages < n)
            fetch(i + stages);
    }
    consume(sum, sink);
#endif
}

cudaError_t launch(const shape_t &shape, int n_blocks, const void *memory, int64_t bytes,
                   uint32_t *sink, cudaStream_t stream) {
    if (shape.reader == reader_t::LOADS) {
        read_by_loads<<<n_blocks, shape.threads, 0, stream>>>(static_cast<const uint4 *>(memory),
                                                              bytes / LOAD_BYTES, sink);
        return cudaGetLastError();
    }
    const int ring = shape.chunk * shape.stages;
    const cudaError_t error = cudaFuncSetAttribute(
        read_by_bulk_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, ring);
    if (error != cudaSuccess)
        return error;
    read_by_bulk_copies<<<n_blocks, shape.threads, ring, stream>>>(
        static_cast<const char *>(memory), bytes, shape.chunk, shape.stages, sink);
    return cudaGetLastError();
}

} // namespace

/* Returns the number of shapes, which are numbered from 0. */
extern "C" int flashattn_read_floor_shapes() {
    return N_SHAPES;
}

/*
 * Enqueues a kernel of a shape on the current device. It reads `bytes` bytes, a multiple of 16,
 * from device memory that is aligned to 16. sink: 4 bytes of device memory, written when a word
 * that a thread looks at is SOUGHT and its others are 0: tests find by it what has been read.
 * Returns a cudaError_t, cudaErrorNotSupported if the device has no such reads.
 */
extern "C" int flashattn_read_floor(int shape, const void *memory, int64_t bytes, uint32_t *sink,
                                    cudaStream_t stream) {
    int device = 0, n_multiprocessors = 0, major = 0;
    if (shape < 0 || shape >= N_SHAPES || bytes < LOAD_BYTES || bytes % LOAD_BYTES != 0)
        return cudaErrorInvalidValue;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess)
        return error;
    if (SHAPES[shape].reader == reader_t::BULK_COPIES && major < 9)
        return cudaErrorNotSupported;
    return launch(SHAPES[shape], SHAPES[shape].blocks * n_multiprocessors, memory, bytes, sink,
                  stream);
}
