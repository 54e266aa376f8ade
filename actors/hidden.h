/* hidden.h - the residual between layers, for a client that asked to see it (TR_OUTPUT_HIDDEN). */
#ifndef TR_ACTORS_HIDDEN_H
#define TR_ACTORS_HIDDEN_H

#include "actors/messages.h"
#include "core/actor.h"

/* Sends the rows that outputs flagged TR_OUTPUT_HIDDEN name, one message for each stretch of
 * neighbouring positions of a request, or several where it does not fit size_max bytes. Does
 * nothing when no output has the flag.
 *
 *   layer  the rows enter it; layers_count: they enter the output matrix
 *   rows   [.., width] row `output.row` belongs to an output; packed: row i belongs to output i
 *
 * errors  TR_E_NOMEM no buffer is free. A client that is gone is no error. Thread: the actor's. */
tr_status tr_hidden_send(const tr_env *env, uint64_t step, const tr_output *outputs,
                         uint32_t outputs_count, uint32_t layer, const float *rows, uint32_t width,
                         bool packed, uint32_t size_max);

#endif
