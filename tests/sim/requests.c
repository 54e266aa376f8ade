#include "tests/sim/requests.h"

#include "tests/sim/shim.h"
#include "tests/sim/world.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define ALIKE_TOKENS 130 /* in which prompts of a kind begin alike */
#define ALIKE_KINDS  2

static world judge;
static bool judge_is_open;
static sim_answer right_answers[SIM_STOCK];
static bool right_known[SIM_STOCK];

void sim_request_make(uint32_t i, tr_request *out, int32_t prompt[TINY_CONTEXT])
{
    static const uint32_t lengths[] = {1, 2, 7, 20, 63, 64, 65, 100, 127, 128, 129, 190};
    sim_random random = sim_seeded(i, 5), alike = sim_seeded(i % ALIKE_KINDS, 6);

    *out = (tr_request){.tokens = prompt,
                        .tokens_count = lengths[sim_below(&random, 12)],
                        .tokens_max = 1 + (uint32_t)sim_below(&random, 12),
                        .sampling = {.top_p = 1}};
    for (uint32_t t = 0; t < out->tokens_count; t++)
        prompt[t] = (int32_t)sim_below(t < ALIKE_TOKENS ? &alike : &random, TINY_VOCABULARY);
    if (i % 2 == 0)
        out->sampling = (tr_sampling){
            .temperature = 1.0f, .top_p = 0.95f, .top_k = 40, .seed = sim_next(&random)};
    if (i % 8 == 1)
        out->tokens_max = SIM_TOKENS_MAX; /* long enough to be cancelled in the middle */
    if (i % 8 == 2) {
        out->want_logits = true;
        out->tokens_max = i % 16 == 2 ? 0 : 3;
    }
    if (i % 8 == 3) {
        out->want_logprobs = true;
        out->top_logprobs = 3;
    }
    if (i % 8 == 4)
        for (; out->stop_tokens_count < TR_STOP_TOKENS_MAX; out->stop_tokens_count++)
            out->stop_tokens[out->stop_tokens_count] = (int32_t)sim_below(&random, TINY_VOCABULARY);
}

const char *sim_answer_add(sim_answer *a, const tr_event *e)
{
    switch (e->kind) {
    case TR_EVENT_TOKEN:
        if (a->tokens_count == SIM_TOKENS_MAX)
            return "more tokens than any request asked for";
        a->tokens[a->tokens_count++] = e->token;
        return NULL;
    case TR_EVENT_LOGITS:
        if (e->position >= TINY_CONTEXT || a->row_came[e->position])
            return "a row of logits is doubled, or of no position";
        a->row_came[e->position] = true;
        a->rows_count++;
        a->rows_hash +=
            XXH3_64bits_withSeed(e->logits, TINY_VOCABULARY * sizeof(float), e->position);
        return NULL;
    case TR_EVENT_HIDDEN:
        return "hidden rows that nobody asked for";
    case TR_EVENT_FINISHED:
    case TR_EVENT_FAILED:
        a->last = *e;
        a->last.logits = NULL;
        a->last.hidden = NULL;
        return NULL;
    }
    return "an event of an unknown kind";
}

static tr_status judge_open(const char *model, tr_error *err)
{
    char yaml[512];
    tr_sim_config net = {.room = 1};
    snprintf(yaml, sizeof(yaml),
             "model: %s\nnodes: [{name: judge, memory: 1 GiB}]\nlimits: {context: %d}\n", model,
             TINY_CONTEXT);
    tr_status status = world_open(&judge, yaml, &net, 1, err);
    if (status == TR_OK)
        status = world_boot(&judge, err);
    judge_is_open = true;
    return status;
}

static tr_status judge_ask(uint32_t i, sim_answer *out, tr_error *err)
{
    int32_t prompt[TINY_CONTEXT];
    tr_request request;
    tr_event event;
    uint64_t number;

    sim_request_make(i, &request, prompt);
    tr_status status = tr_client_submit(judge.nodes[0].client, &request, &number, err);
    if (status != TR_OK)
        return status;
    for (;;) {
        while (!tr_client_next(judge.nodes[0].client, &event))
            (void)world_step(&judge, world_next_ns(&judge));
        const char *wrong = sim_answer_add(out, &event);
        if (wrong != NULL)
            return tr_fail(err, TR_E_INVALID, "the undisturbed node: %s", wrong);
        if (event.kind == TR_EVENT_FAILED) {
            if (err != NULL)
                *err = event.error;
            return event.error.code;
        }
        if (event.kind == TR_EVENT_FINISHED)
            return TR_OK;
    }
}

const sim_answer *sim_right_answer(const char *model, uint32_t i, tr_error *err)
{
    if (right_known[i])
        return &right_answers[i];
    /* The judge is not part of the simulation that asks. */
    sim_shim_control keep = sim_shim;
    sim_shim = (sim_shim_control){.bug = SIM_BUG_NONE};
    tr_status status = judge_is_open ? TR_OK : judge_open(model, err);
    if (status == TR_OK)
        status = judge_ask(i, &right_answers[i], err);
    sim_shim = keep;
    right_known[i] = status == TR_OK;
    return status == TR_OK ? &right_answers[i] : NULL;
}

const char *sim_answer_check(const sim_answer *a, const sim_answer *right)
{
    bool whole = a->last.kind == TR_EVENT_FINISHED && a->last.finish != TR_FINISH_CANCELED;

    if (a->tokens_count > right->tokens_count ||
        memcmp(a->tokens, right->tokens, a->tokens_count * sizeof(a->tokens[0])) != 0)
        return "its tokens differ from the undisturbed ones";
    if (a->rows_count > right->rows_count)
        return "it has more rows of logits than the prompt";
    if (!whole)
        return NULL;
    if (a->tokens_count != right->tokens_count || a->last.finish != right->last.finish ||
        a->last.token != right->last.token ||
        a->last.generated_tokens != right->last.generated_tokens ||
        a->last.prompt_tokens != right->last.prompt_tokens)
        return "it finished otherwise than the undisturbed one";
    if (a->rows_count != right->rows_count || a->rows_hash != right->rows_hash)
        return "its logits differ from the undisturbed ones";
    return NULL;
}

void sim_requests_close(void)
{
    if (judge_is_open)
        world_close(&judge);
    judge_is_open = false;
}
