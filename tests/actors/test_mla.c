/* test_mla.c - latent attention through the attention shard.
 *
 * Goal: the absorbed form gives what the expanded form gives, with and without a rotating part; a
 * row has the same bits alone (as in decoding) and among others (as in a prompt), also when an
 * index chooses where it looks and pools are completed from one call to the next. Method: the shard
 * alone with one latent layer of a golden model; the test plays router and pool. The expanded form
 * is plain float64 loops over the model's weights. */
#include "tests/actors/real_cluster.h"

#include <math.h>

enum { ROWS = 64, PAGES = 4 };

static const char *models[2]; /* kimi_linear, glm5_next */

typedef struct {
    fake f;
    real_cluster c;
    tr_model_spec spec;
    tr_layer_spec layers[8];
    void *shard;
    uint32_t layer; /* the latent one */
    uint8_t *pages[2][PAGES], *states[2];
    float *x; /* [positions, hidden] */
} fixture;

static uint64_t random_state;

static float random_float(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((int64_t)(random_state >> 33) - (1 << 30)) * 0x1p-30f;
}

static void lease(fixture *x, uint32_t sequence)
{
    size_t size = sizeof(tr_kv_lease) + PAGES * sizeof(uint8_t *);
    tr_kv_lease *l = calloc(1, size);

    assert_non_null(l);
    x->states[sequence] = calloc(1, x->c.node.kv.state_size + 1);
    l->state = x->states[sequence];
    l->pages_count = PAGES;
    for (int i = 0; i < PAGES; i++) {
        x->pages[sequence][i] = calloc(1, x->c.node.kv.page_size);
        l->pages[i] = x->pages[sequence][i];
    }
    fake_give(&x->f, &tr_attention_shard_ops, x->shard, tr_node_actor(TR_ACTOR_KV_POOL, 0),
              TR_MSG_KV_LEASE, 0, sequence, l, size);
    free(l);
}

static void count_shard(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    tr_attention_shard_count(node, counting, budget, 1);
}

/* The shard of node a, which holds all heads; rope other than NONE is put into the latent layer. */
static void open_shard(fixture *x, const char *model, tr_rope_kind rope)
{
    memset(x, 0, sizeof(*x));
    real_cluster_make(&x->c, model, "attention: [{node: a, layers: 0-4}]\n");
    x->spec = *tr_model_get_spec(x->c.model);
    assert_true(x->spec.layers_count <= 8);
    memcpy(x->layers, x->spec.layers, x->spec.layers_count * sizeof(*x->layers));
    x->spec.layers = x->layers;
    while (x->layers[x->layer].mixer != TR_MIXER_MLA)
        x->layer++;
    x->layers[x->layer].mla.rope = rope;
    x->layers[x->layer].mla.rope_theta = 100;
    x->c.node.spec = &x->spec;
    tr_kv_layout_make(&x->c.node.kv, &x->spec, &x->c.plan, 0);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_ATTENTION_SHARD, 0));
    x->shard = real_actor_open(&x->f, &x->c, &tr_attention_shard_ops, count_shard);
    lease(x, 0);
    lease(x, 1);
    size_t count = (size_t)PAGES * TR_KV_PAGE_TOKENS * x->spec.hidden_size;
    x->x = calloc(count, sizeof(float));
    random_state = 1;
    for (size_t i = 0; i < count; i++)
        x->x[i] = random_float();
}

static void close_shard(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_attention_shard_ops, x->shard);
    fake_close(&x->f);
    for (int s = 0; s < 2; s++) {
        free(x->states[s]);
        for (int i = 0; i < PAGES; i++)
            free(x->pages[s][i]);
    }
    free(x->x);
}

/* Gives rows [first, first + count) of x to a sequence; sums of the layer go to out [count,
 * hidden], on a grid of 2^-27. */
static void attend(fixture *x, uint32_t sequence, uint32_t first, uint32_t count, int64_t *out)
{
    static uint8_t data[65536];
    static uint64_t step;
    uint32_t hidden = x->spec.hidden_size;
    tr_step_head head = {
        .rows_count = count, .segments_count = 1, .layer = x->layer, .width = hidden};
    uint32_t size = tr_step_layout(&head, TR_MSG_ATTENTION_ROWS);

    assert_true(size <= sizeof(data));
    memset(data, 0, size);
    memcpy(data, &head, sizeof(head));
    *(tr_segment *)(void *)(data + head.segments_offset) =
        (tr_segment){.sequence = (uint16_t)sequence,
                     .rows_count = (uint16_t)count,
                     .first_position = first,
                     .form = count == ROWS ? TR_FORM_PREFILL : TR_FORM_DECODE};
    memcpy(data + head.rows_offset, x->x + (size_t)first * hidden, count * hidden * sizeof(float));
    fake_clear(&x->f);
    fake_give(&x->f, &tr_attention_shard_ops, x->shard, tr_node_actor(TR_ACTOR_ROUTER, 0),
              TR_MSG_ATTENTION_ROWS, ++step, 0, data, size);

    const tr_msg *msg = fake_find(&x->f, TR_MSG_PARTIAL);
    tr_step_view v;
    tr_error err = {0};
    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, &err), TR_OK);
    memset(out, 0, (size_t)count * hidden * sizeof(*out));
    assert_true(
        x->c.node.kernels->sums_add(NULL, out, v.sums, v.sums_size, v.flags, count, hidden));
}

/* -- the expanded form -- */

static float *weight_of(const fixture *x, tr_weight_role role)
{
    tr_weight w = tr_model_weight(x->c.model, x->layer, role, 0);
    float *values = calloc((size_t)w.rows * w.cols, sizeof(float));

    assert_non_null(values);
    tr_weight_to_f32(values, &w);
    return values;
}

static void product(double *out, const float *w, const double *in, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (uint32_t c = 0; c < cols; c++)
            out[r] += (double)w[(size_t)r * cols + c] * in[c];
    }
}

static void turn(double *v, uint32_t dims, const tr_mla_spec *m, uint32_t position)
{
    for (uint32_t i = 0; m->rope != TR_ROPE_NONE && i < dims / 2; i++) {
        uint32_t a = m->rope == TR_ROPE_HALF ? i : 2 * i;
        uint32_t b = m->rope == TR_ROPE_HALF ? i + dims / 2 : 2 * i + 1;
        double angle = position * pow(m->rope_theta, -2.0 * i / dims);
        double va = v[a], vb = v[b];
        v[a] = va * cos(angle) - vb * sin(angle);
        v[b] = vb * cos(angle) + va * sin(angle);
    }
}

/* Row `position` of the layer's output, [hidden]; without a rank of queries and without an index.
 */
static void expand(const fixture *x, uint32_t position, double *out)
{
    enum { KEY_MAX = 64, LATENT_MAX = 64 };
    const tr_mla_spec *m = &x->layers[x->layer].mla;
    uint32_t hidden = x->spec.hidden_size, q_dim = m->nope_dim + m->rope_dim;
    uint32_t cached = m->kv_rank + m->rope_dim, up = m->nope_dim + m->v_dim;
    float *q_w = weight_of(x, TR_W_Q), *kv_a = weight_of(x, TR_W_KV_A);
    float *norm = weight_of(x, TR_W_KV_A_NORM), *kv_b = weight_of(x, TR_W_KV_B);
    float *o_w = weight_of(x, TR_W_O);
    double row[512], latent[LATENT_MAX], expanded[512], q[512], heads[512] = {0};
    double(*score)[8] = calloc(position + 1, sizeof(*score));
    double(*value)[8][KEY_MAX] = calloc(position + 1, sizeof(*value));

    assert_true(hidden <= 512 && m->heads <= 8 && cached <= LATENT_MAX && q_dim <= KEY_MAX);
    assert_true(m->heads * up <= 512 && m->heads * q_dim <= 512 && m->v_dim <= KEY_MAX);
    for (uint32_t d = 0; d < hidden; d++)
        row[d] = x->x[(size_t)position * hidden + d];
    product(q, q_w, row, m->heads * q_dim, hidden);
    for (uint32_t h = 0; h < m->heads; h++)
        turn(q + h * q_dim + m->nope_dim, m->rope_dim, m, position);
    for (uint32_t j = 0; j <= position; j++) {
        double squares = 0;
        for (uint32_t d = 0; d < hidden; d++)
            row[d] = x->x[(size_t)j * hidden + d];
        product(latent, kv_a, row, cached, hidden);
        for (uint32_t d = 0; d < m->kv_rank; d++)
            squares += latent[d] * latent[d];
        for (uint32_t d = 0; d < m->kv_rank; d++)
            latent[d] *= norm[d] / sqrt(squares / m->kv_rank + m->norm_eps);
        turn(latent + m->kv_rank, m->rope_dim, m, j);
        product(expanded, kv_b, latent, m->heads * up, m->kv_rank);
        for (uint32_t h = 0; h < m->heads; h++) {
            for (uint32_t d = 0; d < m->nope_dim; d++)
                score[j][h] += q[h * q_dim + d] * expanded[h * up + d];
            for (uint32_t d = 0; d < m->rope_dim; d++)
                score[j][h] += q[h * q_dim + m->nope_dim + d] * latent[m->kv_rank + d];
            score[j][h] = exp(score[j][h] / sqrt(q_dim));
            memcpy(value[j][h], expanded + h * up + m->nope_dim, m->v_dim * sizeof(double));
        }
    }
    for (uint32_t h = 0; h < m->heads; h++) {
        double total = 0;
        for (uint32_t j = 0; j <= position; j++)
            total += score[j][h];
        for (uint32_t j = 0; j <= position; j++)
            for (uint32_t d = 0; d < m->v_dim; d++)
                heads[h * m->v_dim + d] += score[j][h] / total * value[j][h][d];
    }
    product(out, o_w, heads, hidden, m->heads * m->v_dim);
    free(score);
    free(value);
    free(q_w);
    free(kv_a);
    free(norm);
    free(kv_b);
    free(o_w);
}

static void the_absorbed_form_is_the_expanded_one(void **state)
{
    static const tr_rope_kind ropes[] = {TR_ROPE_NONE, TR_ROPE_HALF, TR_ROPE_INTERLEAVED};
    static const uint32_t positions[] = {0, 1, 63, 64, 100};
    (void)state;

    for (int r = 0; r < 3; r++) {
        fixture x;
        open_shard(&x, models[0], ropes[r]);
        uint32_t hidden = x.spec.hidden_size;
        int64_t *sums = calloc((size_t)2 * ROWS * hidden, sizeof(*sums));
        attend(&x, 0, 0, ROWS, sums);
        attend(&x, 0, ROWS, ROWS, sums + (size_t)ROWS * hidden);
        for (int i = 0; i < 5; i++) {
            double expected[512], largest = 0;
            expand(&x, positions[i], expected);
            for (uint32_t d = 0; d < hidden; d++)
                largest = fmax(largest, fabs(expected[d]));
            for (uint32_t d = 0; d < hidden; d++) {
                double got = (double)sums[(size_t)positions[i] * hidden + d] * 0x1p-27;
                assert_true(fabs(got - expected[d]) < 1e-5 * largest);
            }
        }
        free(sums);
        close_shard(&x);
    }
}

static void a_row_has_the_same_bits_alone_and_among_others(void **state)
{
    static const uint32_t counts[] = {1, 2, 1, 3, 5, 1, 17, 63, 9};
    (void)state;

    for (int i = 0; i < 2; i++) {
        fixture x;
        open_shard(&x, models[i], TR_ROPE_NONE);
        size_t size = (size_t)3 * ROWS * x.spec.hidden_size;
        int64_t *prompt = calloc(size, sizeof(*prompt)), *pieces = calloc(size, sizeof(*pieces));
        uint32_t done = 0, hidden = x.spec.hidden_size;
        for (uint32_t t = 0; t < 3 * ROWS; t += ROWS)
            attend(&x, 0, t, ROWS, prompt + (size_t)t * hidden);
        for (uint32_t j = 0; done < 3 * ROWS; j = (j + 1) % 9) {
            uint32_t n = counts[j] < 3 * ROWS - done ? counts[j] : 3 * ROWS - done;
            attend(&x, 1, done, n, pieces + (size_t)done * hidden);
            done += n;
        }
        assert_memory_equal(prompt, pieces, size * sizeof(*prompt));
        free(prompt);
        free(pieces);
        close_shard(&x);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_absorbed_form_is_the_expanded_one),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_among_others),
    };
    if (argc != 3) {
        fprintf(stderr, "usage: test_mla KIMI_LINEAR GLM5_NEXT\n");
        return 2;
    }
    models[0] = argv[1];
    models[1] = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
