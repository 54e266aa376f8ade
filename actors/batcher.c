/* batcher.c - owns the requests: admits them, puts their rows into steps, ends them.
 *
 *   sequence   FREE --SUBMIT reaches the head of the queue, pages free--> RESERVING
 *              RESERVING --KV_RESERVED by all pools--> READY (or RELEASING when one refused)
 *              READY --step formed--> IN_STEP --TOKENS--> READY
 *              READY, IN_STEP --last token, cancel, failure--> RELEASING (the client is told)
 *              RELEASING --KV_RELEASED by all pools--> FREE
 *
 * A cancelled request that is in a step ends when the step does. Waiting requests are served first
 * come, first served; the queue is bounded and a full one refuses.
 *
 * With limits.prefix_cache, states at the ends of prompts are kept for later requests in slots of
 * their own: batcher_prefix.c.
 *
 * When a step does not end in time, all requests fail with the reason, and so do later ones. When a
 * node is lost, batcher_recover.c goes on without it, if it may and can.
 *
 * owns     waiting <= queue_max; free pages + pages that some slot holds == pages_max
 * sends    steps to the first span's routers, reservations to KV pools, events to clients */
#include "actors/batcher.h"
#include "core/trace.h"

#include <string.h>

#define SUSPENDED_MAX_NS                                                                           \
    10000000000u /* another node says that one is gone; so will our heartbeats, after peer_timeout \
                  */
#define ACCUSE_NS 1000000000 /* after peer_timeout: then our heartbeats see what it does not */
#define TICK_NS   1000000000
#define RETRY_NS  1000000 /* what found no buffer is tried again after this */

typedef enum { TIMER_TICK = 1, TIMER_RETRY = 2 } timer_cookie;

static void batcher_load(batcher_state *s, const tr_node_context *node, tr_arena *arena)
{
    uint32_t sequences = node->limits.sequences_max;

    s->sequences = tr_arena_take(arena, sequences * sizeof(*s->sequences));
    for (uint32_t i = 0; i < sequences; i++) {
        int32_t *tokens = tr_arena_take(arena, node->limits.context_max * sizeof(*tokens));
        if (s->sequences != NULL)
            s->sequences[i].tokens = tokens;
    }
    tr_page_book_load(&s->pages, node->pages_max, sequences,
                      node->pages_max > 0 ? batcher_pages_of(node, node->limits.context_max) : 0,
                      arena);
    s->steps = tr_arena_take(arena, node->steps_in_flight * sizeof(*s->steps));
    for (uint32_t i = 0; i < node->steps_in_flight; i++) {
        batcher_step step = {.sequences = tr_arena_take(arena, sequences * sizeof(uint32_t)),
                             .rows = tr_arena_take(arena, sequences * sizeof(uint32_t))};
        if (s->steps != NULL)
            s->steps[i] = step;
    }
}

void tr_batcher_count(const tr_node_context *node, tr_arena *counting, tr_budget *budget)
{
    batcher_state s = {0};
    uint64_t before = tr_arena_counted(counting);
    batcher_load(&s, node, counting);
    tr_budget_add(budget, "batcher (tokens of sequences)", "limits.sequences",
                  tr_arena_counted(counting) - before);
}

static tr_status batcher_init(void *state, const tr_env *env, const void *config, tr_error *err)
{
    batcher_state *s = state;
    const tr_actor_config *c = config;

    s->env = env;
    s->node = c->node;
    c->arena->err = err;
    batcher_load(s, c->node, c->arena);
    s->next_step = 1;
    s->pools = (1u << c->node->plan->nodes_count) - 1;
    if (c->arena->status != TR_OK)
        return c->arena->status;
    return env->timer(env->ctx, env->now_ns(env->ctx) + TICK_NS, TIMER_TICK);
}

static void batcher_publish(batcher_state *s)
{
    atomic_store_explicit(&s->node->counters->sequences_active, s->requests_count,
                          memory_order_relaxed);
    atomic_store_explicit(&s->node->counters->prefixes_kept, s->prefixes_count,
                          memory_order_relaxed);
    atomic_store_explicit(&s->node->counters->requests_waiting, s->queue_count,
                          memory_order_relaxed);
    atomic_store_explicit(&s->node->counters->pages_used, s->node->pages_max - s->pages.free_count,
                          memory_order_relaxed);
}

void batcher_release(batcher_state *s, batcher_sequence *q)
{
    uint32_t number = (uint32_t)(q - s->sequences);
    q->phase = SEQUENCE_RELEASING;
    q->asked_ns = s->env->now_ns(s->env->ctx);
    q->pools = q->leased;
    for (uint32_t n = 0; q->leased >> n != 0; n++)
        if ((q->leased & ~q->returning) >> n & 1)
            /* A dead node is reported by PEER_DOWN. */
            (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_KV_POOL, n), TR_MSG_KV_RELEASE,
                               0, number, NULL);
    batcher_forget_prefixes(s, q);
}

void batcher_finish(batcher_state *s, batcher_sequence *q, tr_finish_reason reason, int32_t token)
{
    q->replay = false;
    batcher_tell_finished(s, q, reason, token);
    batcher_release(s, q);
}

void batcher_fail(batcher_state *s, batcher_sequence *q, const tr_error *err)
{
    q->replay = false;
    batcher_tell_failed(s, q, err);
    batcher_release(s, q);
}

static tr_error batcher_error(tr_status code, const char *text)
{
    tr_error err;
    tr_fail(&err, code, "%s", text);
    return err;
}

/* -- requests come -- */

/* Checks a SUBMIT; NULL when it is good, else what is wrong. */
static const char *batcher_check_submit(const batcher_state *s, const tr_msg *msg,
                                        const tr_submit *submit)
{
    uint64_t size = sizeof(*submit) + (uint64_t)submit->tokens_count * sizeof(int32_t);
    if (msg->header.payload_size != size || submit->tokens_count == 0)
        return "the prompt is empty or cut";
    if ((uint64_t)submit->tokens_count + submit->tokens_max > s->node->limits.context_max)
        return "prompt and max_tokens exceed the context";
    if (submit->tokens_max == 0 && !submit->want_logits)
        return "max_tokens is 0";
    if (submit->stop_tokens_count > TR_STOP_TOKENS_MAX ||
        submit->top_logprobs > TR_TOP_LOGPROBS_MAX)
        return "too many stop tokens or logprobs";
    if (submit->prefill_rows % TR_CHUNK_ROWS != 0)
        return "prefill_rows is not a multiple of 64";
    const int32_t *tokens = (const void *)(msg->payload->data + sizeof(*submit));
    for (uint32_t i = 0; i < submit->tokens_count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->node->spec->vocab_size)
            return "a prompt token is outside the vocabulary";
    return NULL;
}

static void batcher_on_submit(batcher_state *s, const tr_msg *msg)
{
    if (msg->payload == NULL || msg->header.payload_size < sizeof(tr_submit))
        return; /* nobody to tell: the request has no number */
    tr_submit submit;
    memcpy(&submit, msg->payload->data, sizeof(submit));
    const char *wrong = batcher_check_submit(s, msg, &submit);
    tr_error err = {0};

    if (wrong != NULL)
        err = batcher_error(TR_E_INVALID, wrong);
    else if (s->lost.code != TR_OK)
        err = s->lost;
    else if (batcher_pages_of(s->node, (uint64_t)submit.tokens_count + submit.tokens_max) >
             s->node->pages_max)
        err = batcher_error(TR_E_NOMEM, "prompt and max_tokens exceed limits.cache_tokens");
    else if (s->queue_count == s->node->queue_max)
        err = batcher_error(TR_E_AGAIN, "too many requests are waiting");
    if (err.code != TR_OK) {
        batcher_tell_refused(s, msg->header.source, submit.request, msg->payload, &err);
        return;
    }
    uint32_t at = (s->queue_first + s->queue_count++) % BATCHER_QUEUE_MAX;
    s->queue[at] =
        (batcher_waiting){.client = msg->header.source, .submit = tr_buf_ref(msg->payload)};
}

static void batcher_leave_queue(batcher_state *s)
{
    tr_buf_unref(s->queue[s->queue_first].submit);
    s->queue_first = (s->queue_first + 1) % BATCHER_QUEUE_MAX;
    s->queue_count--;
}

/* Moves the head of the queue into a free slot. False when it has to wait. */
static bool batcher_admit_one(batcher_state *s)
{
    if (s->queue_count == 0 || s->lost.code != TR_OK ||
        s->requests_count == s->node->limits.sequences_max - s->node->prefixes_max)
        return false;
    batcher_waiting *w = &s->queue[s->queue_first];
    const tr_submit *submit = (const void *)w->submit->data;
    batcher_sequence *q = batcher_find_continued(s, submit);
    if (q != NULL) {
        batcher_continue(s, q, w);
        batcher_leave_queue(s);
        return true;
    }
    q = batcher_free_slot(s);
    if (q == NULL) {
        (void)batcher_make_room(s, ROOM_SLOT, NULL);
        return false;
    }
    uint64_t pages = batcher_pages_of(s->node, (uint64_t)submit->tokens_count + submit->tokens_max);
    if (pages > s->pages.free_count && s->prefixes_count == 0)
        return false;

    int32_t *tokens = q->tokens;
    *q = (batcher_sequence){.phase = SEQUENCE_FREE,
                            .request = submit->request,
                            .client = w->client,
                            .submit = *submit,
                            .tokens = tokens,
                            .tokens_count = submit->tokens_count,
                            .prompt_count = submit->tokens_count,
                            .generation = q->generation,
                            .begin_ns = s->env->now_ns(s->env->ctx)};
    memcpy(tokens, submit + 1, submit->tokens_count * sizeof(*tokens));
    if (!batcher_begin(s, q)) {
        q->request = 0;
        return false;
    }
    q->cached_count = q->computed_count;
    s->requests_count++;
    atomic_fetch_add_explicit(&s->node->counters->cached_tokens, q->cached_count,
                              memory_order_relaxed);
    batcher_leave_queue(s);
    return true;
}

/* The client wants no more of it. */
static void batcher_cancel(batcher_state *s, batcher_sequence *q)
{
    q->canceled = true;
    if (q->phase == SEQUENCE_READY && !s->paused) /* its state may be on its way */
        batcher_finish(s, q, TR_FINISH_CANCELED, -1);
}

/* Takes the waiting request at a place of the queue out of it. */
static void batcher_withdraw(batcher_state *s, uint32_t at)
{
    batcher_waiting *w = &s->queue[(s->queue_first + at) % BATCHER_QUEUE_MAX];
    batcher_tell_withdrawn(s, w);
    tr_buf_unref(w->submit);
    for (; at + 1 < s->queue_count; at++)
        s->queue[(s->queue_first + at) % BATCHER_QUEUE_MAX] =
            s->queue[(s->queue_first + at + 1) % BATCHER_QUEUE_MAX];
    s->queue_count--;
}

static void batcher_on_cancel(batcher_state *s, const tr_msg *msg)
{
    tr_cancel cancel;
    if (msg->payload == NULL || msg->header.payload_size != sizeof(cancel))
        return;
    memcpy(&cancel, msg->payload->data, sizeof(cancel));
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->request == cancel.request && q->client == msg->header.source)
            batcher_cancel(s, q);
    }
    for (uint32_t i = 0; i < s->queue_count; i++) {
        const batcher_waiting *w = &s->queue[(s->queue_first + i) % BATCHER_QUEUE_MAX];
        const tr_submit *submit = (const void *)w->submit->data;
        if (submit->request == cancel.request && w->client == msg->header.source)
            batcher_withdraw(s, i--);
    }
}

/* A node is gone, and its clients with it: nobody reads what they asked for. */
static void batcher_cancel_clients_of(batcher_state *s, uint32_t node)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->request != 0 && tr_client_node(q->client) == node)
            batcher_cancel(s, q);
    }
    for (uint32_t i = 0; i < s->queue_count; i++)
        if (tr_client_node(s->queue[(s->queue_first + i) % BATCHER_QUEUE_MAX].client) == node)
            batcher_withdraw(s, i--);
}

/* -- KV pools answer -- */

/* Notes one pool's answer; true when it was the last one. */
static bool batcher_pool_answered(batcher_state *s, const tr_msg *msg, sequence_phase phase,
                                  batcher_sequence **out)
{
    uint32_t node = tr_actor_id_number(msg->header.source);
    if (msg->header.argument >= s->node->limits.sequences_max || node >= TR_NODES_MAX)
        return false;
    batcher_sequence *q = &s->sequences[msg->header.argument];
    if (q->phase != phase || !(q->pools >> node & 1))
        return false;
    *out = q;
    q->pools &= ~(1u << node);
    return q->pools == 0;
}

/* All pools have answered. */
static void batcher_end_reserving(batcher_state *s, batcher_sequence *q)
{
    tr_error err = batcher_error(TR_E_NOMEM, "a KV pool refused the sequence");
    if (q->is_prefix && q->refused)
        batcher_drop_prefix(s, q);
    else if (q->is_prefix)
        q->phase = SEQUENCE_KEPT;
    else if (q->refused)
        batcher_fail(s, q, &err);
    else if (q->canceled)
        batcher_finish(s, q, TR_FINISH_CANCELED, -1);
    else if (q->replay) /* the prefix is lost with which it was to begin */
        batcher_release(s, q);
    else
        q->phase = SEQUENCE_READY;
}

static void batcher_on_reserved(batcher_state *s, const tr_msg *msg)
{
    tr_kv_reserved answer = {0};
    if (msg->payload != NULL && msg->header.payload_size == sizeof(answer))
        memcpy(&answer, msg->payload->data, sizeof(answer));
    batcher_sequence *q = NULL;
    if (batcher_welcome_answered(s, msg->header.argument, tr_actor_id_number(msg->header.source),
                                 answer.admitted))
        return;
    bool last = batcher_pool_answered(s, msg, SEQUENCE_RESERVING, &q);
    if (q == NULL)
        return;
    q->refused |= !answer.admitted;
    if (last)
        batcher_end_reserving(s, q);
}

void batcher_end_releasing(batcher_state *s, batcher_sequence *q)
{
    tr_page_book_give(&s->pages, (uint32_t)(q - s->sequences));
    if (q->replay)
        return; /* batcher_retry_replays goes on with it */
    *(q->is_prefix ? &s->prefixes_count : &s->requests_count) -= 1;
    q->phase = SEQUENCE_FREE;
    q->request = 0;
    q->is_prefix = false;
}

static void batcher_on_released(batcher_state *s, const tr_msg *msg)
{
    batcher_sequence *q = NULL;
    if (batcher_welcome_released(s, msg->header.argument, tr_actor_id_number(msg->header.source)))
        return;
    if (batcher_pool_answered(s, msg, SEQUENCE_RELEASING, &q))
        batcher_end_releasing(s, q);
}

/* -- steps end -- */

static bool is_stop_token(const batcher_sequence *q, int32_t token)
{
    for (uint32_t i = 0; i < q->submit.stop_tokens_count; i++)
        if (q->submit.stop_tokens[i] == token)
            return true;
    return false;
}

static void batcher_take_token(batcher_state *s, batcher_sequence *q, const tr_token *token)
{
    if (token->failed) {
        tr_error err;
        tr_fail(&err, TR_E_INVALID, "the model gave NaN or infinity at position %u",
                q->computed_count - 1);
        batcher_fail(s, q, &err);
    } else if (q->canceled) {
        batcher_finish(s, q, TR_FINISH_CANCELED, -1);
    } else if (token->token < 0) {
        if (q->submit.tokens_max == 0 && q->computed_count == q->prompt_count)
            batcher_finish(s, q, TR_FINISH_LENGTH, -1);
    } else if (is_stop_token(q, token->token)) {
        batcher_finish(s, q, TR_FINISH_STOP, token->token);
    } else {
        q->tokens[q->tokens_count++] = token->token;
        atomic_fetch_add_explicit(&s->node->counters->generated_tokens, 1, memory_order_relaxed);
        batcher_tell_token(s, q, token);
        if (q->tokens_count - q->prompt_count == q->submit.tokens_max)
            batcher_finish(s, q, TR_FINISH_LENGTH, -1);
    }
}

static batcher_step *batcher_find_step(batcher_state *s, uint64_t step)
{
    batcher_step *record = &s->steps[step % s->node->steps_in_flight];
    return step != 0 && record->step == step ? record : NULL;
}

static void batcher_note_duration(tr_node_counters *counters, uint64_t ns)
{
    uint64_t mean = atomic_load_explicit(&counters->step_ns_mean, memory_order_relaxed);
    mean = mean == 0 ? ns : mean - mean / 64 + ns / 64;
    atomic_store_explicit(&counters->step_ns_mean, mean, memory_order_relaxed);
}

static void batcher_on_tokens(batcher_state *s, const tr_msg *msg)
{
    uint32_t count = 0;
    const tr_token *tokens = tr_tokens_read(msg, s->node->limits.outputs_max, &count);
    batcher_step *record = batcher_find_step(s, msg->header.step);
    if (record == NULL || tokens == NULL)
        return; /* the step was given up */

    for (uint32_t i = 0; i < record->sequences_count; i++) {
        batcher_sequence *q = &s->sequences[record->sequences[i]];
        assert(q->phase == SEQUENCE_IN_STEP);
        if (q->computed_count < q->prompt_count)
            atomic_fetch_add_explicit(&s->node->counters->prompt_tokens, record->rows[i],
                                      memory_order_relaxed);
        if (q->exchanges)
            batcher_end_exchange(s, q);
        q->computed_count += record->rows[i];
        q->phase = SEQUENCE_READY;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i].sequence >= s->node->limits.sequences_max)
            continue;
        batcher_sequence *q = &s->sequences[tokens[i].sequence];
        if (q->request == tokens[i].request && q->phase == SEQUENCE_READY)
            batcher_take_token(s, q, &tokens[i]);
    }
    for (uint32_t i = 0; i < record->sequences_count; i++) { /* prompts without outputs yet */
        batcher_sequence *q = &s->sequences[record->sequences[i]];
        if (q->phase == SEQUENCE_READY && q->canceled)
            batcher_finish(s, q, TR_FINISH_CANCELED, -1);
    }
    atomic_fetch_add_explicit(&s->node->counters->steps, 1, memory_order_relaxed);
    batcher_note_duration(s->node->counters, s->env->now_ns(s->env->ctx) - record->begin_ns);
    tr_trace_span(TR_TRACE_STEP, (uint16_t)record->sequences_count, s->env->self, record->step,
                  record->begin_ns);
    record->step = 0;
    s->steps_count--;
}

/* Fails everything and refuses what comes later: state on other nodes cannot be trusted any more.
 */
static void batcher_give_up(batcher_state *s, const tr_error *why)
{
    if (s->lost.code != TR_OK)
        return;
    s->lost = *why;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->is_prefix && q->phase != SEQUENCE_RELEASING) {
            batcher_drop_prefix(s, q);
        } else if (q->phase == SEQUENCE_RELEASING && q->replay) { /* nobody has told its client */
            q->replay = false;
            batcher_tell_failed(s, q, why);
            if (q->pools == 0)
                batcher_end_releasing(s, q);
        } else if (q->phase != SEQUENCE_FREE && q->phase != SEQUENCE_RELEASING) {
            batcher_fail(s, q, why);
        }
    }
    for (; s->queue_count > 0; s->queue_count--) {
        batcher_waiting *w = &s->queue[s->queue_first];
        const tr_submit *submit = (const void *)w->submit->data;
        batcher_tell_refused(s, w->client, submit->request, w->submit, why);
        tr_buf_unref(w->submit);
        s->queue_first = (s->queue_first + 1) % BATCHER_QUEUE_MAX;
    }
    for (uint32_t i = 0; i < s->node->steps_in_flight; i++)
        s->steps[i].step = 0;
    s->steps_count = 0;
}

static const char *batcher_node_name(const batcher_state *s, uint32_t node)
{
    return node < s->node->placement->nodes_count ? s->node->placement->nodes[node].name : "?";
}

void batcher_drop_step(batcher_state *s, batcher_step *record)
{
    for (uint32_t n = 0; n < s->node->plan->nodes_count; n++)
        /* A dead one has nothing to drop, and one without layers neither. */
        (void)s->env->send(s->env->ctx, tr_node_actor(TR_ACTOR_ROUTER, n), TR_MSG_STEP_FAILED,
                           record->step, 0, NULL);
    record->step = 0;
    s->steps_count--;
}

static void batcher_on_step_failed(batcher_state *s, const tr_msg *msg)
{
    batcher_step *record = batcher_find_step(s, msg->header.step);
    if (record == NULL)
        return;
    tr_status why = (tr_status)(-(int32_t)msg->header.argument);
    tr_error err;
    if (why == TR_E_PEER && s->node->recovers) {
        /* Somebody noticed before us: what was in the step waits until we do. */
        if (!batcher_misses_node(s))
            s->suspended_ns = s->env->now_ns(s->env->ctx);
        s->suspended_by = tr_actor_id_number(msg->header.source);
        batcher_suspend(s);
        return;
    }
    if (why == TR_E_PEER) {
        /* Two nodes have lost each other, and we perhaps neither: no later step can end. */
        tr_fail(&err, TR_E_PEER, "node %s has lost another node",
                batcher_node_name(s, tr_actor_id_number(msg->header.source)));
        atomic_store_explicit(&s->node->counters->broken, true, memory_order_relaxed);
        batcher_give_up(s, &err);
        return;
    }
    tr_fail(&err, why == TR_OK ? TR_E_INVALID : why, "step %llu failed in %s: %s",
            (unsigned long long)record->step,
            tr_actor_kind_name(tr_actor_id_kind(msg->header.source)), tr_status_text(why));
    for (uint32_t i = 0; i < record->sequences_count; i++)
        batcher_fail(s, &s->sequences[record->sequences[i]], &err);
    batcher_drop_step(s, record);
}

/* -- trouble -- */

/* Nobody waits for the KV pool of a node that is gone. */
static void batcher_forget_pool(batcher_state *s, uint32_t node)
{
    s->pools &= ~(1u << node);
    batcher_forget_welcome(s, node);
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (!(q->pools >> node & 1))
            continue;
        q->pools &= ~(1u << node);
        if (q->pools == 0 && q->phase == SEQUENCE_RESERVING)
            batcher_end_reserving(s, q);
        else if (q->pools == 0 && q->phase == SEQUENCE_RELEASING)
            batcher_end_releasing(s, q);
    }
}

static void batcher_on_peer_down(batcher_state *s, const tr_msg *msg)
{
    tr_error err;
    s->dead_nodes |= 1u << msg->header.argument;
    batcher_forget_pool(s, msg->header.argument);
    batcher_cancel_clients_of(s, msg->header.argument);
    if (!tr_plan_uses(s->node->plan, msg->header.argument))
        return;
    if (s->node->recovers) {
        batcher_suspend(s);
        return;
    }
    tr_fail(&err, TR_E_PEER, "node %s is gone", batcher_node_name(s, msg->header.argument));
    batcher_give_up(s, &err);
}

/* An actor that failed stays down, so no later step could end. */
static void batcher_on_actor_failed(batcher_state *s, const tr_msg *msg)
{
    tr_error err;
    tr_fail(&err, TR_E_PEER, "actor %s %u failed",
            tr_actor_kind_name(tr_actor_id_kind(msg->header.source)),
            tr_actor_id_number(msg->header.source));
    atomic_store_explicit(&s->node->counters->broken, true, memory_order_relaxed);
    batcher_give_up(s, &err);
}

/* Two nodes have lost each other, and we neither: one of them has to go. */
static void batcher_check_suspension(batcher_state *s, uint64_t now)
{
    uint64_t timeout = (uint64_t)s->node->placement->limits.peer_timeout_ms * 1000000;
    tr_error err;

    if (s->suspended_ns == 0 || batcher_misses_node(s))
        return;
    if (now - s->suspended_ns > timeout + ACCUSE_NS)
        atomic_fetch_or_explicit(&s->node->counters->accused, 1u << s->suspended_by,
                                 memory_order_relaxed);
    if (now - s->suspended_ns <= timeout + SUSPENDED_MAX_NS)
        return;
    tr_fail(&err, TR_E_PEER, "node %s has lost another node",
            batcher_node_name(s, s->suspended_by));
    atomic_store_explicit(&s->node->counters->broken, true, memory_order_relaxed);
    batcher_give_up(s, &err);
}

static void batcher_on_tick(batcher_state *s)
{
    uint64_t now = s->env->now_ns(s->env->ctx);
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        const batcher_sequence *q = &s->sequences[i];
        bool awaits_pools =
            q->pools != 0 && (q->phase == SEQUENCE_RESERVING || q->phase == SEQUENCE_RELEASING);
        if (!awaits_pools || now - q->asked_ns < s->node->step_timeout_ns)
            continue;
        tr_error err = batcher_error(TR_E_TIMEOUT, "a KV pool does not answer");
        atomic_store_explicit(&s->node->counters->broken, true, memory_order_relaxed);
        batcher_give_up(s, &err);
    }
    batcher_check_suspension(s, now);
    for (uint32_t i = 0; i < s->node->steps_in_flight; i++) {
        const batcher_step *record = &s->steps[i];
        if (record->step == 0 || now - record->begin_ns < s->node->step_timeout_ns)
            continue;
        tr_error err;
        tr_fail(&err, TR_E_TIMEOUT, "step %llu has not ended after %llu s",
                (unsigned long long)record->step,
                (unsigned long long)((now - record->begin_ns) / 1000000000));
        atomic_store_explicit(&s->node->counters->broken, true, memory_order_relaxed);
        batcher_give_up(s, &err);
    }
    (void)s->env->timer(s->env->ctx, now + TICK_NS, TIMER_TICK);
}

static bool batcher_has_events(const batcher_state *s)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        if (s->sequences[i].events_count > 0)
            return true;
    return false;
}

/* What found no buffer is tried again soon: nothing else may come that would. */
static void batcher_ask_retry(batcher_state *s)
{
    if (s->retry_asked || !(s->starved || batcher_has_events(s)))
        return;
    s->retry_asked =
        s->env->timer(s->env->ctx, s->env->now_ns(s->env->ctx) + RETRY_NS, TIMER_RETRY) == TR_OK;
}

static void batcher_on_retry(batcher_state *s)
{
    s->retry_asked = false;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        (void)batcher_flush_events(s, &s->sequences[i]); /* what is left asks for another try */
}

/* -- the placement changes -- */

/* Computed positions whose state the sequence's own lease holds. */
static uint32_t batcher_position(const batcher_sequence *q)
{
    bool has_state = q->phase != SEQUENCE_FREE && q->phase != SEQUENCE_RELEASING &&
                     (q->is_prefix ? q->saved : q->source == 0);
    return has_state ? q->computed_count : 0;
}

static void batcher_tell_places(const batcher_state *s, tr_sequence_place *places)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        places[i] = (tr_sequence_place){.position = batcher_position(&s->sequences[i]),
                                        .generation = s->sequences[i].generation};
}

/* Answers a PAUSE once the last step has ended and every node has memory for what may come. */
static void batcher_answer_pause(batcher_state *s)
{
    if (s->pause.done == NULL || s->steps_count > 0 || !batcher_welcome_done(s))
        return;
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++)
        s->pause.positions[i] = batcher_position(&s->sequences[i]);
    batcher_begin_gaps(s);
    tr_switch_done(&s->pause);
    s->pause.done = NULL;
}

/* What was cancelled during a pause. */
static void batcher_end_canceled(batcher_state *s)
{
    for (uint32_t i = 0; i < s->node->limits.sequences_max; i++) {
        batcher_sequence *q = &s->sequences[i];
        if (q->phase == SEQUENCE_READY && q->canceled)
            batcher_finish(s, q, TR_FINISH_CANCELED, -1);
    }
}

static void batcher_on_switch(batcher_state *s, const tr_msg *msg)
{
    const tr_switch *what = tr_switch_read(msg);
    if (what == NULL)
        return;
    if (what->what == TR_SWITCH_PAUSE) {
        s->paused = true;
        s->pause = *what;
        return; /* answered after this message, or when the last step has ended */
    }
    if (what->what == TR_SWITCH_ADOPT) {
        batcher_adopt(s, what);
        return; /* answered when the pools have */
    }
    if (what->what == TR_SWITCH_DESCRIBE)
        batcher_describe(s, what);
    if (what->what == TR_SWITCH_SETTLE || what->what == TR_SWITCH_DROP)
        batcher_settle(s, what->what == TR_SWITCH_SETTLE);
    if (what->what == TR_SWITCH_RESUME) {
        s->paused = batcher_misses_node(s); /* then the next change resumes */
        if (s->pause.done != NULL)          /* nobody waits for it any more, but it is counted */
            tr_switch_done(&s->pause);
        s->pause.done = NULL;
        s->suspended_ns = 0;
        batcher_replay(s);
        batcher_end_canceled(s);
    }
    if (what->what == TR_SWITCH_GO_OVER) {
        batcher_note_lost_state(s);
        s->node = what->node;
    }
    if (what->what == TR_SWITCH_PLACES)
        batcher_tell_places(s, what->places);
    if (what->what == TR_SWITCH_GIVE_UP)
        batcher_give_up(s, what->error);
    if (what->what == TR_SWITCH_SERVE) { /* nothing is left of what was given up */
        s->lost = (tr_error){0};
        s->suspended_ns = 0;
        s->paused = batcher_misses_node(s);
    }
    tr_switch_done(what);
}

static tr_status batcher_receive(void *state, const tr_msg *msg)
{
    batcher_state *s = state;
    s->starved = false;

    switch ((int)msg->header.kind) {
    case TR_MSG_SUBMIT:
        batcher_on_submit(s, msg);
        break;
    case TR_MSG_CANCEL:
        batcher_on_cancel(s, msg);
        break;
    case TR_MSG_KV_RESERVED:
        batcher_on_reserved(s, msg);
        break;
    case TR_MSG_KV_RELEASED:
        batcher_on_released(s, msg);
        break;
    case TR_MSG_TOKENS:
        batcher_on_tokens(s, msg);
        break;
    case TR_MSG_STEP_FAILED:
        batcher_on_step_failed(s, msg);
        break;
    case TR_MSG_PEER_DOWN:
        batcher_on_peer_down(s, msg);
        break;
    case TR_MSG_PEER_UP:
        batcher_on_peer_up(s, msg->header.argument);
        break;
    case TR_MSG_ACTOR_FAILED:
        batcher_on_actor_failed(s, msg);
        break;
    case TR_MSG_SWITCH:
        batcher_on_switch(s, msg);
        break;
    case TR_MSG_TIMER:
        if (msg->header.argument == TIMER_TICK)
            batcher_on_tick(s);
        else
            batcher_on_retry(s);
        break;
    }
    batcher_ask_welcome(s);
    if (batcher_retry_replays(s)) /* they were admitted before */
        while (batcher_admit_one(s))
            ;
    batcher_keep_prefixes(s);
    batcher_tell_untold(s);
    batcher_form_steps(s);
    batcher_answer_pause(s);
    batcher_answer_adopt(s);
    batcher_ask_retry(s);
    batcher_publish(s);
    return TR_OK;
}

static void batcher_teardown(void *state)
{
    batcher_state *s = state;
    for (; s->queue_count > 0; s->queue_count--) {
        tr_buf_unref(s->queue[s->queue_first].submit);
        s->queue_first = (s->queue_first + 1) % BATCHER_QUEUE_MAX;
    }
}

const tr_actor_ops tr_batcher_ops = {
    .kind = "batcher",
    .state_size = sizeof(batcher_state),
    .mailbox_slots = 4096,
    .outbox_slots = 4096,
    .init = batcher_init,
    .receive = batcher_receive,
    .teardown = batcher_teardown,
};
