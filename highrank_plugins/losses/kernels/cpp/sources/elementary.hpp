// e^x and log x without branches, so that a compiler makes vector code of loops over them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline double exponential(double x) { return std::exp(x); }

inline double logarithm(double x) { return std::log(x); }

// e^x for x ≤ 88, within 2 units in the last place; 0 below −87; NaN and nothing else for NaN.
// x = n log 2 + r with |r| ≤ log(2)/2, then Taylor's polynomial of e^r and n into the exponent.
inline float exponential(float x) {
    const float inside = x < -87.0f ? -87.0f : x;
    const float shifter = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
    const float shifted = inside * 1.44269504f + shifter;
    const float n = shifted - shifter;
    const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
    float value = 1.0f / 5040;
    value = value * r + 1.0f / 720;
    value = value * r + 1.0f / 120;
    value = value * r + 1.0f / 24;
    value = value * r + 1.0f / 6;
    value = value * r + 0.5f;
    value = value * r + 1.0f;
    value = value * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + (127u << 23);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : value * power;
}

// log x for normal x > 0, within 2 units in the last place of max(|log x|, 1/2).
// x = 2^n m with √½ ≤ m < √2, and log m = 2 artanh(t) with t = (m − 1)/(m + 1), |t| < 0.172.
inline float logarithm(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t above = bits - 0x3f3504f3u;  // √½ becomes 0
    const float n = static_cast<float>(static_cast<int32_t>(above) >> 23);
    const uint32_t mantissa = (above & 0x7fffffu) + 0x3f3504f3u;
    float m;
    std::memcpy(&m, &mantissa, sizeof m);
    const float t = (m - 1.0f) / (m + 1.0f);
    const float square = t * t;
    float series = 1.0f / 9;
    series = series * square + 1.0f / 7;
    series = series * square + 1.0f / 5;
    series = series * square + 1.0f / 3;
    return n * 0.693147181f + (2.0f * t + 2.0f * t * square * series);
}
