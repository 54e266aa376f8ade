/* sim_clients.c - the requests of a simulation: who asks, what comes back, and whether it is right.
 */
#include "tests/sim/sim_inside.h"

#include <string.h>

#define LATE_TOKENS 2 /* that may come after a cancel: one was on its way, one in the making */

static sim_request *sim_find_request(simulation *s, uint32_t node, uint64_t number)
{
    for (uint32_t i = 0; i < s->requests_count; i++)
        if (s->requests[i].node == node && s->requests[i].number == number &&
            s->requests[i].life == s->world.nodes[node].life)
            return &s->requests[i];
    return NULL;
}

/* Whether the loss of a node may cost a request: where the batcher is gone, or the client itself,
 * or the others have no room for what was lost, or rows of logits went with it. */
static bool sim_loss_costs(const simulation *s, const sim_request *q)
{
    int32_t prompt[TINY_CONTEXT];
    tr_request request;
    sim_request_make(q->stock, &request, prompt);
    return s->world.lost && (!sim_is_in(s, q->node) || s->story.scarce || request.want_logits);
}

/* What a request may fail of. */
static bool sim_has_reason(const simulation *s, const sim_request *q, tr_status why)
{
    return (why == TR_E_PEER && sim_loss_costs(s, q)) ||
           (why == TR_E_NOMEM && sim_shim.refused > 0);
}

static void sim_on_end(simulation *s, sim_request *q, const tr_event *e)
{
    uint32_t i = (uint32_t)(q - s->requests);
    tr_error err = {0};
    const sim_answer *right = sim_right_answer(s->options->model, q->stock, &err);

    q->phase = REQUEST_ENDED;
    s->open_count--;
    s->out->finished += e->kind == TR_EVENT_FINISHED && e->finish != TR_FINISH_CANCELED;
    if (e->kind == TR_EVENT_FAILED)
        sim_say(s, "submission %u failed: %s", i, e->error.text);
    else
        sim_say(s, "submission %u ended (%d) after %u tokens", i, (int)e->finish,
                q->answer.tokens_count);
    if (right == NULL) {
        sim_fail(s, "request %u of the stock has no answer: %s", q->stock, err.text);
        return;
    }
    const char *wrong = sim_answer_check(&q->answer, right);
    if (wrong != NULL)
        sim_fail(s, "submission %u (request %u of the stock): %s", i, q->stock, wrong);
    else if (e->kind == TR_EVENT_FAILED && !sim_has_reason(s, q, e->error.code))
        sim_fail(s, "submission %u failed without a reason: %s", i, e->error.text);
    else if (e->kind == TR_EVENT_FINISHED && e->finish == TR_FINISH_CANCELED && !q->canceled)
        sim_fail(s, "submission %u ended as cancelled, and nobody cancelled it", i);
}

static void sim_on_event(simulation *s, uint32_t node, const tr_event *e)
{
    sim_request *q = sim_find_request(s, node, e->request);
    const uint64_t words[] = {e->kind, e->request, (uint64_t)(int64_t)e->token, node};
    sim_shim_note(words, sizeof(words));
    if (q == NULL) {
        sim_fail(s, "n%u hears of request %llu, which it never made", node,
                 (unsigned long long)e->request);
        return;
    }
    uint32_t i = (uint32_t)(q - s->requests);
    if (q->phase == REQUEST_ENDED) {
        sim_fail(s, "submission %u has ended and still gets an event of kind %d", i, (int)e->kind);
        return;
    }
    const char *wrong = sim_answer_add(&q->answer, e);
    if (wrong != NULL) {
        sim_fail(s, "submission %u: %s", i, wrong);
        return;
    }
    if (e->kind == TR_EVENT_FINISHED || e->kind == TR_EVENT_FAILED)
        sim_on_end(s, q, e);
    /* A cancel from another node is on its way for a time that depends on the network. */
    q->tokens_after_cancel += q->canceled && e->kind == TR_EVENT_TOKEN;
    if (q->tokens_after_cancel > LATE_TOKENS && node == s->world.placement.batcher_node)
        sim_fail(s, "submission %u was cancelled and goes on", i);
}

void sim_hear(simulation *s, uint32_t node)
{
    tr_event e;
    tr_client *client = s->world.nodes[node].client;
    while (client != NULL && !s->out->failed && tr_client_next(client, &e))
        sim_on_event(s, node, &e);
}

void sim_submit(simulation *s, const story_event *e)
{
    int32_t prompt[TINY_CONTEXT];
    tr_request request;
    tr_error err = {0};
    tr_client *client = s->world.nodes[e->b].client;

    if (client == NULL || s->requests_count == REQUESTS_MAX)
        return;
    sim_request *q = &s->requests[s->requests_count];
    *q = (sim_request){.stock = e->a,
                       .node = e->b,
                       .life = s->world.nodes[e->b].life,
                       .submitted_ns = world_now_ns(&s->world)};
    sim_request_make(e->a, &request, prompt);
    request.prefill_rows = (uint32_t)e->value;
    tr_status status = tr_client_submit(client, &request, &q->number, &err);
    s->requests_count++;
    s->out->requests++;
    if (status == TR_OK) {
        s->open_count++;
        return;
    }
    q->phase = REQUEST_ENDED;
    if (!sim_has_reason(s, q, status))
        sim_fail(s, "submission %u is refused without a reason: %s", s->requests_count - 1,
                 err.text);
}

void sim_cancel(simulation *s, uint32_t submission)
{
    if (submission >= s->requests_count || s->requests[submission].phase != REQUEST_OPEN)
        return;
    sim_request *q = &s->requests[submission];
    q->canceled = true;
    tr_client_cancel(s->world.nodes[q->node].client, q->number);
}

void sim_lose_node(simulation *s, const story_event *e)
{
    if (s->world.nodes[e->a].cluster == NULL)
        return;
    for (uint32_t i = 0; i < s->requests_count; i++) {
        sim_request *q = &s->requests[i];
        if (q->node != e->a || q->phase != REQUEST_OPEN)
            continue;
        q->phase = REQUEST_ORPHANED;
        s->open_count--;
    }
    sim_expect_trouble(s, world_now_ns(&s->world) + NOTICE_NS);
    if (e->kind != STORY_LEAVE)
        world_crash(&s->world, e->a);
    else
        world_leave(&s->world, e->a);
}
