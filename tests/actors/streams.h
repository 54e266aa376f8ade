/* streams.h - streams that run without a pause beside what a test does to a whole cluster, and must
 * be equal to those of a cluster of one node that nobody disturbs. */
#ifndef TR_TESTS_ACTORS_STREAMS_H
#define TR_TESTS_ACTORS_STREAMS_H

#include "core/trace.h"
#include "tests/actors/whole_cluster.h"

#include <stdatomic.h>

#define PROMPTS     6
#define GENERATED   80
#define DEADLINE_NS 120000000000u

static const char *model_path;
static uint64_t random_state;

static inline uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

/* Nodes with names of one letter; memory_b is that of the second. */
static inline void open_with(cluster *c, const char *names, const char *memory_b)
{
    char yaml[1024];

    snprintf(yaml, sizeof(yaml), "model: %s\ntransport: loop\nnodes:\n", model_path);
    for (const char *n = names; *n != '\0'; n++)
        snprintf(yaml + strlen(yaml), sizeof(yaml) - strlen(yaml), "  - {name: %c, memory: %s}\n",
                 *n, n == names ? "1 GiB" : memory_b);
    strcat(yaml, "limits: {context: 256, peer_timeout: 20 s}\n");
    cluster_open(c, yaml);
}

static inline void open_nodes(cluster *c, const char *names)
{
    open_with(c, names, "1 GiB");
}

static inline uint64_t submit(cluster *c, uint32_t prompt, uint32_t tokens_max)
{
    int32_t tokens[128];
    uint32_t count = 5 + 20 * prompt;
    uint64_t number = 0;
    tr_error err = {0};
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = cluster_prompt_token(c, prompt, i);
    tr_request r = {
        .tokens = tokens,
        .tokens_count = count,
        .tokens_max = tokens_max,
        .sampling = {.temperature = prompt % 2 ? 0.8f : 0, .top_p = 0.95f, .seed = prompt}};
    if (tr_client_submit(c->client, &r, &number, &err) != TR_OK)
        fail_msg("%s", err.text);
    return number;
}

typedef struct {
    int32_t tokens[PROMPTS][GENERATED];
} answers;

/* All prompts at once, once. False when something failed, and why is in text. */
static inline bool round_of_streams(cluster *c, answers *out, char *text, size_t size)
{
    uint64_t numbers[PROMPTS];
    uint32_t counts[PROMPTS] = {0};
    for (uint32_t p = 0; p < PROMPTS; p++)
        numbers[p] = submit(c, p, GENERATED);
    for (uint32_t open = PROMPTS; open > 0;) {
        tr_event e;
        if (!tr_client_wait(c->client, &e, tr_clock_ns() + DEADLINE_NS)) {
            snprintf(text, size, "nothing came in time");
            return false;
        }
        uint32_t p = 0;
        while (p < PROMPTS && numbers[p] != e.request)
            p++;
        if (p == PROMPTS)
            continue;
        if (e.kind == TR_EVENT_TOKEN) {
            if (counts[p] == GENERATED) {
                snprintf(text, size, "prompt %u has too many tokens", p);
                return false;
            }
            out->tokens[p][counts[p]++] = e.token;
        } else if (e.kind == TR_EVENT_FAILED) {
            snprintf(text, size, "prompt %u: %s", p, e.error.text);
            return false;
        } else {
            open--;
        }
    }
    return true;
}

typedef struct {
    cluster *c;
    const answers *expected;
    _Atomic bool stop;
    _Atomic uint32_t rounds;
    char wrong[512]; /* "" while all is right */
} streaming;

static inline void *stream_main(void *ctx)
{
    streaming *s = ctx;
    while (!atomic_load(&s->stop) && s->wrong[0] == '\0') {
        answers got = {0};
        if (round_of_streams(s->c, &got, s->wrong, sizeof(s->wrong)) &&
            memcmp(&got, s->expected, sizeof(got)) != 0)
            snprintf(s->wrong, sizeof(s->wrong), "round %u gives other tokens",
                     atomic_load(&s->rounds));
        atomic_fetch_add(&s->rounds, 1);
    }
    return NULL;
}

static inline void reference(answers *out)
{
    cluster c;
    char wrong[512] = "";
    open_nodes(&c, "a");
    if (!round_of_streams(&c, out, wrong, sizeof(wrong)))
        fail_msg("%s", wrong);
    cluster_close(&c);
}

#endif
