/* test_prefix_cache.c - an answer that begins with a kept prefix has the bits of one that does not.
 *
 * Method: nodes in this process over the loop transport, with the model of each argument. Requests
 * whose prompts share beginnings run on a cluster of one node that keeps nothing, and on clusters
 * that keep prefixes: one after the other, all at once with too few pages for everybody, and while
 * parts move between two nodes. All answers must be equal, and prefixes must have been used. The
 * seed is printed and taken from TR_SEED, the number of rounds from TR_ROUNDS. */
#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <stdlib.h>
#include <time.h>

#define TALKS       4 /* prompts that have nothing in common */
#define TURNS       4 /* of each: every prompt begins with the one before */
#define GENERATED   12
#define DEADLINE_NS 120000000000u

static const char *model_path;
static uint64_t random_state;
static uint32_t rounds_count = 4;

/* Ends of turns: around multiples of 64, where prefixes end. */
static const uint32_t turn_ends[TURNS] = {65, 128, 150, 220};

typedef struct {
    int32_t tokens[TALKS][TURNS][GENERATED];
} answers;

typedef struct {
    uint32_t talk, turn;
    uint64_t number;
    uint32_t count;
    bool ended;
} asking;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

static void open_nodes(cluster *c, uint32_t nodes, const char *limits)
{
    char yaml[1024];

    snprintf(yaml, sizeof(yaml),
             "model: %s\ntransport: loop\nnodes:\n  - {name: a, memory: 1 GiB}\n%s"
             "limits: {context: 256, sequences: 6, peer_timeout: 20 s, %s}\n",
             model_path, nodes > 1 ? "  - {name: b, memory: 1 GiB}\n" : "", limits);
    cluster_open(c, yaml);
}

static void ask(cluster *c, asking *a)
{
    int32_t tokens[256];
    uint32_t count = turn_ends[a->turn];
    tr_error err = {0};

    for (uint32_t i = 0; i < count; i++)
        tokens[i] = cluster_prompt_token(c, a->talk, i);
    tr_request r = {.tokens = tokens,
                    .tokens_count = count,
                    .tokens_max = GENERATED,
                    .sampling = {.temperature = a->talk % 2 ? 0.8f : 0,
                                 .top_p = 0.95f,
                                 .seed = a->talk * TURNS + a->turn}};
    if (tr_client_submit(c->client, &r, &a->number, &err) != TR_OK)
        fail_msg("%s", err.text);
    a->count = 0;
    a->ended = false;
}

/* Waits for all; returns how many tokens of prompts were not computed. */
static uint32_t collect(cluster *c, asking *all, uint32_t count, answers *out)
{
    uint32_t cached = 0;

    for (uint32_t open = count; open > 0;) {
        tr_event e;
        assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        uint32_t i = 0;
        while (i < count && (all[i].number != e.request || all[i].ended))
            i++;
        assert_true(i < count);
        asking *a = &all[i];
        if (e.kind == TR_EVENT_TOKEN) {
            assert_true(a->count < GENERATED);
            out->tokens[a->talk][a->turn][a->count++] = e.token;
        } else if (e.kind == TR_EVENT_FINISHED) {
            assert_true(e.cached_tokens < turn_ends[a->turn]);
            cached += e.cached_tokens;
            a->ended = true;
            open--;
        } else {
            fail_msg("%s", e.error.text);
        }
    }
    return cached;
}

/* Every turn of every talk, one after the other. */
static uint32_t run_in_order(cluster *c, answers *out)
{
    uint32_t cached = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t talk = 0; talk < TALKS; talk++) {
            asking a = {.talk = talk, .turn = turn};
            ask(c, &a);
            cached += collect(c, &a, 1, out);
        }
    return cached;
}

/* The same all at once, in any order; one in four requests is asked once more and cancelled. */
static uint32_t run_at_once(cluster *c, answers *out)
{
    asking all[TALKS * TURNS];
    uint32_t order[TALKS * TURNS], count = TALKS * TURNS;

    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = random_below(i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (uint32_t i = 0; i < count; i++) {
        all[i] = (asking){.talk = order[i] / TURNS, .turn = order[i] % TURNS};
        ask(c, &all[i]);
        if (random_below(4) == 0) {
            tr_client_cancel(c->client, all[i].number);
            uint64_t canceled = all[i].number;
            ask(c, &all[i]);
            for (tr_event e = {0}; e.kind != TR_EVENT_FINISHED || e.request != canceled;) {
                assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
                for (uint32_t k = 0; k <= i; k++) {
                    if (all[k].number != e.request || all[k].ended)
                        continue;
                    assert_int_not_equal(e.kind, TR_EVENT_FAILED);
                    if (e.kind == TR_EVENT_TOKEN)
                        out->tokens[all[k].talk][all[k].turn][all[k].count++] = e.token;
                    else
                        all[k].ended = true;
                }
            }
        }
    }
    uint32_t open = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!all[i].ended)
            all[open++] = all[i];
    return collect(c, all, open, out);
}

static void check_equal(const answers *got, const answers *expected)
{
    for (uint32_t talk = 0; talk < TALKS; talk++)
        for (uint32_t turn = 0; turn < TURNS; turn++)
            if (memcmp(got->tokens[talk][turn], expected->tokens[talk][turn],
                       sizeof(got->tokens[talk][turn])) != 0)
                fail_msg("%s: talk %u, turn %u: other tokens", model_path, talk, turn);
}

static void reference(answers *out)
{
    cluster c;
    open_nodes(&c, 1, "prefix_cache: 0");
    assert_int_equal(run_in_order(&c, out), 0);
    tr_cluster_stat stat;
    tr_cluster_stats(c.nodes[0], &stat);
    assert_int_equal(stat.prefixes_kept, 0);
    cluster_close(&c);
}

static void answers_that_begin_with_a_kept_prefix_have_the_same_bits(void **state)
{
    static answers expected, got;
    cluster c;
    tr_cluster_stat stat;
    (void)state;

    reference(&expected);
    open_nodes(&c, 1, "prefix_cache: 16, cache_tokens: 4096");
    /* Turns of 65, 128 and 150 tokens keep 64, 64 (there already) and 128; so the later ones find
     * 0, 64, 64 and 128. */
    assert_int_equal(run_in_order(&c, &got), TALKS * (0 + 64 + 64 + 128));
    check_equal(&got, &expected);
    assert_int_equal(run_in_order(&c, &got), TALKS * (64 + 64 + 128 + 192));
    check_equal(&got, &expected);
    tr_cluster_stats(c.nodes[0], &stat);
    assert_int_equal(stat.prefixes_kept, TALKS * 3);
    cluster_close(&c);
}

/* Slots for three prefixes, and pages for two requests at once: what is kept gives way. */
static void kept_prefixes_give_way_to_requests(void **state)
{
    static answers expected, got;
    cluster c;
    (void)state;

    reference(&expected);
    open_nodes(&c, 2, "prefix_cache: 3, cache_tokens: 512");
    for (uint32_t round = 0; round < rounds_count; round++) {
        memset(&got, 0, sizeof(got));
        (void)run_at_once(&c, &got); /* what it finds is chance */
        check_equal(&got, &expected);
    }
    cluster_close(&c);
}

/* A prompt of 220 tokens, the first 140 of which are those of talk 0. */
static uint32_t ask_forked(cluster *c, uint32_t talk, int32_t *out)
{
    int32_t tokens[220];
    tr_error err = {0};
    uint64_t number = 0;
    tr_event e = {0};

    for (uint32_t i = 0; i < 220; i++)
        tokens[i] = cluster_prompt_token(c, i < 140 ? 0 : talk, i);
    tr_request r = {.tokens = tokens, .tokens_count = 220, .tokens_max = GENERATED};
    CHECK_STATUS(tr_client_submit(c->client, &r, &number, &err), TR_OK);
    for (uint32_t count = 0; e.kind != TR_EVENT_FINISHED;) {
        assert_true(tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS));
        assert_int_not_equal(e.kind, TR_EVENT_FAILED);
        if (e.kind == TR_EVENT_TOKEN)
            out[count++] = e.token;
    }
    return e.cached_tokens;
}

static void prompts_that_part_share_what_is_before(void **state)
{
    int32_t expected[3][GENERATED], got[3][GENERATED];
    cluster c;
    (void)state;

    open_nodes(&c, 1, "prefix_cache: 0");
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ask_forked(&c, 1 + i, expected[i]), 0);
    cluster_close(&c);
    open_nodes(&c, 2, "prefix_cache: 6, cache_tokens: 4096");
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t cached = ask_forked(&c, 1 + i, got[i]);
        if (i != 1) /* a model with pages alone gains at once */
            assert_int_equal(cached, i == 0 ? 0 : 128);
        assert_memory_equal(got[i], expected[i], sizeof(got[i]));
    }
    cluster_close(&c);
}

/* States move from node to node between the turns, and while all run at once. */
static void kept_prefixes_move_with_their_layers(void **state)
{
    static answers expected, got;
    cluster c;
    uint32_t cached = 0;
    (void)state;

    reference(&expected);
    open_nodes(&c, 2, "prefix_cache: 16, cache_tokens: 4096");
    for (uint32_t round = 0; round < rounds_count; round++) {
        char part[64];
        uint64_t number = 0;
        tr_error err = {0};
        const char *node = random_below(2) ? "a" : "b";
        if (c.shape.ngram_tables > 0 && round % 2 == 1)
            snprintf(part, sizeof(part), "ngram");
        else
            snprintf(part, sizeof(part), "attention/all.%u",
                     random_below(c.shape.attention_terms[0]));
        tr_status status = tr_cluster_move(c.nodes[0], part, node, &number, &err);
        memset(&got, 0, sizeof(got));
        if (round % 2 == 0)
            cached += run_at_once(&c, &got); /* during the move */
        if (status == TR_OK)
            assert_string_equal(cluster_await_change(&c, number).phase, "done");
        cached += run_in_order(&c, &got);
        check_equal(&got, &expected);
    }
    assert_true(cached >= TALKS * (64 + 64 + 128));
    cluster_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_that_begin_with_a_kept_prefix_have_the_same_bits),
        cmocka_unit_test(prompts_that_part_share_what_is_before),
        cmocka_unit_test(kept_prefixes_give_way_to_requests),
        cmocka_unit_test(kept_prefixes_move_with_their_layers),
    };
    const char *seed = getenv("TR_SEED"), *rounds = getenv("TR_ROUNDS");
    if (argc != 2) {
        fprintf(stderr, "usage: test_prefix_cache MODEL\n");
        return 2;
    }
    model_path = argv[1];
    random_state = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    if (rounds != NULL)
        rounds_count = (uint32_t)strtoul(rounds, NULL, 10);
    fprintf(stderr, "TR_SEED=%llu\n", (unsigned long long)random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
