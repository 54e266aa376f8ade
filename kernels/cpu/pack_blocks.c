/* pack_blocks.c - rows of GGUF's block formats into the layout of packed.h, 32 elements at a time.
 *
 * Fields are moved, never computed with: a packed scale or code has the bits that the block has. */
#include "core/model/blocks.h"
#include "kernels/cpu/packed.h"

#include <assert.h>
#include <string.h>

void tr_pack_nibbles(uint8_t *unit, const uint8_t *code, uint32_t half)
{
    uint16_t lanes[16];

    memcpy(lanes, unit, sizeof(lanes));
    for (uint32_t l = 0; l < 16; l++)
        lanes[l] |= (uint16_t)((code[l] & 15) << 8 * half | (code[l + 16] & 15) << (8 * half + 4));
    memcpy(unit, lanes, sizeof(lanes));
}

/* Two bits of each code, from `shift` on. */
static void pack_pairs(uint8_t *unit, const uint8_t *code, uint32_t half, uint32_t shift)
{
    for (uint32_t l = 0; l < 16; l++)
        unit[l] |= (uint8_t)((code[l] >> shift & 3) << 4 * half | (code[l + 16] >> shift & 3)
                                                                      << (4 * half + 2));
}

/* One bit of each code: a u16 for each sixteen elements. */
static void pack_bits(uint8_t *words, const uint8_t *code, uint32_t half, uint32_t bit)
{
    for (uint32_t b = 0; b < 4; b++) {
        uint64_t eight;
        memcpy(&eight, code + 8 * b, 8);
        eight = eight >> bit & 0x0101010101010101u;
        /* moves bit 8 i to bit 56 + i; no two sums of the shifts meet */
        words[4 * half + b] = (uint8_t)(eight * 0x0102040810204080u >> 56);
    }
}

static void pack_codes(w_kind kind, uint8_t *unit, tr_piece *p, uint32_t half)
{
    switch (kind) {
    case W_I8:
        memcpy(unit + 32 * half, p->code, 32);
        break;
    case W_LINEAR2:
        pack_pairs(unit, p->code, half, 0);
        break;
    case W_LINEAR3:
        pack_pairs(unit, p->code, half, 0);
        pack_bits(unit + 16, p->code, half, 2);
        break;
    case W_E2M1:
        for (uint32_t i = 0; i < 32; i++) /* -0 becomes 0 */
            p->code[i] = p->code[i] == 8 ? 0 : p->code[i];
        tr_pack_nibbles(unit, p->code, half);
        break;
    case W_LINEAR4:
    case W_IQ4:
        tr_pack_nibbles(unit, p->code, half);
        break;
    case W_LINEAR5:
        tr_pack_nibbles(unit, p->code, half);
        pack_bits(unit + 32, p->code, half, 4);
        break;
    case W_LINEAR6:
        tr_pack_nibbles(unit, p->code, half);
        pack_pairs(unit + 32, p->code, half, 4);
        break;
    case W_IQ3_XXS:
        memcpy(unit + 16 + 4 * half, p->code + 8, 4);
        memcpy(unit + 8 * half, p->code, 8);
        break;
    default:
        assert(kind == W_IQ2_XXS || kind == W_IQ2_XS);
        memcpy(unit + 8 * half, p->code, 8);
        break;
    }
}

/* Part i of eight of a super: scale and minimum of six bits in twelve bytes, as in the blocks. */
static void pack_k4_scale(uint8_t *s, const tr_piece *p, uint32_t i)
{
    uint32_t scale = (uint8_t)p->scale[0], min = p->min[0];

    if (i < 4) {
        s[i] |= (uint8_t)scale;
        s[i + 4] |= (uint8_t)min;
    } else {
        s[i + 4] |= (uint8_t)((scale & 15) | (min & 15) << 4);
        s[i - 4] |= (uint8_t)(scale >> 4 << 6);
        s[i] |= (uint8_t)(min >> 4 << 6);
    }
}

/* Part i of sixteen: a scale of six bits, as in the blocks. */
static void pack_k3_scale(uint8_t *s, int scale, uint32_t i)
{
    uint32_t bits = (uint32_t)(scale + 32);

    s[i % 8] |= (uint8_t)((bits & 15) << i / 8 * 4);
    s[8 + i % 4] |= (uint8_t)(bits >> 4 << i / 4 * 2);
}

/* Part i of eight: low four bits of parts 0..3 and 4..7 in the halves of four bytes, upper two bits
 * in order before them. */
static void pack_iq4_scale(uint8_t *s, int scale, uint32_t i)
{
    uint32_t bits = (uint32_t)(scale + 32);

    s[i / 4] |= (uint8_t)(bits >> 4 << i % 4 * 2);
    s[2 + i % 4] |= (uint8_t)((bits & 15) << i / 4 * 4);
}

/* The scales of part i of a super's eight in the record's rest. */
static void pack_parts(tr_format format, uint8_t *rest, const tr_piece *p, uint32_t i)
{
    for (uint32_t h = 0; h < 2; h++) {
        switch (format) {
        case TR_FORMAT_Q2_K:
            rest[2 * i + h] = (uint8_t)(p->scale[h] | p->min[h] << 4);
            break;
        case TR_FORMAT_Q3_K:
            pack_k3_scale(rest, p->scale[h], 2 * i + h);
            break;
        case TR_FORMAT_Q6_K:
            rest[2 * i + h] = (uint8_t)p->scale[h];
            break;
        case TR_FORMAT_IQ2_XS:
            rest[i] |= (uint8_t)(p->scale[h] << 4 * h);
            break;
        default: /* one for the 32 elements */
            break;
        }
    }
    if (format == TR_FORMAT_Q4_K || format == TR_FORMAT_Q5_K)
        pack_k4_scale(rest, p, i);
    if (format == TR_FORMAT_IQ4_XS)
        pack_iq4_scale(rest, p->scale[0], i);
}

/* Formats of 32 and 64: the scales of piece i of `count`. Minima stand behind the scales of a
 * super. */
static void pack_plain_scales(const tr_packed_format *f, uint8_t *scales, const tr_piece *p,
                              uint32_t i, uint32_t count)
{
    uint32_t first = i / 8 * 8, in_super = count - first < 8 ? count - first : 8;

    if (f->kind == W_E2M1 && f->elements == 16) {
        memcpy(scales + 2 * i, p->scale, 2);
    } else if (f->kind == W_E2M1) {
        scales[i] = (uint8_t)p->scale[0];
    } else if (f->plain == 2) {
        memcpy(scales + 2 * i, &p->d, 2);
    } else {
        memcpy(scales + 4 * first + 2 * (i - first), &p->d, 2);
        memcpy(scales + 4 * first + 2 * (in_super + i - first), &p->m, 2);
    }
}

tr_status tr_cpu_pack_blocks_row(uint8_t *codes, uint8_t *scales, const tr_weight *w, uint32_t row,
                                 tr_error *err)
{
    const tr_packed_format *f = tr_cpu_packed_format(w->format);
    uint32_t elements = tr_format_block_elements(w->format);
    uint32_t record = (uint32_t)f->head + f->rest, pieces = w->cols / TR_PIECE;

    for (uint32_t i = 0; i < pieces; i++) {
        uint32_t at = w->lead + i * TR_PIECE, block = at / elements;
        const uint8_t *b =
            w->data + (size_t)row * w->row_size + (size_t)block * tr_format_block_bytes(w->format);
        tr_piece p;

        if ((i == 0 || at % elements == 0) && !tr_block_is_valid(w->format, b))
            return tr_fail(err, TR_E_INVALID,
                           "%s scale of row %u, block %u is not a finite, valid number",
                           tr_format_name(w->format), row, block);
        tr_piece_read(&p, w->format, b, at % elements / TR_PIECE);
        if (f->head > 0) {
            memcpy(scales + (size_t)block * record, &p.d, 2);
            if (f->head == 4)
                memcpy(scales + (size_t)block * record + 2, &p.m, 2);
            pack_parts(w->format, scales + (size_t)(i / 8) * record + f->head, &p, i % 8);
        } else {
            pack_plain_scales(f, scales, &p, i, pieces);
        }
        pack_codes(f->kind, codes + (size_t)(i / 2) * tr_unit_bytes(f->kind), &p, i % 2);
    }
    return TR_OK;
}
