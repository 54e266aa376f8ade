/* decode.h - decodes packed rows (packed.h) in registers, sixteen weights at a time.
 *
 * The kind and the place of a group in its unit are constants of the caller's unrolled loop, so
 * that what the four groups of a unit share (a load, a book) is done once. */
#ifndef TR_KERNELS_CPU_DECODE_H
#define TR_KERNELS_CPU_DECODE_H

#include "core/model/blocks.h"
#include "kernels/cpu/scales.h"

V16 uint16_t w_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

V16 vf w_linear(vi code, float d, float m)
{
    return vf_linear(vf_from_int(code), vf_set1(d), vf_set1(m));
}

/* Sixteen magnitudes from two grid points of eight, or four of four, and their signs. */
V16 vf w_signed(vi magnitudes, uint32_t mask_low, uint32_t mask_high, float d)
{
    uint16_t mask = (uint16_t)(tr_iq_signs[mask_low & 127] | tr_iq_signs[mask_high & 127] << 8);

    return vf_mul(vf_from_int(magnitudes), vf_flags(mask, -d, d));
}

/* The scale of 32 elements whose upper four bits of `word` say which. */
V16 float w_iq_scale(float d, uint32_t word, float part)
{
    return d * (0.5f + (float)(word >> 28)) * part;
}

/* Group j = 0..3 of the unit at codes. s: the super's scales, unit: which of its four it is. */
V16 vf w_group(w_kind kind, const uint8_t *codes, const w_scales *s, uint32_t unit, uint32_t j)
{
    const float *of32 = s->v + 2 * unit + j / 2, *of16 = s->v + 4 * unit + j;
    const uint8_t *half = codes + j / 2 * 8; /* 32 elements of a grid kind */
    vi code, high;
    uint32_t word;

    switch (kind) {
    case W_F32:
        return vf_load((const float *)(const void *)(codes + j * 64));
    case W_F16:
        return vf_from_f16(codes + j * 32);
    case W_BF16:
        code = vi_load_u32(codes + j / 2 * 64);
        return vi_float(j % 2 == 0 ? vi_shl(code, 16) : vi_and(code, vi_set1(0xffff0000)));
    case W_I8:
        return vf_mul(vf_from_i8(codes + j * 16), vf_set1(of32[0]));
    case W_E4M3: /* 256 is in the matrix scale, or in the block's */
        return vf_from_e4m3_256th(codes + j * 16);
    case W_E4M3_SCALED:
        return vf_mul(vf_from_e4m3_256th(codes + j * 16), vf_set1(of16[0]));
    case W_LINEAR2:
        code = vi_and(vi_shr(vi_load_u8(codes), 2 * (int)j), vi_set1(3));
        return w_linear(code, of16[0], of16[16]);
    case W_LINEAR3:
        code = vi_and(vi_shr(vi_load_u8(codes), 2 * (int)j), vi_set1(3));
        code = vi_or(code, vi_flags(w_u16(codes + 16 + 2 * j), 4));
        return w_linear(code, of16[0], of16[16]);
    case W_LINEAR4:
        code = vi_shr(vi_load_u16(codes), 4 * (int)j);
        return vq_get_linear4(vq_linear4(of32[0], of32[8]), code);
    case W_LINEAR5:
        code = vi_and(vi_shr(vi_load_u16(codes), 4 * (int)j), vi_set1(15));
        code = vi_or(code, vi_flags(w_u16(codes + 32 + 2 * j), 16));
        return w_linear(code, of32[0], of32[8]);
    case W_LINEAR6:
        code = vi_and(vi_shr(vi_load_u16(codes), 4 * (int)j), vi_set1(15));
        high = vi_shr(vi_shl(vi_load_u8(codes + 32), 4), 2 * (int)j);
        code = vi_or(code, vi_and(high, vi_set1(0x30)));
        return w_linear(code, of16[0], of16[16]);
    case W_E2M1:
        return vq_get_e2m1(vq_e2m1(of16[0]), vi_shr(vi_load_u16(codes), 4 * (int)j));
    case W_IQ4:
        return vq_get_iq4(vq_iq4(of32[0]), vi_shr(vi_load_u16(codes), 4 * (int)j));
    case W_IQ2_XXS:
        word = w_word(half + 4) >> j % 2 * 14;
        code = vi_load_u8_2(tr_iq2xxs_grid[half[j % 2 * 2]], tr_iq2xxs_grid[half[j % 2 * 2 + 1]]);
        return w_signed(code, word, word >> 7, w_iq_scale(of32[0], w_word(half + 4), 0.25f));
    case W_IQ2_XS:
        word = w_word(half + j % 2 * 4);
        code = vi_load_u8_2(tr_iq2xs_grid[word & 511], tr_iq2xs_grid[word >> 16 & 511]);
        return w_signed(code, word >> 9, word >> 25, of32[j % 2 * 8]);
    case W_IQ3_XXS:
        half += j % 2 * 4;
        code = vi_bytes(w_word(tr_iq3xxs_grid[half[0]]), w_word(tr_iq3xxs_grid[half[1]]),
                        w_word(tr_iq3xxs_grid[half[2]]), w_word(tr_iq3xxs_grid[half[3]]));
        word = w_word(codes + 16 + j / 2 * 4);
        return w_signed(code, word >> j % 2 * 14, word >> (j % 2 * 14 + 7),
                        w_iq_scale(of32[0], word, 0.5f));
    case W_KINDS_COUNT:
        break;
    }
    return vf_zero();
}

/* out = elements [k, k + count) of row n as f32, and zeros or what is beyond the row up to a whole
 * unit. k is a multiple of TR_UNIT. */
V16 void w_row_to_f32(w_kind kind, float *out, const w_rows *rows, uint32_t n, uint32_t k,
                      uint32_t count)
{
    uint32_t u = k / TR_UNIT, end = (k + count + TR_UNIT - 1) / TR_UNIT;
    const uint8_t *codes =
        rows->codes + n * rows->layout.codes_stride + (size_t)u * tr_unit_bytes(kind);
    w_scales scales;
    bool open = false;

    for (; u < end; u++, codes += tr_unit_bytes(kind), out += TR_UNIT) {
        if (rows->open != NULL && (!open || u % 4 == 0))
            rows->open(&scales, rows, n, u / 4, 1);
        open = true;
        TR_UNROLL(4)
        for (uint32_t j = 0; j < 4; j++)
            vf_store(out + 16 * j, w_group(kind, codes, &scales, u % 4, j));
    }
}

#endif
