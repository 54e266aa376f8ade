/* test_ngram.c - the n-gram actor alone, with the tables of a golden model.
 *
 * Goal: what it answers does not depend on how a sequence is cut; sequences follow the diagram in
 * ngram.c; a table does not become resident. Method: the test plays router, with the golden model
 * and with copies of it that have another table: of FP8, and of 256 MB of holes. */
#include "core/model/checkpoint.h"
#include "core/model/json.h"
#include "core/model/ngram.h"
#include "tests/actors/real_cluster.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

enum { ROWS_MAX = 48, LAYER = 1 };

static const char *model_path;

typedef struct {
    fake f;
    real_cluster c;
    void *ngram;
    uint32_t width;
    uint32_t salt; /* other numbers give other tokens */
} fixture;

static void open_ngram(fixture *x, const char *path, const char *rules)
{
    x->salt = 0;
    real_cluster_make(&x->c, path, rules);
    fake_open(&x->f, tr_node_actor(TR_ACTOR_NGRAM, 0));
    x->ngram = real_actor_open(&x->f, &x->c, &tr_ngram_ops, tr_ngram_count);
    x->width = x->c.node.limits.bank_size;
    assert_true(x->c.node.spec->layers[LAYER].ngram.size > 0);
}

static void close_ngram(fixture *x)
{
    fake_clear(&x->f);
    real_actor_close(&x->c, &tr_ngram_ops, x->ngram);
    fake_close(&x->f);
}

/* Token and bank of a position: made up, the same in every test. */
static int32_t token_at(uint32_t position, uint32_t salt)
{
    return (int32_t)(((position + 1) * 2654435761u ^ salt * 2246822519u) % 500);
}

static float bank_at(uint32_t position, uint32_t column)
{
    return (float)((position * 31 + column * 17) % 64) / 32.0f - 1.0f;
}

/* One segment of a sequence. */
static void give_rows(fixture *x, uint32_t layer, const tr_segment *seg)
{
    static uint8_t data[65536];
    tr_step_head head = {
        .rows_count = seg->rows_count, .segments_count = 1, .layer = layer, .width = x->width};
    uint32_t size = tr_step_layout(&head, TR_MSG_NGRAM_ROWS);

    assert_true(size <= sizeof(data));
    memset(data, 0, size);
    memcpy(data, &head, sizeof(head));
    memcpy(data + head.segments_offset, seg, sizeof(*seg));
    for (uint32_t t = 0; t < seg->rows_count; t++) {
        uint32_t position = seg->first_position + t;
        int32_t token = token_at(position, x->salt);
        memcpy(data + head.tokens_offset + t * sizeof(token), &token, sizeof(token));
        for (uint32_t i = 0; i < x->width; i++) {
            float value = bank_at(position, i);
            memcpy(data + head.rows_offset + (t * (size_t)x->width + i) * sizeof(value), &value,
                   sizeof(value));
        }
    }
    fake_give(&x->f, &tr_ngram_ops, x->ngram, tr_node_actor(TR_ACTOR_ROUTER, 0), TR_MSG_NGRAM_ROWS,
              1, 0, data, size);
}

static tr_segment segment(uint32_t sequence, uint32_t first, uint32_t rows, uint16_t generation)
{
    return (tr_segment){.sequence = sequence,
                        .first_position = first,
                        .rows_count = rows,
                        .generation = generation};
}

/* The answer to the last rows, copied behind out; what was sent is forgotten. */
static void take_answer(fixture *x, float *out, uint32_t rows)
{
    tr_step_view v = {0};
    tr_error err = {0};
    const tr_msg *msg = fake_find(&x->f, TR_MSG_NGRAM_ADD);

    assert_non_null(msg);
    CHECK_STATUS(tr_step_read(&v, msg, &x->c.node.limits, &err), TR_OK);
    assert_int_equal(v.head.rows_count, rows);
    assert_int_equal(v.head.layer, LAYER);
    memcpy(out, v.rows, (size_t)rows * x->width * sizeof(float));
    fake_clear(&x->f);
}

static void a_sequence_has_the_same_bits_however_it_is_cut(void **state)
{
    static const uint32_t cuts[] = {ROWS_MAX, 1, 3, 7, 20, 9};
    enum { POSITIONS = 120 };
    fixture x;
    float *first = NULL;
    (void)state;

    open_ngram(&x, model_path, "");
    for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
        float *got = calloc((size_t)POSITIONS * x.width, sizeof(float));
        assert_non_null(got);
        for (uint32_t p = 0; p < POSITIONS;) {
            uint32_t rows = POSITIONS - p < cuts[c] ? POSITIONS - p : cuts[c];
            tr_segment seg = segment(c % 3, p, rows, (uint16_t)c);
            give_rows(&x, LAYER, &seg);
            take_answer(&x, got + (size_t)p * x.width, rows);
            p += rows;
        }
        if (first != NULL)
            assert_memory_equal(got, first, (size_t)POSITIONS * x.width * sizeof(float));
        if (first == NULL)
            first = got;
        else
            free(got);
    }
    free(first);
    close_ngram(&x);
}

/* -- the golden model with another table -- */

#define LARGE_BASE 2000000 /* first prime: 8 heads of 16 bytes a row make 256 MB */

typedef struct {
    uint64_t part_rows; /* rows of holes in each part; 0: as many as there are, as F8_E4M3 */
    uint64_t base;      /* first prime */
} variant;

typedef struct {
    FILE *out;      /* NULL: only the header is collected */
    json_t *header; /* owns */
    uint64_t offset;
} model_writer;

static void write_bytes(const model_writer *w, const void *data, size_t size)
{
    assert_int_equal(fwrite(data, 1, size, w->out), size);
}

static void write_entry(model_writer *w, const char *name, const char *dtype, json_t *shape,
                        uint64_t size)
{
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", (json_int_t)w->offset,
                                  (json_int_t)(w->offset + size)));
    w->offset += size;
}

/* A part of the table: holes, or made-up FP8 that is never NaN. */
static void write_part(model_writer *w, const tr_tensor *t, const variant *v)
{
    uint64_t rows = v->part_rows > 0 ? v->part_rows : t->dims[0];
    uint64_t size = rows * t->dims[1] * (v->part_rows > 0 ? 2 : 1);

    if (w->out == NULL)
        write_entry(w, t->name, v->part_rows > 0 ? "BF16" : "F8_E4M3",
                    json_pack("[I, I]", (json_int_t)rows, (json_int_t)t->dims[1]), size);
    else if (v->part_rows > 0)
        assert_int_equal(fseek(w->out, (long)size, SEEK_CUR), 0);
    else
        for (uint64_t i = 0; i < size; i++)
            write_bytes(w, &(uint8_t){(uint8_t)(i * 37 % 113 | (i & 1) << 7)}, 1);
}

static void write_tensor(model_writer *w, const tr_tensor *t, const variant *v)
{
    if (strstr(t->name, "layer_multipliers") != NULL || strstr(t->name, "ngram_heads_") != NULL)
        return; /* of the table that was; they may be missing */
    if (strstr(t->name, "ngram_embedding.shard_") != NULL) {
        write_part(w, t, v);
        return;
    }
    if (w->out != NULL) {
        write_bytes(w, t->data, t->size);
        return;
    }
    json_t *shape = json_array();
    for (uint32_t d = 0; d < t->dims_count; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
    write_entry(w, t->name, t->type, shape, t->size);
}

static void write_tensors(model_writer *w, const variant *v)
{
    static const char scale_name[] =
        "model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale";
    static const uint16_t scale = 0x3d4d; /* 0.05004883 in BF16 */
    tr_checkpoint *checkpoint;
    tr_error err = {0};

    CHECK_STATUS(tr_checkpoint_open(&checkpoint, model_path, &err), TR_OK);
    for (uint32_t i = 0; i < tr_checkpoint_count(checkpoint); i++)
        write_tensor(w, tr_checkpoint_at(checkpoint, i), v);
    if (v->part_rows == 0 && w->out == NULL)
        write_entry(w, scale_name, "BF16", json_pack("[i]", 1), sizeof(scale));
    else if (v->part_rows == 0)
        write_bytes(w, &scale, sizeof(scale));
    tr_checkpoint_close(checkpoint);
}

/* A folder with config.json and model.safetensors. */
static void write_model(const char *folder, const variant *v)
{
    model_writer w = {.header = json_object()};
    json_t *config;
    tr_error err = {0};
    char path[512];

    snprintf(path, sizeof(path), "%s/config.json", model_path);
    CHECK_STATUS(tr_json_read(&config, path, &err), TR_OK);
    json_object_set_new(config, "ngram_vocab_size_base", json_integer((json_int_t)v->base));
    snprintf(path, sizeof(path), "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);

    write_tensors(&w, v);
    char *text = json_dumps(w.header, JSON_COMPACT);
    uint64_t size = strlen(text);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    w.out = fopen(path, "wb");
    assert_non_null(w.out);
    write_bytes(&w, &size, sizeof(size));
    write_bytes(&w, text, size);
    write_tensors(&w, v);
    assert_int_equal(fclose(w.out), 0);
    free(text);
    json_decref(w.header);
}

static void remove_model(const char *folder)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* bf16(x), ties to even. */
static float round_bf16(float x)
{
    if (x == 0)
        return x;
    double unit = ldexp(1, ilogb((double)x) - 7);
    return (float)(nearbyint((double)x / unit) * unit);
}

/* At position 0 everything before is separators and the convolution sees one column; in float64.
 * rounded: the table is made of BF16 products. */
static void check_first_row(const char *path, bool rounded)
{
    fixture x;
    uint32_t ids[TR_NGRAM_HEADS_MAX];
    int32_t history[TR_NGRAM_SIZE_MAX];

    open_ngram(&x, path, "");
    const tr_model_spec *spec = x.c.node.spec;
    const tr_ngram_spec *n = &spec->layers[LAYER].ngram;
    uint32_t D = spec->hidden_size, S = spec->residual.streams, size = tr_ngram_row_size(n);
    tr_weight w[6];
    static const tr_weight_role roles[6] = {TR_W_NGRAM_KEY,       TR_W_NGRAM_VALUE,
                                            TR_W_NGRAM_KEY_NORM,  TR_W_NGRAM_QUERY_NORM,
                                            TR_W_NGRAM_CONV_NORM, TR_W_NGRAM_CONV};
    float *f[6], *embed = calloc(n->embed_dim, sizeof(float));
    for (int i = 0; i < 6; i++) {
        w[i] = tr_model_weight(x.c.model, LAYER, roles[i], 0);
        f[i] = calloc((size_t)w[i].rows * w[i].cols, sizeof(float));
        tr_weight_to_f32(f[i], &w[i]);
    }
    for (uint32_t j = 0; j < n->size; j++)
        history[j] = n->separator;
    tr_ngram_rows(n, history, token_at(0, 0), ids);
    for (uint32_t h = 0; h < tr_ngram_heads(n); h++) {
        uint32_t part_rows = (uint32_t)(n->rows / n->parts);
        tr_weight part = tr_model_weight(x.c.model, LAYER, TR_W_NGRAM_TABLE, ids[h] / part_rows);
        tr_weight row = tr_weight_slice(&part, ids[h] % part_rows, 1, 0, size);
        tr_weight_to_f32(embed + h * size, &row);
    }
    for (uint32_t e = 0; rounded && e < n->embed_dim; e++)
        embed[e] = round_bf16(embed[e]);

    float *got = calloc(x.width, sizeof(float));
    tr_segment seg = segment(0, 0, 1, 0);
    give_rows(&x, LAYER, &seg);
    take_answer(&x, got, 1);
    for (uint32_t s = 0; s < S; s++) {
        double key_squares = 0, query_squares = 0, dot = 0, value_squares = 0;
        double key[256], value[256];
        assert_true(D <= 256);
        for (uint32_t d = 0; d < D; d++) {
            key[d] = value[d] = 0;
            for (uint32_t e = 0; e < n->embed_dim; e++) {
                key[d] += (double)f[0][((size_t)s * D + d) * n->embed_dim + e] * embed[e];
                value[d] += (double)f[1][(size_t)d * n->embed_dim + e] * embed[e];
            }
            key_squares += key[d] * key[d];
            query_squares += pow((double)bank_at(0, s * D + d), 2);
        }
        double offset = spec->norm_offset, eps = spec->rms_norm_eps;
        for (uint32_t d = 0; d < D; d++) {
            uint32_t i = s * D + d;
            dot += key[d] / sqrt(key_squares / D + eps) * (f[2][i] + offset) *
                   (double)bank_at(0, i) / sqrt(query_squares / D + eps) * (f[3][i] + offset);
        }
        dot /= sqrt(D);
        double root = copysign(sqrt(fmax(fabs(dot), 1e-6)), dot);
        for (uint32_t d = 0; d < D; d++) {
            value[d] /= 1 + exp(-root);
            value_squares += value[d] * value[d];
        }
        for (uint32_t d = 0; d < D; d++) {
            uint32_t i = s * D + d;
            double u = value[d] / sqrt(value_squares / D + eps) * (f[4][i] + offset) *
                       (double)f[5][(size_t)i * n->conv_taps + n->conv_taps - 1];
            assert_true(fabs(got[i] - (value[d] + u / (1 + exp(-u)))) < 1e-5);
        }
    }
    for (int i = 0; i < 6; i++)
        free(f[i]);
    free(embed);
    free(got);
    close_ngram(&x);
}

static void the_first_row_is_that_of_the_formula(void **state)
{
    (void)state;
    check_first_row(model_path, false);
}

static void a_table_of_fp8_with_a_bf16_scale_gives_bf16(void **state)
{
    static const variant fp8 = {.base = 1000};
    char folder[] = "/tmp/troupe-ngram-XXXXXX";
    (void)state;

    assert_non_null(mkdtemp(folder));
    write_model(folder, &fp8);
    check_first_row(folder, true);
    remove_model(folder);
}

static void all_routers_of_the_span_get_the_answer(void **state)
{
    fixture x;
    (void)state;

    open_ngram(&x, model_path, "");
    tr_segment seg = segment(0, 0, 2, 0);
    give_rows(&x, LAYER, &seg);
    assert_int_equal(fake_count(&x.f, TR_MSG_NGRAM_ADD), 2);
    assert_true(x.f.sent[0].header.target == tr_node_actor(TR_ACTOR_ROUTER, 0));
    assert_true(x.f.sent[1].header.target == tr_node_actor(TR_ACTOR_ROUTER, 1));
    close_ngram(&x);

    open_ngram(&x, model_path, "ngram: a\nrouters: [{node: b, layers: all}]\n");
    give_rows(&x, LAYER, &seg);
    assert_int_equal(x.f.sent_count, 1);
    assert_true(x.f.sent[0].header.target == tr_node_actor(TR_ACTOR_ROUTER, 1));
    close_ngram(&x);
}

/* What does not go on where the sequence stands fails the step, and a new sequence may begin. */
static void rows_that_do_not_go_on_fail_the_step(void **state)
{
    static const struct {
        uint32_t first;
        uint16_t generation;
        bool fails;
    } cases[] = {{5, 1, true},  {0, 1, false}, {5, 1, true},  {4, 1, false},
                 {4, 1, true},  {8, 2, true},  {8, 1, false}, {0, 2, false},
                 {12, 1, true}, {4, 2, false}, {0, 3, false}};
    fixture x;
    (void)state;

    open_ngram(&x, model_path, "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_segment seg = segment(2, cases[i].first, 4, cases[i].generation);
        give_rows(&x, LAYER, &seg);
        assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), cases[i].fails);
        assert_int_equal(fake_count(&x.f, TR_MSG_NGRAM_ADD), cases[i].fails ? 0 : 2);
        fake_clear(&x.f);
    }
    close_ngram(&x);
}

static void wrong_layers_cut_messages_and_an_empty_pool_fail_the_step(void **state)
{
    fixture x;
    tr_segment seg = segment(0, 0, 4, 0);
    (void)state;

    open_ngram(&x, model_path, "");
    give_rows(&x, 0, &seg); /* a layer without a table */
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 1);
    fake_give(&x.f, &tr_ngram_ops, x.ngram, tr_node_actor(TR_ACTOR_ROUTER, 0), TR_MSG_NGRAM_ROWS, 1,
              0, "cut", 3);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 2);
    x.f.pool_empty = true;
    give_rows(&x, LAYER, &seg);
    assert_int_equal(fake_count(&x.f, TR_MSG_STEP_FAILED), 3);
    x.f.pool_empty = false;
    close_ngram(&x);
}

/* KiB of the mapping of a file that are in memory. */
static uint64_t resident_kib(const char *path)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[1024];
    uint64_t total = 0, kib;
    bool ours = false;

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strchr(line, '-') != NULL && strchr(line, '/') != NULL)
            ours = strstr(line, path) != NULL;
        else if (ours && sscanf(line, "Rss: %lu kB", &kib) == 1)
            total += kib;
    }
    fclose(maps);
    return total;
}

static void a_table_does_not_become_resident(void **state)
{
    enum { MESSAGES = 150 }; /* x 48 tokens x 8 rows: most of 65,536 pages */
    char folder[] = "/tmp/troupe-ngram-XXXXXX", path[128];
    tr_ngram_spec large;
    fixture x;
    uint64_t most = 0;
    (void)state;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    open_ngram(&x, model_path, "");
    large = x.c.node.spec->layers[LAYER].ngram;
    large.base = LARGE_BASE;
    CHECK_STATUS(tr_ngram_derive(&large, x.c.node.spec->vocab_size, "test", LAYER, NULL), TR_OK);
    close_ngram(&x);
    write_model(folder, &(variant){.part_rows = large.rows / large.parts, .base = LARGE_BASE});

    open_ngram(&x, folder, "");
    assert_true(x.c.arena_size < 64 << 20); /* it is not in the budget, either */
    for (uint32_t i = 0; i < MESSAGES; i++) {
        tr_segment seg = segment(0, i % 6 * ROWS_MAX, ROWS_MAX, (uint16_t)(i / 6));
        x.salt = i;
        give_rows(&x, LAYER, &seg);
        assert_int_equal(fake_count(&x.f, TR_MSG_NGRAM_ADD), 2);
        fake_clear(&x.f);
        uint64_t now = resident_kib(path);
        most = now > most ? now : most;
    }
    close_ngram(&x);
    assert_true(most > 0);
    /* 1,024 rows of at most 64 KiB each, and the rest of the file */
    if (most >= 66 << 10)
        fail_msg("%lu KiB of a table of 256 MB were resident", (unsigned long)most);
    remove_model(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_has_the_same_bits_however_it_is_cut),
        cmocka_unit_test(the_first_row_is_that_of_the_formula),
        cmocka_unit_test(a_table_of_fp8_with_a_bf16_scale_gives_bf16),
        cmocka_unit_test(all_routers_of_the_span_get_the_answer),
        cmocka_unit_test(rows_that_do_not_go_on_fail_the_step),
        cmocka_unit_test(wrong_layers_cut_messages_and_an_empty_pool_fail_the_step),
        cmocka_unit_test(a_table_does_not_become_resident),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_ngram MODEL\n");
        return 2;
    }
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
