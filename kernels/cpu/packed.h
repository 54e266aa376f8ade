/* packed.h - how a packed matrix looks: what pack.c and pack_blocks.c write and decode.h reads.
 *
 * Codes and scales lie in two planes, rows one after the other. Codes come in units of 64 elements
 * that are always complete (zeros), scales in records for supers of 256. A packed row is as large
 * as the row in the checkpoint but for what completes its last unit and record.
 *
 * What a code says is its kind; formats that differ in nothing but their scales share one, so that
 * the products are compiled once for each kind:
 *
 *   F32, F16       the elements
 *   BF16           32 elements as 16 u32: lane l holds element l in its low half and element l + 16
 *                  in its high half, so that a shift and a mask give lanes in order
 *   I8, E4M3, E4M3_SCALED
 *                  a byte each
 *   LINEAR2        code * d + m with two bits: lane l of sixteen bytes holds elements l, l + 16,
 *                  l + 32, l + 48 of the unit from low to high, so that a group is one shift
 *   LINEAR4        likewise with four bits in sixteen u16
 *   LINEAR3, 5     LINEAR2, 4 and then four u16 with the highest bit of each element
 *   LINEAR6        LINEAR4 and then LINEAR2 with the upper two bits
 *   E2M1, IQ4      four bits as in LINEAR4 that choose one of sixteen values
 *   IQ2_XXS, IQ2_XS, IQ3_XXS
 *                  indices and signs as they stand in the blocks, 32 elements after the other */
#ifndef TR_KERNELS_CPU_PACKED_H
#define TR_KERNELS_CPU_PACKED_H

#include "kernels/kernels.h"

#define TR_UNIT  64
#define TR_SUPER 256
/* Rows are padded with zero rows to a multiple of this, so that blocks of rows need no tail. */
#define TR_ROW_BLOCK 4

#define TR_KIND_MAP(X)                                                                             \
    /* name     bytes of a unit */                                                                 \
    X(F32, 256)                                                                                    \
    X(F16, 128)                                                                                    \
    X(BF16, 128)                                                                                   \
    X(I8, 64)                                                                                      \
    X(E4M3, 64)                                                                                    \
    X(E4M3_SCALED, 64)                                                                             \
    X(LINEAR2, 16)                                                                                 \
    X(LINEAR3, 24)                                                                                 \
    X(LINEAR4, 32)                                                                                 \
    X(LINEAR5, 40)                                                                                 \
    X(LINEAR6, 48)                                                                                 \
    X(E2M1, 32)                                                                                    \
    X(IQ4, 32)                                                                                     \
    X(IQ2_XXS, 16)                                                                                 \
    X(IQ2_XS, 16)                                                                                  \
    X(IQ3_XXS, 24)

typedef enum {
#define X(name, bytes) W_##name,
    TR_KIND_MAP(X)
#undef X
        W_KINDS_COUNT
} w_kind;

/* A constant where the kind is one. */
static inline uint32_t tr_unit_bytes(w_kind kind)
{
    switch (kind) {
#define X(name, bytes)                                                                             \
    case W_##name:                                                                                 \
        return bytes;
        TR_KIND_MAP(X)
#undef X
    case W_KINDS_COUNT:
        break;
    }
    return 0;
}

/* Scales of a row. Formats with a record have `head` bytes (d, or d and m of a block of 256) and
 * then `rest` (the scales of its parts) for each super. When the matrix begins `lead` columns
 * inside a block, a super's parts belong to two blocks: the head of the second one is in the next
 * record, so a row ends with one head more. The others have `plain` bytes for each `elements`. */
typedef struct {
    w_kind kind;
    uint8_t head, rest;
    uint8_t plain, elements;
} tr_packed_format;

/* Of each format; pack.c. */
const tr_packed_format *tr_cpu_packed_format(tr_format format);

typedef struct {
    size_t codes_stride;  /* bytes from one row to the next */
    size_t scales_stride; /* 0: the format has none */
    size_t scales_offset; /* of row 0 from the start of the packed matrix */
    size_t size;          /* of the whole; reading 64 bytes from any scale stays inside */
} tr_pack_layout;

tr_pack_layout tr_cpu_pack_layout(tr_format format, uint32_t rows, uint32_t cols);
size_t tr_cpu_pack_size(tr_format format, uint32_t rows, uint32_t cols);
tr_status tr_cpu_pack(tr_matrix *out, void *memory, const tr_weight *w, tr_error *err);
tr_status tr_cpu_pack_rows(tr_matrix *out, void *memory, const tr_weight *w, uint32_t first,
                           uint32_t count, tr_error *err);

/* pack_blocks.c: row `row` of a weight in one of GGUF's block formats. codes and scales are the
 * row's, zeroed. */
tr_status tr_cpu_pack_blocks_row(uint8_t *codes, uint8_t *scales, const tr_weight *w, uint32_t row,
                                 tr_error *err);

/* Sixteen lanes' codes l and l + 16 (code[0..15], code[16..31]; four bits each) of half `half` of a
 * unit of LINEAR4. */
void tr_pack_nibbles(uint8_t *unit, const uint8_t *code, uint32_t half);

#endif
