/* blocks.c - the fields and the formulas of GGUF's block formats. */
#include "core/model/blocks.h"

#include "core/model/numbers.h"

#include <assert.h>
#include <string.h>

bool tr_format_is_blocked(tr_format format)
{
    switch (format) {
    case TR_FORMAT_Q8_0:
    case TR_FORMAT_Q4_0:
    case TR_FORMAT_Q4_1:
    case TR_FORMAT_Q5_0:
    case TR_FORMAT_Q5_1:
    case TR_FORMAT_Q2_K:
    case TR_FORMAT_Q3_K:
    case TR_FORMAT_Q4_K:
    case TR_FORMAT_Q5_K:
    case TR_FORMAT_Q6_K:
    case TR_FORMAT_IQ2_XXS:
    case TR_FORMAT_IQ2_XS:
    case TR_FORMAT_IQ3_XXS:
    case TR_FORMAT_IQ4_NL:
    case TR_FORMAT_IQ4_XS:
    case TR_FORMAT_GGUF_NVFP4:
    case TR_FORMAT_GGUF_MXFP4:
        return true;
    default:
        return false;
    }
}

int tr_block_scale_at(tr_format format)
{
    switch (format) {
    case TR_FORMAT_Q2_K:
        return 80;
    case TR_FORMAT_Q3_K:
        return 108;
    case TR_FORMAT_Q6_K:
        return 208;
    case TR_FORMAT_GGUF_NVFP4:
    case TR_FORMAT_GGUF_MXFP4:
        return -1;
    default:
        return 0;
    }
}

int tr_block_min_at(tr_format format)
{
    switch (format) {
    case TR_FORMAT_Q4_1:
    case TR_FORMAT_Q5_1:
    case TR_FORMAT_Q4_K:
    case TR_FORMAT_Q5_K:
        return 2;
    case TR_FORMAT_Q2_K:
        return 82;
    default:
        return -1;
    }
}

/* -- fields -- */

/* Sixteen bytes: elements 0..15 in the low nibbles, 16..31 in the high ones. */
static void piece_nibbles(tr_piece *out, const uint8_t *b)
{
    for (uint32_t j = 0; j < 16; j++) {
        out->code[j] = b[j] & 15;
        out->code[j + 16] = b[j] >> 4;
    }
}

/* Thirty-two bytes that hold the nibbles (part 0: low, 1: high) of two pieces. */
static void piece_nibble_of(tr_piece *out, const uint8_t *b, uint32_t part)
{
    for (uint32_t j = 0; j < 32; j++)
        out->code[j] = b[j] >> 4 * part & 15;
}

/* Thirty-two bytes that hold two bits of each of four pieces; shifted to where they belong. */
static void piece_pairs(tr_piece *out, const uint8_t *b, uint32_t part, uint32_t shift)
{
    for (uint32_t j = 0; j < 32; j++)
        out->code[j] = (uint8_t)(out->code[j] | (b[j] >> 2 * part & 3) << shift);
}

/* Thirty-two bytes that hold one bit of each of eight pieces. */
static void piece_bits(tr_piece *out, const uint8_t *b, uint32_t part, uint32_t shift)
{
    for (uint32_t j = 0; j < 32; j++)
        out->code[j] = (uint8_t)(out->code[j] | (b[j] >> part & 1) << shift);
}

/* Q5_0, Q5_1: the fifth bits are one word. */
static void piece_fifth_bits(tr_piece *out, const uint8_t *b)
{
    uint32_t high = tr_load_u32(b);

    for (uint32_t j = 0; j < 32; j++)
        out->code[j] = (uint8_t)(out->code[j] | (high >> j & 1) << 4);
}

/* Q4_K, Q5_K: eight scales and eight minima of six bits in twelve bytes. */
static void piece_k4_scale(tr_piece *out, const uint8_t *s, uint32_t j)
{
    uint32_t scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
    uint32_t min = j < 4 ? s[j + 4] & 63u : (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;

    out->scale[0] = out->scale[1] = (int8_t)scale;
    out->min[0] = out->min[1] = (uint8_t)min;
}

/* Q3_K: sixteen scales of six bits. */
static int8_t piece_k3_scale(const uint8_t *s, uint32_t i)
{
    int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    int high = s[8 + i % 4] >> 2 * (i / 4) & 3;

    return (int8_t)((low | high << 4) - 32);
}

/* n is the half of 128 elements that the piece lies in, j its number there. */
static void piece_read_k(tr_piece *out, tr_format format, const uint8_t *b, uint32_t index)
{
    uint32_t n = index / 4, j = index % 4;

    switch (format) {
    case TR_FORMAT_Q2_K:
        piece_pairs(out, b + 16 + 32 * n, j, 0);
        for (uint32_t i = 0; i < 2; i++) {
            out->scale[i] = b[2 * index + i] & 15;
            out->min[i] = b[2 * index + i] >> 4;
        }
        break;
    case TR_FORMAT_Q3_K:
        piece_pairs(out, b + 32 + 32 * n, j, 0);
        piece_bits(out, b, index, 2);
        for (uint32_t i = 0; i < 2; i++)
            out->scale[i] = piece_k3_scale(b + 96, 2 * index + i);
        break;
    case TR_FORMAT_Q4_K:
        piece_nibble_of(out, b + 16 + 32 * (index / 2), index % 2);
        piece_k4_scale(out, b + 4, index);
        break;
    case TR_FORMAT_Q5_K:
        piece_nibble_of(out, b + 48 + 32 * (index / 2), index % 2);
        piece_bits(out, b + 16, index, 4);
        piece_k4_scale(out, b + 4, index);
        break;
    default:
        assert(format == TR_FORMAT_Q6_K);
        piece_nibble_of(out, b + 64 * n + 32 * (j & 1), j / 2);
        piece_pairs(out, b + 128 + 32 * n, j, 4);
        for (uint32_t i = 0; i < 2; i++)
            out->scale[i] = (int8_t)b[192 + 2 * index + i];
        break;
    }
}

static void piece_read_iq(tr_piece *out, tr_format format, const uint8_t *b, uint32_t index)
{
    switch (format) {
    case TR_FORMAT_IQ2_XXS:
        memcpy(out->code, b + 2 + 8 * index, 8);
        break;
    case TR_FORMAT_IQ2_XS:
        memcpy(out->code, b + 2 + 8 * index, 8);
        out->scale[0] = b[66 + index] & 15;
        out->scale[1] = b[66 + index] >> 4;
        break;
    case TR_FORMAT_IQ3_XXS:
        memcpy(out->code, b + 2 + 8 * index, 8);
        memcpy(out->code + 8, b + 66 + 4 * index, 4);
        break;
    default: {
        assert(format == TR_FORMAT_IQ4_XS);
        int low = b[4 + index / 2] >> index % 2 * 4 & 15;
        int high = tr_load_u16(b + 2) >> 2 * index & 3;
        out->scale[0] = out->scale[1] = (int8_t)((low | high << 4) - 32);
        piece_nibbles(out, b + 8 + 16 * index);
        break;
    }
    }
}

void tr_piece_read(tr_piece *out, tr_format format, const uint8_t *b, uint32_t index)
{
    int d_at = tr_block_scale_at(format), m_at = tr_block_min_at(format);

    assert(tr_format_is_blocked(format));
    assert((index + 1) * TR_PIECE <= tr_format_block_elements(format));
    *out = (tr_piece){.d = d_at >= 0 ? tr_load_u16(b + d_at) : 0,
                      .m = m_at >= 0 ? tr_load_u16(b + m_at) : 0,
                      .scale = {1, 1}};
    switch (format) {
    case TR_FORMAT_Q8_0:
        memcpy(out->code, b + 2, 32);
        break;
    case TR_FORMAT_Q4_0:
    case TR_FORMAT_IQ4_NL:
        piece_nibbles(out, b + 2);
        break;
    case TR_FORMAT_Q4_1:
        piece_nibbles(out, b + 4);
        break;
    case TR_FORMAT_Q5_0:
        piece_nibbles(out, b + 6);
        piece_fifth_bits(out, b + 2);
        break;
    case TR_FORMAT_Q5_1:
        piece_nibbles(out, b + 8);
        piece_fifth_bits(out, b + 4);
        break;
    case TR_FORMAT_GGUF_MXFP4:
        piece_nibbles(out, b + 1);
        out->scale[0] = out->scale[1] = (int8_t)b[0];
        break;
    case TR_FORMAT_GGUF_NVFP4: /* groups of 16: element j low, j + 8 high */
        for (uint32_t j = 0; j < 32; j++)
            out->code[j] = b[4 + 16 * index + j / 16 * 8 + j % 8] >> j % 16 / 8 * 4 & 15;
        out->scale[0] = (int8_t)b[2 * index];
        out->scale[1] = (int8_t)b[2 * index + 1];
        break;
    case TR_FORMAT_IQ2_XXS:
    case TR_FORMAT_IQ2_XS:
    case TR_FORMAT_IQ3_XXS:
    case TR_FORMAT_IQ4_XS:
        piece_read_iq(out, format, b, index);
        break;
    default:
        piece_read_k(out, format, b, index);
        break;
    }
}

/* -- values -- */

/* (code - zero) * scale */
static void piece_scaled(float *out, const tr_piece *p, int zero)
{
    float d = tr_f16_to_f32(p->d);

    for (uint32_t j = 0; j < 32; j++)
        out[j] = d * (float)p->scale[j / 16] * (float)(p->code[j] - zero);
}

/* code * scale + minimum, which K formats subtract. */
static void piece_affine(float *out, const tr_piece *p, bool k)
{
    float d = tr_f16_to_f32(p->d), m = tr_f16_to_f32(p->m);

    for (uint32_t j = 0; j < 32; j++) {
        float scaled = d * (float)p->scale[j / 16] * (float)p->code[j];
        out[j] = k ? scaled - m * (float)p->min[j / 16] : scaled + m;
    }
}

static void piece_iq4(float *out, const tr_piece *p)
{
    float d = tr_f16_to_f32(p->d);

    for (uint32_t j = 0; j < 32; j++)
        out[j] = d * (float)p->scale[j / 16] * (float)tr_iq4nl_values[p->code[j]];
}

/* Codes are E2M1; twice its values, so that halves of the scales meet them. Code 8 is 0, not -0. */
static void piece_fp4(float *out, const tr_piece *p, tr_format format)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    for (uint32_t j = 0; j < 32; j++) {
        uint32_t bits = (uint8_t)p->scale[j / 16];
        float half;
        if (format == TR_FORMAT_GGUF_MXFP4) /* 2^(bits - 128) */
            half = tr_f32_from_bits(bits < 2 ? 0x00200000u << bits : (bits - 1) << 23);
        else if ((bits & 0x7f) == 0x7f) /* no scale, and refused; what gguf makes of it */
            half = bits == 0x7f ? 0 : 240;
        else
            half = tr_e4m3_to_f32(bits & 0x7f) * 0.5f;
        out[j] = (float)doubled[p->code[j]] * half;
    }
}

/* Eight magnitudes at a time; bit j of signs says that element j is negative. */
static void piece_grid(float *out, float scale, const uint8_t *grid, uint32_t signs)
{
    for (uint32_t j = 0; j < 8; j++) {
        float y = scale * (float)grid[j];
        out[j] = signs >> j & 1 ? -y : y;
    }
}

static void piece_grids(float *out, const tr_piece *p, tr_format format)
{
    float d = tr_f16_to_f32(p->d);
    uint32_t word = tr_load_u32(p->code + (format == TR_FORMAT_IQ3_XXS ? 8 : 4));
    uint8_t both[8];

    for (uint32_t l = 0; l < 4; l++, out += 8) {
        uint32_t signs = tr_iq_signs[word >> 7 * l & 127];
        uint32_t both_at = tr_load_u16(p->code + 2 * l);
        switch (format) {
        case TR_FORMAT_IQ2_XXS:
            piece_grid(out, d * (0.5f + (float)(word >> 28)) * 0.25f, tr_iq2xxs_grid[p->code[l]],
                       signs);
            break;
        case TR_FORMAT_IQ2_XS:
            piece_grid(out, d * (0.5f + (float)p->scale[l / 2]) * 0.25f,
                       tr_iq2xs_grid[both_at & 511], tr_iq_signs[both_at >> 9]);
            break;
        default:
            assert(format == TR_FORMAT_IQ3_XXS);
            memcpy(both, tr_iq3xxs_grid[p->code[2 * l]], 4);
            memcpy(both + 4, tr_iq3xxs_grid[p->code[2 * l + 1]], 4);
            piece_grid(out, d * (0.5f + (float)(word >> 28)) * 0.5f, both, signs);
            break;
        }
    }
}

void tr_piece_to_f32(float *out, tr_format format, const uint8_t *block, uint32_t index)
{
    tr_piece p;

    tr_piece_read(&p, format, block, index);
    switch (format) {
    case TR_FORMAT_Q8_0:
        for (uint32_t j = 0; j < 32; j++)
            out[j] = tr_f16_to_f32(p.d) * (float)(int8_t)p.code[j];
        break;
    case TR_FORMAT_Q4_0:
        piece_scaled(out, &p, 8);
        break;
    case TR_FORMAT_Q5_0:
        piece_scaled(out, &p, 16);
        break;
    case TR_FORMAT_Q3_K:
        piece_scaled(out, &p, 4);
        break;
    case TR_FORMAT_Q6_K:
        piece_scaled(out, &p, 32);
        break;
    case TR_FORMAT_Q4_1:
    case TR_FORMAT_Q5_1:
        piece_affine(out, &p, false);
        break;
    case TR_FORMAT_Q2_K:
    case TR_FORMAT_Q4_K:
    case TR_FORMAT_Q5_K:
        piece_affine(out, &p, true);
        break;
    case TR_FORMAT_IQ4_NL:
    case TR_FORMAT_IQ4_XS:
        piece_iq4(out, &p);
        break;
    case TR_FORMAT_GGUF_NVFP4:
    case TR_FORMAT_GGUF_MXFP4:
        piece_fp4(out, &p, format);
        break;
    default:
        piece_grids(out, &p, format);
        break;
    }
}

bool tr_block_is_valid(tr_format format, const uint8_t *b)
{
    int d_at = tr_block_scale_at(format), m_at = tr_block_min_at(format);

    assert(tr_format_is_blocked(format));
    if (format == TR_FORMAT_GGUF_MXFP4)
        return b[0] != 0xff;
    if (format == TR_FORMAT_GGUF_NVFP4)
        return b[0] < 0x7f && b[1] < 0x7f && b[2] < 0x7f && b[3] < 0x7f;
    return (tr_load_u16(b + d_at) & 0x7c00) != 0x7c00 &&
           (m_at < 0 || (tr_load_u16(b + m_at) & 0x7c00) != 0x7c00);
}
