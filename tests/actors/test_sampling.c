/* test_sampling.c - drawing tokens, without actors.
 *
 * Goal: each cut keeps exactly the tokens that its definition keeps, draws follow the distribution,
 * and a draw depends on (logits, parameters, seed, position) alone. */
#include "actors/sampling.h"
#include "tests/check.h"

#include <math.h>

#define VOCAB 64

static uint32_t scratch_index[VOCAB];
static float scratch_weight[VOCAB];
static const tr_sampling_scratch scratch = {.index = scratch_index, .weight = scratch_weight};

/* Counts of tokens over many positions. */
static void draw_many(const float *logits, const tr_sampling *s, uint32_t draws, uint32_t *counts)
{
    memset(counts, 0, VOCAB * sizeof(*counts));
    for (uint32_t i = 0; i < draws; i++) {
        int32_t token = tr_sample(logits, VOCAB, s, i, &scratch);
        assert_in_range(token, 0, VOCAB - 1);
        counts[token]++;
    }
}

/* Logits whose probabilities fall by half: token i has 2^-(i+1), roughly. */
static void halving(float *logits)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = -(float)i * 0.69314718f;
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    float logits[VOCAB] = {0};
    (void)state;
    logits[7] = logits[9] = 3.5f;
    assert_int_equal(tr_sample(logits, VOCAB, &(tr_sampling){.top_p = 1}, 0, &scratch), 7);
}

static void a_nan_or_no_finite_logit_gives_no_token(void **state)
{
    float logits[VOCAB] = {0};
    (void)state;
    logits[40] = NAN;
    assert_int_equal(tr_sample(logits, VOCAB, &(tr_sampling){.top_p = 1}, 0, &scratch), -1);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    assert_int_equal(
        tr_sample(logits, VOCAB, &(tr_sampling){.temperature = 1, .top_p = 1}, 0, &scratch), -1);
}

static void plain_draws_follow_the_distribution(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB], draws = 40000;
    (void)state;
    halving(logits);
    draw_many(logits, &(tr_sampling){.temperature = 1, .top_p = 1, .seed = 5}, draws, counts);
    for (uint32_t i = 0; i < 6; i++) {
        double expected = draws * pow(0.5, i + 1);
        /* five standard deviations of a binomial count */
        assert_true(fabs(counts[i] - expected) < 5 * sqrt(expected));
    }
}

static void temperature_sharpens(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB], draws = 20000;
    (void)state;
    halving(logits);
    /* at temperature 1/2 each token has a quarter of the one before: the first has 3/4 */
    draw_many(logits, &(tr_sampling){.temperature = 0.5f, .top_p = 1}, draws, counts);
    assert_true(fabs(counts[0] - draws * 0.75) < 5 * sqrt(draws * 0.75 * 0.25));
}

static void top_k_keeps_k_tokens_and_renormalises(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB], draws = 14000;
    (void)state;
    halving(logits);
    draw_many(logits, &(tr_sampling){.temperature = 1, .top_p = 1, .top_k = 3}, draws, counts);
    assert_int_equal(counts[0] + counts[1] + counts[2], draws);
    assert_true(fabs(counts[2] - draws / 7.0) < 5 * sqrt(draws / 7.0));
}

static void top_p_keeps_the_token_that_crosses(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    (void)state;
    halving(logits);
    /* 0.5 + 0.25 < 0.8 <= 0.5 + 0.25 + 0.125 */
    draw_many(logits, &(tr_sampling){.temperature = 1, .top_p = 0.8f}, 7000, counts);
    assert_int_equal(counts[0] + counts[1] + counts[2], 7000);
    assert_true(counts[2] > 0);
}

static void top_p_after_top_k_counts_what_top_k_left(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    (void)state;
    halving(logits);
    /* of two tokens with 2/3 and 1/3, the first alone reaches 0.6 */
    draw_many(logits, &(tr_sampling){.temperature = 1, .top_p = 0.6f, .top_k = 2}, 1000, counts);
    assert_int_equal(counts[0], 1000);
}

static void min_p_is_relative_to_the_most_likely(void **state)
{
    float logits[VOCAB];
    uint32_t counts[VOCAB];
    (void)state;
    halving(logits);
    draw_many(logits, &(tr_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3f}, 1000, counts);
    assert_int_equal(counts[0] + counts[1], 1000); /* 1/2 >= 0.3 > 1/4 */
    assert_true(counts[1] > 0);
}

static void a_draw_depends_on_seed_and_position_alone(void **state)
{
    float logits[VOCAB] = {0};
    tr_sampling s = {.temperature = 1, .top_p = 0.95f, .seed = 42};
    uint32_t other_seed = 0, other_position = 0;
    (void)state;
    for (uint32_t p = 0; p < 200; p++) {
        int32_t token = tr_sample(logits, VOCAB, &s, p, &scratch);
        assert_int_equal(token, tr_sample(logits, VOCAB, &s, p, &scratch));
        tr_sampling t = s;
        t.seed++;
        other_seed += token != tr_sample(logits, VOCAB, &t, p, &scratch);
        other_position += token != tr_sample(logits, VOCAB, &s, p + 1, &scratch);
    }
    assert_true(other_seed > 150);
    assert_true(other_position > 150);
}

static void logprobs_sum_to_one_and_come_in_order(void **state)
{
    float logits[VOCAB];
    tr_logprob top[5];
    double sum = 0;
    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = sinf((float)(i * 7)) * 3;
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp(tr_sample_logprobs(logits, VOCAB, (int32_t)i, NULL, 0));
    assert_true(fabs(sum - 1) < 1e-5);
    float chosen = tr_sample_logprobs(logits, VOCAB, 3, top, 5);
    assert_true(fabsf(chosen - tr_sample_logprobs(logits, VOCAB, 3, NULL, 0)) == 0);
    for (uint32_t i = 1; i < 5; i++) {
        assert_true(top[i - 1].logprob >= top[i].logprob);
        assert_true(logits[top[i - 1].token] >= logits[top[i].token]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(a_nan_or_no_finite_logit_gives_no_token),
        cmocka_unit_test(plain_draws_follow_the_distribution),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(top_k_keeps_k_tokens_and_renormalises),
        cmocka_unit_test(top_p_keeps_the_token_that_crosses),
        cmocka_unit_test(top_p_after_top_k_counts_what_top_k_left),
        cmocka_unit_test(min_p_is_relative_to_the_most_likely),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_alone),
        cmocka_unit_test(logprobs_sum_to_one_and_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
