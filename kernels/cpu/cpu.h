/* cpu.h - what the files of cpu/ share. Each file but pack*.c is compiled once per instruction set;
 * TR_CPU(name) gives every copy its own name. */
#ifndef TR_KERNELS_CPU_CPU_H
#define TR_KERNELS_CPU_CPU_H

#include "kernels/cpu/packed.h"

#include <assert.h>

#define TR_CPU_PASTE2(variant, name) tr_cpu_##variant##_##name
#define TR_CPU_PASTE(variant, name)  TR_CPU_PASTE2(variant, name)
#define TR_CPU(name)                 TR_CPU_PASTE(TR_CPU_VARIANT, name)

/* -- splitting work -- */

typedef struct {
    uint32_t begin, end;
} tr_range;

/* Part `part` of `parts` of count items, in units of unit items. */
static inline tr_range tr_range_of(uint32_t count, uint32_t unit, uint32_t parts, uint32_t part)
{
    uint64_t units = (count + (uint64_t)unit - 1) / unit;
    uint64_t begin = units * part / parts * unit;
    uint64_t end = units * (part + 1) / parts * unit;
    return (tr_range){(uint32_t)(begin < count ? begin : count),
                      (uint32_t)(end < count ? end : count)};
}

/* How many parts a call of `units` equal pieces and `work` multiply-adds (or elements with a
 * comparable cost) is worth. A part below 16 K of them (about a microsecond) costs more to hand
 * over than to do; more parts than threads even out what the threads do beside. */
static inline uint32_t tr_parts_for(tr_team *team, uint64_t units, uint64_t work)
{
    uint64_t parts = work / 16384;
    uint64_t threads = tr_team_size(team);

    if (threads == 1 || parts <= 1 || units <= 1)
        return 1;
    uint64_t parts_max = threads * 4;
    parts = parts < parts_max ? parts : parts_max;
    return (uint32_t)(parts < units ? parts : units);
}

static inline size_t tr_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* -- the operations of one variant, by family; table.c puts them together -- */

#define TR_CPU_OP(op) __typeof__(*((tr_kernels *)0)->op) TR_CPU(op)

/* rows.c */
TR_CPU_OP(rms_norm);
TR_CPU_OP(layer_norm);
TR_CPU_OP(row_exponent);
TR_CPU_OP(silu_mul);
TR_CPU_OP(sigmoid_mul);
TR_CPU_OP(sigmoid_scale);
TR_CPU_OP(head_norm);
TR_CPU_OP(l2_norm);
TR_CPU_OP(group_norm);
/* round.c */
TR_CPU_OP(round_nvfp4);
/* bank.c */
TR_CPU_OP(mhc_mix);
TR_CPU_OP(bank_read);
TR_CPU_OP(bank_write);
/* ngram.c */
TR_CPU_OP(ngram_gate);
TR_CPU_OP(ngram_conv);
/* matmul.c */
TR_CPU_OP(embed);
TR_CPU_OP(matmul);
TR_CPU_OP(matmul_term);
/* sums.c */
TR_CPU_OP(residual_add);
TR_CPU_OP(sums_pack);
TR_CPU_OP(sums_add);
/* rope.c */
TR_CPU_OP(rope_table);
TR_CPU_OP(rope);
/* attention.c */
TR_CPU_OP(kv_write);
TR_CPU_OP(attention);
TR_CPU_OP(attention_scratch);
/* attention_list.c */
TR_CPU_OP(attention_list);
TR_CPU_OP(attention_list_scratch);
/* select.c */
TR_CPU_OP(pool_keys);
TR_CPU_OP(index_scores);
TR_CPU_OP(select_top);
/* kda.c, kda_chunk.c */
TR_CPU_OP(conv_silu);
TR_CPU_OP(kda_gate);
TR_CPU_OP(kda_gate_bounded);
TR_CPU_OP(kda_recurrent);
TR_CPU_OP(kda_chunk);
TR_CPU_OP(kda_chunk_scratch);
/* gdn.c, gdn_chunk.c */
TR_CPU_OP(gdn_recurrent);
TR_CPU_OP(gdn_chunk);
TR_CPU_OP(gdn_chunk_scratch);
/* route.c */
TR_CPU_OP(route);

#endif
