/* numbers.h - the small number formats of checkpoints, element by element, exactly.
 *
 * Each conversion to f32 is exact: no rounding, subnormals kept, NaN stays NaN. Loads take any
 * alignment. For files and for kernels alike. */
#ifndef TR_CORE_MODEL_NUMBERS_H
#define TR_CORE_MODEL_NUMBERS_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are little-endian, and so are all machines that Troupe runs on"
#endif

static inline uint16_t tr_load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint32_t tr_load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint64_t tr_load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline float tr_f32_from_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

static inline uint32_t tr_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float tr_load_f32(const uint8_t *p)
{
    return tr_f32_from_bits(tr_load_u32(p));
}

/* bfloat16: the high half of an f32. */
static inline float tr_bf16_to_f32(uint16_t h)
{
    return tr_f32_from_bits((uint32_t)h << 16);
}

/* IEEE binary16: 1-5-10, bias 15, subnormals in steps of 2^-24. */
static inline float tr_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    float magnitude;

    if (exponent == 0)
        magnitude = (float)mantissa * 0x1p-24f;
    else if (exponent == 31)
        magnitude = tr_f32_from_bits(0x7f800000u | mantissa << 13);
    else
        magnitude = tr_f32_from_bits((exponent + 112u) << 23 | mantissa << 13);
    return tr_f32_from_bits(sign | tr_f32_bits(magnitude));
}

/* E4M3 "fn": 1-4-3, bias 7, no infinity, 0x7f and 0xff are NaN, largest 448. */
static inline float tr_e4m3_to_f32(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    uint32_t exponent = (b >> 3) & 15u;
    uint32_t mantissa = b & 7u;
    float magnitude;

    if ((b & 0x7fu) == 0x7fu)
        magnitude = tr_f32_from_bits(0x7fc00000u);
    else if (exponent == 0)
        magnitude = (float)mantissa * 0x1p-9f;
    else
        magnitude = tr_f32_from_bits((exponent + 120u) << 23 | mantissa << 20);
    return tr_f32_from_bits(sign | tr_f32_bits(magnitude));
}

/* E2M1: code bit 3 is the sign, bits 0..2 choose 0, 0.5, 1, 1.5, 2, 3, 4, 6. Code 8 is -0. */
static inline float tr_e2m1_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 8u) << 28;
    uint32_t exponent = (code >> 1) & 3u;
    uint32_t mantissa = code & 1u;
    float magnitude;

    if (exponent == 0)
        magnitude = (float)mantissa * 0.5f;
    else
        magnitude = tr_f32_from_bits((exponent + 126u) << 23 | mantissa << 22);
    return tr_f32_from_bits(sign | tr_f32_bits(magnitude));
}

/* E8M0: a power of two, 2^-127 to 2^127; 0xff is NaN. */
static inline float tr_e8m0_to_f32(uint8_t b)
{
    if (b == 0xff)
        return tr_f32_from_bits(0x7fc00000u);
    return tr_f32_from_bits(b == 0 ? 0x00400000u : (uint32_t)b << 23);
}

#endif
