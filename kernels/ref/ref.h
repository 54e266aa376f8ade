/* ref.h - the judge: plain loops over float64, the C library's functions, no team, no cleverness.
 * Everything else is compared with it. Used by tests only. */
#ifndef TR_KERNELS_REF_REF_H
#define TR_KERNELS_REF_REF_H

#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>

#define REF_OP(op) __typeof__(*((tr_kernels *)0)->op) tr_ref_##op

extern const tr_kernels tr_ref_kernels;

/* weights.c */
REF_OP(pack_size);
REF_OP(pack);
REF_OP(pack_rows);
REF_OP(embed);
REF_OP(matmul);
REF_OP(matmul_term);
/* rows.c */
REF_OP(rms_norm);
REF_OP(layer_norm);
REF_OP(row_exponent);
REF_OP(silu_mul);
REF_OP(round_nvfp4);
REF_OP(sigmoid_mul);
REF_OP(sigmoid_scale);
REF_OP(l2_norm);
REF_OP(head_norm);
REF_OP(group_norm);
/* bank.c */
REF_OP(mhc_mix);
REF_OP(bank_read);
REF_OP(bank_write);
/* ngram.c */
REF_OP(ngram_gate);
REF_OP(ngram_conv);
/* sums.c */
REF_OP(residual_add);
REF_OP(sums_pack);
REF_OP(sums_add);
/* attention.c */
REF_OP(rope_table);
REF_OP(rope);
REF_OP(kv_write);
REF_OP(attention);
REF_OP(attention_scratch);
/* attention_list.c */
REF_OP(attention_list);
REF_OP(attention_list_scratch);
/* select.c */
REF_OP(pool_keys);
REF_OP(index_scores);
REF_OP(select_top);
/* kda.c */
REF_OP(conv_silu);
REF_OP(kda_gate);
REF_OP(kda_gate_bounded);
REF_OP(kda_recurrent);
REF_OP(kda_chunk);
REF_OP(kda_chunk_scratch);
/* gdn.c */
REF_OP(gdn_recurrent);
REF_OP(gdn_chunk);
REF_OP(gdn_chunk_scratch);
/* route.c */
REF_OP(route);

static inline double ref_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

#endif
