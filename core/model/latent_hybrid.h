/* latent_hybrid.h - what Kimi Linear and GLM-5.3 Flash share: layers of Kimi delta attention
 * between layers of latent attention, dense feed-forwards before routed experts. Their settings
 * have two spellings each, of the authors and of newer libraries; when both are there they must
 * agree. */
#ifndef TR_CORE_MODEL_LATENT_HYBRID_H
#define TR_CORE_MODEL_LATENT_HYBRID_H

#include "core/model/family.h"

typedef struct {
    const char *const *attention_types; /* layer_types of latent attention; ends with NULL */
    uint32_t first_layer;               /* number of the first layer in linear_attn_config */
    bool has_bound;                     /* the decay may have a lower bound */
} tr_latent_traits;

/* The mixer of each layer (layer_types, or linear_attn_config.kda_layers and .full_attn_layers),
 * and what KDA layers have in common. Sets mixer and kda of draft->layers. */
void tr_latent_read_kda(tr_draft *draft, tr_config *config, const tr_latent_traits *traits);

/* Head counts, ranks and sizes of latent attention, without a rotary part. norm_eps and index are
 * the family's. */
tr_mla_spec tr_latent_read_mla(tr_config *config);

/* Which layers have experts: mlp_layer_types, or first_k_dense_replace. The others get a dense
 * feed-forward of intermediate_size. */
void tr_latent_read_channels(tr_draft *draft, tr_config *config, const tr_channel_spec *experts);

/* num_nextn_predict_layers: layers after the last one, recognised and skipped. */
void tr_latent_read_extra(tr_draft *draft, tr_config *config);

#endif
