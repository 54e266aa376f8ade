#include "actors/cluster_states.h"

#include <string.h>

#define STATES_OPEN_MAX_NS 600000000000u /* a coordinator that dies leaves them open so long */
#define STATES_ASK_NS      10000000000u  /* microseconds, unless the machine is starved */

bool cluster_states_are_open(const tr_cluster *c)
{
    return cluster_now(c) < atomic_load(&c->states_open_ns);
}

static tr_status states_check_open(const tr_cluster *c, tr_error *err)
{
    return cluster_states_are_open(c)
               ? TR_OK
               : tr_fail(err, TR_E_INVALID, "states are taken only from a snapshot");
}

/* Whether a piece fits the model and its sequence's memory here. */
static tr_status states_check_piece(tr_cluster *c, const cluster_piece *piece, tr_kv_part *part,
                                    tr_error *err)
{
    if (!tr_kv_find_part(c->node.spec, piece->layer, piece->term, part) ||
        piece->sequence >= c->node.limits.sequences_max)
        return tr_fail(err, TR_E_INVALID, "state of sequence %u, layer %u, term %u: no such part",
                       piece->sequence, piece->layer, piece->term);
    pthread_mutex_lock(&c->lock);
    bool stands = tr_kv_part_stands(part, &c->view->plan, c->node_index);
    pthread_mutex_unlock(&c->lock);
    if (!stands) /* its place is address space: memory that nobody has counted */
        return tr_fail(err, TR_E_INVALID,
                       "state of sequence %u, layer %u, term %u: it stands elsewhere",
                       piece->sequence, piece->layer, piece->term);
    return cluster_piece_check(&c->change.asked.rows[piece->sequence], piece, err);
}

tr_status cluster_states_write(tr_cluster *c, const cluster_piece *pieces, uint32_t count,
                               const uint8_t *bytes, size_t size, tr_error *err)
{
    tr_status status = states_check_open(c, err);
    if (status != TR_OK)
        return status;
    cluster_lock(c, &c->questions.lock);
    status = cluster_ask_leases(c, &c->change.asked, err);
    for (uint32_t i = 0; i < count && status == TR_OK; i++) {
        tr_kv_part part;
        status = states_check_piece(c, &pieces[i], &part, err);
        if (status != TR_OK)
            break;
        uint64_t needed = (pieces[i].with_state != 0 ? part.state_size : 0) +
                          (uint64_t)pieces[i].pages_count * part.page_size;
        if (needed > size) {
            status = tr_fail(err, TR_E_INVALID, "state of sequence %u: %zu bytes, expected %llu",
                             pieces[i].sequence, size, (unsigned long long)needed);
            break;
        }
        bytes = cluster_piece_place(&c->change.asked.rows[pieces[i].sequence], &pieces[i], &part,
                                    bytes);
        size -= needed;
    }
    atomic_fetch_add_explicit(&c->counters.states_written, 1, memory_order_release);
    pthread_mutex_unlock(&c->questions.lock);
    if (status == TR_OK && size > 0)
        status = tr_fail(err, TR_E_INVALID, "states: %zu bytes too many", size);
    return status;
}

static tr_status states_write_ngram(tr_cluster *c, uint32_t sequence, uint16_t generation,
                                    uint32_t position, const void *bytes, size_t size,
                                    tr_error *err)
{
    tr_status status = states_check_open(c, err);
    if (status != TR_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    bool here = c->shape.ngram_tables > 0 && c->view->plan.ngram_node == c->node_index;
    pthread_mutex_unlock(&c->lock);
    if (!here || sequence >= c->node.limits.sequences_max ||
        size != tr_ngram_sequence_size(&c->node) || !tr_ngram_stands_at(&c->node, bytes, position))
        return tr_fail(err, TR_E_INVALID, "n-gram state of sequence %u: it does not fit", sequence);
    uint8_t *copy = cluster_lend(size);
    if (copy == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory for %zu bytes of state", size);
    memcpy(copy, bytes, size);
    tr_switch question = {
        .what = TR_SWITCH_NGRAM_SET, .sequence = sequence, .generation = generation, .bytes = copy};
    cluster_lock(c, &c->questions.lock);
    status = cluster_ask(c, &c->questions, TR_ACTOR_NGRAM, &question,
                         cluster_after(c, STATES_ASK_NS), err);
    cluster_take_back(c, copy, status == TR_OK);
    pthread_mutex_unlock(&c->questions.lock);
    return status;
}

/* -- what the coordinator asks -- */

static tr_status read_numbers(const msgpack_object *request, const char *const *keys,
                              uint32_t count, uint64_t *out, tr_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (!tr_map_u64(request, keys[i], &out[i]) || out[i] > UINT32_MAX)
            return tr_fail(err, TR_E_INVALID, "%s: missing or too large", keys[i]);
    return TR_OK;
}

static tr_status on_open(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                         uint32_t *pairs, tr_error *err)
{
    tr_cluster *c = ctx;
    uint64_t ns = 0;
    (void)reply, (void)pairs;
    if (!tr_map_u64(request, "ns", &ns) || ns > STATES_OPEN_MAX_NS)
        return tr_fail(err, TR_E_INVALID, "states_open: ns: missing or too large");
    atomic_store(&c->states_open_ns, ns > 0 ? cluster_after(c, ns) : 0);
    return TR_OK;
}

static tr_status on_write(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                          uint32_t *pairs, tr_error *err)
{
    cluster_piece pieces[CLUSTER_PIECES_MAX];
    const void *rows, *bytes;
    size_t rows_size, size;
    (void)reply, (void)pairs;

    if (!tr_map_bytes(request, "pieces", &rows, &rows_size) || rows_size > sizeof(pieces) ||
        rows_size % sizeof(pieces[0]) != 0)
        return tr_fail(err, TR_E_INVALID, "states_write: pieces: missing or too many");
    if (!tr_map_bytes(request, "bytes", &bytes, &size))
        return tr_fail(err, TR_E_INVALID, "states_write: bytes: missing");
    memcpy(pieces, rows, rows_size);
    return cluster_states_write(ctx, pieces, (uint32_t)(rows_size / sizeof(pieces[0])), bytes, size,
                                err);
}

static tr_status on_ngram_write(void *ctx, const msgpack_object *request, msgpack_packer *reply,
                                uint32_t *pairs, tr_error *err)
{
    static const char *const keys[] = {"sequence", "generation", "position"};
    uint64_t v[3];
    const void *bytes;
    size_t size;
    (void)reply, (void)pairs;

    tr_status status = read_numbers(request, keys, 3, v, err);
    if (status != TR_OK)
        return status;
    if (!tr_map_bytes(request, "bytes", &bytes, &size))
        return tr_fail(err, TR_E_INVALID, "ngram_write: bytes: missing");
    return states_write_ngram(ctx, (uint32_t)v[0], (uint16_t)v[1], (uint32_t)v[2], bytes, size,
                              err);
}

void cluster_states_register(tr_cluster *c)
{
    tr_control_server_handle(c->control, "states_open", on_open, c);
    tr_control_server_handle(c->control, "states_write", on_write, c);
    tr_control_server_handle(c->control, "ngram_write", on_ngram_write, c);
}
