// The elements of kernels/include/cudal2/element.cuh on a CPU, and what they are worth.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace emulation {

template <bool kBf16>
float to_float(uint16_t bits) {
  if constexpr (kBf16) {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  } else {
    static const std::vector<float> values = [] {  // looked up, since compilers call a function for each
      std::vector<float> all(1 << 16);
      for (uint32_t i = 0; i < all.size(); ++i) {
        const auto word = uint16_t(i);
        _Float16 value;
        std::memcpy(&value, &word, 2);
        all[i] = float(value);
      }
      return all;
    }();
    return values[bits];
  }
}

template <bool kBf16>
uint16_t from_float(float value) {
  if constexpr (kBf16) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if (std::isnan(value)) return 0x7FFF;
    return uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);  // to nearest, ties to even
  } else {
    const _Float16 half = _Float16(value);
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
  }
}

template <bool kBf16>
float low(uint32_t word) {
  return to_float<kBf16>(uint16_t(word));
}
template <bool kBf16>
float high(uint32_t word) {
  return to_float<kBf16>(uint16_t(word >> 16));
}

}  // namespace emulation

namespace cudal2 {

template <bool kBf16>
uint32_t pack_elements(float low, float high) {
  return emulation::from_float<kBf16>(low) | uint32_t(emulation::from_float<kBf16>(high)) << 16;
}

}  // namespace cudal2
