// The stores of kernels/include/cudal2/unaligned.cuh on a CPU, which sees where they begin and what is stored again.
#pragma once

#include "cudal2/ampere.cuh"

namespace cudal2 {

template <class T>
void store_piece(uint16_t* at, T value) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) return emulation::fail("a store to a misaligned address");
  for (const uint16_t* element = at; element < at + sizeof(T) / 2; ++element) {
    if (!emulation::machine.stored.insert(element).second) emulation::fail("an element stored twice");
  }
  std::memcpy(at, &value, sizeof(T));
}

}  // namespace cudal2
