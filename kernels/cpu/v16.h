/* v16.h - sixteen float lanes, whatever the registers.
 *
 * The kernels of cpu/ are written once over these functions and compiled once per instruction set
 * (TR_CPU_VARIANT and TR_V16_* come from meson.build). Each header gives the same functions with
 * the same bits:
 *
 *   vf             sixteen f32               vi    sixteen u32
 *   vf_load_n      the first n lanes, the others +0; reads nothing beyond
 *   vf_store_n     the first n lanes; writes nothing beyond
 *   vf_fma         a * b + c, one rounding
 *   vf_max(a, b)   a > b ? a : b, so b when either is NaN; vf_min likewise with <
 *   vf_select_gt   a > b ? x : y, lane by lane
 *   vf_sum         the fixed tree of kernels.h: l + (l+8), l + (l+4), l + (l+2), l + (l+1)
 *   vi_flags       value in the lanes whose bit is set in flags, 0 in the others
 *   vf_flags       x in the lanes whose bit is set in flags, y in the others
 *   vf_linear      a * b + c where a * b is exact, so that it does not matter what is fused
 *   vi_load_u8_2   eight bytes from each of two places
 *   vi_bytes       the bytes of four words, the lowest first
 *   vq             what the sixteen codes of a block of a 4-bit kind mean: made by vq_KIND from its
 *                  scale d (linear: code * d + m; E2M1; the values of IQ4), read by
 *                  vq_get_KIND, which looks at the low four bits of each code. E2M1 code 8 is 0 or
 * -0 vf_from_...    sixteen values from memory, exact; any alignment V16_FEW_ROWS   how many rows
 * of W fit the registers beside T rows of x when W is decoded in registers; V16_FEW_MAX, up to how
 * many rows of x that is the faster way V16_OUTER_N    how many vf of columns block_outer keeps in
 * registers for each of its rows vn             the widest native part of sixteen lanes, VN_LANES
 * wide, for the blocked product
 *
 * Nothing here sets flush-to-zero or changes the rounding mode, and every operation is an IEEE one,
 * so lanes agree between machines; only the payload and sign of NaN do not. */
#ifndef TR_KERNELS_CPU_V16_H
#define TR_KERNELS_CPU_V16_H

#include <stdint.h>
#include <string.h>

/* Where the lanes are registers, everything is inlined, loops over lanes and rows are unrolled, and
 * kernels are compiled once for each weight format. Portable lanes are arrays: treated like that,
 * one file of them took two minutes and a gigabyte to compile (more under a sanitizer) and ran no
 * faster. */
#define TR_PRAGMA(text) _Pragma(#text)
#if defined(TR_V16_AVX512) || defined(TR_V16_AVX2) || defined(TR_V16_NEON)
#define TR_UNROLL(count) TR_PRAGMA(GCC unroll count)
#define V16_REGISTERS    1
#define V16              static inline __attribute__((always_inline))
#else
#define TR_UNROLL(count)
#define V16_REGISTERS 0
#define V16           static inline
#endif

/* The values of IQ4 codes, and of E2M1 codes of either sign. */
#define V16_IQ4        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define V16_E2M1(sign) sign 0, sign .5f, sign 1, sign 1.5f, sign 2, sign 3, sign 4, sign 6

#if defined(TR_V16_AVX512)
#include "kernels/cpu/v16_avx512.h"
#elif defined(TR_V16_AVX2)
#include "kernels/cpu/v16_avx2.h"
#elif defined(TR_V16_NEON)
#include "kernels/cpu/v16_neon.h"
#else
#include "kernels/cpu/v16_portable.h"
#endif

#endif
