#include "tests/api/fake_client.h"

#include "actors/cluster.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#define REQUESTS_MAX 64

typedef struct {
    uint64_t number; /* 0: free */
    uint64_t tokens_left;
    uint32_t next_token;
    uint32_t given;
    uint32_t tokens_max;
    uint32_t prompt_tokens;
    bool canceled;
    bool hold;
} fake_request;

struct tr_client {
    void (*wake)(void *ctx);
    void *wake_ctx;
};

static struct tr_client the_client;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static fake_script script;
static fake_state state;
static fake_request requests[REQUESTS_MAX];
static uint64_t last_number;
static uint32_t turn; /* requests take turns */

void fake_client_set(const fake_script *s)
{
    pthread_mutex_lock(&lock);
    script = *s;
    memset(&state, 0, sizeof(state));
    memset(requests, 0, sizeof(requests));
    pthread_mutex_unlock(&lock);
}

void fake_client_get(fake_state *out)
{
    pthread_mutex_lock(&lock);
    *out = state;
    for (uint32_t i = 0; i < REQUESTS_MAX; i++)
        out->active += requests[i].number != 0;
    pthread_mutex_unlock(&lock);
    out->last.tokens = out->last_tokens;
}

tr_status tr_client_open(tr_client **out, tr_cluster *cluster, void (*wake)(void *ctx),
                         void *wake_ctx, tr_error *err)
{
    (void)cluster;
    (void)err;
    the_client = (struct tr_client){.wake = wake, .wake_ctx = wake_ctx};
    *out = &the_client;
    return TR_OK;
}

static void fake_keep(const tr_request *r)
{
    state.submitted++;
    state.last = *r;
    assert(r->tokens_count <= sizeof(state.last_tokens) / sizeof(state.last_tokens[0]));
    memcpy(state.last_tokens, r->tokens, r->tokens_count * sizeof(*r->tokens));
}

tr_status tr_client_submit(tr_client *client, const tr_request *r, uint64_t *request, tr_error *err)
{
    pthread_mutex_lock(&lock);
    tr_status status = script.submit;
    uint32_t i = 0;
    while (i < REQUESTS_MAX && requests[i].number != 0)
        i++;
    if (status == TR_OK && i == REQUESTS_MAX)
        status = TR_E_AGAIN;
    if (status == TR_OK) {
        uint32_t repeats = script.repeats == 0 ? 1 : script.repeats;
        requests[i] = (fake_request){
            .number = ++last_number,
            .tokens_left = (uint64_t)script.tokens_count * repeats,
            .tokens_max = r->tokens_max,
            .prompt_tokens = r->tokens_count,
            .hold = script.hold,
        };
        *request = last_number;
        fake_keep(r);
    }
    pthread_mutex_unlock(&lock);
    if (status != TR_OK)
        return tr_fail(err, status, "the fake refuses: %s", tr_status_text(status));
    client->wake(client->wake_ctx);
    return TR_OK;
}

void tr_client_cancel(tr_client *client, uint64_t request)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        if (requests[i].number == request) {
            requests[i].canceled = true;
            state.canceled++;
        }
    }
    pthread_mutex_unlock(&lock);
    client->wake(client->wake_ctx);
}

/* The next event of a request, or false when it has none now. */
static bool fake_step(fake_request *r, tr_event *out)
{
    *out = (tr_event){.request = r->number};
    if (r->canceled) {
        out->kind = TR_EVENT_FINISHED;
        out->finish = TR_FINISH_CANCELED;
    } else if (r->tokens_left > 0 && r->given < r->tokens_max) {
        out->kind = TR_EVENT_TOKEN;
        out->token = script.tokens[r->next_token];
        out->logprob = -0.5f;
        out->top[0] = (tr_logprob){.token = out->token, .logprob = -0.5f};
        out->top[1] = (tr_logprob){.token = 65, .logprob = -1.5f};
        out->top_count = 2;
        r->next_token = (r->next_token + 1) % script.tokens_count;
        r->tokens_left--;
        r->given++;
        return true;
    } else if (r->hold) {
        return false;
    } else if (script.end == TR_EVENT_FAILED) {
        out->kind = TR_EVENT_FAILED;
        out->refused = script.refused;
        tr_fail(&out->error, script.failure, "the fake fails: %s", tr_status_text(script.failure));
    } else {
        out->kind = TR_EVENT_FINISHED;
        out->finish = r->tokens_left > 0 ? TR_FINISH_LENGTH : script.finish;
        out->prompt_tokens = r->prompt_tokens;
        out->generated_tokens = r->given;
    }
    r->number = 0;
    return true;
}

bool tr_client_next(tr_client *client, tr_event *out)
{
    (void)client;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < REQUESTS_MAX && !found; i++) {
        turn = (turn + 1) % REQUESTS_MAX;
        found = requests[turn].number != 0 && fake_step(&requests[turn], out);
    }
    state.events += found;
    pthread_mutex_unlock(&lock);
    return found;
}

void tr_cluster_stats(tr_cluster *cluster, tr_cluster_stat *out)
{
    (void)cluster;
    *out = (tr_cluster_stat){.sequences_active = 1, .sequences_max = 16, .generated_tokens = 12345};
}

/* A runtime with one port and no actors, opened once and never run. */
tr_runtime *tr_cluster_runtime(tr_cluster *cluster)
{
    static tr_runtime *runtime;
    (void)cluster;
    if (runtime == NULL) {
        tr_runtime_config config = {.node_name = "fake", .workers_count = 1};
        tr_status status = tr_runtime_open(&runtime, &config, NULL);
        assert(status == TR_OK);
        status = tr_runtime_add_port(runtime, tr_actor_id_make(TR_ACTOR_CLIENT, 0),
                                     "client/\"0\"@fake", 16, NULL, NULL, NULL);
        assert(status == TR_OK);
        (void)status;
    }
    return runtime;
}
