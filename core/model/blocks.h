/* blocks.h - GGUF's block formats: what the bytes of a block say.
 *
 * A block of 32, 64 or 256 elements is read in pieces of 32. A piece needs nothing but its block,
 * so a column slice of a matrix may begin at any multiple of 32, inside a block too. */
#ifndef TR_CORE_MODEL_BLOCKS_H
#define TR_CORE_MODEL_BLOCKS_H

#include "core/model/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

#define TR_PIECE 32

/* The fields of a piece, before any arithmetic. What a format does not have is 0, but for scale,
 * which is 1. */
typedef struct {
    uint16_t d, m;    /* f16: scale and minimum of the block */
    int8_t scale[2];  /* of each 16 elements; E4M3 bits in NVFP4, E8M0 bits in MXFP4 */
    uint8_t min[2];   /* likewise, times m */
    uint8_t code[32]; /* of each element. IQ2_XXS, IQ2_XS, IQ3_XXS: the 8, 8 or 12 bytes that hold
                         the indices and signs (and in IQ2_XXS and IQ3_XXS the scale) */
} tr_piece;

/* Whether a format is one of GGUF's: its blocks hold everything that there is. */
bool tr_format_is_blocked(tr_format format);

/* Piece `index` of a block. Asserts that the format is blocked and the block has that piece. */
void tr_piece_read(tr_piece *out, tr_format format, const uint8_t *block, uint32_t index);

/* Its values, with the bits that ggml's own dequantisers give: each product and sum rounded alone.
 *   out [32] */
void tr_piece_to_f32(float *out, tr_format format, const uint8_t *block, uint32_t index);

/* Where in a block the f16 scale d and the f16 minimum m stand; -1: it has none. */
int tr_block_scale_at(tr_format format);
int tr_block_min_at(tr_format format);

/* Whether the scales of a block are numbers: neither infinity nor NaN, and in NVFP4 not negative.
 */
bool tr_block_is_valid(tr_format format, const uint8_t *block);

/* The code books (grids.c). A grid gives the magnitudes of 8 (IQ3: 4) elements; a sign mask has one
 * bit for each of 8 elements and an even number of them set. */
extern const int8_t tr_iq4nl_values[16];
extern const uint8_t tr_iq2xxs_grid[256][8];
extern const uint8_t tr_iq2xs_grid[512][8];
extern const uint8_t tr_iq3xxs_grid[256][4];
extern const uint8_t tr_iq_signs[128];

#endif
