// Instructions of compute capability 9.0 that CuTe lacks or marks .aligned: barriers, grid dependencies, matrix stores, a
// transpose, loads from peers.
#pragma once

#include <cuda/std/cstdint>

namespace cudal2 {

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Not .aligned: lanes of a warp may reach them apart.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
// Its first half without the release, a fence of all memory that costs hundreds of cycles: enough where nothing but
// barriers must have been made, which fence.mbarrier_init has seen to.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Programmatic dependent launch; both are no-ops in a launch without the attribute.
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void allow_next_grid() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Four 8 x 8 matrices from fragments as ldmatrix gives them; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// The same for their transposes, or for those of two, where lanes 0-15 give the addresses.
__device__ __forceinline__ void stmatrix_trans_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ void stmatrix_trans_x2(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.x2.trans.m8n8.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1) : "memory");
}

// Transposes an 8 x 8 matrix of which lane l holds elements 2 (l % 4) + {0, 1} of row l / 4.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t word) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

// 16 bytes at a shared-memory address of this CTA's, from the CTA of this rank in the cluster.
__device__ __forceinline__ float4 load_from_rank(uint32_t address, uint32_t rank) {
  float4 value;
  asm volatile(
      "{\n .reg .u32 remote;\n mapa.shared::cluster.u32 remote, %4, %5;\n"
      " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

}  // namespace cudal2
