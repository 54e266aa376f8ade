/* inspect_verify.h - reads every byte of a checkpoint: a hash of it, and whether its values make
 * sense. */
#ifndef TR_TOOLS_INSPECT_VERIFY_H
#define TR_TOOLS_INSPECT_VERIFY_H

#include "core/error.h"
#include "core/model/model.h"

#define TR_INSPECT_HASH_SIZE 33 /* 128 bits as text, terminated */

/* Looks at every value of every weight (tr_model_check_weight) and hashes every tensor, skipped
 * ones too. The hash is XXH3 with 128 bits over name, type, shape and the hash of the bytes of each
 * tensor, in byte order of the names: how tensors are cut into files does not change it. A tensor
 * is hashed while it is in memory for the check. Progress goes to standard error.
 *
 *   hash    [TR_INSPECT_HASH_SIZE]
 *   model   opened with tr_model_open
 *
 * errors  those of tr_model_check_weight, TR_E_NOMEM */
tr_status tr_inspect_verify(char *hash, const tr_model *model, tr_error *err);

#endif
