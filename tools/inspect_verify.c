#include "tools/inspect_verify.h"

#include "core/model/role.h"
#include "tools/cli.h"
#include "tools/inspect_places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* Between two lines of progress; small against what a disk reads in a second. */
#define VERIFY_CHUNK_SIZE ((uint64_t)16 << 20)

typedef struct {
    const tr_model *model;
    uint32_t count; /* tensors */
    tr_inspect_places places;
    XXH128_hash_t *hashes; /* owns, [count] */
    unsigned char *hashed; /* owns, [count] */
    uint64_t done, total;  /* bytes */
} verify_state;

static tr_status verify_init(verify_state *v, const tr_model *model, tr_error *err)
{
    *v = (verify_state){.model = model, .count = tr_model_tensors_count(model)};
    v->hashes = calloc(v->count + 1, sizeof(*v->hashes));
    v->hashed = calloc(v->count + 1, sizeof(*v->hashed));
    if (v->hashes == NULL || v->hashed == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for the hashes of %u tensors",
                       tr_model_path(model), v->count);
    for (uint32_t i = 0; i < v->count; i++)
        v->total += tr_model_tensor(model, i)->size;
    return tr_inspect_places_make(&v->places, model, err);
}

static void verify_free(verify_state *v)
{
    tr_inspect_places_free(&v->places);
    free(v->hashes);
    free(v->hashed);
}

static void verify_hash(verify_state *v, uint32_t index, XXH3_state_t *state)
{
    const tr_tensor *t = tr_model_tensor(v->model, index);

    if (v->hashed[index])
        return;
    v->hashed[index] = 1;
    XXH3_128bits_reset(state);
    for (uint64_t at = 0; at < t->size; at += VERIFY_CHUNK_SIZE) {
        uint64_t rest = t->size - at;
        uint64_t size = rest < VERIFY_CHUNK_SIZE ? rest : VERIFY_CHUNK_SIZE;

        XXH3_128bits_update(state, t->data + at, size);
        v->done += size;
        tr_cli_progress("verify", v->done, v->total, "B");
    }
    v->hashes[index] = XXH3_128bits_digest(state);
}

/* Hashes the tensor that holds this byte, while it is still in memory. */
static void verify_hash_at(verify_state *v, const uint8_t *data, XXH3_state_t *state)
{
    uint32_t index = tr_inspect_place_of(&v->places, data);

    if (index != TR_INSPECT_NOWHERE)
        verify_hash(v, index, state);
}

static tr_status verify_weight(verify_state *v, uint32_t layer, tr_weight_role role,
                               uint32_t expert, XXH3_state_t *state, tr_error *err)
{
    tr_status status = tr_model_check_weight(v->model, layer, role, expert, err);
    tr_weight weight = tr_model_weight(v->model, layer, role, expert);

    if (status != TR_OK)
        return status;
    verify_hash_at(v, weight.data, state);
    if (weight.scales != NULL)
        verify_hash_at(v, weight.scales, state);
    tr_weight_release(&weight);
    return TR_OK;
}

static tr_status verify_role(verify_state *v, tr_weight_role role, XXH3_state_t *state,
                             tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(v->model);
    uint32_t layers = tr_role_is_global(role) ? 1 : spec->layers_count;
    tr_status status = TR_OK;

    if (role == TR_W_HEAD && tr_model_is_tied(v->model))
        return TR_OK;
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t count = tr_role_is_global(role) ? 1 : tr_role_count(&spec->layers[layer], role);

        if (!tr_model_has(v->model, layer, role))
            continue;
        for (uint32_t e = 0; e < count && status == TR_OK; e++)
            status = verify_weight(v, layer, role, e, state, err);
    }
    return status;
}

/* Name, type and shape as text, then the hash of the bytes; the length keeps entries apart. */
static void verify_add_entry(const tr_tensor *t, XXH128_hash_t hash, XXH3_state_t *all)
{
    XXH128_canonical_t bytes;
    char text[96], dims[16 * 21] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < t->dims_count; i++)
        used += (size_t)snprintf(dims + used, sizeof(dims) - used, "%" PRIu64 " ", t->dims[i]);
    int length =
        snprintf(text, sizeof(text), "%zu %s %" PRIu64 " ", strlen(t->name), t->type, t->size);
    XXH128_canonicalFromHash(&bytes, hash);
    XXH3_128bits_update(all, text, (size_t)length);
    XXH3_128bits_update(all, t->name, strlen(t->name));
    XXH3_128bits_update(all, dims, used);
    XXH3_128bits_update(all, &bytes, sizeof(bytes));
}

tr_status tr_inspect_verify(char *hash, const tr_model *model, tr_error *err)
{
    verify_state v;
    XXH3_state_t *state = XXH3_createState();

    tr_status status = verify_init(&v, model, err);
    if (status == TR_OK && state == NULL)
        status = tr_fail(err, TR_E_NOMEM, "%s: no memory to hash", tr_model_path(model));
    if (status != TR_OK)
        goto free_state;
    for (int role = 0; role < TR_WEIGHTS_COUNT && status == TR_OK; role++)
        status = verify_role(&v, (tr_weight_role)role, state, err);
    for (uint32_t i = 0; i < v.count && status == TR_OK; i++)
        verify_hash(&v, i, state);
    if (status == TR_OK)
        status = tr_model_check_files(model, err);
    if (status != TR_OK)
        goto free_state;

    XXH3_128bits_reset(state);
    for (uint32_t i = 0; i < v.count; i++)
        verify_add_entry(tr_model_tensor(model, i), v.hashes[i], state);
    XXH128_hash_t whole = XXH3_128bits_digest(state);
    snprintf(hash, TR_INSPECT_HASH_SIZE, "%016" PRIx64 "%016" PRIx64, (uint64_t)whole.high64,
             (uint64_t)whole.low64);

free_state:
    XXH3_freeState(state);
    verify_free(&v);
    return status;
}
